"""What an input of a view holds: the rows present at one instant, and the changes after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record
from tidemill.time import Corrupt

Row: TypeAlias = "tuple[object, ...]"
MakeRecord: TypeAlias = Callable[[Row], Record]
Times: TypeAlias = npt.NDArray[np.uint64]


@dataclass(slots=True)
class _Held:
    """A row with how often it is there; its presence is what an evaluation sees."""

    copies: int
    presence: Presence


@dataclass(slots=True)
class LivingInput:
    """The rows of one input that are present just before `lower`, and all known changes from there on.

    Between two windows nothing is read again: a window costs its changes and the rows alive.
    """

    predicate: str
    columns: tuple[str, ...]
    make_record: MakeRecord
    lower: int = 0
    upper: int = 0
    _present: dict[Row, _Held] = field(default_factory=dict)
    _changes: list[pa.Table] = field(default_factory=list)
    _times: Times = field(default_factory=lambda: np.empty(0, dtype=np.uint64))

    def restart(self, present: pa.Table, lower: int) -> None:
        """Begin at `lower` with the rows that are present just before it; earlier starts are unknown."""
        self.lower = self.upper = lower
        self._changes, self._times = [], np.empty(0, dtype=np.uint64)
        self._present = {}
        for row, copies in zip(_rows(present, self.columns), _ints(present, DIFF), strict=True):
            self._present[row] = _Held(copies, Presence(self.make_record(row), lower - 1, END))

    def extend(self, changes: pa.Table, upper: int) -> None:
        """Add the changes of [upper so far, `upper`)."""
        times = np.asarray(changes.column(TIME).to_numpy(), dtype=np.uint64)
        order = np.argsort(times, kind="stable")
        self._changes.append(changes.take(pa.array(order)))
        self._times = np.concatenate([self._times, times[order]])
        self.upper = upper

    def change_times(self) -> Times:
        """The times of the changes not yet evaluated, ascending."""
        return self._times

    @property
    def alive(self) -> int:
        """How many rows are present just before `lower`."""
        return len(self._present)

    def waiting(self, upper: int) -> int:
        """How many changes before `upper` are not yet evaluated."""
        return int(np.searchsorted(self._times, upper))

    def present(self) -> list[Presence]:
        """The rows that are present just before `lower`, as stretches that do not end."""
        return [held.presence for held in self._present.values()]

    def advance(self, upper: int) -> list[Presence]:
        """The presences of the window [lower − 1, upper); the input then begins at `upper`.

        Raises: Corrupt if a row is taken away more often than it was put in.
        """
        stretches = [
            Presence(held.presence.record, held.presence.start, time)
            for held, time, diff in self._moved(upper)
            if diff < 0
        ]
        stretches.extend(held.presence for held in self._present.values())
        return stretches

    def take(self, upper: int) -> list[tuple[Record, int, int]]:
        """The records that begin (1) or end (-1) before `upper`; the input then begins there.

        Raises: Corrupt as `advance`. Cost: O(changes).
        """
        return [(held.presence.record, time, diff) for held, time, diff in self._moved(upper)]

    def _moved(self, upper: int) -> list[tuple[_Held, int, int]]:
        """Apply the changes before `upper`: which rows begin and which end, and when."""
        moved: list[tuple[_Held, int, int]] = []
        for row, time, diff in self._take(upper):
            held = self._present.get(row)
            before = held.copies if held is not None else 0
            after = before + diff
            if after < 0:
                raise Corrupt(
                    f"input {self.predicate}: row {row} is taken away more often than it was put in,"
                    f" first at {time}",
                    row=row,
                    time=time,
                )
            if held is None:
                held = _Held(after, Presence(self.make_record(row), time, END))
                self._present[row] = held
                moved.append((held, time, 1))
            elif after:
                held.copies = after
            else:
                del self._present[row]
                moved.append((held, time, -1))
        self.lower = upper
        return moved

    def _take(self, upper: int) -> Sequence[tuple[Row, int, int]]:
        """The changes before `upper`, by time; at one time what goes comes before what comes."""
        count = int(np.searchsorted(self._times, upper))
        if not count:
            return []
        table = pa.concat_tables(self._changes)
        due = table.slice(0, count)
        self._changes, self._times = [table.slice(count)], self._times[count:]
        changes = zip(_rows(due, self.columns), _ints(due, TIME), _ints(due, DIFF), strict=True)
        return _net(list(changes))


def _net(changes: list[tuple[Row, int, int]]) -> list[tuple[Row, int, int]]:
    """The changes with those of one row at one time added up."""
    sums: dict[tuple[int, Row], int] = {}
    for row, time, diff in changes:
        sums[time, row] = sums.get((time, row), 0) + diff
    return [(row, time, diff) for (time, row), diff in sums.items() if diff]


def cut_window(inputs: Sequence[LivingInput], lower: int, upper: int, changes_max: int) -> int:
    """Where a window from `lower` ends: `upper`, or before it if it would see too many changes.

    All changes at one instant belong to one window, however many they are.
    """
    times = np.sort(np.concatenate([living.change_times() for living in inputs]))
    times = times[times < upper]
    if len(times) <= changes_max:
        return upper
    cut = int(times[changes_max])
    if cut > lower and int(times[0]) < cut:
        return cut
    later = times[times > times[0]]
    return int(later[0]) if len(later) else upper


def _rows(table: pa.Table, columns: Sequence[str]) -> list[Row]:
    if not columns:
        return [()] * table.num_rows
    return list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


def _ints(table: pa.Table, name: str) -> list[int]:
    return list(table.column(name).to_pylist())
