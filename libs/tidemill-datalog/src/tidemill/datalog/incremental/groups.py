"""Groups of solutions under insertion and removal: each aggregate keeps what a change of one member
needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from tidemill.datalog.incremental.extremes import Extreme
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
from tidemill.datalog.values import Value

Member: TypeAlias = "tuple[int | None, Instant, tuple[Any, ...], Parafacts, Identity]"
"""time, expires, inner values in the order of the head, passed parafacts, identity of the solution"""


class _Aggregate(Protocol):
    """The merged value of one lattice over the members."""

    def enter(self, value: Any) -> None: ...
    def leave(self, value: Any) -> None: ...
    def inner(self) -> Any: ...


class _Union:
    """The union of the sets that are there."""

    def __init__(self) -> None:
        self._copies: Counter[Any] = Counter()
        self._known: frozenset[Any] | None = None

    def enter(self, value: frozenset[Any]) -> None:
        for element in value:
            self._copies[element] += 1
            if self._copies[element] == 1:
                self._known = None

    def leave(self, value: frozenset[Any]) -> None:
        for element in value:
            self._copies[element] -= 1
            if not self._copies[element]:
                del self._copies[element]
                self._known = None

    def inner(self) -> frozenset[Any]:
        if self._known is None:
            self._known = frozenset(self._copies)
        return self._known


class _Count:
    """How many contributions there are, or their exact sum or average."""

    def __init__(self, kind: str, members: Callable[[], Mapping[Identity, Value]]) -> None:
        self._kind = kind
        self._members = members
        self._count = 0
        self._total = ExactSum()

    def enter(self, value: Value) -> None:
        self._move(value, 1)

    def leave(self, value: Value) -> None:
        self._move(value, -1)

    def _move(self, value: Value, sign: int) -> None:
        if value is not None:
            self._count += sign
            if self._kind != "count":
                self._total.add(value, sign)

    def move_all(self, values: Sequence[Value], sign: int) -> None:
        """Let many values enter (sign 1) or leave (-1)."""
        known = values if None not in values else [v for v in values if v is not None]
        self._count += sign * len(known)
        if self._kind != "count":
            self._total.add_all(known, sign)

    def inner(self) -> Tally:
        if self._kind == "count":
            value: Value = self._count
        else:
            value = self._total.sum() if self._kind == "sum" else self._total.average()
        return Tally(self._kind, value, self._members)


class _Fold:
    """The merge of the values that are there, folded anew when one leaves: for products and host
    lattices.
    """

    def __init__(self, merge: Callable[[Any, Any], Any]) -> None:
        self._merge = merge
        self._values: list[Any] = []

    def enter(self, value: Any) -> None:
        self._values.append(value)

    def leave(self, value: Any) -> None:
        self._values.remove(value)

    def inner(self) -> Any:
        folded = self._values[0]
        for value in self._values[1:]:
            folded = self._merge(folded, value)
        return folded


class Group:
    """The living solutions of one group, and the record they make together.

    With `remembers`, the tallies of a record keep the contributions as they were then (a copy for
    each record); without, nobody may ask for them, because no tally of the program ever meets
    another. With `keeps`, it knows all its members, else only those that pass something on.
    """

    __slots__ = (
        "_columns",
        "_keeps",
        "_latest",
        "_lattices",
        "_passed",
        "_remembers",
        "_soonest",
        "arguments",
        "count",
        "error",
        "home",
        "members",
    )  # fmt: skip

    def __init__(
        self,
        names: Sequence[str],
        arguments: tuple[Any, ...],
        lattices: Mapping[str, Lattice],
        remembers: bool,
        keeps: bool = True,
    ) -> None:
        self.arguments = arguments
        self.count = 0
        self._keeps = keeps
        self.home: tuple[Any, ...] | None = None
        self.error: str | None = None
        self.members: dict[Any, Member] = {}
        self._lattices = lattices
        self._remembers = remembers
        self._passed = 0
        self._latest = Extreme(descending=True)
        self._soonest = Extreme(descending=False)
        positions: dict[str, list[int]] = {}
        for position, name in enumerate(names):
            positions.setdefault(name, []).append(position)
        self._columns: list[tuple[str, list[int], _Aggregate]] = [
            (name, at, self._aggregate(name, at)) for name, at in sorted(positions.items())
        ]

    def _aggregate(self, name: str, at: Sequence[int]) -> _Aggregate:
        if name in ("min", "earliest"):
            return Extreme(descending=False)
        if name in ("max", "latest"):
            return Extreme(descending=True)
        if name in ("set", "count_distinct", "provenance"):
            return _Union()
        if name in TALLIES:
            return _Count(name, self._contributions(at))
        return _Fold(self._lattices[name].merge)

    def _contributions(self, at: Sequence[int]) -> Callable[[], Mapping[Identity, Value]]:
        def now() -> Mapping[Identity, Value]:
            return {
                ((position,), member[4]): member[2][position]
                for member in self.members.values()
                for position in at
            }

        return now

    def enter(self, source: Any, member: Member) -> None:
        """Add a solution."""
        self.count += 1
        if self._keeps or member[3] is not None:
            self.members[source] = member
        self._move(member, True)

    def leave(self, source: Any) -> None:
        """Take a solution away, for who keeps them."""
        self.count -= 1
        self._move(self.members.pop(source), False)

    def change(self, moved: Sequence[tuple[Any, Member]], sign: int) -> None:
        """Let solutions enter (sign 1) or leave (-1), each with its source."""
        for source, member in moved:
            if self._keeps or member[3] is not None:
                if sign > 0:
                    self.members[source] = member
                else:
                    del self.members[source]
                self._passed += sign if member[3] is not None else 0
        self.count += sign * len(moved)
        for _, (time, expires, _, _, _) in moved:
            if time is not None:
                (self._latest.enter if sign > 0 else self._latest.leave)(time)
            if expires != END:
                (self._soonest.enter if sign > 0 else self._soonest.leave)(expires)
        for _, at, column in self._columns:
            values = [member[2][position] for _, member in moved for position in at]
            if isinstance(column, _Count):
                column.move_all(values, sign)
                continue
            if isinstance(column, Extreme) and sign > 0:
                column.enter_all(values)
                continue
            for value in values:
                (column.enter if sign > 0 else column.leave)(value)

    def _move(self, member: Member, entering: bool) -> None:
        time, expires, values, passed, _ = member
        if time is not None:
            (self._latest.enter if entering else self._latest.leave)(time)
        if expires != END:
            (self._soonest.enter if entering else self._soonest.leave)(expires)
        self._passed += (1 if entering else -1) if passed is not None else 0
        for _, at, column in self._columns:
            move = column.enter if entering else column.leave
            for position in at:
                move(values[position])

    def time(self) -> int | None:
        """The latest time of the members."""
        latest: int | None = self._latest.inner()
        return latest

    def value(self) -> tuple[Instant, Parafacts]:
        """Expiry and parafacts of the record. Raises: Failed where an aggregate has no value."""
        parafacts: Parafacts = tuple(
            (name, self._kept(column.inner())) for name, _, column in self._columns
        )
        if self._passed:
            for member in self.members.values():
                parafacts = merge_parafacts(parafacts, member[3], self._lattices)
        soonest = self._soonest.inner()
        return END if soonest is None else soonest, parafacts

    def _kept(self, inner: Any) -> Any:
        if self._remembers and isinstance(inner, Tally):
            _ = inner.members
        return inner
