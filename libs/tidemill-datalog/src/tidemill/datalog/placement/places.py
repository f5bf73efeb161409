"""Places of the facts of a program whose ranges of hashes are evaluated apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tidemill.datalog.logical.plan import LogicalPlan
from tidemill.datalog.placement.hashing import range_of, spot_of
from tidemill.datalog.records import Record

Positions: TypeAlias = "tuple[int, ...]"
"""Columns of a key, ascending: 0 is the time, arguments follow."""
Way: TypeAlias = Literal["ranges", "rounds", "one task"]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of the facts of a predicate: by the hash of columns, in all ranges, or in one.

    No `positions` mean the first range, or all of them where facts are `everywhere`. Facts whose
    key has one of the `heavy` spots are placed by the columns of `pieces`; without these they are
    in all ranges.
    """

    positions: Positions = ()
    everywhere: bool = False
    heavy: frozenset[int] = frozenset()
    pieces: Positions = ()

    def ranges_of(self, record: Record, ranges: int) -> Sequence[int]:
        """The ranges in which a fact is."""
        if self.everywhere:
            return range(ranges)
        if not self.positions:
            return (0,)
        key = self.key_of(record)
        if self.heavy and spot_of(key) in self.heavy:
            if not self.pieces:
                return range(ranges)
            key = _values(record, self.pieces)
        return (range_of(key, ranges),)

    def key_of(self, record: Record) -> list[Any]:
        """The values of the key of a fact, in the order of their columns."""
        return _values(record, self.positions)


def _values(record: Record, columns: Positions) -> list[Any]:
    return [record.arguments[at - 1] if at else record.time for at in columns]


EVERYWHERE = Place(everywhere=True)
FIRST = Place()


@dataclass(frozen=True, slots=True)
class Read:
    """Facts of a predicate as a fragment reads them: under a name of their own, at a place."""

    name: str
    predicate: str
    place: Place


@dataclass(frozen=True, slots=True)
class HeavyKey:
    """About so many `rows` of a predicate have a value in a column; the first column is 1."""

    predicate: str
    column: int
    value: Any
    rows: int

    @property
    def spot(self) -> int:
        """The spot of a key that is this value alone."""
        return spot_of((self.value,))


@dataclass(frozen=True, slots=True)
class Fragment:
    """Rules that are evaluated range by range, or in one task.

    One by rounds reads what it derives itself: it is evaluated until no range derives more, all
    ranges in step. Any other one needs no exchange.

    `placed` says where derived facts are; those that are not in it are merged by a later fragment.
    `keys` are the variables by whose values the matches of each rule are divided, by the place of
    the rule in the plan. Facts of `whole` take contributions along. A `reason` says why a fragment
    is one task, and `advice` what to change. Matches of `heavy` keys are divided among all
    ranges, unless `undivided` says why not.
    """

    number: int
    way: Way
    plan: LogicalPlan
    reads: tuple[Read, ...]
    placed: Mapping[str, Place]
    keys: tuple[tuple[str, ...], ...]
    reason: str = ""
    advice: str = ""
    whole: frozenset[str] = frozenset()
    heavy: tuple[HeavyKey, ...] = ()
    undivided: Mapping[HeavyKey, str] = field(default_factory=dict)

    @property
    def divided(self) -> bool:
        """Whether it is evaluated range by range."""
        return self.way != "one task"

    @property
    def returning(self) -> frozenset[str]:
        """The predicates that come back to it in the next round; none but for one by rounds."""
        return frozenset(self.derives) & {each.predicate for each in self.reads}

    @property
    def derives(self) -> tuple[str, ...]:
        """The predicates that it derives, in their order."""
        return tuple(n for each in self.plan.components if each.rules for n in each.predicates)


@dataclass(frozen=True, slots=True)
class Placement:
    """The fragments of a program in an order in which each reads inputs and earlier ones.

    Every derived fact of the program is found once, in one range of one fragment. `matches` are
    predicates of which a fact crosses for each match of an aggregating rule, and why.
    """

    plan: LogicalPlan
    fragments: tuple[Fragment, ...]
    matches: Mapping[str, str] = field(default_factory=dict)

    @property
    def divided(self) -> bool:
        """Whether some fragment is evaluated range by range."""
        return any(fragment.divided for fragment in self.fragments)

    def crossing(self, fragment: Fragment) -> frozenset[str]:
        """The predicates of a fragment that later ones read."""
        read = {each.predicate for later in self.fragments for each in later.reads}
        return frozenset(fragment.derives) & read
