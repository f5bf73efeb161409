"""Groups of sums as rows of their predicate, and the facts of groups that are replaced."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.interval_updates.arranged import Arrangement
from tidemill.arrangement.interval_updates.float_sums import F64Array
from tidemill.arrangement.interval_updates.rows import BEGIN_WORD, END_WORD, Change, Word
from tidemill.arrangement.interval_updates.slots import (
    BLOCK,
    I32Array,
    find_slot,
    is_past,
    look_ahead,
    row_in,
)
from tidemill.arrangement.interval_updates.sum_rows import SUM_WORDS
from tidemill.arrangement.kernels.arrays import I64Array, compiled, inlined

COUNT, SUM, MEAN, UPPER_SUM, LOWER_SUM, GREATEST, LEAST, FLOAT_SUM = range(8)
"""Kinds of values of a group. Two are sums of halves, which others add up. Two are words of its
rows, which stand in the place of an upper half. A sum of floats is rounded before it is finished.
"""
_EXACT = 1 << 53
"""Sums of whole numbers up to this one are floats, so that a mean is rounded once."""


@compiled
def _contribute(
    rows: I64Array, groups: I64Array, time: int, expiry: int, values: I64Array, out: I64Array
) -> None:  # fmt: skip
    theirs, width = rows.shape[1] - 4, out.shape[1] - 3
    first = groups.size + 2
    for row in range(rows.shape[0]):
        nulls, mask = rows[row, theirs], np.int64(0)
        for at in range(groups.size):
            out[row, at] = rows[row, groups[at]]
            mask |= ((nulls >> groups[at]) & 1) << at
        out[row, first - 2] = 0
        if time >= 0:
            out[row, first - 2] = BEGIN_WORD if (nulls >> time) & 1 else rows[row, time]
        out[row, first - 1] = rows[row, expiry]
        for at in range(values.size):
            null = (nulls >> values[at]) & 1
            out[row, first + at] = 0 if null else rows[row, values[at]]
            mask |= null << (first + at)
        for at in range(first + values.size, width - 1):
            out[row, at] = 0
        out[row, width - 1] = mask
        for at in range(3):
            out[row, width + at] = rows[row, theirs + 1 + at]


def contribute(
    rows: Change, groups: I64Array, time: int, expiry: int, values: I64Array, width: int
) -> Change:
    """Contributions of `width` columns: group, time, expiry, values, nulls of both.

    `groups` and `values` are columns of the rows; values that have none are 0. The time is none of
    its own, which is 0, where its column is -1. Nulls stand before start, end and diff. Cost:
    O(rows).
    """
    out = np.empty((len(rows), width + 3), np.int64)
    _contribute(rows, groups, time, expiry, values, out)
    return out


@inlined
def finish_group(
    sums: I64Array, row: Word, groups: Word, first: Word, kinds: I64Array, out: I64Array,
    floats: F64Array, place: Word,
) -> bool:  # fmt: skip
    """Fill one row of `out`, whose words `floats` shows as floats; false if a sum is too large."""
    width, expiry, nulls = sums.shape[1], first + groups, out.shape[1] - 4
    for at in range(groups):
        out[place, first + at] = sums[row, at]
    mask = (sums[row, width - 3] & ((np.int64(1) << groups) - 1)) << first
    if first > 0:
        none = sums[row, groups] == BEGIN_WORD
        out[place, 0] = 0 if none else sums[row, groups]
        mask |= np.int64(none)
    out[place, expiry] = sums[row, groups + 1]
    for at in range(kinds.size):
        column, value = expiry + 1 + at, groups + 3 + SUM_WORDS * at
        count = sums[row, value]
        if kinds[at] == COUNT:
            out[place, column] = count
            continue
        high, low = sums[row, value + 1], sums[row, value + 2]
        if kinds[at] == UPPER_SUM or kinds[at] == LOWER_SUM:
            out[place, column] = high if kinds[at] == UPPER_SUM else low
            continue
        if kinds[at] == GREATEST or kinds[at] == LEAST:
            out[place, column] = high if count > 0 else 0
            mask |= np.int64(count == 0) << column
            continue
        if abs(np.float64(high) * 4294967296.0 + np.float64(low)) >= _EXACT:
            return False
        total = (high << 32) + low
        if kinds[at] == SUM:
            out[place, column] = total
        else:
            floats[place, column] = total / max(count, 1)
        if count == 0:
            mask |= np.int64(1) << column
    out[place, nulls] = mask
    out[place, nulls + 1], out[place, nulls + 2] = sums[row, width - 2], sums[row, width - 1]
    out[place, nulls + 3] = 1
    return True


@compiled
def _finish(
    stretches: I64Array, groups: int, first: int, kinds: I64Array, out: I64Array,
    floats: F64Array,
) -> bool:  # fmt: skip
    """Fill `out`, whose words `floats` shows as floats; false where a sum is too large."""
    for row in range(stretches.shape[0]):
        if not finish_group(stretches, row, groups, first, kinds, out, floats, row):
            return False
    return True


def finish(
    stretches: I64Array, groups: int, first: int, kinds: I64Array, columns: int
) -> Change | None:
    """Stretches of sums as rows: group from the column `first` on, expiry, a value of each kind.

    A time stands in column 0 where `first` is 1. None where a sum is not exact as a float.
    Cost: O(stretches).
    """
    out = np.zeros((len(stretches), columns + 3), np.int64)
    exact = _finish(stretches, groups, first, kinds, out, out.view(np.float64))
    return out if exact else None


@compiled
def _replaced(
    groups: I64Array, since: I64Array, mine: I64Array, facts: I64Array, slots: I32Array,
    nexts: I32Array, used: I64Array, theirs: I64Array, in_place: bool, ordered: bool,
    places: I64Array, out: I64Array,
) -> int:  # fmt: skip
    """`places`: the group, the row that is next, -2 for the first of its group."""
    width, found = facts.shape[1], 0
    hashes, last = np.empty(BLOCK + 1, np.uint64), groups.shape[0]
    base, ready = places[0], places[0]
    while places[0] < last:
        group, row = places[0], places[1]
        if row == -2:
            if group >= ready:
                base = group
                ready = look_ahead(groups, group, last, mine, facts, slots, used, hashes)
            at = find_slot(
                groups, group, mine, groups.shape[1] - 3, hashes[group - base], facts, theirs,
                width - 3, slots, used,
            )  # fmt: skip
            row = row_in(slots, at, used)
        while row >= 0:
            start = max(since[group], facts[row, width - 2])
            if start < facts[row, width - 1]:
                if found == out.shape[0]:
                    places[1] = row
                    return found
                for column in range(width):
                    out[found, column] = facts[row, column]
                out[found, width - 2], out[found, width] = start, -1
                found += 1
                if in_place:
                    facts[row, width - 1] = start
            past = ordered and is_past(facts, row, since[group], END_WORD)
            row = np.int64(-1) if past else np.int64(nexts[row])
        places[0], places[1] = group + 1, -2
    return found


def replaced(
    groups: I64Array, since: I64Array, facts: Arrangement, first: int, last: int,
    in_place: bool = False,
) -> Change:  # fmt: skip
    """Facts of groups, each from an instant of its own on, taken away; `in_place` they end there.

    A group is a row with its columns in front and its nulls before start and end. Facts have the
    group in the columns from `first` to `last`. Cost: O(groups + facts of them).
    """
    theirs = np.arange(first, last)
    index = facts.index(range(first, last))
    mine, places = np.arange(last - first), np.array([0, -2])
    parts, room = [], 2 * len(groups) + 8
    while True:
        out = np.empty((room, facts.columns + 3), np.int64)
        found = _replaced(
            groups, since, mine, facts.rows, index.slots, index.nexts, index.used, theirs,
            in_place, index.ordered, places, out,
        )  # fmt: skip
        parts.append(out[:found])
        if places[0] == len(groups):
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        room *= 2
