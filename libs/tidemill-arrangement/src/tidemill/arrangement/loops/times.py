"""Times inside one epoch: the rounds of nested loops side by side in one word.

A computation with loops nested `depth` deep gives each loop 63 // depth bits, the outermost the
highest; the highest bit of all stays clear, for marks. So the order of words is the lexicographic
order, which extends the product order. A time of an outer scope has zeros for the loops inside: it
is at once the time at which it enters them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled, inlined
from tidemill.arrangement.loops.tables import Whole, hash_words
from tidemill.errors import UsageError

U32Array: TypeAlias = npt.NDArray[np.uint32]

_MOMENTS_MAX = 2**30
"""Rows have 31 bits for a number, and one mark."""
DEPTH_MAX = 4
"""Deeper nests leave too few bits for the rounds of each loop."""


@inlined
def join_times(a: np.uint64, b: np.uint64, bits: Whole) -> np.uint64:
    """The least upper bound of two times with `bits` bits for each loop."""
    if bits == 63 or a == b:
        return max(a, b)
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    joined = np.uint64(0)
    shift = 63 - bits
    while shift >= 0:
        lane = mask << np.uint64(shift)
        joined |= max(a & lane, b & lane)
        shift -= bits
    return joined


@inlined
def precedes_time(a: np.uint64, b: np.uint64, bits: Whole) -> bool:
    """Whether `a` is at or before `b` in each loop."""
    if bits == 63:
        return bool(a <= b)
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    shift = 63 - bits
    while shift >= 0:
        lane = mask << np.uint64(shift)
        if (a & lane) > (b & lane):
            return False
        shift -= bits
    return True


@compiled
def _number(
    times: U64Array,
    words: U64Array,
    table: U32Array,
    head: I64Array,
    first: Whole,
    numbers: U32Array,
) -> Whole:
    """The numbers of the times from `first` on; where it stopped for want of room for a new one."""
    mask = np.uint64(table.size - 1)
    last, last_number = ~np.uint64(0), np.uint32(0)
    for i in range(first, times.size):
        time = times[i]
        if time != last:
            place = hash_words(time, np.uint64(0)) & mask
            while table[place] and words[table[place] - 1] != time:
                place = (place + np.uint64(1)) & mask
            if table[place] == 0:
                if head[0] == words.size:
                    return i
                words[head[0]] = time
                head[0] += 1
                table[place] = head[0]
            last, last_number = time, np.uint32(table[place] - 1)
        numbers[i] = last_number
    return times.size


class Moments:
    """Numbers for all times of a computation: rows store a number in place of a time.

    Different times are few, a round each; `words` has the time of each number. Numbers stay for
    ever: there are at most _MOMENTS_MAX of them.
    """

    def __init__(self) -> None:
        self.words: U64Array = np.empty(64, np.uint64)
        self._table: U32Array = np.zeros(128, np.uint32)
        self._head: I64Array = np.zeros(1, np.int64)

    def number(self, times: U64Array) -> U32Array:
        """The number of each time. Cost: O(n)."""
        numbers, at = np.empty(len(times), np.uint32), 0
        while True:
            at = _number(times, self.words, self._table, self._head, at, numbers)
            if at == len(times):
                return numbers
            self._grow()

    def number_of(self, time: np.uint64) -> int:
        """The number of one time. Cost: O(1)."""
        return int(self.number(np.array([time], np.uint64))[0])

    def _grow(self) -> None:
        """Twice the room; every time keeps its number.

        Raises: UsageError if there are too many.
        """
        used = self.words
        if len(used) >= _MOMENTS_MAX:
            raise UsageError(f"more than {_MOMENTS_MAX} different rounds", reason="Overflow")
        self.words = np.empty(2 * len(used), np.uint64)
        self._table, self._head[0] = np.zeros(4 * len(used), np.uint32), 0
        _number(used, self.words, self._table, self._head, 0, np.empty(len(used), np.uint32))


def _no_end(_: int) -> int:
    return 1 << 62


@dataclass(frozen=True, slots=True)
class Rounds:
    """How the times of a computation are laid out, and their numbers.

    Raises: UsageError if loops are nested deeper than DEPTH_MAX.
    """

    depth: int
    room: Callable[[int], int] = field(default=_no_end, repr=False, compare=False)
    """How many things of so many bytes may still be held."""
    moments: Moments = field(default_factory=Moments, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.depth > DEPTH_MAX:
            raise UsageError(f"loops are nested {self.depth} deep, more than {DEPTH_MAX}")

    @property
    def bits(self) -> int:
        """Bits for each loop."""
        return 63 // max(self.depth, 1)

    def one(self, depth: int) -> int:
        """One round of the loop at `depth`, counted from 1."""
        return 1 << (63 - depth * self.bits)

    def inner(self, depth: int) -> int:
        """The bits of all loops deeper than `depth`."""
        return (1 << (63 - depth * self.bits)) - 1

    def next_round(self, times: U64Array, depth: int) -> U64Array:
        """Each time one round later in the loop at `depth`.

        Raises: UsageError if a loop ran out of rounds.
        """
        return self.later(times, np.uint64(1), depth)

    def later(self, times: U64Array, rounds: U64Array | np.uint64, depth: int) -> U64Array:
        """Each time as many `rounds` later in the loop at `depth`.

        Raises: UsageError if a loop ran out of rounds.
        """
        shift, most = np.uint64(63 - depth * self.bits), np.uint64((1 << self.bits) - 1)
        now = (times >> shift) & most
        if bool((rounds > most - now).any()):
            raise UsageError(f"a loop ran out of {self.bits}-bit rounds", reason="Overflow")
        return times + (rounds << shift)
