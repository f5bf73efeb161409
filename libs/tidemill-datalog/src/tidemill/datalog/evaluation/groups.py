"""Aggregates as functions of the instant: one sweep over the solutions of a group (language.md 5).

A *solution* is (start, end, time, expires, inner values, passed parafacts, identity). The record of
a group at an instant is made of the solutions living then: time by maximum, expiry by minimum, each
lattice merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Protocol, TypeAlias

from tidemill.datalog.lattices import (
    TALLIES,
    Identity,
    Lattice,
    Parafacts,
    Tally,
    merge_parafacts,
)
from tidemill.datalog.presence import END, Instant
from tidemill.datalog.sums import ExactSum
from tidemill.datalog.tables import Part
from tidemill.datalog.values import Failed, Value

Solution: TypeAlias = (
    "tuple[Instant, Instant, int | None, Instant, tuple[Any, ...], Parafacts, Identity]"
)
Timed: TypeAlias = "tuple[int | None, Part]"  # the record's time, and when it holds with what
Report: TypeAlias = "Callable[[str, int | None, Instant, Instant], None]"


class _Living(Protocol):
    """The merged value of one lattice over the solutions that live."""

    def enter(self, i: int) -> None: ...
    def leave(self, i: int) -> None: ...
    def inner(self, at: Instant) -> Any: ...


class _Extreme:
    """The least of the values that live, nulls skipped; the greatest with `sign` -1 over numbers."""

    def __init__(self, values: Sequence[Sequence[Any]], descending: bool) -> None:
        self._values = values
        self._descending = descending
        self._heap: list[_Ranked] = []
        self._dead: set[int] = set()

    def enter(self, i: int) -> None:
        for value in self._values[i]:
            if value is not None:
                heappush(self._heap, _Ranked(value, i, self._descending))

    def leave(self, i: int) -> None:
        self._dead.add(i)

    def inner(self, at: Instant) -> Any:
        while self._heap and self._heap[0].index in self._dead:
            heappop(self._heap)
        return self._heap[0].value if self._heap else None


class _Ranked:
    __slots__ = ("descending", "index", "value")

    def __init__(self, value: Any, index: int, descending: bool) -> None:
        self.value = value
        self.index = index
        self.descending = descending

    def __lt__(self, other: _Ranked) -> bool:
        if self.descending:
            return bool(self.value > other.value)
        return bool(self.value < other.value)


class _Union:
    """The union of the sets that live."""

    def __init__(self, values: Sequence[Sequence[Any]]) -> None:
        self._values = values
        self._copies: Counter[Any] = Counter()
        self._known: frozenset[Any] | None = None

    def enter(self, i: int) -> None:
        for elements in self._values[i]:
            for element in elements:
                self._copies[element] += 1
                if self._copies[element] == 1:
                    self._known = None

    def leave(self, i: int) -> None:
        for elements in self._values[i]:
            for element in elements:
                self._copies[element] -= 1
                if not self._copies[element]:
                    del self._copies[element]
                    self._known = None

    def inner(self, at: Instant) -> frozenset[Any]:
        if self._known is None:
            self._known = frozenset(self._copies)
        return self._known


class _Count:
    """How many contributions live; the tally knows which."""

    def __init__(
        self, kind: str, values: Sequence[Sequence[tuple[Identity, Value]]], group: _Contributions
    ) -> None:
        self._kind = kind
        self._values = values
        self._group = group
        self._total = ExactSum()
        self._count = 0

    def enter(self, i: int) -> None:
        self._move(i, 1)

    def leave(self, i: int) -> None:
        self._move(i, -1)

    def _move(self, i: int, sign: int) -> None:
        for _, value in self._values[i]:
            if value is not None:
                self._count += sign
                if self._kind != "count":
                    self._total.add(value, sign)

    def inner(self, at: Instant) -> Tally:
        if self._kind == "count":
            value: Value = self._count
        else:
            value = self._total.sum() if self._kind == "sum" else self._total.average()
        group, values = self._group, self._values
        return Tally(self._kind, value, lambda: group.members(values, at))


class _Contributions:
    """Which solutions of a group live at an instant."""

    def __init__(self, solutions: Sequence[Solution]) -> None:
        self._solutions = solutions

    def members(
        self, values: Sequence[Sequence[tuple[Identity, Value]]], at: Instant
    ) -> Mapping[Identity, Value]:
        members: dict[Identity, Value] = {}
        for solution, mine in zip(self._solutions, values, strict=True):
            if solution[0] <= at < solution[1]:
                members.update(mine)
        return members


class _Fold:
    """The merge of the values that live, folded anew when one leaves: for products and host
    lattices.
    """

    def __init__(self, values: Sequence[Sequence[Any]], merge: Callable[[Any, Any], Any]) -> None:
        self._values = values
        self._merge = merge
        self._living: dict[int, None] = {}

    def enter(self, i: int) -> None:
        self._living[i] = None

    def leave(self, i: int) -> None:
        del self._living[i]

    def inner(self, at: Instant) -> Any:
        folded: Any = None
        first = True
        for i in self._living:
            for value in self._values[i]:
                folded = value if first else self._merge(folded, value)
                first = False
        return folded


def _living_values(
    name: str, values: Sequence[Sequence[Any]], lattice: Lattice, group: _Contributions
) -> _Living:
    if name in ("min", "earliest"):
        return _Extreme(values, False)
    if name in ("max", "latest"):
        return _Extreme(values, True)
    if name in ("set", "count_distinct", "provenance"):
        return _Union(values)
    if name in TALLIES:
        return _Count(name, values, group)
    return _Fold(values, lattice.merge)


def aggregate(
    names: Sequence[str],
    solutions: Sequence[Solution],
    lattices: Mapping[str, Lattice],
    report: Report,
) -> list[Timed]:
    """The records of one group at every instant at which a solution lives.

    `names` are the lattices of the head, in the order of the inner values of each solution. Where a
    value fails, the record is absent and `report(reason, time, start, end)` is told. Cost: O(n log
    n) for n solutions; where parafacts are passed, O(n * solutions that live together).
    """
    group = _Contributions(solutions)
    columns = [
        (name, _living_values(name, values, lattices[name], group))
        for name, values in _columns(names, solutions)
    ]
    columns.sort(key=lambda column: column[0])
    passes = any(solution[5] is not None for solution in solutions)
    times = _Times(solutions)
    records: list[Timed] = []
    living: dict[int, None] = {}
    for start, end, entering, leaving in _borders(solutions):
        for i in leaving:
            del living[i]
            times.leave(i)
            for _, column in columns:
                column.leave(i)
        for i in entering:
            living[i] = None
            times.enter(i)
            for _, column in columns:
                column.enter(i)
        if not living:
            continue
        time, expires = times.now()
        try:
            parafacts: Parafacts = tuple((name, column.inner(start)) for name, column in columns)
            if passes:
                for i in living:
                    parafacts = merge_parafacts(parafacts, solutions[i][5], lattices)
        except Failed as failed:
            report(failed.reason, time, start, end)
            continue
        records.append((time, (start, end, expires, parafacts)))
    return records


def _columns(
    names: Sequence[str], solutions: Sequence[Solution]
) -> list[tuple[str, list[list[Any]]]]:
    """For each lattice of the head the values of each solution, several where it is mentioned
    twice.
    """
    columns: dict[str, list[list[Any]]] = {}
    for position, name in enumerate(names):
        values = columns.setdefault(name, [[] for _ in solutions])
        for mine, solution in zip(values, solutions, strict=True):
            inner = solution[4][position]
            mine.append((((position,), solution[6]), inner) if name in TALLIES else inner)
    return list(columns.items())


def _borders(
    solutions: Sequence[Solution],
) -> list[tuple[Instant, Instant, list[int], list[int]]]:
    """The elementary intervals of the group, with who enters and who leaves at their start."""
    at: dict[Instant, tuple[list[int], list[int]]] = {}
    for i, solution in enumerate(solutions):
        at.setdefault(solution[0], ([], []))[0].append(i)
        at.setdefault(solution[1], ([], []))[1].append(i)
    instants = sorted(at)
    ends = [*instants[1:], END]
    return [
        (start, end, at[start][0], at[start][1]) for start, end in zip(instants, ends, strict=True)
    ]


class _Times:
    """The latest time and the earliest expiry of the solutions that live."""

    def __init__(self, solutions: Sequence[Solution]) -> None:
        self._solutions = solutions
        self._latest: list[tuple[int, int]] = []
        self._soonest: list[tuple[Instant, int]] = []
        self._dead: set[int] = set()

    def enter(self, i: int) -> None:
        time, expires = self._solutions[i][2], self._solutions[i][3]
        if time is not None:
            heappush(self._latest, (-time, i))
        if expires != END:
            heappush(self._soonest, (expires, i))

    def leave(self, i: int) -> None:
        self._dead.add(i)

    def now(self) -> tuple[int | None, Instant]:
        while self._latest and self._latest[0][1] in self._dead:
            heappop(self._latest)
        while self._soonest and self._soonest[0][1] in self._dead:
            heappop(self._soonest)
        time = -self._latest[0][0] if self._latest else None
        return time, self._soonest[0][0] if self._soonest else END
