"""Loops over rows in the order of one column, of which it matters whether another row has one.

Rows of both sides stand in *tiers* of one matrix, each sorted by the hash of the key and then
by rank. A tier is merged with the one before it while that is not twice as large.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.interval_updates.rows import (
    BEGIN_WORD,
    END_WORD,
    Word,
    hash_of,
    same_columns,
)
from tidemill.arrangement.kernels.arrays import I64Array, compiled, inlined

HASH, RANK, LOW, FULL = 0, 1, 2, 3
"""Columns of ranks: hash of the key, and rank. A match has the least rank that it may meet, too.
It is full if no further witness changes anything of it.
"""
FIRST_START, LAST_END, BEST = 0, 1, 2
"""Columns of reaches: the least start, the greatest end, and the greatest expiry of a witness.
They are of the rows of a key up to here, in the order of looks. Of matches the last is the least
`LOW`.
"""


@compiled
def hashes_of(rows: I64Array, columns: I64Array, ranks: I64Array) -> None:
    """Write the hashes of rows by some columns."""
    for row in range(rows.shape[0]):
        ranks[row, HASH] = np.int64(hash_of(rows, row, columns) >> np.uint64(1))


@inlined
def _place(
    ranks: I64Array, first: Word, last: Word, key: Word, rank: Word, after: bool
) -> np.int64:  # fmt: skip
    """The first row of a tier at or, with `after`, behind a rank of a key."""
    low, high = np.int64(first), np.int64(last)
    while low < high:
        middle = (low + high) >> 1
        before = ranks[middle, HASH] < key
        if ranks[middle, HASH] == key:
            before = ranks[middle, RANK] < rank or (after and ranks[middle, RANK] == rank)
        if before:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def write_reaches(
    rows: I64Array, ranks: I64Array, reaches: I64Array, nexts: I64Array, first: int, last: int,
    expiry: int, upward: bool,
) -> None:  # fmt: skip
    """Write the reaches of a tier: of rows from the first one up to each, `upward` from each on.

    Without a column for `expiry` all expiries are alike. `nexts` lead over full matches.
    """
    start = rows.shape[1] - 2
    for step in range(last - first):
        at = last - 1 - step if upward else first + step
        before = at + 1 if upward else at - 1
        best = ranks[at, LOW] if upward else np.int64(END_WORD)
        if expiry >= 0:
            best = rows[at, expiry]
        reaches[at, FIRST_START], reaches[at, LAST_END] = rows[at, start], rows[at, start + 1]
        reaches[at, BEST] = best
        nexts[at] = at + ranks[at, FULL]
        if step > 0 and ranks[before, HASH] == ranks[at, HASH]:
            reaches[at, FIRST_START] = min(rows[at, start], reaches[before, FIRST_START])
            reaches[at, LAST_END] = max(rows[at, start + 1], reaches[before, LAST_END])
            other = reaches[before, BEST]
            reaches[at, BEST] = min(best, other) if upward else max(best, other)


@compiled
def merge_tiers(
    rows: I64Array, ranks: I64Array, first: int, middle: int, last: int, rows_out: I64Array,
    ranks_out: I64Array,
) -> None:  # fmt: skip
    """Two neighbours as one, by way of memory for both."""
    left, right = first, middle
    for at in range(last - first):
        take_left = right == last
        if left < middle and right < last:
            take_left = ranks[left, HASH] < ranks[right, HASH] or (
                ranks[left, HASH] == ranks[right, HASH] and ranks[left, RANK] <= ranks[right, RANK]
            )
        source = left if take_left else right
        for column in range(rows.shape[1]):
            rows_out[at, column] = rows[source, column]
        for column in range(ranks.shape[1]):
            ranks_out[at, column] = ranks[source, column]
        left, right = left + take_left, right + (not take_left)
    for at in range(last - first):
        for column in range(rows.shape[1]):
            rows[first + at, column] = rows_out[at, column]
        for column in range(ranks.shape[1]):
            ranks[first + at, column] = ranks_out[at, column]


@compiled
def keep_useful(rows: I64Array, ranks: I64Array, bounds: I64Array, since: int) -> None:
    """Forget rows that have ended by an instant; the tiers close up."""
    start, found = rows.shape[1] - 2, np.int64(0)
    for tier in range(bounds.size - 1):
        first, last = bounds[tier], bounds[tier + 1]
        bounds[tier] = found
        for at in range(first, last):
            if rows[at, start + 1] > since and rows[at, start] < rows[at, start + 1]:
                for column in range(rows.shape[1]):
                    rows[found, column] = rows[at, column]
                for column in range(ranks.shape[1]):
                    ranks[found, column] = ranks[at, column]
                found += 1
    bounds[bounds.size - 1] = found


@compiled
def cut_rows(
    change: I64Array, asked: I64Array, rows: I64Array, ranks: I64Array, bounds: I64Array,
    anywhere: bool, stack: I64Array, rest: I64Array, rest_ranks: I64Array, places: I64Array,
) -> int:  # fmt: skip
    """Take intervals away from rows that say the same, from where `places` say.

    `places`: row of the change, work on the stack or -1 to begin, rows of `rest`. There stand the
    later parts of rows that are cut in two. With `anywhere` the rank of a row is not that of
    the change. Returns 0 when all is done, 1 for more room, 2 for a row that is not there.
    """
    start = rows.shape[1] - 2
    while places[0] < change.shape[0]:
        i = places[0]
        if places[1] < 0:
            stack[0, 0], stack[0, 1] = change[i, start], change[i, start + 1]
            places[1] = 1 if change[i, start] < change[i, start + 1] else 0
        while places[1] > 0:
            if places[1] + 2 > stack.shape[0] or places[2] == rest.shape[0]:
                return 1
            places[1] -= 1
            a, b = stack[places[1], 0], stack[places[1], 1]
            met = np.int64(-1)
            for tier in range(bounds.size - 1):
                last = bounds[tier + 1]
                rank = np.int64(BEGIN_WORD) if anywhere else asked[i, RANK]
                at = _place(ranks, bounds[tier], last, asked[i, HASH], rank, False)
                while met < 0 and at < last and ranks[at, HASH] == asked[i, HASH]:
                    if not anywhere and ranks[at, RANK] != rank:
                        break
                    if rows[at, start] < b and rows[at, start + 1] > a:
                        same = True
                        for column in range(start):
                            same = same and rows[at, column] == change[i, column]
                        met = at if same else met
                    at += 1
                if met >= 0:
                    break
            if met < 0:  # it may be a part that stands in `rest`
                places[1] += 1
                return 1 if places[2] > 0 else 2
            first, last = max(a, rows[met, start]), min(b, rows[met, start + 1])
            for side in range(2):
                low, high = (a, first) if side == 0 else (last, b)
                if low < high:
                    stack[places[1], 0], stack[places[1], 1] = low, high
                    places[1] += 1
            if last < rows[met, start + 1] and rows[met, start] < first:
                for column in range(start):
                    rest[places[2], column] = rows[met, column]
                rest[places[2], start], rest[places[2], start + 1] = last, rows[met, start + 1]
                for column in range(ranks.shape[1]):
                    rest_ranks[places[2], column] = ranks[met, column]
                places[2] += 1
                rows[met, start + 1] = first
            elif rows[met, start] < first:
                rows[met, start + 1] = first
            else:
                rows[met, start] = last
        places[0], places[1] = i + 1, -1
    return 0


@compiled
def note_full(touched: I64Array, full: I64Array, ranks: I64Array, nexts: I64Array) -> None:
    """Some matches, in ascending order, are full now or are not any more.

    No way leads over one that is not: those of its key before it lead to the next match again.
    Cost: O(touched), and full matches of their keys where some are not full any more.
    """
    for each in range(touched.size):
        at = touched[each]
        if full[each] != 0:
            nexts[at] = max(nexts[at], at + 1)
        elif ranks[at, FULL] != 0:
            nexts[at] = at
            before = at - 1
            while before >= 0 and nexts[before] > before and ranks[before, HASH] == ranks[at, HASH]:
                nexts[before] = before + 1
                before -= 1
        ranks[at, FULL] = full[each]


@inlined
def _end_of_full(nexts: I64Array, ranks: I64Array, at: Word, last: Word) -> np.int64:
    """The first match from a place on that is not full, or has the next key.

    The way there becomes shorter. NB: no way leads beyond the first match of the next key. Else the
    ways of all keys would have to be looked at where a match is not full any more.
    """
    found, key = np.int64(at), ranks[at, HASH]
    while found < last and nexts[found] != found and ranks[found, HASH] == key:
        found = nexts[found]
    at = np.int64(at)
    while at < found:
        after = nexts[at]
        nexts[at] = found
        at = after
    return found


@compiled
def touched_by(
    groups: I64Array, rows: I64Array, ranks: I64Array, reaches: I64Array, nexts: I64Array,
    bounds: I64Array, all_: bool, out: I64Array,
) -> int:  # fmt: skip
    """The matches that witnesses may have to do with, but for full ones, or `all_` of them.

    Shapes: `groups` (n, 5), a row for each key. It has the hash, the least and the greatest rank of
    its witnesses, their least start and their greatest end.
    """
    start, found = rows.shape[1] - 2, 0
    for group in range(groups.shape[0]):
        key, lowest, highest = groups[group, 0], groups[group, 1], groups[group, 2]
        first, last = groups[group, 3], groups[group, 4]
        for tier in range(bounds.size - 1):
            end = bounds[tier + 1]
            at = _place(ranks, bounds[tier], end, key, lowest, False)
            while at < end:
                if not all_:
                    at = _end_of_full(nexts, ranks, at, end)
                if at >= end or ranks[at, HASH] != key:
                    break
                if reaches[at, FIRST_START] >= last or reaches[at, LAST_END] <= first:
                    break
                if reaches[at, BEST] > highest:
                    break
                meets = rows[at, start] < last and rows[at, start + 1] > first
                if meets and ranks[at, LOW] <= highest:
                    out[found] = at
                    found += 1
                at += 1
    return found


@inlined
def _differs(
    left: I64Array, i: Word, right: I64Array, row: Word, apart: I64Array
) -> bool:  # fmt: skip
    """Whether columns are different, as null and any value are."""
    differs, nulls, theirs = True, left.shape[1] - 4, right.shape[1] - 3
    for pair in range(apart.shape[1]):
        mine, other = apart[0, pair], apart[1, pair]
        null = ((left[i, nulls] >> mine) ^ (right[row, theirs] >> other)) & 1
        if left[i, mine] == right[row, other] and null == 0:
            differs = False
    return differs


@inlined
def _improve(
    pieces: I64Array, spare: I64Array, count: Word, a: Word, b: Word, best: Word
) -> np.int64:  # fmt: skip
    """Write the best of a witness and what is known into its interval; the number of pieces then.

    Pieces go from late to early: (start, end, expiry of the best witness, BEGIN_WORD for none).
    There is room for two more.
    """
    kept, popped = np.int64(count), 0
    while kept > 0 and pieces[kept - 1, 0] < b:
        kept -= 1
        for at in range(3):
            spare[popped, at] = pieces[kept, at]
        popped += 1
    for at in range(popped - 1, -1, -1):
        start, end, known = spare[at, 0], spare[at, 1], spare[at, 2]
        for side in range(3):
            low, high, value = start, end, known
            if side == 0:
                low = max(start, b)
            elif side == 1:
                low, high, value = max(start, a), min(end, b), max(known, best)
            else:
                high = min(end, a)
            if low < high:
                if kept > 0 and pieces[kept - 1, 0] == high and pieces[kept - 1, 2] == value:
                    pieces[kept - 1, 0] = low
                else:
                    pieces[kept, 0], pieces[kept, 1], pieces[kept, 2] = low, high, value
                    kept += 1
    return kept


_FEW = 8
"""So many pieces are looked at before each row; more of them count as one without a witness."""


@inlined
def _may_improve(
    pieces: I64Array, count: Word, start: Word, end: Word, best: Word, cap: Word
) -> bool:  # fmt: skip
    """Whether rows that reach from a start to an end, and have an expiry at best, are of use."""
    of_use, best = count > _FEW, min(best, cap)
    for at in range(min(count, _FEW)):
        meets = pieces[at, 0] < end and pieces[at, 1] > start
        of_use = of_use or (meets and pieces[at, 2] < best)
    return bool(of_use)


@compiled
def witnessed(
    left: I64Array, asked: I64Array, keys: I64Array, apart: I64Array, expiries: tuple[int, int],
    right: I64Array, ranks: I64Array, reaches: I64Array, bounds: I64Array, places: I64Array,
    out: I64Array,
) -> int:  # fmt: skip
    """Fill `out` with the stretches of each match in which it has a witness, from `places` on.

    `expiries`: the column of a match and of a witness, of which the lesser counts, and of several
    witnesses the greatest; -1 for none. `asked` says then which matches are full.
    """
    width, theirs = left.shape[1] - 3, right.shape[1] - 2
    mine_expiry, other_expiry = expiries
    pieces, spare = np.empty((64, 3), np.int64), np.empty((64, 3), np.int64)
    found = 0
    while places[0] < left.shape[0]:
        i = places[0]
        cap = left[i, mine_expiry] if mine_expiry >= 0 else np.int64(END_WORD)
        key, rank, low = asked[i, HASH], asked[i, RANK], asked[i, LOW]
        start, end = left[i, width], left[i, width + 1]
        pieces[0, 0], pieces[0, 1], pieces[0, 2] = start, end, BEGIN_WORD
        count = np.int64(1 if start < end and low <= rank else 0)
        for tier in range(bounds.size - 1):
            at = _place(ranks, bounds[tier], bounds[tier + 1], key, rank, True) - 1
            while at >= bounds[tier] and ranks[at, HASH] == key and ranks[at, RANK] >= low:
                a, b, best = reaches[at, FIRST_START], reaches[at, LAST_END], reaches[at, BEST]
                if b <= start or a >= end or not _may_improve(pieces, count, a, b, best, cap):
                    break
                best = right[at, other_expiry] if other_expiry >= 0 else np.int64(END_WORD)
                a, b = right[at, theirs], right[at, theirs + 1]
                if (
                    max(a, start) < min(b, end)
                    and same_columns(left, i, keys[0], width - 1, right, at, keys[1], theirs - 1)
                    and _differs(left, i, right, at, apart)
                ):
                    if count + 3 > pieces.shape[0]:
                        more = np.empty((2 * pieces.shape[0], 3), np.int64)
                        for known in range(count):
                            for column in range(3):
                                more[known, column] = pieces[known, column]
                        pieces, spare = more, np.empty((2 * pieces.shape[0], 3), np.int64)
                    count = _improve(pieces, spare, count, a, b, min(cap, best))
                at -= 1
        if found + count > out.shape[0]:
            places[1] = count
            return found
        asked[i, FULL] = 1
        for piece in range(count):
            if pieces[piece, 2] < cap:
                asked[i, FULL] = 0
            if pieces[piece, 2] > BEGIN_WORD:
                for column in range(width + 3):
                    out[found, column] = left[i, column]
                out[found, width], out[found, width + 1] = pieces[piece, 0], pieces[piece, 1]
                if mine_expiry >= 0:
                    out[found, mine_expiry] = pieces[piece, 2]
                found += 1
        places[0] = i + 1
    return found
