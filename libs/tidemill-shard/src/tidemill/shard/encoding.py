"""Versions of a collection as bytes: the difference to the version before, or the whole state.

A state is a set of named cells. A difference says which cells changed and which went. Cells that kept
their identity are not compared, so a commit costs what it changes, not what there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from tidemill.shard.state import (
    Batch,
    Description,
    Garbage,
    LastWrite,
    Part,
    ReadHold,
    State,
    WriteHold,
)
from tidemill.time import Corrupt, Frontier, frontier

FORMAT = 1


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One version in the log.

    `rollup`: blob key and version of the newest full state at or before this version. `cells`: changed
    cells; `gone`: names of removed ones. A first version has all its cells here.
    """

    format: int
    rollup: tuple[str, int] | None
    cells: dict[str, bytes]
    gone: list[str]


def encode_entry(entry: Entry) -> bytes:
    """An entry as bytes."""
    return msgspec.msgpack.encode(entry)


def decode_entry(data: bytes, where: str) -> Entry:
    """An entry from bytes. Raises: Corrupt; names both formats if it was written by a newer one."""
    try:
        written = msgspec.msgpack.decode(data, type=list)
        if written and isinstance(written[0], int) and written[0] > FORMAT:
            raise Corrupt(f"{where} has format {written[0]}, this process reads up to {FORMAT}")
        return msgspec.msgpack.decode(data, type=Entry)
    except msgspec.DecodeError as error:
        raise Corrupt(f"{where} is not a version of a collection: {error}") from error


def cells(state: State) -> Iterator[tuple[str, object]]:
    """Every cell of a state by name, with the object whose identity tells whether it changed."""
    yield "description", state.description
    yield "since", state.since
    yield "upper", state.upper
    if state.policy is not None:
        yield "policy", state.policy
    for name, read in state.reads.items():
        yield f"r/{name}", read
    for name, write in state.writes.items():
        yield f"w/{name}", write
    for name, ended in state.gone.items():
        yield f"x/{name}", ended
    for name, last in state.last_writes.items():
        yield f"t/{name}", last
    for batch in state.batches:
        yield f"b/{_place(batch.lower)}", batch
    for part in state.staged:
        yield f"s/{part.checksum}/{part.key or ''}", part
    for name, garbage in state.garbage.items():
        yield f"g/{name}", garbage


def _place(lower: Frontier) -> str:
    return f"{lower.elements[0]:020d}" if not lower.empty else "end"


def difference(before: State | None, after: State) -> tuple[dict[str, bytes], list[str]]:
    """(changed cells as bytes, names of removed cells)."""
    old = dict(cells(before)) if before is not None else {}
    changed: dict[str, bytes] = {}
    new_names = set()
    for name, value in cells(after):
        new_names.add(name)
        if name not in old or (old[name] is not value and old[name] != value):
            changed[name] = _encode(value)
    return changed, [name for name in old if name not in new_names]


def all_cells(state: State) -> dict[str, bytes]:
    """The whole state, for a rollup."""
    return {name: _encode(value) for name, value in cells(state)}


def rebuild(stored: Mapping[str, bytes], where: str) -> State:
    """The state that a full set of cells stands for. Raises: Corrupt."""
    try:
        return _State(stored).build()
    except (KeyError, ValueError, msgspec.DecodeError, pa.ArrowInvalid) as error:
        raise Corrupt(f"the state of {where} cannot be read: {error}") from error


def patch(state: State, changed: Mapping[str, bytes], gone: list[str], where: str) -> State:
    """The next version: pieces that did not change keep their identity. Raises: Corrupt."""
    try:
        return _patched(state, changed, gone)
    except (KeyError, ValueError, msgspec.DecodeError, pa.ArrowInvalid) as error:
        raise Corrupt(f"a version of {where} cannot be read: {error}") from error


def _encode(value: object) -> bytes:
    match value:
        case Description():
            packed: object = [
                value.schema.serialize().to_pybytes(), value.kind, value.timeline, list(value.key),
                value.retain_ms, value.allow_negative, value.user_writable,
            ]  # fmt: skip
        case ReadHold() | WriteHold():
            packed = [list(value.frontier), value.owner, value.lease_ms, value.renewed_ms]
        case LastWrite():
            packed = [value.token, list(value.upper)]
        case Batch():
            packed = [
                list(value.lower), list(value.upper), list(value.since),
                [_pack_part(part) for part in value.parts],
            ]  # fmt: skip
        case Part():
            packed = _pack_part(value)
        case Garbage():
            packed = [value.key, value.dropped_ms]
        case str():
            packed = value
        case _:
            packed = list(value)  # type: ignore[call-overload]  # a frontier is what is left
    return msgspec.msgpack.encode(packed)


