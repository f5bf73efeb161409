"""Matches that need a witness: a row of the other side that agrees, of which nothing is passed on.

A join makes a match of each pair, so n rows of one key may make n² of them. Here each match tells
the instants at which it has a witness. Rows of both sides are kept by key and rank. The rank of a
witness is the column that conditions limit. A match looks from the greatest rank that it admits
down, or from its own start both ways where ranks are times. It looks no further where no row beyond
can add an instant, which reaches tell. So the nearest row is mostly the only one that is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tidemill.arrangement.interval_updates.merging import NegativeRow
from tidemill.arrangement.interval_updates.moves import net_moves
from tidemill.arrangement.interval_updates.rows import BEGIN_WORD, END_WORD, Change
from tidemill.arrangement.interval_updates.witness_loops import (
    ABOVE,
    BELOW,
    FULL,
    HASH,
    HIGHEST,
    KEY,
    LOW,
    LOWEST,
    RANK,
    SINCE,
    UNTIL,
    cut_rows,
    find_as_good,
    hashes_of,
    keep_useful,
    merge_tiers,
    note_full,
    touched_by,
    witnessed,
    write_reaches,
)
from tidemill.arrangement.kernels.arrays import I64Array
from tidemill.arrangement.kernels.capacity import grow

_RANKS, _GROUPS = 4, 7
_ROOM_MIN = 64
_ARRAYS = "rows", "ranks", "reaches", "nexts"
_MANY = 1 << 10
"""So many stretches of matches are found without a question for memory."""


@dataclass(frozen=True, slots=True)
class WitnessShape:
    """Which columns of a match and of a witness have to do with each other.

    Shapes: (2, n) each, columns of the match above those of the witness. `width` and `columns` are
    the columns of both. `keys` are equal, `apart` differ. Ranks are starts of witnesses where they
    are `by_start`; where they are `timed`, no witness starts before its rank. The lesser one of the
    columns in `expiries` is the expiry of a match, and of several witnesses the greatest counts; -1
    for none.
    """

    width: int
    columns: int
    keys: I64Array
    apart: I64Array
    by_start: bool
    expiries: tuple[int, int] = (-1, -1)
    timed: bool = False


class _Ranked:
    """Rows by hash of their key and by rank, in tiers, each of which is twice the next one."""

    __slots__ = ("_anywhere", "_cut", "_due", "_expiry", "_many", "_upward", "bounds", "columns",
                 "count", "nexts", "ranks", "reaches", "rows")  # fmt: skip

    def __init__(self, width: int, columns: I64Array, expiry: int, upward: bool, anywhere: bool):
        self.columns = np.ascontiguousarray(columns)
        self.rows = np.empty((_ROOM_MIN, width + 2), np.int64)
        self.ranks = np.empty((_ROOM_MIN, _RANKS), np.int64)
        self.reaches = np.empty((_ROOM_MIN, 4 if upward else 6), np.int64)
        self.nexts = np.empty(_ROOM_MIN, np.int64)
        self.bounds = np.zeros(1, np.int64)
        self.count, self._cut, self._due, self._many = 0, 0, BEGIN_WORD, _ROOM_MIN
        self._expiry, self._upward, self._anywhere = expiry, upward, anywhere

    @property
    def nbytes(self) -> int:
        """The bytes of all rows, with room for more."""
        arrays = self.rows, self.ranks, self.reaches, self.nexts
        return sum(array.nbytes for array in arrays)

    def asked(self, rows: I64Array, rank: I64Array, low: I64Array | int = BEGIN_WORD) -> I64Array:
        """The ranks of some rows. Cost: O(rows)."""
        asked = np.zeros((len(rows), _RANKS), np.int64)
        hashes_of(rows, self.columns, asked)
        asked[:, RANK], asked[:, LOW] = rank, low
        return asked

    def put(self, rows: I64Array, ranks: I64Array) -> None:
        """Add rows. Cost: O(n log n), and amortised O(log rows) for each of them."""
        if not len(rows):
            return
        first, last = self.count, self.count + len(rows)
        if last > len(self.rows):
            for name in _ARRAYS:
                grow(self, name, max(last, last + (last >> 2), _ROOM_MIN), self.count)
        if len(rows) > 1:
            order = np.lexsort((ranks[:, RANK], ranks[:, HASH]))
            rows, ranks = rows[order], ranks[order]
        self.rows[first:last], self.ranks[first:last] = rows, ranks
        self.count = last
        self.bounds = np.append(self.bounds, last)
        self._merge()

    def _merge(self) -> None:
        """Merge tiers at the end, and tell how far the last one reaches."""
        bounds = self.bounds.tolist()
        while len(bounds) > 2 and bounds[-2] - bounds[-3] < 2 * (bounds[-1] - bounds[-2]):
            first, middle, last = bounds[-3:]
            rows = np.empty((last - first, self.rows.shape[1]), np.int64)
            ranks = np.empty((last - first, _RANKS), np.int64)
            merge_tiers(self.rows, self.ranks, first, middle, last, rows, ranks)
            del bounds[-2]
        self.bounds = np.array(bounds, np.int64)
        self._reach(bounds[-2], bounds[-1])

    def _reach(self, first: int, last: int) -> None:
        write_reaches(
            self.rows, self.ranks, self.reaches, self.nexts, first, last, self._expiry,
            self._upward,
        )  # fmt: skip

    def cut(self, change: Change, asked: I64Array) -> None:
        """Take intervals of rows away. Raises: NegativeRow. Cost: O(rows of these ranks)."""
        if not len(change):
            return
        self._cut += len(change)
        places, stack = np.array([0, -1, 0], np.int64), np.empty((16, 2), np.int64)
        rest = np.empty((len(change) + 8, self.rows.shape[1]), np.int64)
        ranks = np.empty((len(rest), _RANKS), np.int64)
        while True:
            said = cut_rows(
                change, asked, self.rows, self.ranks, self.reaches, self.bounds, self._anywhere,
                stack, rest, ranks, places, -2 if self._upward else self._expiry,
            )  # fmt: skip
            if said == 2:
                raise NegativeRow(int(places[0]))
            self.put(rest[: places[2]], ranks[: places[2]])
            if said == 0:
                return
            places[2] = 0
            if places[1] + 2 > len(stack):
                stack = np.concatenate([stack, np.empty_like(stack)])

    def compact(self, since: int) -> None:
        """Forget rows that have ended by an instant, once they are half. Amortised O(1).

        Rows may end earlier than they said. Reasons to look are as many new ones as were left, and
        half as many that were cut.
        """
        if not self.count or (since < self._due and self.count + 2 * self._cut < self._many):
            return
        ends = self.rows[: self.count, -1]
        if int((ends > since).sum()) <= self.count // 2:
            keep_useful(self.rows, self.ranks, self.bounds, since)
            bounds = [0, *dict.fromkeys(b for b in self.bounds.tolist() if b)]
            self.bounds, self.count = np.array(bounds, np.int64), bounds[-1]
            if len(self.rows) > max(4 * self.count, _ROOM_MIN):
                self._shrink(max(2 * self.count, _ROOM_MIN))
            for first, last in pairwise(bounds):
                self._reach(first, last)
        ends = self.rows[: self.count, -1]
        if len(ends):
            middle = len(ends) // 2
            self._due = max(int(np.partition(ends, middle)[middle]), since + 1)
        self._cut, self._many = 0, max(2 * self.count, _ROOM_MIN)

    def _shrink(self, room: int) -> None:
        """Give memory back but for some rows."""
        for name in _ARRAYS:
            setattr(self, name, getattr(self, name)[:room].copy())


class Witnesses:
    """Matches of one side, each at the instants at which it has a witness on the other one.

    Matches and witnesses are told as they change; each call says what that changes. Not for use by
    several threads at once. Source: twin `tidemill.testkit.twins.interval_updates.with_witness`.
    """

    def __init__(self, shape: WitnessShape) -> None:
        self._shape = shape
        self.looked = 0
        """Rows that matches have looked at, which the time goes with."""
        by_start = shape.by_start
        mine, theirs = shape.keys
        self._matches = _Ranked(shape.width, mine, -1, True, by_start)
        self._witnesses = _Ranked(shape.columns, theirs, shape.expiries[1], False, by_start)

    @property
    def nbytes(self) -> int:
        """The bytes of both sides."""
        return self._matches.nbytes + self._witnesses.nbytes

    def take_matches(
        self, change: Change, high: I64Array | None, low: I64Array | None,
        require: Callable[[int], None] = lambda wanted: None,
    ) -> Change:  # fmt: skip
        """Matches that come and go, each on its stretches with a witness.

        `high` and `low` are the ranks that each admits. `require` is asked for the bytes of many
        stretches. Raises: NegativeRow. Cost: O(change · log rows) and what is looked at.
        """
        rank = change[:, -2] - 1 if high is None else high
        asked = self._matches.asked(change, rank, BEGIN_WORD if low is None else low)
        told = self._told(change, asked, require)
        for diff, rows, ranks in _singly(change, asked):
            if diff > 0:
                self._matches.put(rows[:, :-1], ranks)
            else:
                self._matches.cut(rows, ranks)
        return told

    def take_witnesses(
        self, change: Change, rank: I64Array | None, lower: int,
        require: Callable[[int], None] = lambda wanted: None,
    ) -> Change:  # fmt: skip
        """Changes of the matches by witnesses that come and go, at `lower` or later.

        Raises: NegativeRow. Cost: O(change · log rows), and matches without a witness for all of
        their time. A witness that goes costs the matches that admit it and no near one as good.
        """
        if not len(change):
            return np.empty((0, self._shape.width + 3), np.int64)
        ours = self._witnesses
        asked = ours.asked(change, change[:, -3] if rank is None else rank)
        touched = self._touched(change, asked, lower)
        matches = np.ones((len(touched), self._shape.width + 3), np.int64)
        matches[:, :-1] = self._matches.rows[touched]
        matches[:, -3] = np.maximum(matches[:, -3], lower)
        looks = self._matches.ranks[touched]
        before = self._told(matches, looks, require)
        for diff, rows, ranks in _singly(change, asked):
            if diff > 0:
                ours.put(rows[:, :-1], ranks)
            else:
                ours.cut(rows, ranks)
        after = self._told(matches, looks, require)
        if len(touched):
            full = np.ascontiguousarray(looks[:, FULL])
            note_full(touched, full, self._matches.ranks, self._matches.nexts)
        if not len(before):
            return after
        before[:, -1] = -1
        return net_moves(np.concatenate([after, before]))

    def _touched(self, change: Change, asked: I64Array, lower: int) -> I64Array:
        """The matches that a change of witnesses may change."""
        come, gone = [self._touched_alike(change, asked, lower, gone) for gone in (False, True)]
        if not len(come) or not len(gone):
            return gone if len(gone) else come
        return np.union1d(come, gone)

    def _touched_alike(
        self, change: Change, asked: I64Array, lower: int, gone: bool
    ) -> I64Array:  # fmt: skip
        """The matches of witnesses that come, or of those that are `gone`."""
        mine = np.flatnonzero(change[:, -1] < 0 if gone else change[:, -1] > 0)
        if not len(mine):
            return mine
        order = mine[np.argsort(asked[mine, HASH], kind="stable")]
        keys, ranks, rows = asked[order, HASH], asked[order, RANK], change[order]
        firsts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        groups = np.empty((len(firsts), _GROUPS), np.int64)
        groups[:, KEY], groups[:, ABOVE], groups[:, BELOW] = keys[firsts], END_WORD, BEGIN_WORD
        groups[:, LOWEST] = np.minimum.reduceat(ranks, firsts)
        groups[:, HIGHEST] = np.maximum.reduceat(ranks, firsts)
        groups[:, SINCE] = np.maximum(np.minimum.reduceat(rows[:, -3], firsts), lower)
        groups[:, UNTIL] = np.maximum.reduceat(rows[:, -2], firsts)
        if gone:
            self._find_as_good(rows, firsts, groups, change, asked)
        theirs = self._matches
        out = np.empty(theirs.count, np.int64)
        found = touched_by(
            groups, theirs.rows, theirs.ranks, theirs.reaches, theirs.nexts, theirs.bounds, gone,
            out,
        )  # fmt: skip
        return out[:found]

    def _find_as_good(
        self, rows: Change, firsts: I64Array, groups: I64Array, change: Change, asked: I64Array
    ) -> None:
        """Find near rows that are as good as those that go, among all that stay or come now.

        NB: ranks that are starts do not tell rows that stay from parts of rows that go.
        """
        shape, ours = self._shape, self._witnesses
        if shape.apart.size or shape.by_start:
            return
        of = rows, firsts, groups, ours.columns, shape.expiries[1]
        find_as_good(*of, ours.rows, ours.ranks, ours.bounds)
        come = np.flatnonzero(change[:, -1] > 0)
        if len(come):
            come = come[np.lexsort((asked[come, RANK], asked[come, HASH]))]
            bounds = np.array([0, len(come)], np.int64)
            rows = np.ascontiguousarray(change[come, :-1])
            find_as_good(*of, rows, asked[come], bounds)

    def _told(self, matches: Change, asked: I64Array, require: Callable[[int], None]) -> Change:
        """The stretches of matches with a witness; `asked` says then which are full."""
        shape, theirs = self._shape, self._witnesses
        places, parts = np.zeros(3, np.int64), list[Change]()
        room = len(matches) + 16
        while places[0] < len(matches):
            if room > _MANY:
                require(8 * matches.shape[1] * (room + sum(map(len, parts))))
            out = np.empty((room, matches.shape[1]), np.int64)
            found = witnessed(
                matches, asked, shape.keys, shape.apart, shape.expiries,
                shape.timed or shape.by_start, theirs.rows, theirs.ranks, theirs.reaches,
                theirs.bounds, places, out,
            )  # fmt: skip
            parts.append(out[:found])
            room = 2 * room + int(places[1])
        self.looked += int(places[2])
        if not parts:
            return matches[:0]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def compact(self, since: int) -> None:
        """Forget what has ended by `since`."""
        self._matches.compact(since)
        self._witnesses.compact(since)


def _singly(change: Change, asked: I64Array) -> list[tuple[int, Change, I64Array]]:
    """The rows that are added and those taken away, each as often as its diff says."""
    found = []
    for sign in (1, -1):
        times = np.maximum(change[:, -1] * sign, 0)
        times[change[:, -3] >= change[:, -2]] = 0
        if times.any():
            rows = np.repeat(np.arange(len(change)), times)
            found.append((sign, change[rows], asked[rows]))
    return found
