"""Solutions with an end of their own: when each is established."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.arrangement.interval_updates.arranged import Arrangement, I32Array
from tidemill.arrangement.interval_updates.merging import NegativeRow, append_row, cut_row
from tidemill.arrangement.interval_updates.rows import END_WORD, Change, Word, hash_of, same_columns
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


@compiled
def _establish(
    change: I64Array, columns: I64Array, expiry: int, rows: I64Array, counts: I64Array,
    slots: I32Array, nexts: I32Array, used: I64Array, stack: I64Array, places: I64Array,
    out: I64Array,
) -> int:  # fmt: skip
    """`places`: row, pieces on the stack, rows of `out`, when the match was established before."""
    width = change.shape[1] - 3
    while places[0] < change.shape[0]:
        i = places[0]
        if 2 * used[0] + 8 >= slots.size:
            return _GROW
        if counts[0] + _ROOM > rows.shape[0] or places[2] + _ROOM > out.shape[0]:
            return _FULL
        slot = np.int64(hash_of(change, i, columns) >> np.uint64(64 - used[1]))
        while slots[slot] >= 0 and not same_columns(
            change, i, columns, width - 1, rows, np.int64(slots[slot]), columns, width - 1
        ):
            slot = (slot + 1) & (slots.size - 1)
        if places[1] < 0:
            places[3] = _first_start(rows, slots[slot], nexts)
            stack[0, 0], stack[0, 1] = change[i, width], change[i, width + 1]
            places[1] = 1
        if change[i, width + 2] > 0:
            start, end = stack[0, 0], stack[0, 1]
            append_row(change, i, start, end, rows, counts, slots, nexts, used, slot)
            places[1] = 0
        while places[1] > 0:
            if counts[0] + _ROOM > rows.shape[0] or places[1] + _ROOM > stack.shape[0]:
                return _FULL
            top = places[1] - 1
            start, end = stack[top, 0], stack[top, 1]
            row = np.int64(slots[slot])
            while row >= 0 and not (rows[row, width] < end and rows[row, width + 1] > start):
                row = np.int64(nexts[row])
            if row < 0:
                return _NEGATIVE
            first, last = max(start, rows[row, width]), min(end, rows[row, width + 1])
            cut_row(rows, row, first, last, counts, slots, nexts, used, slot)
            places[1] = top
            if start < first:
                stack[places[1], 0], stack[places[1], 1] = start, first
                places[1] += 1
            if last < end:
                stack[places[1], 0], stack[places[1], 1] = last, end
                places[1] += 1
        now = _first_start(rows, slots[slot], nexts)
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

    A match is established when it holds first; it has its expiry in the column `expiry`.
    """

    __slots__ = ("_expiry", "_identity", "_matches")

    def __init__(self, columns: int, identity: Sequence[int], expiry: int) -> None:
        self._identity = tuple(identity)
        self._expiry = expiry
        self._matches = Arrangement(columns, ends=expiry)

    @property
    def nbytes(self) -> int:
        """The bytes of the matches that are kept."""
        return self._matches.nbytes

    def take(self, change: Change) -> Change:
        """Which matches begin and end to live. Cost: O(change + rows of the same matches).

        Raises: NegativeRow where a match is taken away that is not there.
        """
        change = change[(change[:, -3] < change[:, -2]) & (change[:, -1] != 0)]
        if bool((change[:, -1] < 0).any()):
            change = np.concatenate([change[change[:, -1] > 0], change[change[:, -1] < 0]])
        matches = self._matches
        matches.reserve(len(change) + _ROOM)
        index = matches.index(self._identity)
        places = np.array([0, -1, 0, 0], np.int64)
        stack = np.empty((16, 2), np.int64)
        out = np.empty((2 * len(change) + _ROOM, change.shape[1]), np.int64)
        while True:
            said = _establish(
                change, index.columns, self._expiry, matches.rows, matches.counts, index.slots,
                index.nexts, index.used, stack, places, out,
            )  # fmt: skip
            index.linked = len(matches)
            if said == _DONE:
                return out[: places[2]]
            if said == _NEGATIVE:
                raise NegativeRow(int(places[0]))
            if said == _GROW:
                index.grow(matches.rows)
                continue
            matches.reserve(len(change) - int(places[0]) + _ROOM)
            index = matches.index(self._identity)
            if places[2] + _ROOM > len(out):
                out = np.concatenate([out, np.empty_like(out)])
            if places[1] + _ROOM > len(stack):
                stack = np.concatenate([stack, np.empty_like(stack)])

    def compact(self, since: int) -> None:
        """Forget the matches that neither hold nor live any more."""
        self._matches.compact(since)
