"""Alternative derivations of one fact: at each instant the one that ends last.

A *derivation* is a row: the columns of the fact, its expiry, its nulls, and when it holds. The
*facts* have at each instant one derivation of each fact, the one with the greatest expiry. Of those
alike it is one without a null. The others are *spare*. Both together are all derivations, so
nothing is kept twice. Values that ride beside a fact stand between its expiry and its nulls.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.arrangement.interval_updates.arranged import Arrangement
from tidemill.arrangement.interval_updates.novelty import Novelty
from tidemill.arrangement.interval_updates.rising import Rising
from tidemill.arrangement.interval_updates.rows import (
    END_WORD,
    Change,
    Word,
    hash_of,
    part,
    same_values,
)
from tidemill.arrangement.interval_updates.slots import (
    BLOCK,
    I32Array,
    append_row,
    chains_ahead,
    crowded,
    cut_row,
    divide,
    find_slot,
    is_past,
    look_ahead,
    row_in,
    rows_ahead,
)
from tidemill.arrangement.kernels.arrays import I64Array, compiled, inlined
from tidemill.errors import UsageError

_ADD, _TAKE_SPARE, _TAKE, _PROMOTE = 0, 1, 2, 3
_ROOM = 4
"""Rows that one piece of work may add to any array."""
_DONE, _FULL, _GROW, _NEGATIVE = 0, 1, 2, 3
_MANY = 1 << 12
_MET_BITS = 3
"""One of so many rows, as a power of two, may meet a fact while the others are appended."""
_BEGIN = np.array([0, -1, 0, 0], np.int64)
"""Taking in begins here: the first row, nothing on the stack, nothing told, no part of its diff."""


@inlined
def _emit(
    rows: I64Array, row: Word, start: Word, end: Word, diff: Word, out: I64Array, places: I64Array
) -> None:
    at = places[2]
    width = rows.shape[1] - 2
    for column in range(width):
        out[at, column] = rows[row, column]
    out[at, width], out[at, width + 1], out[at, width + 2] = start, end, diff
    places[2] = at + 1


@inlined
def _before(
    source: I64Array, i: Word, expiry: Word, start: Word, facts: I64Array, head: Word,
    nexts: I32Array,
) -> Word:  # fmt: skip
    """The row of a fact that says the same as a derivation and ends where it starts, or -1."""
    width = facts.shape[1] - 2
    row = np.int64(head)
    while row >= 0 and (facts[row, width] >= start or facts[row, width] >= facts[row, width + 1]):
        row = np.int64(nexts[row])
    if row >= 0 and facts[row, width + 1] == start and same_values(source, i, expiry, facts, row):
        return row
    return np.int64(-1)


@inlined
def _hold(
    source: I64Array, i: Word, expiry: Word, start: Word, end: Word, facts: I64Array,
    counts: I64Array, slots: I32Array, nexts: I32Array, used: I64Array, slot: Word,
    mine: np.uint64, out: I64Array, places: I64Array,
) -> None:  # fmt: skip
    """A derivation is a fact from `start` to `end`, which is told.

    NB: the row before goes on where it says the same. Of n derivations that overlap each piece
    would be met by all that come later, and each would be cut into as many.
    """
    row = _before(source, i, expiry, start, facts, row_in(slots, slot, used), nexts)
    if row >= 0:
        facts[row, facts.shape[1] - 1] = end
    else:
        append_row(source, i, start, end, facts, counts, slots, nexts, used, slot, mine, True)
        row = counts[0] - 1
    _emit(facts, row, start, end, 1, out, places)


@inlined
def _push(stack: I64Array, places: I64Array, kind: Word, start: Word, end: Word) -> None:
    if start < end:
        top = places[1]
        stack[top, 0], stack[top, 1], stack[top, 2] = kind, start, end
        places[1] = top + 1


@inlined
def _met(
    change: I64Array, i: Word, expiry: Word, kind: Word, start: Word, end: Word,
    rows: I64Array, head: Word, nexts: I32Array, ordered: bool,
) -> Word:  # fmt: skip
    """The row of a key that a piece of work is about, -1 for none.

    Of those that the piece meets: any to add to, one that says the same to take, the best to
    promote.
    """
    width = rows.shape[1] - 2
    best, row = np.int64(-1), np.int64(head)
    while row >= 0:
        if rows[row, width] < end and rows[row, width + 1] > start:
            if kind == _PROMOTE:
                alike = best >= 0 and rows[row, expiry] == rows[best, expiry]
                fewer = alike and rows[row, width - 1] < rows[best, width - 1]
                if best < 0 or rows[row, expiry] > rows[best, expiry] or fewer:
                    best = row
            elif kind == _ADD or same_values(change, i, expiry, rows, row):
                best = row
                break
        if ordered and is_past(rows, row, start, END_WORD):
            break
        row = np.int64(nexts[row])
    return best


@compiled
def _append_new(
    change: I64Array, columns: I64Array, facts: I64Array, counts: I64Array, slots: I32Array,
    nexts: I32Array, used: I64Array, done: I64Array, aside: I64Array,
) -> None:  # fmt: skip
    """Append the rows that are added to the facts; set aside those that meet a fact of their key.

    `done`: the row that ends this, as the table has to grow or there is no more room `aside`. Then
    the rows before it that are taken away, which are left out, and those set aside. There is room
    for all rows.
    """
    width, hashes = change.shape[1] - 3, np.empty(BLOCK + 1, np.uint64)
    base, ready = done[0], done[0]
    while done[0] < change.shape[0]:
        i = done[0]
        if change[i, width + 2] < 0:
            done[0], done[1] = i + 1, done[1] + 1
            continue
        if done[2] == aside.size or (crowded(used) and not divide(facts, columns, slots, used)):
            return
        if i >= ready:
            last = change.shape[0]
            base, ready = i, look_ahead(change, i, last, columns, facts, slots, used, hashes)
            chains_ahead(ready - i, nexts, slots, used, hashes)
        mine = hashes[i - base]
        slot = find_slot(
            change, i, columns, width - 1, mine, facts, columns, width - 1, slots, used
        )
        row = row_in(slots, slot, used)
        met = change[i, width + 2] != 1 or change[i, width] >= change[i, width + 1]
        while row >= 0 and not met:
            last = min(change[i, width + 1], facts[row, width + 1])
            met = max(change[i, width], facts[row, width]) < last
            past = is_past(facts, row, change[i, width], END_WORD)
            row = np.int64(-1) if past else np.int64(nexts[row])
        if met:
            aside[done[2]] = i
            done[2] += 1
        else:
            append_row(
                change, i, change[i, width], change[i, width + 1], facts, counts, slots, nexts,
                used, slot, mine, True,
            )  # fmt: skip
        done[0] = i + 1


@compiled
def _cut_known(
    change: I64Array, expiry: int, columns: I64Array, facts: I64Array, slots: I32Array,
    nexts: I32Array, used: I64Array, spare: I64Array, spare_slots: I32Array, spare_used: I64Array,
) -> int:  # fmt: skip
    """End facts where rows are taken away that say the same and last as long, and have no spare.

    Returns the row that is none of these, of which no later one is done; rows that are added are
    left out.
    """
    width, hashes = change.shape[1] - 3, np.empty(BLOCK + 1, np.uint64)
    base, ready, last = 0, 0, change.shape[0]
    for i in range(last):
        start, end, diff = change[i, width], change[i, width + 1], change[i, width + 2]
        if diff > 0:
            continue
        if diff != -1 or start >= end:
            return i
        if i >= ready:
            base, ready = i, look_ahead(change, i, last, columns, facts, slots, used, hashes)
        mine = hashes[i - base]
        slot = find_slot(
            change, i, columns, width - 1, mine, facts, columns, width - 1, slots, used
        )
        row = row_in(slots, slot, used)
        while row >= 0 and (facts[row, width] >= end or facts[row, width] >= facts[row, width + 1]):
            row = np.int64(nexts[row])
        if row < 0 or facts[row, width] > start or facts[row, width + 1] != end:
            return i
        other = find_slot(
            change, i, columns, width - 1, mine, spare, columns, width - 1, spare_slots, spare_used
        )
        if spare_slots[other] >= 0 or not same_values(change, i, expiry, facts, row):
            return i
        if facts[row, width] == start:
            facts[row, width] = end
        else:
            facts[row, width + 1] = start
    return int(last)


@inlined
def _is_full(
    counts: I64Array, facts: I64Array, spare_counts: I64Array, spare: I64Array, stack: I64Array,
    places: I64Array, out: I64Array,
) -> bool:  # fmt: skip
    """Whether a piece of work may not find room."""
    return bool(
        counts[0] + _ROOM > facts.shape[0]
        or spare_counts[0] + _ROOM > spare.shape[0]
        or places[2] + _ROOM > out.shape[0]
        or places[1] + _ROOM > stack.shape[0]
    )


@compiled
def _merge(
    change: I64Array, expiry: int, columns: I64Array,
    facts: I64Array, counts: I64Array, slots: I32Array, nexts: I32Array, used: I64Array,
    spare: I64Array, spare_counts: I64Array, spare_slots: I32Array, spare_nexts: I32Array,
    spare_used: I64Array, best_only: bool, stack: I64Array, places: I64Array, out: I64Array,
) -> int:  # fmt: skip
    """Take a change in from where `places` say: (row, work on the stack, rows of `out`, part of
    the diff that is done).
    """
    width = change.shape[1] - 3
    hashes, base, ready = np.empty(BLOCK + 1, np.uint64), places[0], places[0]
    while places[0] < change.shape[0]:
        i = places[0]
        if crowded(used) and not divide(facts, columns, slots, used):
            return _GROW
        if crowded(spare_used) and not divide(spare, columns, spare_slots, spare_used):
            return _GROW
        if i >= ready:
            base = i
            ready = look_ahead(change, i, len(change), columns, facts, slots, used, hashes)
            rows_ahead(ready - base, spare, spare_slots, spare_used, hashes)
        mine = hashes[i - base]
        slot = find_slot(
            change, i, columns, width - 1, mine, facts, columns, width - 1, slots, used
        )
        diff = change[i, width + 2] - places[3]
        if places[1] < 0:
            places[1] = 0
            if diff != 0:
                kind = _ADD if diff > 0 else _TAKE_SPARE
                _push(stack, places, kind, change[i, width], change[i, width + 1])
        other = np.int64(-1)
        while places[1] > 0:
            if _is_full(counts, facts, spare_counts, spare, stack, places, out):
                return _FULL
            places[1] -= 1
            kind = stack[places[1], 0]
            start, end = stack[places[1], 1], stack[places[1], 2]
            if slots[slot] < 0 and kind == _ADD:
                _hold(
                    change, i, expiry, start, end, facts, counts, slots, nexts, used, slot, mine,
                    out, places,
                )  # fmt: skip
                continue
            if other < 0:
                other = find_slot(
                    change, i, columns, width - 1, mine, spare, columns, width - 1, spare_slots,
                    spare_used,
                )  # fmt: skip
            if kind in (_ADD, _TAKE):
                if not _in_facts(
                    change, i, expiry, kind, start, end, facts, counts, slots, nexts, used, slot,
                    spare, spare_counts, spare_slots, spare_nexts, spare_used, other, mine,
                    best_only, stack, places, out,
                ):  # fmt: skip
                    return _NEGATIVE
            else:
                _in_spare(
                    change, i, expiry, kind, start, end, facts, counts, slots, nexts, used, slot,
                    spare, spare_counts, spare_slots, spare_nexts, spare_used, other, mine,
                    stack, places, out,
                )  # fmt: skip
        places[3] += np.sign(diff)
        if places[3] == change[i, width + 2]:
            places[0], places[3] = i + 1, 0
        places[1] = -1
    return _DONE


@inlined
def _in_facts(
    change: I64Array, i: int, expiry: int, kind: int, start: int, end: int,
    facts: I64Array, counts: I64Array, slots: I32Array, nexts: I32Array, used: I64Array, slot: Word,
    spare: I64Array, spare_counts: I64Array, spare_slots: I32Array, spare_nexts: I32Array,
    spare_used: I64Array, other: Word, mine: np.uint64, best_only: bool, stack: I64Array,
    places: I64Array, out: I64Array,
) -> bool:  # fmt: skip
    """Add a piece of a derivation, or take it from the facts; false where it is not there."""
    width = change.shape[1] - 3
    head = row_in(slots, slot, used)
    best = _met(change, i, expiry, kind, start, end, facts, head, nexts, True)
    if best < 0:
        if kind == _ADD:
            _hold(
                change, i, expiry, start, end, facts, counts, slots, nexts, used, slot, mine, out,
                places,
            )  # fmt: skip
        return bool(kind == _ADD)
    first, last = max(start, facts[best, width]), min(end, facts[best, width + 1])
    _push(stack, places, kind, start, first)
    _push(stack, places, kind, last, end)
    if kind == _TAKE:
        _emit(facts, best, first, last, -1, out, places)
        cut_row(facts, best, first, last, counts, slots, nexts, used, slot, mine, True)
        _push(stack, places, _PROMOTE, first, last)
        return True
    better = facts[best, expiry] < change[i, expiry]
    if facts[best, expiry] == change[i, expiry]:
        better = facts[best, width - 1] > change[i, width - 1]
    if not best_only:
        append_row(
            facts if better else change, best if better else i, first, last, spare,
            spare_counts, spare_slots, spare_nexts, spare_used, other, mine, False,
        )  # fmt: skip
    if better:
        _emit(facts, best, first, last, -1, out, places)
        cut_row(facts, best, first, last, counts, slots, nexts, used, slot, mine, True)
        _hold(
            change, i, expiry, first, last, facts, counts, slots, nexts, used, slot, mine, out,
            places,
        )  # fmt: skip
    return True


@inlined
def _in_spare(
    change: I64Array, i: int, expiry: int, kind: int, start: int, end: int,
    facts: I64Array, counts: I64Array, slots: I32Array, nexts: I32Array, used: I64Array, slot: Word,
    spare: I64Array, spare_counts: I64Array, spare_slots: I32Array, spare_nexts: I32Array,
    spare_used: I64Array, other: Word, mine: np.uint64, stack: I64Array, places: I64Array,
    out: I64Array,
) -> None:  # fmt: skip
    """Take a piece of a derivation from the spare ones, or let the best of them be a fact."""
    width = change.shape[1] - 3
    head = row_in(spare_slots, other, spare_used)
    best = _met(change, i, expiry, kind, start, end, spare, head, spare_nexts, False)
    if best < 0:
        if kind == _TAKE_SPARE:
            _push(stack, places, _TAKE, start, end)
        return
    first, last = max(start, spare[best, width]), min(end, spare[best, width + 1])
    _push(stack, places, kind, start, first)
    _push(stack, places, kind, last, end)
    if kind == _PROMOTE:
        _hold(
            spare, best, expiry, first, last, facts, counts, slots, nexts, used, slot, mine, out,
            places,
        )  # fmt: skip
    cut_row(
        spare, best, first, last, spare_counts, spare_slots, spare_nexts, spare_used, other, mine,
        False,
    )  # fmt: skip


@compiled
def _drop(
    change: I64Array, expiry: int, columns: I64Array, facts: I64Array, counts: I64Array,
    slots: I32Array, nexts: I32Array, used: I64Array, places: I64Array, out: I64Array,
) -> int:  # fmt: skip
    """Cut facts from where `places` say: (row, not used, rows of `out`)."""
    width = change.shape[1] - 3
    while places[0] < change.shape[0]:
        i = places[0]
        mine = hash_of(change, i, columns)
        slot = find_slot(
            change, i, columns, width - 1, mine, facts, columns, width - 1, slots, used
        )
        row = row_in(slots, slot, used)
        while row >= 0:
            first = max(change[i, width], facts[row, width])
            last = min(change[i, width + 1], facts[row, width + 1])
            if first < last and facts[row, expiry] <= change[i, expiry]:
                if counts[0] + _ROOM > facts.shape[0] or places[2] + _ROOM > out.shape[0]:
                    return _FULL
                _emit(facts, row, first, last, -1, out, places)
                cut_row(facts, row, first, last, counts, slots, nexts, used, slot, mine, True)
            row = np.int64(nexts[row])
        places[0] = i + 1
    return _DONE


class NegativeRow(UsageError):
    """A derivation was taken away that is not there; `row` is its place in the change."""

    def __init__(self, row: int) -> None:
        super().__init__(
            f"update refused: row {row} of a change takes away what is not there",
            reason="NegativeMultiplicity", row=row,
        )  # fmt: skip
        self.row = row


class Merged:
    """The facts of a predicate, from all of their derivations.

    `key` are the columns that tell facts apart, `expiry` the one with the end of a derivation.
    With `best_only` spare derivations are not kept, and derivations cannot be taken away.
    """

    __slots__ = (
        "_best_only", "_places", "_rising", "_stack", "expiry", "facts", "key", "novelty", "spare",
    )  # fmt: skip

    def __init__(
        self, columns: int, key: Sequence[int], expiry: int, best_only: bool = False
    ) -> None:
        self._best_only = best_only
        self.facts = Arrangement(columns, apart=key)
        self.spare = Arrangement(columns)
        self.expiry = expiry
        self.key = tuple(key)
        self._places, self._stack = _BEGIN.copy(), np.empty((16, 3), np.int64)
        self.novelty = Novelty(self.key[:1] if self.key[:1] == (0,) else (), self.key)
        self._rising = Rising(key, holds=not best_only)

    @property
    def nbytes(self) -> int:
        """The bytes of all derivations and their indexes."""
        return self.facts.nbytes + self.spare.nbytes

    def take(self, change: Change) -> Change:
        """Take derivations in; what that changes of the facts.

        A row with its opposite may be in the answer, if both come from one change. Raises:
        NegativeRow where a derivation is taken away that is not there; then all is lost.
        Cost: O(change + rows with their keys).
        """
        if not len(change):
            return change
        if self.novelty.admit(change):
            self._rising.holds = False
            self.facts.append(change[:, :-1])
            return change
        size, wide = change.shape
        done, aside = np.zeros(3, np.int64), np.empty((size >> _MET_BITS) + 1, np.int64)
        cut = self._take_plain(change, done, aside)
        added, taken_away, met = done.tolist()
        if added == cut == size:
            return change
        out = np.empty((size + 2 * _ROOM, wide), np.int64)
        rest = np.empty((size - added + taken_away + met, wide), np.int64)
        many = part(change, added, cut, aside[:met], out, rest)
        return self._merged(out, many, rest[: size - many])

    def _take_plain(self, change: Change, done: I64Array, aside: I64Array) -> int:
        """Take in what meets nothing else: rows that are added, and then rows taken away.

        Returns the row that ends this for rows taken away, or the number of rows; `done` and
        `aside` tell of those that are added (`_append_new`). NB: beside one that meets a fact no
        row is taken away here. Facts would be the same, but one that ends sooner would go as a
        whole and come back in part. To add the rest before costs small changes more than it saves
        large ones.
        """
        facts, spare, size = self.facts, self.spare, len(change)
        if self._rising.holds:
            self._rising.append(change, facts, done)
            if done[0] == size:
                return self._rising.cut(change, int(done[1]), facts, self.expiry)
        facts.reserve(size - int(done[0]) + _ROOM)
        mine = facts.index(self.key)
        while True:
            _append_new(
                change, mine.columns, facts.rows, facts.counts, mine.slots, mine.nexts, mine.used,
                done, aside,
            )  # fmt: skip
            mine.linked = len(facts)
            if done[0] == size:
                break
            if not mine.grow_if_crowded(facts.rows, size - int(done[0])):
                return 0
        if done[2] or not done[1]:
            return 0 if done[2] else size
        other = spare.index(self.key)
        return _cut_known(
            change, self.expiry, mine.columns, facts.rows, mine.slots, mine.nexts, mine.used,
            spare.rows, other.slots, other.used,
        )  # fmt: skip

    def _merged(self, out: Change, told: int, change: Change) -> Change:
        """Take any change in; what it changes of the facts follows the rows of `out` told."""
        facts, spare = self.facts, self.spare
        facts.reserve(len(change) + _ROOM)
        spare.reserve(_ROOM)
        mine, other = facts.index(self.key), spare.index(self.key)
        places, stack = self._places, self._stack
        places[:] = _BEGIN
        places[2] = told
        while True:
            said = _merge(
                change, self.expiry, mine.columns,
                facts.rows, facts.counts, mine.slots, mine.nexts, mine.used,
                spare.rows, spare.counts, other.slots, other.nexts, other.used,
                self._best_only, stack, places, out,
            )  # fmt: skip
            mine.linked, other.linked = len(facts), len(spare)
            if said == _DONE:
                return out[: places[2]]
            if said == _NEGATIVE:
                raise NegativeRow(told + int(places[0]))
            more = min(len(change) - int(places[0]), _MANY) + _ROOM
            if said == _GROW:
                mine.grow_if_crowded(facts.rows, len(change) - int(places[0]))
                other.grow_if_crowded(spare.rows, more)
                continue
            facts.reserve(more)
            spare.reserve(more)
            mine, other = facts.index(self.key), spare.index(self.key)
            if places[2] + _ROOM > len(out):
                out = np.concatenate([out, np.empty_like(out)])
            if places[1] + _ROOM > len(stack):
                stack = self._stack = np.concatenate([stack, np.empty_like(stack)])

    def cut(self, first: int) -> None:
        """End all derivations at an instant at the latest. Cost: O(derivations)."""
        for kept in (self.facts, self.spare):
            kept.rows[: len(kept), -1] = np.minimum(kept.rows[: len(kept), -1], first)

    def drop(self, change: Change) -> Change:
        """Take facts away where a row with their key ends as late or later; what went.

        Spare derivations do not replace them. The diffs of the change have no meaning. Cost:
        O(change + rows with their keys).
        """
        facts, columns = self.facts, np.array(self.key, np.int64)
        places, self._rising.holds = np.zeros(3, np.int64), False
        out = np.empty((len(change) + 2 * _ROOM, change.shape[1]), np.int64)
        while len(change):
            facts.reserve(min(len(change) - int(places[0]), _MANY) + _ROOM)
            index = facts.index(self.key)
            said = _drop(
                change, self.expiry, columns, facts.rows, facts.counts, index.slots, index.nexts,
                index.used, places, out,
            )  # fmt: skip
            index.linked = len(facts)
            if said == _DONE:
                break
            if places[2] + _ROOM > len(out):
                out = np.concatenate([out, np.empty_like(out)])
        return out[: places[2]]

    def compact(self, since: int) -> None:
        """Forget what has ended by `since`."""
        self.facts.compact(since)
        self.spare.compact(since)


class Passed:
    """The facts of a predicate whose derivations are all different, and that nobody looks up.

    Changes pass through it, and no row is kept.
    """

    __slots__ = ("count", "facts", "spare")

    def __init__(self, columns: int) -> None:
        self.facts = self.spare = Arrangement(columns)
        self.count = 0
        """The facts that end by nothing that is known yet."""

    @property
    def nbytes(self) -> int:
        """The bytes of no rows."""
        return self.facts.nbytes

    def take(self, change: Change) -> Change:
        """The change itself. Cost: O(change)."""
        self.count += int(change[change[:, -2] == END_WORD, -1].sum())
        return change

    def compact(self, since: int) -> None:
        """There is nothing to forget."""
