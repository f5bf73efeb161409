"""Reductions of groups by key over columns, kept up to date under partially ordered times."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold
from typing import Any

import numpy as np

from tidemill.arrangement.columns.arranging import ColumnArrangement
from tidemill.arrangement.columns.batches import MEMORY, ColumnBatch, ColumnLattice, Times
from tidemill.arrangement.columns.reductions import GroupReduction
from tidemill.arrangement.columns.storage import Storage
from tidemill.arrangement.kernels import Columns, I64Array, U64Array, consolidate
from tidemill.arrangement.kernels.changing import distinct_of, not_after, rank_in
from tidemill.arrangement.kernels.packing import constant
from tidemill.arrangement.kernels.probing import gather_packed, match_packed
from tidemill.arrangement.operators.interesting_times import interesting_times

_PIECE = 64

Time = Any  # Any: a whole number, or a tuple of them
Round = tuple[I64Array, U64Array]
"""Which owners are asked in a round, and for which moment: (owners,) and (lanes, owners)."""


class ColumnReduce:
    """At every finalised time the accumulated output is the reduction of the accumulated input.

    Also at joins of input times at which no input changes. Keys go through their moments together:
    round r evaluates the r-th moment of every key that has one, with one call of the reduction.
    Besides both traces it keeps the times at which output may change later; along a chain of times
    there are none.
    """

    def __init__(
        self,
        lattice: ColumnLattice,
        reduction: GroupReduction,
        storage: Storage = MEMORY,
        effort: int = 1,
    ) -> None:
        self._lattice = lattice
        self._lanes = ColumnBatch.lanes_of(lattice)
        self._reduction = reduction
        self.source = ColumnArrangement(lattice, "reduce", storage, effort)
        self.output = ColumnArrangement(lattice, "reduce", storage, effort)
        self._pending: dict[int, frozenset[Time]] = {}

    @property
    def upper(self) -> Times:
        """Up to where the output is final."""
        return self.output.upper

    @property
    def pending(self) -> int:
        """The number of times at which output may change later, over all keys."""
        return sum(len(times) for times in self._pending.values())

    def step(self, updates: Columns, upper: Times) -> ColumnBatch:
        """The output changes at times beyond the last upper and not beyond `upper`.

        Raises: UsageError if `upper` is not beyond the last one, an update is not beyond the last
            one or is beyond this one, or a sum does not fit in 64 bits; nothing changes then.
        Cost: for each round a sort of the rows of its keys; along a chain there are as many rounds
            as a key has different times in `updates`.
        """
        fresh = self.source.batch_of(updates, upper)
        changes = fresh.updates().contiguous()
        keys = self._touched(changes, upper)
        owners = np.empty(len(changes), np.uint64)
        rank_in(keys, changes.keys, owners)
        new = Columns(owners, changes.vals, changes.times, changes.diffs)
        stored, given = (
            history_of(keys, trace.batches(), self._lanes) for trace in (self.source, self.output)
        )
        pending: dict[int, frozenset[Time]] = {}
        if self._lanes == 1:
            rounds = _rounds_on_a_chain(new, len(keys))
        else:
            rounds = self._rounds(keys, new, stored, given, upper, pending)
        produced = self._corrections(Columns.concatenate([stored, new]), given, rounds)
        batch = self.output.batch_of(
            Columns(keys[produced.keys], produced.vals, produced.times, produced.diffs), upper
        )
        self.source.insert(fresh)
        self.output.insert(batch)
        for key, times in pending.items():
            self._pending[key] = times
        self._pending = {key: times for key, times in self._pending.items() if times}
        return batch

    def compact(self, to: Times) -> None:
        """Let both traces forget differences between times that no time beyond `to` can tell.

        `to` is at or before upper.
        """
        self.source.compact(to)
        self.output.compact(to)

    def exert(self, effort: int | None = None) -> bool:
        """Spend one piece of idle maintenance on each trace; whether there was anything to do."""
        source, output = self.source.exert(effort), self.output.exert(effort)
        return source or output

    def _touched(self, changes: Columns, upper: Times) -> U64Array:
        """The sorted keys that change or have a time that is due."""
        keys = np.empty_like(changes.keys)
        keys = keys[: distinct_of(changes.keys, keys)]
        due = [key for key, times in self._pending.items() if not all(map(upper.less_equal, times))]
        return np.union1d(keys, np.array(due, np.uint64)) if due else keys

    def _rounds(
        self, keys: U64Array, new: Columns, stored: Columns, given: Columns, upper: Times,
        pending: dict[int, frozenset[Time]],
    ) -> list[Round]:  # fmt: skip
        """Rounds of the active times of each key; `pending` gets the times that wait."""
        lattice = self._lattice
        seeds, known = _times_by_owner(new, len(keys)), _times_by_owner(stored, len(keys))
        for owner, times in enumerate(_times_by_owner(given, len(keys))):
            known[owner] |= times
        moments: list[tuple[Time, ...]] = []
        for owner, key in enumerate(keys.tolist()):
            waiting = self._pending.get(key, frozenset())
            first = seeds[owner] | {time for time in waiting if not upper.less_equal(time)}
            # Only times beyond some seed are asked: history joined with their meet answers alike.
            meet = fold(lattice.meet, first)
            partners = {lattice.join(time, meet) for time in known[owner]}
            found = interesting_times(lattice, first, waiting, partners, upper)
            moments.append(found.active)
            pending[key] = found.pended
        most = max((len(active) for active in moments), default=0)
        return [_round(moments, place, self._lanes) for place in range(most)]

    def _corrections(self, source: Columns, given: Columns, rounds: Sequence[Round]) -> Columns:
        """What the reduction of the input differs by from the output so far, round by round."""
        source = consolidate(source).contiguous()
        output, produced = given, []
        for asked, moments in rounds:
            group = _accumulated(source, asked, moments)
            before = _accumulated(output, asked, moments)
            owners, results, diffs = self._reduction(group.keys, group.vals, group.diffs)
            owed = consolidate(
                _timeless(
                    np.concatenate([owners, before.keys]),
                    np.concatenate([results, before.vals]),
                    np.concatenate([diffs, -before.diffs]),
                )
            )
            at = np.ascontiguousarray(moments[:, owed.keys])
            correction = Columns(owed.keys, owed.vals, at, owed.diffs)
            produced.append(correction)
            if len(rounds) > 1:
                output = consolidate(Columns.concatenate([output, correction])).contiguous()
        return Columns.concatenate(produced) if produced else Columns.empty(self._lanes)


def history_of(keys: U64Array, batches: Sequence[ColumnBatch], lanes: int) -> Columns:
    """The rows of sorted, distinct keys in all batches, consolidated; positions stand for keys.

    Cost: a search for each key in each batch, and a sort of the rows found.
    """
    found = [_rows_of(keys, batch, lanes) for batch in batches]
    parts = [part for part in found if len(part)]
    return consolidate(Columns.concatenate(parts)).contiguous() if parts else Columns.empty(lanes)


def _rows_of(keys: U64Array, batch: ColumnBatch, lanes: int) -> Columns:
    places, room = np.zeros(4, np.int64), _PIECE
    located = np.empty(len(keys), np.int64)
    table = batch.layout.table
    owners, positions = np.empty(0, np.int64), np.empty(0, np.int64)
    done = False
    while not done:
        left, right = np.empty(room, np.int64), np.empty(room, np.int64)
        n = match_packed(keys, batch.rows, table, located, places, left, right)
        owners = np.concatenate([owners, left[:n]]) if len(owners) else left[:n]
        positions = np.concatenate([positions, right[:n]]) if len(positions) else right[:n]
        done = n < room
        room *= 16
    vals, times = np.empty(len(owners), np.uint64), np.empty((lanes, len(owners)), np.uint64)
    diffs = np.empty(len(owners), np.int64)
    gather_packed(batch.rows, table, batch.diffs, positions, vals, times, diffs)
    return Columns(owners.view(np.uint64), vals, times, diffs)


def _accumulated(rows: Columns, asked: I64Array, moments: U64Array) -> Columns:
    """The multiplicities of each owner's vals at its moment."""
    visible = not_after(rows.keys, rows.times, moments, asked)
    return consolidate(_timeless(rows.keys[visible], rows.vals[visible], rows.diffs[visible]))