def _pack_part(part: Part) -> list[object]:
    return [
        part.rows, part.size, part.checksum, part.time_min, part.time_max, part.key, part.inline,
        {name: list(limits) for name, limits in part.bounds.items()},
    ]  # fmt: skip


def _unpack_part(packed: list[Any]) -> Part:
    rows, size, digest, time_min, time_max, key, inline, bounds = packed
    limits = {name: (low, high) for name, (low, high) in bounds.items()}
    return Part(rows, size, digest, time_min, time_max, key, inline, limits)


def pack_part(part: Part) -> bytes:
    """A part as a job reports it to whoever commits."""
    return msgspec.msgpack.encode(_pack_part(part))


def unpack_part(data: bytes) -> Part:
    """The part that a job reported."""
    return _unpack_part(msgspec.msgpack.decode(data))


def _decode(data: bytes) -> Any:
    return msgspec.msgpack.decode(data)


def _batch(data: bytes) -> Batch:
    lower, upper, since, parts = _decode(data)
    return Batch(
        frontier(*lower), frontier(*upper), frontier(*since), tuple(map(_unpack_part, parts))
    )


def _description(data: bytes) -> Description:
    schema, kind, timeline, key, retain_ms, allow_negative, user_writable = _decode(data)
    return Description(
        pa.ipc.read_schema(pa.py_buffer(schema)), kind, timeline, tuple(key), retain_ms,
        allow_negative, user_writable,
    )  # fmt: skip


def _hold(data: bytes) -> tuple[Frontier, str, int | None, int]:
    held, owner, lease_ms, renewed_ms = _decode(data)
    return frontier(*held), owner, lease_ms, renewed_ms


def _last_write(data: bytes) -> LastWrite:
    token, upper = _decode(data)
    return LastWrite(token, frontier(*upper))


class _State:
    """A state under construction from its cells."""

    def __init__(self, stored: Mapping[str, bytes]) -> None:
        self._stored = stored

    def _under(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        for name in sorted(self._stored):
            if name.startswith(prefix):
                yield name[len(prefix) :], self._stored[name]

    def build(self) -> State:
        stored = self._stored
        return State(
            description=_description(stored["description"]),
            since=frontier(*_decode(stored["since"])),
            upper=frontier(*_decode(stored["upper"])),
            policy=frontier(*_decode(stored["policy"])) if "policy" in stored else None,
            reads={name: ReadHold(*_hold(data)) for name, data in self._under("r/")},
            writes={name: WriteHold(*_hold(data)) for name, data in self._under("w/")},
            gone={name: str(_decode(data)) for name, data in self._under("x/")},
            last_writes={name: _last_write(data) for name, data in self._under("t/")},
            batches=tuple(_batch(data) for _, data in self._under("b/")),
            staged=tuple(_unpack_part(_decode(data)) for _, data in self._under("s/")),
            garbage={name: Garbage(*_decode(data)) for name, data in self._under("g/")},
        )


def _patched(state: State, changed: Mapping[str, bytes], gone: list[str]) -> State:
    """Rebuild only the parts of the state that a difference touches."""
    removed = set(gone)
    fresh = _State(changed)

    def holds(prefix: str, held: Mapping[str, Any], build: Any) -> Mapping[str, Any]:
        if not any(name.startswith(prefix) for name in (*changed, *removed)):
            return held
        kept = {name: value for name, value in held.items() if prefix + name not in removed}
        return {**kept, **{name: build(data) for name, data in fresh._under(prefix)}}

    batches = {f"{_place(batch.lower)}": batch for batch in state.batches}
    batches = dict(holds("b/", batches, _batch))
    staged = {f"{part.checksum}/{part.key or ''}": part for part in state.staged}
    staged = dict(holds("s/", staged, lambda data: _unpack_part(_decode(data))))
    return State(
        description=_description(changed["description"])
        if "description" in changed
        else state.description,
        since=frontier(*_decode(changed["since"])) if "since" in changed else state.since,
        upper=frontier(*_decode(changed["upper"])) if "upper" in changed else state.upper,
        policy=frontier(*_decode(changed["policy"])) if "policy" in changed else state.policy,
        reads=holds("r/", state.reads, lambda data: ReadHold(*_hold(data))),
        writes=holds("w/", state.writes, lambda data: WriteHold(*_hold(data))),
        gone=holds("x/", state.gone, lambda data: str(_decode(data))),
        last_writes=holds("t/", state.last_writes, _last_write),
        batches=tuple(batches[name] for name in sorted(batches)),
        staged=tuple(staged.values()),
        garbage=holds("g/", state.garbage, lambda data: Garbage(*_decode(data))),
    )
