"""Operations that read: contents of collections, matches of goals, reasons, plans."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Meta

from tidemill.errors import UnknownCollection, UsageError
from tidemill.rpc import messages
from tidemill.rpc.messages import Comparison, Condition, Explanation, Json
from tidemill.rpc.paging import list_page, page_of
from tidemill.rpc.turns import beside
from tidemill.rpc.validation import NAME_CHARS_MAX, RECORD_CHARS_MAX, TEXT_CHARS_MAX
from tidemill.runtime.http_messages import HttpReply
from tidemill.time import Frontier, is_fixed, unit_doubt
from tidemill_query.web.door import Asked, Handlers, Operation
from tidemill_query.web.forms import ARROW, CSV, JSON, NDJSON, WEIGHT, body, json_of

SERVICE = "/tidemill.query.v1.QueryService/"
FOR_EVER = "max-age=31536000, immutable"
ADDRESS_CHARS_MAX = 2_000
"""Characters of an address that a header tells; some clients refuse a line of 8 KB."""

Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
Text = Annotated[str, Meta(min_length=1, max_length=TEXT_CHARS_MAX)]
Instant = (
    Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    | Annotated[
        str,
        Meta(
            min_length=1,
            max_length=64,
            # Told, and judged by `read_at`, whose refusal says what to write.
            extra_json_schema={
                "pattern": r"^(latest|now(-[0-9a-z]+)?|[0-9]+|[0-9]{4}-[0-9]{2}-[0-9]{2}.*)$"
            },
            description="Milliseconds of the timeline, ISO 8601 (UTC), `latest` (the last definite "
            "instant), `now` of the server's clock, or a duration before it such as `now-5m`.",
            examples=["latest", "now-5m", "2013-02-01T06:00:00Z"],
        ),
    ]
)
"""An instant as people write it, which `read_at` reads."""
Wait = Annotated[float, Meta(ge=0, le=570)]
"""Seconds that the server may wait for the instant to become definite; by default not at all."""
Limit = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
"""Entries of a page of a list."""
Identity = Annotated[str, Meta(min_length=1, max_length=64, examples=["5f0c8f4c1d2e3a4b5c6d7e8f"])]
"""The identity of a collection, as the header `Content-Location` of an answer tells it."""


class Contents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A collection as of an instant, by default the latest definite one; rows that meet `where`."""

    name: Name
    as_of: Instant | None = None
    wait_s: Wait | None = None
    id: Identity | None = None
    where: Annotated[list[Text], Meta(max_length=100)] = []


class Goal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A goal such as `late(p, 45)`, as of an instant."""

    goal: Text
    as_of: Instant | None = None
    wait_s: Wait | None = None
    id: Identity | None = None


class Rows(msgspec.Struct, frozen=True):
    """Rows with their columns and `_diff`, the multiplicity, exact at `as_of`."""

    collection: str
    as_of: int
    rows: list[dict[str, Any]]


class OfRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record such as `late("N2", 45)`, as of an instant."""

    record: Text
    as_of: Instant | None = None


class Asking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record of any length, as of an instant."""

    record: Annotated[str, Meta(min_length=1, max_length=RECORD_CHARS_MAX)]
    as_of: Instant | None = None


class Reasons(msgspec.Struct, frozen=True):
    """Reasons as a person reads them, and as a tree of nodes with `fact`, `rule`, `children`."""

    text: str
    tree: Any


class OfView(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A view, and the form of its plan: plan, analyze, json, analyze-json, dot or svg."""

    name: Name
    form: Name = "plan"


class Plan(msgspec.Struct, frozen=True):
    """The plan of a view in the form that was asked for."""

    text: str


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No argument."""


class Holder(msgspec.Struct, frozen=True):
    """Holder of a frontier, and the end of its lease in milliseconds; none never ends."""

    owner: str
    frontier: list[int]
    lease_end_ms: int | None


class Column(msgspec.Struct, frozen=True):
    """A data column with its Arrow type."""

    name: str
    type: str
    nullable: bool


class Collection(msgspec.Struct, frozen=True):
    """A collection with its frontiers; an empty frontier has no time."""

    id: str
    kind: str
    timeline: str
    since: list[int]
    upper: list[int]
    lag_ms: int | None
    updates: int
    batches: int
    bytes: int
    columns: list[Column]
    holders: list[Holder]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All collections; with a limit those of a page, behind the name `after`."""

    limit: Limit | None = None
    after: Name | None = None


