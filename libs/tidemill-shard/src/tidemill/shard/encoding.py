"""Versions of a collection as bytes: the difference to the version before, or the whole state.

A state is a set of named cells. A difference says which cells changed and which went. Pieces that
kept their identity are not compared, so a commit costs what it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import TypeVar

import msgspec

from tidemill.arrangement.arrow_bytes import read_schema
from tidemill.shard.framing import (
    CARRIED,
    ENTRY,
    LIST,
    LISTED,
    PACED,
    PLAIN,
    ROLLUP,
    SEVERAL,
    UNDER,
    decoding,
    framed,
    unframed,
)
from tidemill.shard.heavy_values import Heavy
from tidemill.shard.listed import PartList
from tidemill.shard.pages import IndexPlace
from tidemill.shard.parts import Bounds, Part
from tidemill.shard.state import Batch, Description, Hold, LastWrite, Paced, State
from tidemill.time import Frontier, frontier

Cell = TypeVar("Cell")


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One version in the log.

    `attempt` tells this write from every other, so that a writer finds out whether its own landed.
    `rollup`: blob key and version of the newest full state before this version. `cells`: changed
    cells; `gone`: names of removed ones. The first version has all its cells here.
    """

    attempt: str
    rollup: tuple[str, int] | None
    cells: dict[str, msgspec.Raw]
    gone: list[str]


class _Description(msgspec.Struct, frozen=True, array_like=True):
    schema: bytes
    kind: str
    timeline: str
    key: list[str]
    retain_ms: int | None
    allow_negative: bool
    user_writable: bool
    arrived: list[str] = []
    created: bool = False


class _Hold(msgspec.Struct, frozen=True, array_like=True):
    frontier: list[int]
    owner: str
    lease_ms: int | None
    renewed_ms: int
    created_ms: int
    named: bool
    moved_ms: int = 0
    keeps_ms: int | None = None
    renewals: int = 0
    token: str = ""


class _Part(msgspec.Struct, frozen=True, array_like=True):
    rows: int
    size: int
    time_min: int
    time_max: int
    columns: int
    hash_min: int
    hash_max: int
    checksums: bytes
    key: str | None
    inline: bytes | None
    lower: int
    upper: int | None
    bounds: dict[str, Bounds]
    heavy: dict[str, tuple[tuple[Heavy, int], ...]] = {}
    pages: IndexPlace | None = None


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    lower: list[int]
    compacted: int
    parts: list[_Part]
    runs: int


class _List(msgspec.Struct, frozen=True, array_like=True):
    key: str
    parts: int
    rows: int
    size: int
    time_min: int
    time_max: int
    hash_min: int
    hash_max: int
    apart_min: int | None
    begun_ms: int | None
    bounds: dict[str, Bounds] = {}


class _ListedBatch(msgspec.Struct, frozen=True, array_like=True):
    lower: list[int]
    compacted: int
    parts: list[_Part]
    runs: int
    lists: list[_List]


class _LastWrite(msgspec.Struct, frozen=True, array_like=True):
    token: str
    upper: list[int]


class _Paced(msgspec.Struct, frozen=True, array_like=True):
    number: int
    group: str
    left: list[int] | None


def encode_entry(entry: Entry) -> bytes:
    """An entry as bytes."""
    return framed(ENTRY, msgspec.msgpack.encode(entry), _format(entry.cells))


def decode_entry(data: bytes, where: str) -> Entry:
    """An entry from bytes. Raises: Corrupt; names both formats if it was written by a newer one."""
    payload = unframed(ENTRY, data, where)
    with decoding(f"{where} is not a version of a collection", where):
        return msgspec.msgpack.decode(payload, type=Entry)


def encode_rollup(state: State) -> bytes:
    """A whole state as bytes."""
    cells = {name: pack() for name, (_, pack) in _cells(state)}
    return framed(ROLLUP, msgspec.msgpack.encode(cells), _format(cells))


def _format(cells: Collection[str]) -> int:
    if "paces" in cells:
        return SEVERAL
    if any(name.startswith("l/") for name in cells):
        return LISTED
    if "carried" in cells:
        return CARRIED
    if any(name.startswith("u/") for name in cells):
        return UNDER
    return PACED if "pace" in cells else PLAIN


