"""Time domains: what a time is, when one is before another, joins and meets."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")

U64_MAX = 2**64 - 1


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


class Lattice(TimeDomain[T], Protocol[T]):
    """A time domain in which any two times have a least upper and a greatest lower bound."""

    def join(self, a: T, b: T) -> T:
        """The least time that is beyond both."""

    def meet(self, a: T, b: T) -> T:
        """The greatest time that both are beyond."""


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


U64_TIME = U64()
PARTITIONED = PartitionedOrder()
