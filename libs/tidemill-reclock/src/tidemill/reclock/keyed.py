"""Sources whose records replace each other: changes of rows by their keys in, updates out.

The state equals the output collection, so a restart reads it from there. The output of an interval
depends on that state and on the changes of the interval alone. Each writer writes the same,
however the interval is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME, update_schema
from tidemill.time.typed import write_decimal

if TYPE_CHECKING:
    from tidemill.reclock.held_rows import HeldRows, Taken

Op: TypeAlias = Literal["set", "read", "create", "update", "delete"]
"""set: the row is `after` from now on, none if that is null; the others are changes of a database.
"""

_CHANGE_FIELDS: list[pa.Field[Any]] = [
    pa.field("_op", pa.string(), nullable=False),
    pa.field("_key", pa.binary(), nullable=False),
    pa.field("_before", pa.binary()),
    pa.field("_after", pa.binary()),
    pa.field("_partition", pa.int64()),
    pa.field("_offset", pa.uint64()),
]
CHANGE_SCHEMA = pa.schema(_CHANGE_FIELDS)
"""A change as it is reclocked: rows are packed, and equal rows are equal bytes."""

_REASONS = (
    "",
    "it creates a row that is there already",
    "it changes a row, and there is nothing with this key",
    "it {done} a row that was not like this before",
)
"""By the numbers of `held_row_loops`."""
_ROWS_RESTORED = 20_000
"""So many rows are objects at once while the state is read back."""
_ROWS_AT_ONCE = 512
"""So many rows are unpacked by one call, which holds the interpreter."""


class Change(NamedTuple):
    """A change of the row with one key; `before` of None is not known, or not to be compared."""

    op: Op
    key: bytes
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True, slots=True)
class BrokenChange:
    """A change that does not follow from what is held: it was not applied."""

    time: int
    partition: int
    offset: int
    reason: str
    change: str
    """The change as a JSON text."""


@dataclass(frozen=True, slots=True)
class Keyed:
    """Updates of the output, and the changes that broke off the history of their row."""

    updates: pa.Table
    broken: tuple[BrokenChange, ...]


def letters_of(broken: Sequence[BrokenChange], schema: pa.Schema) -> pa.Table:
    """Dead letters of broken changes as updates; `schema` has `partition`, `offset`, `reason`,
    `raw`.
    """
    columns = {
        "partition": [each.partition for each in broken],
        "offset": [each.offset for each in broken],
        "reason": [each.reason for each in broken],
        "raw": [each.change for each in broken],
        TIME: [each.time for each in broken],
        DIFF: [1] * len(broken),
    }
    return pa.table(columns, schema=update_schema(schema))


def pack_row(cells: Sequence[object]) -> bytes:
    """A row as bytes; two rows of the same columns are equal exactly if these are."""
    if Decimal in map(type, cells):  # 1.5 and 1.50 are one number
        cells = [write_decimal(cell) if isinstance(cell, Decimal) else cell for cell in cells]
    return msgspec.msgpack.encode(cells)


def unpack_row(packed: bytes) -> list[object]:
    """The row that was packed."""
    cells: list[object] = msgspec.msgpack.decode(packed)
    return cells


def _unpacked(cells: list[object], kind: pa.DataType) -> Sequence[object]:
    """The cells of a column of packed rows: MessagePack has dates, spans and decimals as texts."""
    if pa.types.is_date32(kind):
        return msgspec.convert(cells, list[date | None])
    if pa.types.is_duration(kind):
        return msgspec.convert(cells, list[timedelta | None])
    if pa.types.is_decimal(kind):
        return msgspec.convert(cells, list[Decimal | None])
    return cells


def _columns(taken: Taken, count: int) -> list[list[object]]:
    """The columns of packed rows, of which there are `count`.

    NB: the lists of some rows are gone before the garbage collector would look at them. With all
    of them at once it took half of the time.
    """
    columns: list[list[object]] = [[] for _ in range(count)]
    rows = len(taken.diffs)
    for start in range(0, rows, _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, rows)
        some = taken.data[taken.stops[start] : taken.stops[stop]]
        unpacked = msgspec.msgpack.decode(_array_of(stop - start) + some.tobytes())
        for column, cells in zip(columns, zip(*unpacked, strict=True), strict=True):
            column += cells
    return columns


def _array_of(count: int) -> bytes:
    """The first bytes of an array of MessagePack."""
    return b"\xdd" + count.to_bytes(4, "big")


class KeyedRows:
    """State of a keyed source: one row per key.

    Changes of a database are checked against it. A change that has happened already changes
    nothing, so a history that is delivered again from any point ends as it ended the first time. A
    change that does not follow from the held row is reported and not applied. Then the row stays as
    the last unbroken change left it, until a snapshot states it anew. Deletions of absent rows have
    happened already.

    Cost: one to three microseconds a change; memory for the packed row of each key, the packed
    key, and some 45 bytes.
    """

    def __init__(self, schema: pa.Schema, key: Sequence[str]) -> None:
        self.schema = schema
        self._key = [schema.get_field_index(name) for name in key]
        self._held = self._none()

    @staticmethod
    def _none() -> HeldRows:
        from tidemill.reclock.held_rows import HeldRows  # few processes need its loops

        return HeldRows()

    def __len__(self) -> int:
        """Number of keys that have a row."""
        return len(self._held)

    def restore(self, rows: pa.Table) -> None:
        """Hold what `rows` hold, and nothing else."""
        self._held = self._none()
        for start in range(0, rows.num_rows, _ROWS_RESTORED):
            some = rows.slice(start, _ROWS_RESTORED)
            columns = [some[name].to_pylist() for name in self.schema.names]
            packed = list(zip(*columns, strict=True))
            keys = [pack_row([row[at] for at in self._key]) for row in packed]
            self._held.take(_stated(keys, list(map(pack_row, packed))))

    def apply(self, changes: pa.Table) -> Keyed:
        """Take reclocked changes in, CHANGE_SCHEMA with times: by time, and within one by place.

        Of several changes of a key at one time only the outcome is seen.
        """
        taken = self._held.take(changes)
        columns = _columns(taken, len(self.schema))
        arrays = [
            pa.array(_unpacked(column, field.type), field.type)
            for column, field in zip(columns, self.schema, strict=True)
        ]
        arrays += [pa.array(taken.times), pa.array(taken.diffs)]
        updates = pa.Table.from_arrays(arrays, schema=update_schema(self.schema))
        return Keyed(updates, tuple(self._broken(changes, taken)))

    def _broken(self, changes: pa.Table, taken: Taken) -> Iterator[BrokenChange]:
        """The changes that were refused, in order."""
        rows = taken.order[taken.refused[taken.order] > 0]
        for row, told in zip(rows.tolist(), changes.take(rows).to_pylist(), strict=True):
            change = Change(told["_op"], told["_key"], told["_before"], told["_after"])
            done = "deletes" if change.op == "delete" else "changes"
            reason = _REASONS[taken.refused[row]].format(done=done)
            place = told[TIME], told["_partition"], told["_offset"]
            yield BrokenChange(*place, reason, self._told(change))

    def _told(self, change: Change) -> str:
        """The change for whoever reads the dead letter."""
        told: dict[str, object] = {"op": change.op}
        for name, packed in (("before", change.before), ("after", change.after)):
            if packed is not None:
                told[name] = dict(zip(self.schema.names, unpack_row(packed), strict=True))
        if len(told) == 1:
            names = [self.schema.names[at] for at in self._key]
            told["key"] = dict(zip(names, unpack_row(change.key), strict=True))
        return msgspec.json.encode(told).decode()


def _stated(keys: Sequence[bytes], rows: Sequence[bytes]) -> pa.Table:
    """Changes by which these keys have these rows, all at one time."""
    count = len(keys)
    columns = [
        pa.repeat("set", count), pa.array(keys, pa.binary()), pa.nulls(count, pa.binary()),
        pa.array(rows, pa.binary()), pa.repeat(0, count), pa.array(range(count), pa.uint64()),
    ]  # fmt: skip
    return pa.Table.from_arrays(columns, schema=CHANGE_SCHEMA).append_column(
        TIME, pa.repeat(pa.scalar(0, pa.uint64()), count)
    )