def decode_rollup(data: bytes, where: str) -> State:
    """The state of a rollup. Raises: Corrupt."""
    payload = unframed(ROLLUP, data, where)
    with decoding(f"{where} is not a rollup", where):
        return rebuild(msgspec.msgpack.decode(payload, type=dict[str, msgspec.Raw]), where)


def first_entry(attempt: str, state: State) -> Entry:
    """The entry that creates a collection."""
    return Entry(attempt, None, {name: pack() for name, (_, pack) in _cells(state)}, [])


def next_entry(attempt: str, rollup: tuple[str, int] | None, before: State, after: State) -> Entry:
    """The entry that leads from one state to the next."""
    changed = {name for name in _FIELDS if getattr(before, name) is not getattr(after, name)}
    old, new = dict(_cells(before, changed, after)), dict(_cells(after, changed, before))
    cells = {
        name: pack()
        for name, (value, pack) in new.items()
        if name not in old or (old[name][0] is not value and old[name][0] != value)
    }
    return Entry(attempt, rollup, cells, [name for name in old if name not in new])


def rebuild(cells: Mapping[str, msgspec.Raw], where: str) -> State:
    """The state that a full set of cells stands for. Raises: Corrupt."""
    with decoding(f"the state of {where} cannot be read", where):
        description = _description(cells["description"])
        return _patched(State(description, frontier(), frontier()), cells, ())


def patch(state: State, entries: Iterable[Entry], where: str) -> State:
    """The state after `entries`; what they do not touch keeps its identity. Raises: Corrupt."""
    cells: dict[str, msgspec.Raw] = {}
    gone: set[str] = set()
    for entry in entries:
        for name in entry.gone:
            cells.pop(name, None)
            gone.add(name)
        for name, cell in entry.cells.items():
            cells[name] = cell
            gone.discard(name)
    if not cells and not gone:
        return state
    with decoding(f"a version of {where} cannot be read", where):
        return _patched(state, cells, gone)


def pack_part(part: Part) -> bytes:
    """A part as a job reports it to whoever commits it."""
    return msgspec.msgpack.encode(_packed_part(part))


def unpack_part(data: bytes) -> Part:
    """The part that a job reported. Raises: Corrupt."""
    with decoding("what a job says of a part cannot be read", "part"):
        return _part(msgspec.msgpack.decode(data, type=_Part))


def encode_list(parts: Iterable[Part]) -> bytes:
    """A list of parts as the bytes of its object."""
    return framed(LIST, msgspec.msgpack.encode([_packed_part(part) for part in parts]), LISTED)


def decode_list(data: bytes, where: str) -> tuple[Part, ...]:
    """The parts that a list names. Raises: Corrupt."""
    payload = unframed(LIST, data, where)
    with decoding(f"{where} is no list of parts", where):
        return _staged(msgspec.Raw(payload))


def pack_description(description: Description) -> bytes:
    """A description as bytes, for a job."""
    return msgspec.msgpack.encode(_packed_description(description))


def unpack_description(data: bytes) -> Description:
    """The description that `pack_description` packed."""
    return _description(msgspec.Raw(data))


Packed = tuple[object, Callable[[], msgspec.Raw]]

_FIELDS = tuple(each.name for each in fields(State))
_LIST_FIELDS = tuple(each.name for each in fields(PartList))


