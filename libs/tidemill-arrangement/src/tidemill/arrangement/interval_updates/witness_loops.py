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
FIRST_START, LAST_END, BEST, LAST_LOW = 0, 1, 2, 3
"""Columns of reaches: the least start, the greatest end, and the greatest expiry of a witness.
They are of the rows of a key up to here, in the order of looks. Of matches the last two are the
least and the greatest `LOW`.
"""
ONWARD = 3
"""First column of the same of a witness, of the rows from here on: looks go both ways."""
KEY, LOWEST, HIGHEST, SINCE, UNTIL, ABOVE, BELOW = 0, 1, 2, 3, 4, 5, 6
"""Columns of groups, the witnesses of one key that come or go: hash, least and greatest rank, least
start and greatest end. Then the nearest ranks above and below of rows that stay and are as good;
END_WORD and BEGIN_WORD for none.
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


@inlined
def _write_reach(
    rows: I64Array, ranks: I64Array, reaches: I64Array, at: Word, first: Word, last: Word,
    onward: Word, expiry: Word,
) -> bool:  # fmt: skip
    """Write the reach of a witness, onward (1) or back (0); whether it was another one."""
    begin, end = rows[at, rows.shape[1] - 2], rows[at, rows.shape[1] - 1]
    best = rows[at, expiry] if expiry >= 0 else np.int64(END_WORD)
    other, reach = at + 2 * onward - 1, ONWARD * onward
    if first <= other < last and ranks[other, HASH] == ranks[at, HASH]:
        begin = min(begin, reaches[other, reach + FIRST_START])
        end = max(end, reaches[other, reach + LAST_END])
        best = max(best, reaches[other, reach + BEST])
    same = reaches[at, reach + FIRST_START] == begin and reaches[at, reach + LAST_END] == end
    reaches[at, reach + FIRST_START], reaches[at, reach + LAST_END] = begin, end
    reaches[at, reach + BEST] = best
    return not same


@inlined
def _narrow(
    rows: I64Array, ranks: I64Array, reaches: I64Array, at: Word, first: Word, last: Word,
    expiry: Word,
) -> None:  # fmt: skip
    """Write the reaches of a witness that has been cut, and of others as far as they change."""
    for onward in range(2):
        place = np.int64(at)
        while first <= place < last and ranks[place, HASH] == ranks[at, HASH]:
            if not _write_reach(rows, ranks, reaches, place, first, last, onward, expiry):
                break
            place += 1 - 2 * onward


@compiled
def write_reaches(
    rows: I64Array, ranks: I64Array, reaches: I64Array, nexts: I64Array, first: int, last: int,
    expiry: int, upward: bool,
) -> None:  # fmt: skip
    """Write the reaches of a tier: of witnesses, or of matches where they are `upward`.

    Without a column for `expiry` all expiries are alike. `nexts` lead over full matches.
    """
    start = rows.shape[1] - 2
    for step in range(0 if upward else last - first):
        _write_reach(rows, ranks, reaches, last - 1 - step, first, last, 1, expiry)
        _write_reach(rows, ranks, reaches, first + step, first, last, 0, expiry)
    for step in range(last - first if upward else 0):
        at = last - 1 - step
        begin, end, low = rows[at, start], rows[at, start + 1], ranks[at, LOW]
        reaches[at, BEST] = reaches[at, LAST_LOW] = low
        nexts[at] = at + ranks[at, FULL]
        if step > 0 and ranks[at + 1, HASH] == ranks[at, HASH]:
            begin = min(begin, reaches[at + 1, FIRST_START])
            end = max(end, reaches[at + 1, LAST_END])
            reaches[at, BEST] = min(low, reaches[at + 1, BEST])
            reaches[at, LAST_LOW] = max(low, reaches[at + 1, LAST_LOW])
        reaches[at, FIRST_START], reaches[at, LAST_END] = begin, end


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
    change: I64Array, asked: I64Array, rows: I64Array, ranks: I64Array, reaches: I64Array,
    bounds: I64Array, anywhere: bool, stack: I64Array, rest: I64Array, rest_ranks: I64Array,
    places: I64Array, expiry: int,
) -> int:  # fmt: skip
    """Take intervals away from rows that say the same, from where `places` say.

    `places`: row of the change, work on the stack or -1 to begin, rows of `rest`. There stand the
    later parts of rows that are cut in two. With `anywhere` the rank of a row is not that of the
    change. Reaches of witnesses become narrower, unless `expiry` is -2. Returns 0 when all is done,
    1 for more room, 2 for a row that is not there.
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
            met, within = np.int64(-1), 0
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
                    within = tier
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
            if expiry > -2:
                _narrow(rows, ranks, reaches, met, bounds[within], bounds[within + 1], expiry)
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


_NEAR = 8
"""So many rows of each tier are asked whether they are as good as rows that go."""


@inlined
def _as_good(
    change: I64Array, one: Word, groups: I64Array, group: Word, best: Word, columns: I64Array,
    expiry: Word, rows: I64Array, at: Word,
) -> bool:  # fmt: skip
    """Whether a row has the key of a row that goes, and lasts as long as all of its group."""
    start = rows.shape[1] - 2
    lasts = rows[at, start] <= groups[group, SINCE] and rows[at, start + 1] >= groups[group, UNTIL]
    lasts = lasts and (expiry < 0 or rows[at, expiry] >= best)
    return bool(
        lasts and same_columns(change, one, columns, start - 1, rows, at, columns, start - 1)
    )


