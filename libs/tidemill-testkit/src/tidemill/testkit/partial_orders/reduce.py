"""Reductions of groups by key, kept up to date under partially ordered times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import reduce as fold
from typing import Any, Generic, TypeVar

from tidemill.arrangement.trace import SharedTrace, Spine
from tidemill.testkit.partial_orders.interesting_times import interesting_times
from tidemill.testkit.partial_orders.join import history
from tidemill.testkit.partial_orders.reductions import Reduction
from tidemill.testkit.partial_orders.replay import Edit, Replay, netted, suffix_meets
from tidemill.testkit.partial_orders.row_batches import Record, RowBatch
from tidemill.testkit.partial_orders.update_sets import Update
from tidemill.time import Antichain, Lattice

K = TypeVar("K", bound=Record)
V = TypeVar("V", bound=Record)
T = TypeVar("T", bound=Record)

Result = Any  # Any: what the reduction makes of values; has an order among its likes


class Reduce(Generic[K, V, T]):
    """At every finalised time the accumulated output is the reduction of the accumulated input.

    Also at joins of input times at which no input changes. Besides both traces it keeps the times
    at which output may change later: they cannot be found again in compacted history.
    """

    def __init__(self, lattice: Lattice[T], reduction: Reduction, effort: int = 1) -> None:
        self._lattice = lattice
        self._reduction = reduction
        source: Spine[T, RowBatch[tuple[K, V], T]] = Spine(lattice, effort)
        output: Spine[T, RowBatch[tuple[K, Result], T]] = Spine(lattice, effort)
        self.source = SharedTrace(source)
        self.output = SharedTrace(output)
        self._source_hold = self.source.hold("reduce")
        self._output_hold = self.output.hold("reduce")
        self._pending: dict[K, frozenset[T]] = {}

    @property
    def upper(self) -> Antichain[T]:
        """Up to where the output is final."""
        return self.output.upper

    @property
    def pending(self) -> int:
        """The number of times at which output may change later, over all keys."""
        return sum(len(times) for times in self._pending.values())

    def step(
        self, updates: Iterable[Update[tuple[K, V], T]], upper: Antichain[T]
    ) -> tuple[Update[tuple[K, Result], T], ...]:
        """The output changes at times beyond the last upper and not beyond `upper`.

        Raises: UsageError if `upper` is not beyond the last one, or an update is not beyond the
            last one or is beyond this one. Nothing changes then.
        Cost: for each key with new or due times O(times · live rows of the key).
        """
        lower, updates = self.upper, list(updates)
        if lower == upper and not updates:
            return ()
        fresh = RowBatch.of(self._lattice, lower, upper, updates)
        changes: defaultdict[K, list[Edit[V, T]]] = defaultdict(list)
        for (key, value), time, diff in fresh:
            changes[key].append((value, time, diff))
        due = [
            key
            for key, times in self._pending.items()
            if key not in changes and not all(map(upper.less_equal, times))
        ]
        stored, given = self._source_hold.history(), self._output_hold.history()
        produced: list[Update[tuple[K, Result], T]] = []
        pending: dict[K, frozenset[T]] = {}
        for key in [*changes, *due]:
            edits, waiting = self._retire(
                history(stored, key), history(given, key), changes[key],
                self._pending.get(key, frozenset()), upper,
            )  # fmt: skip
            produced += (((key, result), time, diff) for result, time, diff in edits)
            pending[key] = waiting
        batch = RowBatch.of(self._lattice, lower, upper, produced)
        self._advance(fresh, batch, pending)
        return tuple(batch)

    def compact(self, to: Antichain[T]) -> None:
        """Permit both traces to forget differences between times that look alike beyond `to`.

        `to` is at or before upper.
        """
        self._source_hold.set_logical(to)
        self._output_hold.set_logical(to)

    def exert(self, effort: int | None = None) -> bool:
        """Spend one piece of idle maintenance on each trace; whether there was anything to do."""
        source, output = self.source.exert(effort), self.output.exert(effort)
        return source or output

    def _advance(
        self,
        fresh: RowBatch[tuple[K, V], T],
        batch: RowBatch[tuple[K, Result], T],
        pending: dict[K, frozenset[T]],
    ) -> None:
        for key, waiting in pending.items():
            if waiting:
                self._pending[key] = waiting
            else:
                self._pending.pop(key, None)
        self.source.insert(fresh)
        self.output.insert(batch)
        self._source_hold.set_physical(batch.description.upper)
        self._output_hold.set_physical(batch.description.upper)

    def _retire(
        self,
        stored: list[Edit[V, T]],
        given: list[Edit[Result, T]],
        new: list[Edit[V, T]],
        pending: frozenset[T],
        upper: Antichain[T],
    ) -> tuple[list[Edit[Result, T]], frozenset[T]]:
        """The output changes of one key before `upper`, and the times that wait beyond it."""
        lattice = self._lattice
        seeds = {time for _, time, _ in new}
        seeds.update(time for time in pending if not upper.less_equal(time))
        # Only times beyond some seed are asked: joined with the meet of the seeds, history answers
        # alike and has fewer times. Those it is lifted to beyond upper stay partners.
        meet = fold(lattice.meet, seeds)
        source = [(v, t, n) for (v, t), n in netted(lattice, stored, meet).items()]
        output = [(v, t, n) for (v, t), n in netted(lattice, given, meet).items()]
        partners = {time for edits in (source, output) for _, time, _ in edits}
        times = interesting_times(lattice, seeds, pending, partners, upper)
        edits = self._corrections([*source, *new], output, times.active)
        return edits, times.pended

    def _corrections(
        self, source: list[Edit[V, T]], output: list[Edit[Result, T]], moments: tuple[T, ...]
    ) -> list[Edit[Result, T]]:
        """At each moment what the reduction of the input differs by from the output so far."""
        lattice = self._lattice
        inputs, outputs = Replay(lattice, source), Replay(lattice, output)
        edits: list[Edit[Result, T]] = []
        for moment, meet in zip(moments, suffix_meets(lattice, moments), strict=True):
            place = lattice.sort_key(moment)
            for replay in (inputs, outputs):
                while not replay.done and lattice.sort_key(replay.time) <= place:
                    replay.step()
                replay.net(meet)
            owed: dict[Result, int] = {}
            group = sorted(inputs.accumulate(moment).items())
            for result, n in self._reduction(group) if group else ():
                owed[result] = owed.get(result, 0) + n
            for result, n in outputs.accumulate(moment).items():
                owed[result] = owed.get(result, 0) - n
            for result, n in owed.items():
                if n:
                    outputs.add(result, moment, n)
                    edits.append((result, moment, n))
        return edits
