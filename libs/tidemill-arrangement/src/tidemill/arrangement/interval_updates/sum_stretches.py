"""Stretches of sums: what holds of a group between the starts and ends of its sums.

Sums that differ only in times, or in starts that are past, become one before they are read. So a
group is read as often as its contributions end at different instants, whatever holds. Of more than
`KINDS` of these at once the newest take others in.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.interval_updates.multisets import room_in
from tidemill.arrangement.interval_updates.rows import BEGIN_WORD, END_WORD, Word
from tidemill.arrangement.interval_updates.slots import BLOCK, I32Array
from tidemill.arrangement.interval_updates.sum_rows import (
    DONE,
    FULL,
    MIXED,
    NODES,
    absorb,
    alike,
)
from tidemill.arrangement.kernels.arrays import I64Array, compiled, inlined

_FEW = 128
"""Of a group of different times or expiries so many sums are compared with each other."""
_MANY = 512
"""Of a group of one time and one expiry so many sums are, each at each instant."""
KINDS = 16
"""So many sums of a group with different ends or expiries take others in."""


@compiled
def chain_of(sums: I64Array, nexts: I32Array, head: int, first: int, rows: I64Array) -> int:
    """The rows of a group that end after an instant; -1 where there is no room for them."""
    width = sums.shape[1]
    row, size = np.int64(head), 0
    while row >= 0:
        if sums[row, width - 1] > first and sums[row, width - 2] < sums[row, width - 1]:
            if size == rows.size:
                return -1
            rows[size] = row
            size += 1
        row = np.int64(nexts[row])
    return size


@inlined
def _put_in_order(events: I64Array, many: int, event: Word) -> None:
    """One more word among some that ascend."""
    at = many
    while at > 0 and events[at - 1] > event:
        events[at] = events[at - 1]
        at -= 1
    events[at] = event


@compiled
def _chains_ahead(
    sums: I64Array, nexts: I32Array, heads: I64Array, first: int, chain: I64Array
) -> int:
    """Read the first rows of the next groups, so that the processor has them when they are asked
    for; the group that comes after these.
    """
    last, read = min(first + BLOCK, heads.size), np.int64(0)
    for group in range(first, last):
        chain[group - first] = nexts[heads[group]]
        read ^= sums[heads[group], 0]
    for group in range(first, last):
        if chain[group - first] >= 0:
            read ^= sums[chain[group - first], 0]
    chain[0] = read
    return last


@compiled
def _fold(
    sums: I64Array, nexts: I32Array, head: int, since: int, groups: int, last: int,
    kinds: I64Array, words: I64Array, links: I32Array, state: I64Array,
) -> bool:  # fmt: skip
    """Add up the sums of a group that differ only in times, or in starts that are past.

    False where there is no room for more nodes. Shapes: `kinds` (n,), of no use to the caller.
    Cost: O(rows of the group), each of which is added to another once.
    """
    width, before, many = sums.shape[1], np.int64(-1), 0
    timed, row = last < width - 4, np.int64(head)
    while row >= 0:
        following, into = np.int64(nexts[row]), np.int64(-1)
        end, gone = sums[row, width - 1], sums[row, width - 2] >= sums[row, width - 1]
        if not gone and sums[row, width - 2] <= since:
            for at in range(many):
                if into < 0 and alike(
                    sums, kinds[at], groups, sums[row, groups], sums[row, groups + 1], end, timed
                ):  # fmt: skip
                    into = kinds[at]
            if into >= 0:
                if timed and room_in(words, state) < 2:
                    return False
                absorb(sums, into, row, groups, last, words, links, state)
                gone = True
            elif many < kinds.size:
                kinds[many] = row
                many += 1
        if gone and before >= 0:
            nexts[before] = following
        else:
            before = row
        row = following
    return True


@inlined
def _count_at_top(sums: I64Array, row: Word, groups: Word, last: Word, words: I64Array) -> np.int64:
    """Number of contributions of a sum that have its time."""
    if last < sums.shape[1] - 4 and sums[row, last] > 0:
        return np.int64(words[sums[row, last] - 1, 1])
    return np.int64(sums[row, groups + 2])


@inlined
def _differ(
    sums: I64Array, chain: I64Array, size: Word, groups: Word, last: Word
) -> bool:  # fmt: skip
    """Whether the sums of a group have different times or expiries."""
    found = False
    for at in range(size):
        for column in (groups, groups + 1):
            found = found or sums[chain[at], column] != sums[chain[0], column]
        found = found or not one_time(sums, chain[at], last)
    return found


@inlined
def _move(
    sums: I64Array, chain: I64Array, size: Word, instant: Word, since: Word, groups: Word,
    last: Word, totals: I64Array,
) -> None:  # fmt: skip
    """Add what begins at an instant to totals, and take what ends there from them."""
    width = sums.shape[1]
    for at in range(size):
        row = chain[at]
        begins = max(since, sums[row, width - 2]) == instant
        sign = np.int64(begins) - np.int64(sums[row, width - 1] == instant)
        if sign != 0:
            for column in range(groups + 2, last):
                totals[column] += sign * sums[row, column]


@inlined
def _observe(
    sums: I64Array, chain: I64Array, size: Word, start: Word, groups: Word, last: Word,
    words: I64Array, out: I64Array, found: Word,
) -> bool:  # fmt: skip
    """Write the latest time and the first expiry of the sums that hold at an instant.

    False where the latest time may be one that is taken away.
    """
    width, doubt, negative = sums.shape[1], False, False
    time, gone, expiry = np.int64(BEGIN_WORD), np.int64(BEGIN_WORD), np.int64(END_WORD)
    for at in range(size):
        row = chain[at]
        if sums[row, width - 2] <= start and sums[row, width - 1] > start:
            count = _count_at_top(sums, row, groups, last, words)
            if count > 0:
                time = max(time, sums[row, groups])
            elif count < 0:
                doubt, gone = True, max(gone, sums[row, groups])
            if sums[row, groups + 2] > 0:
                expiry = min(expiry, sums[row, groups + 1])
            negative = negative or sums[row, groups + 2] < 0
    if negative:
        expiry = np.int64(END_WORD)
        for at in range(size):
            count = np.int64(0)
            for each in range(size):
                row = chain[each]
                same = sums[row, groups + 1] == sums[chain[at], groups + 1]
                if same and sums[row, width - 2] <= start and sums[row, width - 1] > start:
                    count += sums[row, groups + 2]
            if count > 0:
                expiry = min(expiry, sums[chain[at], groups + 1])
    out[found, groups], out[found, groups + 1] = time, expiry
    return not (doubt and gone >= time)


@inlined
def one_time(sums: I64Array, row: Word, last: Word) -> bool:
    """Whether all contributions of a sum have its time."""
    return bool(last >= sums.shape[1] - 4 or sums[row, last] == 0)


@inlined
def _one(
    sums: I64Array, row: Word, since: Word, groups: Word, last: Word, out: I64Array, found: Word
) -> int:
    """Write the stretch of a group that has one sum; how many there are, one or none."""
    width, wide = sums.shape[1], out.shape[1]
    start, end = max(since, sums[row, width - 2]), sums[row, width - 1]
    if start >= end or sums[row, groups + 2] == 0:
        return 0
    for column in range(last):
        out[found, column] = sums[row, column]
    out[found, last] = sums[row, width - 3]
    out[found, wide - 2], out[found, wide - 1] = start, end
    return 1


@compiled
def sweep(
    sums: I64Array, nexts: I32Array, heads: I64Array, since: I64Array, past: int, groups: int,
    last: int, kinds: I64Array, totals: I64Array, places: I64Array, chain: I64Array, events: I64Array,
    words: I64Array, links: I32Array, state: I64Array, out: I64Array,
) -> int:  # fmt: skip
    """Stretches of the groups of `heads`, each from an instant on, from where `places` say.

    `places`: the group, how many rows of `out` are filled. Nobody asks of what is before `past`. A
    group of many sums, and one whose latest time may be taken away, is left out, and ends the call
    with MIXED.
    """
    width, ready, wide = sums.shape[1], places[0], out.shape[1]
    while places[0] < heads.size:
        group = places[0]
        if group >= ready:
            ready = _chains_ahead(sums, nexts, heads, group, chain)
        if nexts[heads[group]] < 0 and one_time(sums, heads[group], last):
            if places[1] == out.shape[0]:
                return FULL
            places[1] += _one(sums, heads[group], since[group], groups, last, out, places[1])
            places[0] += 1
            continue
        if nexts[heads[group]] >= 0 and not _fold(
            sums, nexts, heads[group], past, groups, last, kinds, words, links, state
        ):
            return NODES
        size = chain_of(sums, nexts, heads[group], since[group], chain)
        if size < 0 or 2 * size > out.shape[0] - places[1]:
            return FULL
        differ = _differ(sums, chain, size, groups, last)
        mixed = size > (_FEW if differ else _MANY)
        for at in range(0 if mixed else size):
            _put_in_order(events, 2 * at, max(since[group], sums[chain[at], width - 2]))
            _put_in_order(events, 2 * at + 1, sums[chain[at], width - 1])
        totals[:last] = 0
        found, base = places[1], places[1]
        for at in range(0 if mixed else 2 * size - 1):
            start, end = events[at], events[at + 1]
            if start == end or mixed:
                continue
            _move(sums, chain, size, start, since[group], groups, last, totals)
            for column in range(last):
                out[found, column] = (
                    sums[chain[0], column] if column < groups + 2 else totals[column]
                )
            if out[found, groups + 2] == 0:
                continue
            if differ:
                mixed = not _observe(
                    sums, chain, size, start, groups, last, words, out, found
                )  # fmt: skip
            same = found > base and out[found - 1, wide - 1] == start
            for column in range(groups, last):
                same = same and out[found, column] == out[found - 1, column]
            if same:
                out[found - 1, wide - 1] = end
                continue
            out[found, last] = sums[chain[0], width - 3]
            out[found, wide - 2], out[found, wide - 1] = start, end
            found += 1
        places[0] += 1
        if mixed:
            return MIXED
        places[1] = found
    return DONE


@compiled
def has_negative(sums: I64Array, chain: I64Array, groups: int, last: int, words: I64Array) -> bool:
    """Whether some times of these sums are taken away."""
    found = False
    for row in chain:
        top = _count_at_top(sums, row, groups, last, words)
        found = found or bool(top < 0 or sums[row, groups + 2] < min(top, 1))
    return found