@compiled
def find_as_good(
    change: I64Array, firsts: I64Array, groups: I64Array, columns: I64Array, expiry: int,
    rows: I64Array, ranks: I64Array, bounds: I64Array,
) -> None:  # fmt: skip
    """Write into groups of witnesses that go which ranks near them have a row that is as good.

    A match that admits one of these does not need those that go. The rows of a group begin at its
    place in `firsts`. Cost: O(change · log rows).
    """
    nulls = rows.shape[1] - 3
    for group in range(groups.shape[0]):
        one, after = firsts[group], change.shape[0]
        if group + 1 < firsts.size:
            after = firsts[group + 1]
        alike, best = True, np.int64(BEGIN_WORD)
        for row in range(one, after):
            alike = alike and same_columns(change, one, columns, nulls, change, row, columns, nulls)
            best = max(best, change[row, expiry]) if expiry >= 0 else best
        for tier in range(bounds.size - 1 if alike else 0):
            first, last, key = bounds[tier], bounds[tier + 1], groups[group, KEY]
            at = _place(ranks, first, last, key, groups[group, HIGHEST], True)
            for place in range(at, min(at + _NEAR, last)):
                if ranks[place, HASH] != key or ranks[place, RANK] >= groups[group, ABOVE]:
                    break
                if _as_good(change, one, groups, group, best, columns, expiry, rows, place):
                    groups[group, ABOVE] = ranks[place, RANK]
            at = _place(ranks, first, last, key, groups[group, LOWEST], False) - 1
            for place in range(at, max(at - _NEAR, first - 1), -1):
                if ranks[place, HASH] != key or ranks[place, RANK] <= groups[group, BELOW]:
                    break
                if _as_good(change, one, groups, group, best, columns, expiry, rows, place):
                    groups[group, BELOW] = ranks[place, RANK]


@compiled
def touched_by(
    groups: I64Array, rows: I64Array, ranks: I64Array, reaches: I64Array, nexts: I64Array,
    bounds: I64Array, gone: bool, out: I64Array,
) -> int:  # fmt: skip
    """The matches that witnesses may have to do with: those that are not full.

    Witnesses that are `gone` concern full ones too, but for those that admit a row as good.
    """
    start, found = rows.shape[1] - 2, 0
    for group in range(groups.shape[0]):
        key, lowest, highest = groups[group, KEY], groups[group, LOWEST], groups[group, HIGHEST]
        first, last = groups[group, SINCE], groups[group, UNTIL]
        above, below = groups[group, ABOVE], groups[group, BELOW]
        for tier in range(bounds.size - 1):
            end = bounds[tier + 1]
            at = _place(ranks, bounds[tier], end, key, lowest, False)
            while at < end:
                if not gone:
                    at = _end_of_full(nexts, ranks, at, end)
                if at >= end or ranks[at, HASH] != key:
                    break
                if reaches[at, FIRST_START] >= last or reaches[at, LAST_END] <= first:
                    break
                if reaches[at, BEST] > highest:
                    break
                if above < END_WORD and ranks[at, RANK] >= above:
                    break
                if below > BEGIN_WORD and reaches[at, LAST_LOW] <= below:
                    break
                meets = rows[at, start] < last and rows[at, start + 1] > first
                needs = below == BEGIN_WORD or ranks[at, LOW] > below
                if meets and needs and ranks[at, LOW] <= highest:
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
"""So many pieces are looked at before each row; more of them once for as many rows."""


@inlined
def _may_improve(
    pieces: I64Array, count: Word, start: Word, end: Word, best: Word, cap: Word
) -> bool:  # fmt: skip
    """Whether rows that reach from a start to an end, and have an expiry at best, are of use."""
    best = min(best, cap)
    for at in range(count):
        if pieces[at, 0] < end and pieces[at, 1] > start and pieces[at, 2] < best:
            return True
    return False


@inlined
def _first_look(
    ranks: I64Array, first: Word, last: Word, key: Word, low: Word, middle: Word, onward: Word
) -> np.int64:  # fmt: skip
    """The nearest row of a tier at or below a rank, or the nearest one above that is admitted."""
    if onward == 0:
        return np.int64(_place(ranks, first, last, key, middle, True) - 1)
    if low > middle:
        return np.int64(_place(ranks, first, last, key, low, False))
    return np.int64(_place(ranks, first, last, key, middle, True))


@compiled
def witnessed(
    left: I64Array, asked: I64Array, keys: I64Array, apart: I64Array, expiries: tuple[int, int],
    timed: bool, right: I64Array, ranks: I64Array, reaches: I64Array, bounds: I64Array,
    places: I64Array, out: I64Array,
) -> int:  # fmt: skip
    """Fill `out` with the stretches of each match in which it has a witness, from `places` on.

    `expiries`: the column of a match and of a witness, of which the lesser counts, and of several
    witnesses the greatest; -1 for none. Ranks that are `timed` are looked at from the start of a
    match on, downward and then upward, others from the greatest one down. `asked` says then which
    matches are full. The last of `places` counts the rows that were looked at. Cost: these, and
    their pieces.
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
        middle, tiers = min(rank, start) if timed else rank, bounds.size - 1
        for way in range(2 * tiers if middle < rank else tiers):
            tier, onward = way % tiers, np.int64(way >= tiers)
            at = _first_look(ranks, bounds[tier], bounds[tier + 1], key, low, middle, onward)
            unjudged, reach = count, ONWARD * onward
            while bounds[tier] <= at < bounds[tier + 1] and ranks[at, HASH] == key:
                if ranks[at, RANK] < low or ranks[at, RANK] > rank:
                    break
                a, b = reaches[at, reach + FIRST_START], reaches[at, reach + LAST_END]
                best = reaches[at, reach + BEST]
                places[2], unjudged = places[2] + 1, unjudged + 1
                if count <= _FEW or unjudged > count:
                    if not _may_improve(pieces, count, a, b, best, cap):
                        break
                    unjudged = np.int64(0)
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
                at += 2 * onward - 1
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