def _timeless(owners: U64Array, vals: U64Array, diffs: I64Array) -> Columns:
    return Columns(owners, vals, constant(0, len(owners)).reshape(1, -1), diffs)


def _rounds_on_a_chain(new: Columns, owners: int) -> list[Round]:
    """Along a chain the active times of a key are those of its changes, in order."""
    if not len(new):
        return []
    if int(new.times.min()) == int(new.times.max()):
        return [(np.ones(owners, np.int64), np.full((1, owners), new.times[0, 0], np.uint64))]
    times = [sorted(found) for found in _times_by_owner(new, owners)]
    most = max(len(found) for found in times)
    return [_round(times, place, 1) for place in range(most)]


def _round(moments: Sequence[Sequence[Time]], place: int, lanes: int) -> Round:
    asked = np.array([place < len(times) for times in moments], np.int64)
    nothing: Time = 0 if lanes == 1 else (0,) * lanes
    at = [times[place] if place < len(times) else nothing for times in moments]
    return asked, np.ascontiguousarray(np.array(at, np.uint64).reshape(-1, lanes).T)


def _times_by_owner(rows: Columns, owners: int) -> list[set[Time]]:
    found: list[set[Time]] = [set() for _ in range(owners)]
    times = rows.times[0].tolist() if rows.lanes == 1 else zip(*rows.times.tolist(), strict=True)
    for owner, time in zip(rows.keys.tolist(), times, strict=True):
        found[owner].add(time)
    return found
