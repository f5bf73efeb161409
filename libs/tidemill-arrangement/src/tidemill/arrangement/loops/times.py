"""Times inside one epoch: the rounds of nested loops side by side in one word.

A computation with loops nested `depth` deep gives each loop 63 // depth bits, the outermost the
highest; the highest bit of all stays clear, for marks. So the order of words is the lexicographic order, which extends the product order. A time of
an outer scope has zeros for the loops inside: it is at once the time at which it enters them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemill.arrangement.kernels.arrays import U64Array, inlined
from tidemill.arrangement.loops.tables import Whole
from tidemill.time import UsageError

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


@dataclass(frozen=True, slots=True)
class Rounds:
    """How the times of a computation are laid out.

    Raises: UsageError if loops are nested deeper than DEPTH_MAX.
    """

    depth: int

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
