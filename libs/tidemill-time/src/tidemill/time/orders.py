"""Time domains: what a time is, when one is before another, joins and meets."""

from __future__ import annotations

from bisect import bisect_right
from typing import Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")
Covered = TypeVar("Covered", contravariant=True)

U64_MAX = 2**64 - 1


class Covers(Protocol[Covered]):
    """Times, added in the total order of their domain, and what is beyond one of them."""

    def add(self, time: Covered) -> None:
        """Take in a time that is not before, in the total order, those that are here."""

    def covers(self, time: Covered) -> bool:
        """Whether `time` is beyond one of those here, equality included."""


class TimeDomain(Protocol[T]):
    """A partially ordered set of times with a least element and a total order that extends it."""

    @property
    def name(self) -> str:
        """Name of the domain, as messages show it."""

    def minimum(self) -> T:
        """The time that is before every other."""

    def less_equal(self, a: T, b: T) -> bool:
        """Whether `a` is before or equal to `b` in the partial order."""

    def sort_key(self, time: T) -> tuple[int, ...]:
        """A key whose order is total and extends the partial order."""

    def covers(self) -> Covers[T]:
        """No times yet."""


class Lattice(TimeDomain[T], Protocol[T]):
    """A time domain in which any two times have a least upper and a greatest lower bound."""

    def join(self, a: T, b: T) -> T:
        """The least time that is beyond both."""

    def meet(self, a: T, b: T) -> T:
        """The greatest time that both are beyond."""


class EachTime(Generic[T]):
    """Covers in any domain. Cost of `covers`: O(n) for n times."""

    def __init__(self, domain: TimeDomain[T]) -> None:
        self._domain = domain
        self._times: list[T] = []

    def add(self, time: T) -> None:
        """Take in a time behind the others."""
        self._times.append(time)

    def covers(self, time: T) -> bool:
        """Whether one of the times is before `time`, or is it."""
        return any(self._domain.less_equal(each, time) for each in self._times)


class U64:
    """Whole numbers 0 … 2^64−1 in their usual, total order."""

    name = "u64"

    def minimum(self) -> int:
        """Zero."""
        return 0

    def less_equal(self, a: int, b: int) -> bool:
        """Numeric order."""
        return a <= b

    def sort_key(self, time: int) -> tuple[int, ...]:
        """The time itself, as a tuple of one."""
        return (time,)

    def covers(self) -> EachTime[int]:
        """An antichain has one time at most."""
        return EachTime(self)

    def join(self, a: int, b: int) -> int:
        """The greater time."""
        return a if a >= b else b

    def meet(self, a: int, b: int) -> int:
        """The lesser time."""
        return a if a <= b else b


class ProductOrder:
    """Tuples of `lanes` whole numbers, compared lane by lane."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.name = f"product:{lanes}"

    def minimum(self) -> tuple[int, ...]:
        """Zero in each lane."""
        return (0,) * self.lanes

    def less_equal(self, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        """Numeric order in each lane. Raises: ValueError for tuples of different lengths."""
        return all(x <= y for x, y in zip(a, b, strict=True))

    def sort_key(self, time: tuple[int, ...]) -> tuple[int, ...]:
        """The tuple itself: lexicographic order extends the product order."""
        return time

    def covers(self) -> EachTime[tuple[int, ...]]:
        """Each time is looked at."""
        return EachTime(self)

    def join(self, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        """The greater number of each lane."""
        return tuple(max(x, y) for x, y in zip(a, b, strict=True))

    def meet(self, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        """The lesser number of each lane."""
        return tuple(min(x, y) for x, y in zip(a, b, strict=True))


class Partitions(NamedTuple):
    """All partitions `lo` … `hi`, both inclusive, at an offset: the FromTime of a partitioned
    log.
    """

    lo: int
    hi: int
    offset: int


class CoveringRanges:
    """Covers of ranges of partitions.

    Cost of `covers`: O(log n + k) for n ranges. Of them k begin before the one asked for, and
    have it within the furthest end so far: one, if the ranges are disjoint.
    """

    def __init__(self) -> None:
        self._times: list[Partitions] = []
        self._begins: list[int] = []
        self._reaches: list[int] = []

    def add(self, time: Partitions) -> None:
        """Take in a range behind the others."""
        self._times.append(time)
        self._begins.append(time.lo)
        self._reaches.append(max(time.hi, self._reaches[-1] if self._reaches else 0))

    def covers(self, time: Partitions) -> bool:
        """Whether one of the ranges is before `time`, or is it."""
        at = bisect_right(self._begins, time.lo) - 1
        while at >= 0 and self._reaches[at] >= time.hi:
            if PARTITIONED.less_equal(self._times[at], time):
                return True
            at -= 1
        return False


class PartitionedOrder:
    """Ranges of partitions × offset: a wide range is before a narrower one inside it."""

    name = "partitioned"

    def minimum(self) -> Partitions:
        """All partitions at offset zero."""
        return Partitions(0, U64_MAX, 0)

    def less_equal(self, a: Partitions, b: Partitions) -> bool:
        """Whether `a` covers the partitions of `b` at an offset that is not greater."""
        return a.lo <= b.lo and b.hi <= a.hi and a.offset <= b.offset

    def sort_key(self, time: Partitions) -> tuple[int, ...]:
        """First partition, then wider ranges first, then offset: a linear extension of the
        order.
        """
        return (time.lo, -time.hi, time.offset)

    def covers(self) -> CoveringRanges:
        """Those that begin after a range are not looked at."""
        return CoveringRanges()


U64_TIME = U64()
PARTITIONED = PartitionedOrder()