class OfCollection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A collection by its name."""

    name: Name


class Look(msgspec.Struct, frozen=True):
    """Frontiers at a moment of the wall clock; null is the empty frontier."""

    at_ms: int
    since: int | None
    upper: int | None


def frontier_of(held: Frontier) -> list[int]:
    """The times of a frontier, as JSON has them."""
    return [int(time) for time in held.elements]


_CONDITION = re.compile(r"(?s)(.+?)(==|!=|<=|>=|<|>)(.*)")


def conditions_of(where: list[str]) -> list[Condition]:
    """Conditions such as `delay>=30`, `plane=="N2"` or `gate==null`; the value of a column without
    quotes is text of its type. Raises: UsageError.
    """
    found = []
    for each in where:
        matched = _CONDITION.fullmatch(each)
        if matched is None:
            raise UsageError(
                f"filter refused: {each!r} is no condition: write a column, one of == != < <= > >=, "
                "and a value",
                reason="Condition",
            )
        column, comparison, value = matched.groups()
        found.append(Condition(column.strip(), Comparison(comparison), _value(value.strip())))
    return found


def _value(text: str) -> Json:
    if text in ("null", "true", "false"):
        return {"null": None, "true": True, "false": False}[text]
    if not text.startswith('"'):
        return text
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.DecodeError:
        raise UsageError(f"filter refused: {text} is no text of JSON", reason="Value") from None


async def _rows(
    on: Handlers,
    asked: Asked,
    goal: str,
    at: int | None,
    read: Callable[[], Awaitable[messages.Answer]],
) -> HttpReply:
    """The answer to a goal in the form that was asked for; nothing is read if the caller has it.

    A name means another collection once its resource is made anew, so its answer is asked about
    each time. Only that of an identity as of a stated instant is kept. Raises: UnknownCollection
    if the name has another identity than the one that is asked for.
    """
    has = asked.request.sent.get("if-none-match", "")
    if has or asked.of.id is not None:
        identity = await on.identity(await on.identify(goal))
        _refuse_another(asked, goal, identity)
        if at is not None and (tag := _tag(asked, identity, at)) in has:
            return HttpReply(304, headers=_kept(on, asked, goal, identity, at, tag))
    found = await read()
    identity = await on.identity(found.collection)
    _refuse_another(asked, goal, identity)  # it may have been made anew meanwhile
    tag = _tag(asked, identity, found.as_of)
    doubt = unit_doubt(found.as_of, found.since, found.upper)
    headers = {
        **({"Tidemill-Note": doubt} if doubt else {}),
        "Tidemill-As-Of": str(found.as_of),
        "Tidemill-Since": ",".join(map(str, frontier_of(found.since))),
        "Tidemill-Upper": ",".join(map(str, frontier_of(found.upper))),
        **_kept(on, asked, goal, identity, found.as_of, tag),
    }
    if tag in has:
        return HttpReply(304, headers=headers)
    head: dict[str, object] = {"collection": found.collection, "as_of": found.as_of}
    return HttpReply(200, await body(asked.form, head, found.table), asked.form, headers)


def _refuse_another(asked: Asked, goal: str, identity: str) -> None:
    if asked.of.id not in (None, identity):
        name = goal.partition("(")[0].strip()
        raise UnknownCollection(
            f"{name[:100]} is another collection than {asked.of.id} by now, or has other columns; "
            "leave id out to read it",
            name=name[:100],
        )


def _tag(asked: Asked, identity: str, at: int) -> str:
    told = json_of([identity, at, asked.form, asked.request.path,
                    sorted((n, list(v)) for n, v in asked.request.query.items())])  # fmt: skip
    return f'W/"{blake2b(told, digest_size=12).hexdigest()}"'


def _kept(
    on: Handlers, asked: Asked, goal: str, identity: str, at: int, tag: str
) -> dict[str, str]:
    """Headers for caches, with the address at which this answer never changes."""
    fixed = asked.of.id is not None and is_fixed(asked.of.as_of)
    how = FOR_EVER if fixed else "no-cache"
    if fixed or not on.public:
        how = f"{'public' if on.public else 'private'}, {how}"
    headers = {
        "ETag": tag,
        "Vary": "Accept, Authorization",
        "Cache-Control": how,
    }
    query = [("as_of", str(at)), ("id", identity)]
    if isinstance(asked.of, Contents):
        path = f"/v1/collections/{quote(goal)}"
        query += [("where", each) for each in asked.of.where]
    else:
        path = "/v1/ask"
        query.insert(0, ("goal", goal))
    address = f"{path}?{urlencode(query)}"
    return (
        {**headers, "Content-Location": address} if len(address) <= ADDRESS_CHARS_MAX else headers
    )


async def get_contents(on: Handlers, asked: Asked) -> HttpReply:
    """The rows of a collection as of an instant: JSON, NDJSON, CSV or Arrow by `Accept`.

    Each `where` is a condition that all rows meet, such as `delay>=30`, `plane=="N2"`,
    `gate==null`. Values are written as in pushed rows; JSON has no order. The instant and the
    frontiers are in the headers `Tidemill-As-Of`, `Tidemill-Since` and `Tidemill-Upper`.
    `Tidemill-Note` says that the instant looks like seconds, or another unit than milliseconds. The
    name may be made anew, so a cache asks again about its answer. A tag that is current is answered
    by 304, and nothing is read. `Content-Location` is an address with `id`, the identity of the
    collection. Its answer as of a number or a date is `immutable` to caches. Status 404 says that
    the name has another identity now.
    """
    of: Contents = asked.of
    where = conditions_of(of.where)
    at = on.at(of.as_of)
    read = partial(on.query.snapshot, of.name, at, of.wait_s, where)
    return await _rows(on, asked, of.name, at, read)


async def get_matches(on: Handlers, asked: Asked) -> HttpReply:
    """The records that match a goal as of an instant, in the forms of a collection.

    The columns are the variables of the goal under their names.
    """
    of: Goal = asked.of
    at = on.at(of.as_of)
    return await _rows(on, asked, of.goal, at, partial(on.query.ask, of.goal, at, of.wait_s))


async def get_collections(on: Handlers, asked: Asked) -> HttpReply:
    """Every collection that the caller may read, with its frontiers and who holds them.

    They are those of half a second ago at most. With `limit` the answer is a page, in the order of
    names, and no other collection is looked at. The header `Link` has the address of the next page,
    as long as one follows.
    """
    of: Part = asked.of
    page = page_of(of.limit, of.after)
    listed = await list_page(on.query.collections, page, lambda each: each.id)
    found = [
        Collection(
            each.id, each.kind, each.timeline, frontier_of(each.since), frontier_of(each.upper),
            each.lag_ms, each.updates, each.batches, each.bytes,
            [Column(column.name, column.type, column.nullable) for column in each.columns],
            [Holder(h.owner, frontier_of(h.frontier), h.lease_end_ms) for h in each.holders],
        )
        for each in listed
    ]  # fmt: skip
    return with_next(said(found), asked, listed.next)


async def get_frontiers(on: Handlers, asked: Asked) -> HttpReply:
    """The frontiers of a collection over the last half hour, as this process has seen them."""
    return said([Look(*each) for each in await on.history(asked.of.name)])


async def get_proof(on: Handlers, asked: Asked) -> HttpReply:
    """The proof of a record that is present as of an instant."""
    return await _reasons(await on.query.why(asked.of.record, on.at(asked.of.as_of)))


async def get_missing(on: Handlers, asked: Asked) -> HttpReply:
    """The reasons for which a record is absent as of an instant: of each rule, how far it came."""
    return await _reasons(await on.query.why_not(asked.of.record, on.at(asked.of.as_of)))


async def prove_record(on: Handlers, asked: Asked) -> HttpReply:
    """The proof of a record of the body, which may be longer than an address."""
    of = _asking(asked)
    return await _reasons(await on.query.why(of.record, on.at(of.as_of)))


async def explain_absence(on: Handlers, asked: Asked) -> HttpReply:
    """The reasons for which a record of the body is absent, as of an instant."""
    of = _asking(asked)
    return await _reasons(await on.query.why_not(of.record, on.at(of.as_of)))


def _asking(asked: Asked) -> Asking:
    try:
        return msgspec.json.decode(asked.request.body, type=Asking)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise UsageError(f"request refused: the body: {error}", reason="request") from None


async def get_plan(on: Handlers, asked: Asked) -> HttpReply:
    """The plan of a view, as text."""
    return said(Plan(await on.query.explain(asked.of.name, asked.of.form)))


async def _reasons(found: Explanation) -> HttpReply:
    def write() -> HttpReply:
        return said(Reasons(found.text, found.tree))

    return await beside(len(found.text) * WEIGHT, write)


def said(value: object) -> HttpReply:
    """A reply with a value as JSON, which no cache keeps."""
    return HttpReply(200, json_of(value) + b"\n", JSON, {"Cache-Control": "no-store"})


def with_next(reply: HttpReply, asked: Asked, after: str | None) -> HttpReply:
    """The reply, with the address of the next page of the list if one follows."""
    if after is None:
        return reply
    kept = [
        (n, each) for n, values in asked.request.query.items() for each in values if n != "after"
    ]
    address = f"{asked.request.path}?{urlencode([*kept, ('after', after)])}"
    return replace(reply, headers={**reply.headers, "Link": f'<{address}>; rel="next"'})


_ROWS = {JSON: Rows, NDJSON: None, CSV: None, ARROW: None}

READING = (
    Operation("GET", "/v1/collections", SERVICE + "Collections", Part, get_collections,
              {JSON: list[Collection]}),
    Operation("GET", "/v1/collections/{name}", SERVICE + "Snapshot", Contents, get_contents, _ROWS),
    Operation("GET", "/v1/frontiers/{name}", SERVICE + "Collections", OfCollection, get_frontiers,
              {JSON: list[Look]}),
    Operation("GET", "/v1/ask", SERVICE + "Ask", Goal, get_matches, _ROWS),
    Operation("GET", "/v1/why", SERVICE + "Why", OfRecord, get_proof, {JSON: Reasons}),
    Operation("GET", "/v1/why-not", SERVICE + "WhyNot", OfRecord, get_missing, {JSON: Reasons}),
    Operation("POST", "/v1/why", SERVICE + "Why", Nothing, prove_record, {JSON: Reasons},
              {JSON: Asking}),
    Operation("POST", "/v1/why-not", SERVICE + "WhyNot", Nothing, explain_absence, {JSON: Reasons},
              {JSON: Asking}),
    Operation("GET", "/v1/views/{name}/plan", SERVICE + "Explain", OfView, get_plan, {JSON: Plan}),
)  # fmt: skip
