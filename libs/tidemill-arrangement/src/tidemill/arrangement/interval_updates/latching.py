"""Solutions with an end of their own: when each is established."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.arrangement.interval_updates.arranged import Arrangement
from tidemill.arrangement.interval_updates.merging import NegativeRow
from tidemill.arrangement.interval_updates.novelty import Novelty
from tidemill.arrangement.interval_updates.rows import END_WORD, Change, Word, hash_of
from tidemill.arrangement.interval_updates.slots import (
    I32Array,
    append_row,
    crowded,
    cut_row,
    divide,
    find_slot,
    row_in,
)
from tidemill.arrangement.kernels.arrays import I64Array, compiled, inlined

_ROOM = 4
_DONE, _FULL, _GROW, _NEGATIVE = 0, 1, 2, 3


@inlined
def _first_start(rows: I64Array, head: Word, nexts: I32Array) -> Word:
    """When the match with these rows holds first, the greatest word for never."""
    width, first, row = rows.shape[1] - 2, np.int64(END_WORD), np.int64(head)
    while row >= 0:
        if rows[row, width] < rows[row, width + 1]:
            first = min(first, rows[row, width])
        row = np.int64(nexts[row])
    return first


@inlined
def _say(
    change: I64Array,
    i: Word,
    expiry: Word,
    start: Word,
    diff: Word,
    out: I64Array,
    places: I64Array,
) -> None:
    """The match of a row lives from `start` until its own expiry, or does not."""
    width = change.shape[1] - 3
    if start < change[i, expiry]:
        at = places[2]
        for column in range(width):
            out[at, column] = change[i, column]
        out[at, width], out[at, width + 1] = start, change[i, expiry]
        out[at, width + 2] = diff
        places[2] = at + 1


@inlined
def _identify(
    change: I64Array, i: Word, columns: I64Array, expiry: Word, out: I64Array, row: Word
) -> None:
    """Write the identity of a match as a row: its columns, expiry, nulls, start, end."""
    size, mask = columns.size, np.int64(0)
    nulls = change[i, change.shape[1] - 4]
    for at in range(size):
        out[row, at] = change[i, columns[at]]
        mask |= ((nulls >> columns[at]) & 1) << at
    out[row, size], out[row, size + 1] = change[i, expiry], mask
    out[row, size + 2] = change[i, change.shape[1] - 3]
    out[row, size + 3] = change[i, change.shape[1] - 2]


@compiled
def _establish_new(
    change: I64Array, columns: I64Array, expiry: int, rows: I64Array, first: int
) -> int:
    """Keep new matches as rows from `first` on; those that live move to the front of the change."""
    width, found = change.shape[1] - 3, 0
    for i in range(change.shape[0]):
        _identify(change, i, columns, expiry, rows, first + i)
        if change[i, width] < change[i, expiry]:
            if found != i:
                for column in range(width + 3):
                    change[found, column] = change[i, column]
            change[found, width + 1] = change[found, expiry]
            found += 1
    return found


@compiled
def _establish(
    change: I64Array, columns: I64Array, mine: I64Array, expiry: int, rows: I64Array,
    counts: I64Array, slots: I32Array, nexts: I32Array, used: I64Array, identity: I64Array,
    stack: I64Array, places: I64Array, out: I64Array,
) -> int:  # fmt: skip
    """`places`: row, pieces on the stack, rows of `out`, when the match was established before."""
    width, kept = change.shape[1] - 3, rows.shape[1] - 2
    while places[0] < change.shape[0]:
        i = places[0]
        if crowded(used) and not divide(rows, mine, slots, used):
            return _GROW
        if counts[0] + _ROOM > rows.shape[0] or places[2] + _ROOM > out.shape[0]:
            return _FULL
        hashed = hash_of(change, i, columns)
        slot = find_slot(
            change, i, columns, width - 1, hashed, rows, mine, kept - 1, slots, used
        )  # fmt: skip
        if places[1] < 0:
            places[3] = _first_start(rows, row_in(slots, slot, used), nexts)
            stack[0, 0], stack[0, 1] = change[i, width], change[i, width + 1]
            places[1] = 1
        if change[i, width + 2] > 0:
            _identify(change, i, columns, expiry, identity, 0)
            start, end = stack[0, 0], stack[0, 1]
            append_row(
                identity, 0, start, end, rows, counts, slots, nexts, used, slot, hashed, False
            )  # fmt: skip
            places[1] = 0
        while places[1] > 0:
            if counts[0] + _ROOM > rows.shape[0] or places[1] + _ROOM > stack.shape[0]:
                return _FULL
            top = places[1] - 1
            start, end = stack[top, 0], stack[top, 1]
            row = row_in(slots, slot, used)
            while row >= 0 and not (rows[row, kept] < end and rows[row, kept + 1] > start):
                row = np.int64(nexts[row])
            if row < 0:
                return _NEGATIVE
            first, last = max(start, rows[row, kept]), min(end, rows[row, kept + 1])
            cut_row(rows, row, first, last, counts, slots, nexts, used, slot, hashed, False)
            places[1] = top
            if start < first:
                stack[places[1], 0], stack[places[1], 1] = start, first
                places[1] += 1
            if last < end:
                stack[places[1], 0], stack[places[1], 1] = last, end
                places[1] += 1
        now = _first_start(rows, row_in(slots, slot, used), nexts)
        if now != places[3]:
            _say(change, i, expiry, now, 1, out, places)
            _say(change, i, expiry, places[3], -1, out, places)
        change[i, width + 2] -= 1 if change[i, width + 2] > 0 else -1
        if change[i, width + 2] == 0:
            places[0] = i + 1
        places[1] = -1
    return _DONE


class Latch:
    """Matches that live, once established, until their own expiry and not longer.

    A match is established when it holds first; it has its expiry in the column `expiry`. Its
    `identity` is kept, with its expiry and when it holds. `times` are columns of the identity, of
    which the greatest rises in a stream.
    """

    __slots__ = ("_columns", "_expiry", "_matches", "_mine", "_novelty")

    def __init__(self, identity: Sequence[int], expiry: int, times: Sequence[int] = ()) -> None:
        self._columns = np.array(identity, np.int64)
        self._mine = np.arange(len(identity))
        self._expiry = expiry
        self._novelty = Novelty(times, identity)
        self._matches = Arrangement(len(identity) + 2, ends=len(identity))

    @property
    def nbytes(self) -> int:
        """The bytes of the matches that are kept."""
        return self._matches.nbytes

    def words(self, columns: Sequence[int]) -> set[int]:
        """The words that the matches have in some columns, where these tell matches apart."""
        mine = [at for at, column in enumerate(self._columns.tolist()) if column in columns]
        found: list[int] = np.unique(self._matches.rows[: len(self._matches)][:, mine]).tolist()
        return set(found)

    def take(self, change: Change) -> Change:
        """Matches that begin and end to live. The change is written to.

        Cost: O(change + rows of the same matches). Raises: NegativeRow where a match is taken away
        that is not there.
        """
        matches = self._matches
        if self._novelty.admit(change):
            first = len(matches)
            matches.reserve(len(change))
            matches.counts[:] = first + len(change)
            found = _establish_new(change, self._columns, self._expiry, matches.rows, first)
            return change[:found]
        if len(change) > 1:
            change = change[(change[:, -3] < change[:, -2]) & (change[:, -1] != 0)]
            if bool((change[:, -1] < 0).any()):
                change = np.concatenate([change[change[:, -1] > 0], change[change[:, -1] < 0]])
        elif not len(change) or change[0, -3] >= change[0, -2] or not change[0, -1]:
            return change[:0]
        return self._look_up(change)

    def _look_up(self, change: Change) -> Change:
        """See `take`."""
        matches = self._matches
        matches.reserve(len(change) + _ROOM)
        index = matches.index(self._mine.tolist())
        places = np.array([0, -1, 0, 0], np.int64)
        identity = np.empty((1, matches.columns + 2), np.int64)
        stack = np.empty((16, 2), np.int64)
        out = np.empty((2 * len(change) + _ROOM, change.shape[1]), np.int64)
        while True:
            said = _establish(
                change, self._columns, self._mine, self._expiry, matches.rows, matches.counts,
                index.slots, index.nexts, index.used, identity, stack, places, out,
            )  # fmt: skip
            index.linked = len(matches)
            if said == _DONE:
                return out[: places[2]]
            if said == _NEGATIVE:
                raise NegativeRow(int(places[0]))
            if said == _GROW:
                index.grow(matches.rows, len(change) - int(places[0]))
                continue
            matches.reserve(len(change) - int(places[0]) + _ROOM)
            index = matches.index(self._mine.tolist())
            if places[2] + _ROOM > len(out):
                out = np.concatenate([out, np.empty_like(out)])
            if places[1] + _ROOM > len(stack):
                stack = np.concatenate([stack, np.empty_like(stack)])

    def compact(self, since: int) -> None:
        """Forget the matches that neither hold nor live any more."""
        self._matches.compact(since)
