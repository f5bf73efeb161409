"""Histories of one key, replayed in order of time and kept as small as readers allow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from tidemill.testkit.partial_orders.row_batches import Record
from tidemill.time import Lattice

V = TypeVar("V", bound=Record)
W = TypeVar("W", bound=Record)
T = TypeVar("T", bound=Record)

Edit = tuple[V, T, int]
"""Value, time, diff: one update of a known key."""

_WAVE_FROM = 10
"""Shorter histories are joined pair by pair: sweeping them costs more than it saves."""


class Replay(Generic[V, T]):
    """Edits in order of time, of which those already passed are netted in a buffer.

    The buffer accumulates like the passed edits at every time beyond what `net` was given.
    """

    def __init__(self, lattice: Lattice[T], edits: Iterable[Edit[V, T]]) -> None:
        self._lattice = lattice
        self._edits = sorted(edits, key=lambda edit: lattice.sort_key(edit[1]))
        self._meets = suffix_meets(lattice, [time for _, time, _ in self._edits])
        self._next = 0
        self.buffer: dict[tuple[V, T], int] = {}

    @property
    def done(self) -> bool:
        return self._next == len(self._edits)

    @property
    def time(self) -> T:
        """The time of the next edit; only if not done."""
        return self._edits[self._next][1]

    @property
    def meet(self) -> T:
        """The greatest time that all remaining edits are beyond; only if not done."""
        return self._meets[self._next]

    def step(self) -> Edit[V, T]:
        """Pass one edit into the buffer and return it."""
        edit = self._edits[self._next]
        self._next += 1
        self.add(*edit)
        return edit

    def add(self, value: V, time: T, diff: int) -> None:
        """Count an edit among the passed ones."""
        total = self.buffer.get((value, time), 0) + diff
        if total:
            self.buffer[value, time] = total
        else:
            self.buffer.pop((value, time), None)

    def net(self, meet: T) -> None:
        """Join buffered times with `meet`: only times beyond it are asked from now on."""
        self.buffer = netted(self._lattice, ((v, t, n) for (v, t), n in self.buffer.items()), meet)

    def accumulate(self, at: T) -> dict[V, int]:
        """The multiplicities of the passed edits at `at`, zeros left out."""
        sums: dict[V, int] = {}
        for (value, time), diff in self.buffer.items():
            if self._lattice.less_equal(time, at):
                sums[value] = sums.get(value, 0) + diff
        return {value: n for value, n in sums.items() if n}


def netted(lattice: Lattice[T], edits: Iterable[Edit[V, T]], meet: T) -> dict[tuple[V, T], int]:
    """The edits with times joined with `meet`, added up, zeros left out.

    Cost: O(n).
    """
    sums: dict[tuple[V, T], int] = {}
    for value, time, diff in edits:
        place = (value, lattice.join(time, meet))
        sums[place] = sums.get(place, 0) + diff
    return {place: diff for place, diff in sums.items() if diff}


def suffix_meets(lattice: Lattice[T], times: Sequence[T]) -> list[T]:
    """For each position the meet of the times from there on."""
    meets = list(times)
    for i in range(len(meets) - 2, -1, -1):
        meets[i] = lattice.meet(meets[i], meets[i + 1])
    return meets


def joined_histories(
    lattice: Lattice[T], left: Sequence[Edit[V, T]], right: Sequence[Edit[W, T]]
) -> Iterator[tuple[V, W, T, int]]:
    """The join of two histories of one key: values, join of times, product of diffs.

    Adds up to all pairs of edits; histories that add up to little give little.

    Cost: for each edit the size of the other side's netted buffer at that point.
    """
    if min(len(left), len(right)) < _WAVE_FROM:
        for v, t, n in left:
            for w, u, m in right:
                yield v, w, lattice.join(t, u), n * m
        return
    a, b = Replay(lattice, left), Replay(lattice, right)
    while not (a.done and b.done):
        if b.done or (not a.done and lattice.sort_key(a.time) <= lattice.sort_key(b.time)):
            b.net(a.meet)
            v, t, n = a.step()
            for (w, u), m in b.buffer.items():
                yield v, w, lattice.join(t, u), n * m
        else:
            a.net(b.meet)
            w, u, m = b.step()
            for (v, t), n in a.buffer.items():
                yield v, w, lattice.join(t, u), n * m
