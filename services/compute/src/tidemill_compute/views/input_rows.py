"""The rows of an input that are alive, one object each, for a view with ticks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from tidemill.datalog.records import Record
from tidemill.errors import Corrupt

Row: TypeAlias = "tuple[object, ...]"
MakeRecord: TypeAlias = Callable[[Row], Record]


def rows_of(table: pa.Table, names: Sequence[str]) -> list[Row]:
    """The rows of some columns of a table."""
    if not names:
        return [()] * table.num_rows
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


@dataclass(slots=True)
class CountedRow:
    """A row with how often it is there; its record is what a program sees."""

    copies: int
    record: Record


@dataclass(slots=True)
class InputRows:
    """Rows with their multiplicities and records."""

    make_record: MakeRecord
    _held: dict[Row, CountedRow] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, row: Row, copies: int) -> None:
        """Add a row that was not alive."""
        self._held[row] = CountedRow(copies, self.make_record(row))

    def items(self) -> Iterable[tuple[Row, CountedRow]]:
        """Every row that is alive."""
        return self._held.items()

    def apply(self, changes: Sequence[tuple[Row, int, int]]) -> list[tuple[CountedRow, int, int]]:
        """Take changes (row, time, diff) in, by time; which rows begin (1) and which end (-1), and
        when.

        Raises: Corrupt if a row is taken away more often than it was put in.
        """
        moved: list[tuple[CountedRow, int, int]] = []
        for row, time, diff in _net(changes):
            held = self._held.get(row)
            after = diff + (held.copies if held is not None else 0)
            if after < 0:
                raise Corrupt(
                    f"row {row} is taken away more often than it was put in, first at {time}",
                    row=row,
                    time=time,
                )
            if held is None:
                held = self._held[row] = CountedRow(after, self.make_record(row))
                moved.append((held, time, 1))
            elif after:
                held.copies = after
            else:
                del self._held[row]
                moved.append((held, time, -1))
        return moved


def _net(changes: Sequence[tuple[Row, int, int]]) -> list[tuple[Row, int, int]]:
    """The changes with those of one row at one time added up."""
    sums: dict[tuple[int, Row], int] = {}
    for row, time, diff in changes:
        sums[time, row] = sums.get((time, row), 0) + diff
    return [(row, time, diff) for (time, row), diff in sums.items() if diff]
