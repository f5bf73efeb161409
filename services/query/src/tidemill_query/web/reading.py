"""Operations that read: contents of collections, matches of goals, reasons, plans."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tidemill.errors import UsageError
from tidemill.rpc import messages
from tidemill.rpc.messages import Comparison, Condition, Explanation, Json
from tidemill.rpc.turns import beside
from tidemill.rpc.validation import NAME_CHARS_MAX, TEXT_CHARS_MAX
from tidemill.runtime.http_messages import HttpReply
from tidemill.time import Frontier, is_fixed
from tidemill_query.web.door import Asked, Handlers, Operation
from tidemill_query.web.forms import ARROW, CSV, JSON, NDJSON, WEIGHT, body, json_of

SERVICE = "/tidemill.query.v1.QueryService/"
FOR_EVER = "max-age=31536000, immutable"

Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
Text = Annotated[str, Meta(min_length=1, max_length=TEXT_CHARS_MAX)]
Instant = (
    Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    | Annotated[
        str,
        Meta(
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


class Contents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A collection as of an instant, by default the latest definite one; rows that meet `where`."""

    name: Name
    as_of: Instant | None = None
    wait_s: Wait | None = None
    where: Annotated[list[Text], Meta(max_length=100)] = []


class Goal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A goal such as `late(p, 45)`, as of an instant."""

    goal: Text
    as_of: Instant | None = None
    wait_s: Wait | None = None


class Rows(msgspec.Struct, frozen=True):
    """Rows with their columns and `_diff`, the multiplicity, exact at `as_of`."""

    collection: str
    as_of: int
    rows: list[dict[str, Any]]


class OfRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record such as `late("N2", 45)`, as of an instant."""

    record: Text
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


async def _rows(on: Handlers, asked: Asked, found: messages.Answer) -> HttpReply:
    """The answer in the form that was asked for; a cache keeps one of a stated instant for ever."""
    tag = json_of([found.collection, found.as_of, asked.form, asked.request.path,
                    sorted((n, list(v)) for n, v in asked.request.query.items())])  # fmt: skip
    kept = f"{'public' if on.public else 'private'}, {FOR_EVER}"
    headers = {
        "Tidemill-As-Of": str(found.as_of),
        "Tidemill-Since": ",".join(map(str, frontier_of(found.since))),
        "Tidemill-Upper": ",".join(map(str, frontier_of(found.upper))),
        "ETag": f'W/"{blake2b(tag, digest_size=12).hexdigest()}"',
        "Vary": "Accept, Authorization",
        "Cache-Control": kept if is_fixed(asked.of.as_of) else "no-cache",
    }
    if headers["ETag"] in asked.request.sent.get("if-none-match", ""):
        return HttpReply(304, headers=headers)
    head: dict[str, object] = {"collection": found.collection, "as_of": found.as_of}
    return HttpReply(200, await body(asked.form, head, found.table), asked.form, headers)


async def get_contents(on: Handlers, asked: Asked) -> HttpReply:
    """The rows of a collection as of an instant: JSON, NDJSON, CSV or Arrow by `Accept`.

    Each `where` is a condition that all rows meet, such as `delay>=30`, `plane=="N2"`,
    `gate==null`. Values are written as in pushed rows; JSON has no order. The instant and the
    frontiers are in the headers `Tidemill-As-Of`, `Tidemill-Since` and `Tidemill-Upper`. The answer
    as of a number or a date never changes, and is `immutable` to caches.
    """
    of: Contents = asked.of
    where = conditions_of(of.where)
    return await _rows(
        on, asked, await on.query.snapshot(of.name, on.at(of.as_of), of.wait_s, where)
    )


async def get_matches(on: Handlers, asked: Asked) -> HttpReply:
    """The records that match a goal as of an instant, in the forms of a collection.

    The columns are the variables of the goal under their names.
    """
    of: Goal = asked.of
    return await _rows(on, asked, await on.query.ask(of.goal, on.at(of.as_of), of.wait_s))


async def get_collections(on: Handlers, asked: Asked) -> HttpReply:
    """Every collection that the caller may read, with its frontiers and who holds them."""
    found = [
        Collection(
            each.id, each.kind, each.timeline, frontier_of(each.since), frontier_of(each.upper),
            each.lag_ms, each.updates, each.batches, each.bytes,
            [Column(column.name, column.type, column.nullable) for column in each.columns],
            [Holder(h.owner, frontier_of(h.frontier), h.lease_end_ms) for h in each.holders],
        )
        for each in await on.query.collections()
    ]  # fmt: skip
    return said(found)


async def get_frontiers(on: Handlers, asked: Asked) -> HttpReply:
    """The frontiers of a collection over the last half hour, as this process has seen them."""
    return said([Look(*each) for each in await on.history(asked.of.name)])


async def get_proof(on: Handlers, asked: Asked) -> HttpReply:
    """The proof of a record that is present as of an instant."""
    return await _reasons(await on.query.why(asked.of.record, on.at(asked.of.as_of)))


async def get_missing(on: Handlers, asked: Asked) -> HttpReply:
    """The reasons for which a record is absent as of an instant: of each rule, how far it came."""
    return await _reasons(await on.query.why_not(asked.of.record, on.at(asked.of.as_of)))


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


_ROWS = {JSON: Rows, NDJSON: None, CSV: None, ARROW: None}

READING = (
    Operation("GET", "/v1/collections", SERVICE + "Collections", Nothing, get_collections,
              {JSON: list[Collection]}),
    Operation("GET", "/v1/collections/{name}", SERVICE + "Snapshot", Contents, get_contents, _ROWS),
    Operation("GET", "/v1/frontiers/{name}", SERVICE + "Collections", OfCollection, get_frontiers,
              {JSON: list[Look]}),
    Operation("GET", "/v1/ask", SERVICE + "Ask", Goal, get_matches, _ROWS),
    Operation("GET", "/v1/why", SERVICE + "Why", OfRecord, get_proof, {JSON: Reasons}),
    Operation("GET", "/v1/why-not", SERVICE + "WhyNot", OfRecord, get_missing, {JSON: Reasons}),
    Operation("GET", "/v1/views/{name}/plan", SERVICE + "Explain", OfView, get_plan, {JSON: Plan}),
)  # fmt: skip