def _cells(
    state: State, among: Container[str] = _FIELDS, unlike: State | None = None
) -> Iterator[tuple[str, Packed]]:
    """Every cell of the fields `among` by name, as the object whose identity tells whether it
    changed and its packing.

    Batches that `unlike` begins with, too, are left out.
    """

    def cell(name: str, value: Cell, shape: Callable[[Cell], object]) -> tuple[str, Packed]:
        return name, (value, lambda: msgspec.Raw(msgspec.msgpack.encode(shape(value))))

    if "description" in among:
        yield cell("description", state.description, _packed_description)
    if "since" in among:
        yield cell("since", state.since, list)
    if "upper" in among:
        yield cell("upper", state.upper, list)
    if "policy" in among and state.policy is not None:
        yield cell("policy", state.policy, list)
    if "moved_by" in among:
        yield cell("moved_by", state.moved_by, str)
    for prefix, holds, named in (("r", state.reads, "reads"), ("w", state.writes, "writes")):
        if named in among:
            for name, hold in holds.items():
                yield cell(f"{prefix}/{name}", hold, _packed_hold)
    if "expired" in among:
        for name, at_ms in state.expired.items():
            yield cell(f"x/{name}", at_ms, int)
    if "last_writes" in among:
        for name, last in state.last_writes.items():
            yield cell(f"t/{name}", last, lambda last: _LastWrite(last.token, list(last.upper)))
    if "batches" in among:
        for batch in _not_shared(state.batches, unlike.batches if unlike else ()):
            kind = "l" if batch.lists else "b"
            yield cell(f"{kind}/{_place(batch.lower)}", batch, _packed_batch)
    if "staged" in among:
        for name, parts in state.staged.items():
            yield cell(f"s/{name}", parts, lambda parts: [_packed_part(part) for part in parts])
    if "garbage" in among:
        for name, at_ms in state.garbage.items():
            yield cell(f"g/{name}", at_ms, int)
    if "reaped_ms" in among and state.reaped_ms:
        yield cell("reaped", state.reaped_ms, int)
    if "paces" in among and len(state.paces) == 1:
        yield cell("pace", state.paces[0], str)
    if "paces" in among and len(state.paces) > 1:
        yield cell("paces", state.paces, list)
    if "carried" in among and state.carried:
        yield cell("carried", state.carried, str)
    if "paced" in among:
        for name, said in state.paced.items():
            yield cell(f"p/{name}", said, _packed_paced)
    if "under" in among:
        for group, others in state.under.items():
            yield cell(f"u/{group}", others, list)


def _not_shared(batches: tuple[Batch, ...], others: tuple[Batch, ...]) -> Iterator[Batch]:
    """The batches behind the beginning that both have in common."""
    start = min(len(batches), len(others))
    if batches[:start] != others[:start]:  # quick where they are the same objects
        start = next(at for at in range(start) if batches[at] is not others[at])
    yield from batches[start:]


def _place(lower: Frontier) -> str:
    """A name for a batch that sorts as its lower does."""
    return f"{lower.elements[0]:020d}"


def _packed_description(value: Description) -> _Description:
    return _Description(
        value.schema.serialize().to_pybytes(), value.kind, value.timeline, list(value.key),
        value.retain_ms, value.allow_negative, value.user_writable, list(value.arrived),
        value.created,
    )  # fmt: skip


def _packed_hold(hold: Hold) -> _Hold:
    return _Hold(
        list(hold.frontier), hold.owner, hold.lease_ms, hold.renewed_ms, hold.created_ms,
        hold.named, hold.moved_ms, hold.keeps_ms, hold.renewals, hold.token,
    )  # fmt: skip


def _packed_paced(said: Paced) -> _Paced:
    return _Paced(said.number, said.group, None if said.left is None else list(said.left))


def _packed_part(part: Part) -> _Part:
    return _Part(
        part.rows, part.size, part.time_min, part.time_max, part.columns, part.hash_min,
        part.hash_max, part.checksums, part.key, part.inline, part.lower, part.upper,
        dict(part.bounds), dict(part.heavy), part.pages,
    )  # fmt: skip


def _packed_batch(batch: Batch) -> _Batch | _ListedBatch:
    parts = [_packed_part(part) for part in batch.parts]
    if batch.lists:
        lists = [_List(*(getattr(each, name) for name in _LIST_FIELDS)) for each in batch.lists]
        return _ListedBatch(list(batch.lower), batch.compacted, parts, batch.runs, lists)
    return _Batch(list(batch.lower), batch.compacted, parts, batch.runs)


def _part(packed: _Part) -> Part:
    return Part(
        packed.rows, packed.size, packed.time_min, packed.time_max, packed.columns,
        packed.hash_min, packed.hash_max, packed.checksums, packed.key, packed.inline,
        packed.lower, packed.upper, packed.bounds, packed.heavy, packed.pages,
    )  # fmt: skip


def _description(data: msgspec.Raw) -> Description:
    packed = msgspec.msgpack.decode(data, type=_Description)
    return Description(
        read_schema(packed.schema), packed.kind, packed.timeline,
        tuple(packed.key), packed.retain_ms, packed.allow_negative, packed.user_writable,
        tuple(packed.arrived), packed.created,
    )  # fmt: skip


def _frontier(data: msgspec.Raw) -> Frontier:
    return frontier(*msgspec.msgpack.decode(data, type=list[int]))


def _hold(data: msgspec.Raw) -> Hold:
    packed = msgspec.msgpack.decode(data, type=_Hold)
    return Hold(
        frontier(*packed.frontier), packed.owner, packed.lease_ms, packed.renewed_ms,
        packed.created_ms, packed.named, packed.moved_ms, packed.keeps_ms, packed.renewals,
        packed.token,
    )  # fmt: skip


