"""The laws of time domains and of advancing, as plain formulas over all of a list of times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Generic, TypeVar

from tidemill.time import Antichain, Lattice, advance

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Universe(Generic[T]):
    """The ranges of a law's variables: all of `times`; F is `since`, G is `earlier` ≤ F."""

    lattice: Lattice[T]
    times: Sequence[T]
    since: Antichain[T]
    earlier: Antichain[T]

    def le(self, a: T, b: T) -> bool:
        """a ≤ b."""
        return self.lattice.less_equal(a, b)

    def adv(self, time: T) -> T:
        """adv_F(time)."""
        return advance(time, self.since, self.lattice)

    def sorted_by(self, a: T, b: T) -> bool:
        """`a` is not after `b` in the total order."""
        return self.lattice.sort_key(a) <= self.lattice.sort_key(b)

    def beyond(self) -> list[T]:
        """The times that are beyond F."""
        return [time for time in self.times if self.since.less_equal(time)]


def law_holds(law: str, universe: Universe[T]) -> bool:
    """Whether the formula named `law` holds in `universe`. Raises KeyError for an unknown name."""
    return LAWS[law](universe)


def _join_commutative(u: Universe[T]) -> bool:
    join = u.lattice.join
    return all(join(a, b) == join(b, a) for a, b in product(u.times, repeat=2))


def _meet_commutative(u: Universe[T]) -> bool:
    meet = u.lattice.meet
    return all(meet(a, b) == meet(b, a) for a, b in product(u.times, repeat=2))


def _join_associative(u: Universe[T]) -> bool:
    join = u.lattice.join
    return all(join(a, join(b, c)) == join(join(a, b), c) for a, b, c in product(u.times, repeat=3))


def _meet_associative(u: Universe[T]) -> bool:
    meet = u.lattice.meet
    return all(meet(a, meet(b, c)) == meet(meet(a, b), c) for a, b, c in product(u.times, repeat=3))


def _absorption(u: Universe[T]) -> bool:
    join, meet = u.lattice.join, u.lattice.meet
    return all(
        join(a, meet(a, b)) == a == meet(a, join(a, b)) for a, b in product(u.times, repeat=2)
    )


def _least_upper_bound(u: Universe[T]) -> bool:
    return all(
        (u.le(a, e) and u.le(b, e)) == u.le(u.lattice.join(a, b), e)
        for a, b, e in product(u.times, repeat=3)
    )


def _greatest_lower_bound(u: Universe[T]) -> bool:
    return all(
        (u.le(e, a) and u.le(e, b)) == u.le(e, u.lattice.meet(a, b))
        for a, b, e in product(u.times, repeat=3)
    )


def _sort_extends_order(u: Universe[T]) -> bool:
    return all(u.sorted_by(a, b) for a, b in product(u.times, repeat=2) if u.le(a, b))


def _sort_equals_order(u: Universe[T]) -> bool:
    return all(u.sorted_by(a, b) == u.le(a, b) for a, b in product(u.times, repeat=2))


def _advance_dominates(u: Universe[T]) -> bool:
    return all(u.le(t, u.adv(t)) for t in u.times)


def _advance_sound(u: Universe[T]) -> bool:
    return all(u.le(u.adv(t), s) == u.le(t, s) for t, s in product(u.times, u.beyond()))


def _advance_canonical(u: Universe[T]) -> bool:
    return all(
        (u.adv(a) == u.adv(b)) == all(u.le(a, s) == u.le(b, s) for s in u.beyond())
        for a, b in product(u.times, repeat=2)
    )


def _advance_keeps_joins(u: Universe[T]) -> bool:
    join = u.lattice.join
    return all(join(s, u.adv(t)) == join(s, t) for t, s in product(u.times, u.beyond()))


def _advance_idempotent(u: Universe[T]) -> bool:
    return all(u.adv(u.adv(t)) == u.adv(t) for t in u.times)


def _advance_monotone(u: Universe[T]) -> bool:
    return all(u.le(u.adv(a), u.adv(b)) for a, b in product(u.times, repeat=2) if u.le(a, b))


def _advance_keeps_sort(u: Universe[T]) -> bool:
    return all(
        u.sorted_by(u.adv(a), u.adv(b)) for a, b in product(u.times, repeat=2) if u.sorted_by(a, b)
    )


def _advance_composes(u: Universe[T]) -> bool:
    return all(u.adv(advance(t, u.earlier, u.lattice)) == u.adv(t) for t in u.times)


def _advance_lane_minimum(u: Universe[T]) -> bool:
    if u.since.empty:
        return all(u.adv(t) == t for t in u.times)
    least = u.since.elements[0]
    for element in u.since.elements[1:]:
        least = u.lattice.meet(least, element)
    return all(u.adv(t) == u.lattice.join(t, least) for t in u.times)


LAWS: dict[str, Callable[[Universe[T]], bool]] = {
    "join-commutative": _join_commutative,
    "meet-commutative": _meet_commutative,
    "join-associative": _join_associative,
    "meet-associative": _meet_associative,
    "absorption": _absorption,
    "join-is-least-upper-bound": _least_upper_bound,
    "meet-is-greatest-lower-bound": _greatest_lower_bound,
    "sort-extends-order": _sort_extends_order,
    "sort-equals-order": _sort_equals_order,
    "advance-dominates": _advance_dominates,
    "advance-sound": _advance_sound,
    "advance-canonical": _advance_canonical,
    "advance-keeps-joins": _advance_keeps_joins,
    "advance-idempotent": _advance_idempotent,
    "advance-monotone": _advance_monotone,
    "advance-keeps-sort": _advance_keeps_sort,
    "advance-composes": _advance_composes,
    "advance-lane-minimum": _advance_lane_minimum,
}
