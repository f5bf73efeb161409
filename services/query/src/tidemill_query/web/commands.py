"""Operations on resources: apply, get, describe, delete; and pushes of rows."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import Meta

from tidemill.arrangement.json_cells import json_column, json_field
from tidemill.arrangement.looks import let_go, look, with_looks
from tidemill.catalog.table_rows import refuse_many_values
from tidemill.errors import UsageError
from tidemill.rpc.admission import throttle_rows_of_call
from tidemill.rpc.identity import caller
from tidemill.rpc.messages import Applied, Decision, ResourceDocument, ResourceStatus
from tidemill.rpc.paging import Page, list_page, page_of
from tidemill.rpc.turns import beside
from tidemill.runtime.http_guard import DOCUMENTS, ROWS
from tidemill.runtime.http_messages import HttpReply, HttpRequest
from tidemill.runtime.problems import no_text, refuse
from tidemill_query.pushing import rows_of
from tidemill_query.web.door import Asked, Handlers, Operation
from tidemill_query.web.forms import JSON
from tidemill_query.web.objects import decode_objects
from tidemill_query.web.reading import (
    Instant,
    Limit,
    Name,
    Nothing,
    frontier_of,
    said,
    with_next,
)

OBJECTS = frozenset({"application/json", "application/x-ndjson", "application/jsonl"})
"""Content types of rows that are objects of JSON."""

SERVICE = "/tidemill.catalog.v1.CatalogService/"
TOKEN_HEADER = "idempotency-key"
"""The header with the token of a push that may be repeated."""


class Selection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Resources of a kind, of a name, or all of them; their documents may be left out.

    As of an instant of the timeline of the system they are those that were there then. With a limit
    they are those of a page, behind the resource `after`, which is written as KIND/NAME.
    """

    kind: Name | None = None
    name: Name | None = None
    documents: bool = True
    as_of: Instant | None = None
    limit: Limit | None = None
    after: Name | None = None


class OfResource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A resource by its kind and name."""

    kind: Name
    name: Name


class OfDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A resource by its kind and name, as of an instant of the timeline of the system, or now."""

    kind: Name
    name: Name
    as_of: Instant | None = None


class OfSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A source by its name."""

    name: Name


class AppliedResource(msgspec.Struct, frozen=True):
    """A resource and what became of it: created, configured or unchanged."""

    kind: str
    name: str
    outcome: str


class Resource(msgspec.Struct, frozen=True):
    """A resource and how it does; frontiers and times are null where they have no meaning."""

    kind: str
    name: str
    ready: bool
    reason: str
    message: str
    since: list[int] | None
    upper: list[int] | None
    lag_ms: int | None
    age_ms: int | None
    document: str
    details: dict[str, Any]
    records_per_s: float | None
    records_behind: int | None
    left_ms: int | None


class OfVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A view, and the number of its version that waits; without it whichever waits."""

    name: Name
    version: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)] | None = None


class Decided(msgspec.Struct, frozen=True):
    """The number of the version."""

    version: int


class OfTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table by its name."""

    name: Name


class Written(msgspec.Struct, frozen=True):
    """So many rows are in the table, all at one time."""

    time: int
    rows: int


class Accepted(msgspec.Struct, frozen=True):
    """So many rows are in the log."""

    accepted: int


async def apply_documents(on: Handlers, asked: Asked) -> HttpReply:
    """Apply the YAML documents of the body: all of them, or none if one is refused.

    A refusal says the places of mistakes, by line and column of `body`.
    """
    return _applied(await on.catalog.apply([_document(asked)]))


async def check_documents(on: Handlers, asked: Asked) -> HttpReply:
    """Say how applying the documents of the body would end, without doing it.

    A refusal is that of `POST /v1/apply`.
    """
    return _applied(await on.check([_document(asked)], caller.get()))


def _document(asked: Asked) -> ResourceDocument:
    try:
        return ResourceDocument(asked.request.body.decode(), "body")
    except UnicodeDecodeError as error:
        raise refuse([no_text("body", error)], "text") from None


def _applied(applied: Sequence[Applied]) -> HttpReply:
    return said([AppliedResource(each.kind, each.name, each.outcome.value) for each in applied])


async def get_resources(on: Handlers, asked: Asked) -> HttpReply:
    """The resources that the caller may read, by kind and name.

    Without `documents` each has an empty `document`, and the answer is short. Frontiers are those
    of half a second ago at most; one resource alone is looked at anew.

    With `as_of` the answer has the resources that were there at that instant, with their
    definitions. Their `reason` is `AsOf`, and frontiers are null. An instant that the setting
    `catalog.keep_s` has let go is refused.

    With `limit` the answer is a page, in the order of kind and name, and no other resource is
    looked at. The header `Link` has the address of the next page, as long as one follows.
    """
    of: Selection = asked.of
    at = on.at(of.as_of)

    def ask(page: Page | None) -> Awaitable[Sequence[ResourceStatus]]:
        return on.catalog.get(of.kind, of.name, of.documents, at, page)

    found = await list_page(ask, page_of(of.limit, of.after), lambda each: each.key)
    return with_next(said([_resource(each) for each in found]), asked, found.next)


async def describe_resource(on: Handlers, asked: Asked) -> HttpReply:
    """One resource with its document and details.

    With `as_of` its definition at that instant, as `GET /v1/resources` tells it.
    """
    of: OfDefinition = asked.of
    return said(_resource(await on.catalog.describe(of.kind, of.name, on.at(of.as_of))))


async def delete_resource(on: Handlers, asked: Asked) -> HttpReply:
    """Delete one resource; refused while another one reads what it makes."""
    await on.catalog.delete(asked.of.kind, asked.of.name)
    return HttpReply(204, content_type=JSON)


async def approve_version(on: Handlers, asked: Asked) -> HttpReply:
    """Approve the waiting version of a view (`takeover: manual`), which takes over then."""
    return await _decide(on, asked.of, Decision.APPROVE)


async def abort_version(on: Handlers, asked: Asked) -> HttpReply:
    """Give up the waiting version of a view; the version that is read goes on."""
    return await _decide(on, asked.of, Decision.ABORT)


async def _decide(on: Handlers, of: OfVersion, decision: Decision) -> HttpReply:
    return said(Decided(await on.catalog.decide(of.name, decision, of.version)))


async def push_rows(on: Handlers, asked: Asked) -> HttpReply:
    """Write the rows of the body, one a line, to the log of the source `name`.

    The answer comes once they are in the log. With a header `Idempotency-Key` a repeated push
    writes each row once. The caller's right to write is judged before the body is read.
    """
    token = _token(asked.request)
    rows = await rows_of(asked.request.body, on.push_rows)
    await throttle_rows_of_call(len(rows))
    pushed = await on.catalog.push(asked.of.name, rows, token)
    return said(Accepted(pushed.accepted))


async def insert_rows(on: Handlers, asked: Asked) -> HttpReply:
    """Write the rows of the body to the table `name`, all at one time.

    A row is a JSON object; the body has one a line, or is an array of them. A `_diff` of -1 removes
    a row that is there. With a header `Idempotency-Key` a repeated call writes nothing.
    """
    token, body = _token(asked.request), asked.request.body
    table = await beside(len(body), lambda: table_of_json(body, on.push_rows, asked.of.name))
    await throttle_rows_of_call(table.num_rows)
    inserted = await on.catalog.insert(asked.of.name, table, token)
    return said(Written(inserted.time, inserted.rows))


def table_of_json(body: bytes, rows_max: int, table: str) -> pa.Table:
    """The objects of a body as columns, of the types that their values have.

    Raises: UsageError with the line, or the column, that fits nothing, and for too many values. A
    row has one for each column that any row has.
    """
    rows: list[dict[str, Any]] = []
    try:
        decode_objects(body, rows_max, rows)
        return _columns_of(rows, table)
    finally:
        let_go(rows)


def _columns_of(rows: Sequence[Mapping[str, Any]], table: str) -> pa.Table:
    names = dict.fromkeys(name for row in with_looks(rows) for name in row)
    if rows and not names:
        says = "rows refused: they name no column: write each as its columns and their values"
        raise UsageError(says, reason="rows")
    refuse_many_values(len(rows), len(names), table)
    columns, fields = [], []
    for name in names:
        look()
        values = [row.get(name) for row in rows]
        try:
            columns.append(json_column(values))
        except (pa.ArrowException, OverflowError, UnicodeError) as error:
            says = f"rows refused: the values of {name} have no common type: {error}"
            raise UsageError(says, reason="rows") from None
        fields.append(json_field(name, values, columns[-1]))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _resource(status: ResourceStatus) -> Resource:
    return Resource(
        status.kind, status.name, status.ready, status.reason, status.message,
        None if status.since is None else frontier_of(status.since),
        None if status.upper is None else frontier_of(status.upper),
        status.lag_ms, status.age_ms, status.document_yaml, dict(status.details),
        status.records_per_s, status.records_behind, status.left_ms,
    )  # fmt: skip


def _token(request: HttpRequest) -> str | None:
    """The token of a push. Raises: UsageError for one that is no text of ASCII."""
    found = request.sent.get(TOKEN_HEADER)
    if found is not None and not found.isascii():
        raise UsageError(
            f"push refused: the header {TOKEN_HEADER} is no text of ASCII", reason="Header"
        )
    return found


COMMANDS = (
    Operation("POST", "/v1/apply", SERVICE + "Apply", Nothing, apply_documents,
              {JSON: list[AppliedResource]}, dict.fromkeys(sorted(DOCUMENTS)), writes=True),
    Operation("POST", "/v1/check", SERVICE + "Apply", Nothing, check_documents,
              {JSON: list[AppliedResource]}, dict.fromkeys(sorted(DOCUMENTS))),
    Operation("GET", "/v1/resources", SERVICE + "Get", Selection, get_resources,
              {JSON: list[Resource]}),
    Operation("GET", "/v1/resources/{kind}/{name}", SERVICE + "Describe", OfDefinition,
              describe_resource, {JSON: Resource}),
    Operation("DELETE", "/v1/resources/{kind}/{name}", SERVICE + "Delete", OfResource,
              delete_resource, {JSON: None}, writes=True),
    Operation("POST", "/v1/views/{name}/approve", SERVICE + "Decide", OfVersion, approve_version,
              {JSON: Decided}, writes=True),
    Operation("POST", "/v1/views/{name}/abort", SERVICE + "Decide", OfVersion, abort_version,
              {JSON: Decided}, writes=True),
    Operation("POST", "/v1/tables/{name}/rows", SERVICE + "Insert", OfTable, insert_rows,
              {JSON: Written}, dict.fromkeys(sorted(OBJECTS)), writes=True),
    Operation("POST", "/v1/sources/{name}/rows", SERVICE + "Push", OfSource, push_rows,
              {JSON: Accepted}, dict.fromkeys(sorted(ROWS)), writes=True),
)  # fmt: skip