def _last_write(data: msgspec.Raw) -> LastWrite:
    packed = msgspec.msgpack.decode(data, type=_LastWrite)
    return LastWrite(packed.token, frontier(*packed.upper))


def _paced(data: msgspec.Raw) -> Paced:
    packed = msgspec.msgpack.decode(data, type=_Paced)
    left = None if packed.left is None else frontier(*packed.left)
    return Paced(packed.number, packed.group, left)


def _batch(data: msgspec.Raw) -> Batch:
    packed = msgspec.msgpack.decode(data, type=_Batch)
    parts = tuple(_part(part) for part in packed.parts)
    return Batch(frontier(*packed.lower), packed.compacted, parts, packed.runs)


def _listed_batch(data: msgspec.Raw) -> Batch:
    packed = msgspec.msgpack.decode(data, type=_ListedBatch)
    parts = tuple(_part(part) for part in packed.parts)
    lists = tuple(
        PartList(*(getattr(each, name) for name in _LIST_FIELDS)) for each in packed.lists
    )
    return Batch(frontier(*packed.lower), packed.compacted, parts, packed.runs, lists)


def _staged(data: msgspec.Raw) -> tuple[Part, ...]:
    return tuple(_part(part) for part in msgspec.msgpack.decode(data, type=list[_Part]))


def _number(data: msgspec.Raw) -> int:
    return msgspec.msgpack.decode(data, type=int)


def _names(data: msgspec.Raw) -> tuple[str, ...]:
    return msgspec.msgpack.decode(data, type=tuple[str, ...])


def _text(data: msgspec.Raw) -> str:
    return msgspec.msgpack.decode(data, type=str)


def _patched(state: State, cells: Mapping[str, msgspec.Raw], gone: Iterable[str]) -> State:
    """`state` with these cells changed and those gone."""
    touched: dict[str, dict[str, msgspec.Raw | None]] = {}
    for name, data in (*cells.items(), *((name, None) for name in gone)):
        prefix, _, rest = name.partition("/")
        touched.setdefault(prefix, {})[rest] = data

    def field(name: str, held: Cell, unpack: Callable[[msgspec.Raw], Cell]) -> Cell:
        return unpack(cells[name]) if name in cells else held

    def named(name: str, held: str) -> str:
        return "" if name in touched and name not in cells else field(name, held, _text)

    def paces() -> tuple[str, ...]:
        held = state.paces if touched.keys().isdisjoint(("pace", "paces")) else ()
        one = (_text(cells["pace"]),) if "pace" in cells else held
        return field("paces", one, _names)

    def table(
        prefix: str, held: Mapping[str, Cell], unpack: Callable[[msgspec.Raw], Cell]
    ) -> Mapping[str, Cell]:
        changes = touched.get(prefix)
        if changes is None:
            return held
        kept = {name: value for name, value in held.items() if name not in changes}
        return kept | {n: unpack(data) for n, data in changes.items() if data is not None}

    policy = _frontier(cells["policy"]) if "policy" in cells else state.policy
    batches = state.batches
    if "b" in touched or "l" in touched:
        placed = {_place(batch.lower): batch for batch in batches}
        # NB: one place may change from either kind to the other.
        for name in (*touched.get("b", ()), *touched.get("l", ())):
            placed.pop(name, None)
        placed |= table("b", {}, _batch)
        placed |= table("l", {}, _listed_batch)
        batches = tuple(placed[name] for name in sorted(placed))
    return State(
        description=field("description", state.description, _description),
        since=field("since", state.since, _frontier),
        upper=field("upper", state.upper, _frontier),
        policy=None if "policy" in touched and "policy" not in cells else policy,
        moved_by=field("moved_by", state.moved_by, _text),
        reads=table("r", state.reads, _hold),
        writes=table("w", state.writes, _hold),
        expired=table("x", state.expired, _number),
        last_writes=table("t", state.last_writes, _last_write),
        batches=batches,
        staged=table("s", state.staged, _staged),
        garbage=table("g", state.garbage, _number),
        reaped_ms=field("reaped", state.reaped_ms, _number),
        paces=paces(),
        carried=named("carried", state.carried),
        paced=table("p", state.paced, _paced),
        under=table("u", state.under, _names),
    )  # fmt: skip
