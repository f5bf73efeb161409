"""Groups that go on: the fact of one is changed where it stands, if nothing else has to be done.

A group has one sum without an end, and one fact without an end, or none yet. Only where the fact
says another value than the sum it is told, as it goes and as it comes. So no row is told with its
opposite. The place of its fact is remembered for each sum, and judged by the group found there.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.interval_updates.arranged import Arrangement
from tidemill.arrangement.interval_updates.float_sums import F64Array
from tidemill.arrangement.interval_updates.groups import finish_group
from tidemill.arrangement.interval_updates.rows import (
    END_WORD,
    Change,
    Word,
    hash_of,
    same_columns,
    same_values,
)
from tidemill.arrangement.interval_updates.slots import (
    BLOCK,
    I32Array,
    find_slot,
    living_row,
    row_in,
    rows_ahead,
)
from tidemill.arrangement.interval_updates.sum_stretches import one_time
from tidemill.arrangement.kernels.arrays import I64Array, compiled, inlined


@inlined
def _is_fact_of(
    sums: I64Array, head: Word, mine: I64Array, facts: I64Array, count: Word, row: Word,
    theirs: I64Array,
) -> bool:  # fmt: skip
    """Whether a fact without an end of the group of a sum stands at a place, which may be none."""
    width = facts.shape[1]
    return bool(
        0 <= row < count
        and facts[row, width - 2] < facts[row, width - 1] == END_WORD
        and same_columns(sums, head, mine, sums.shape[1] - 3, facts, row, theirs, width - 3)
    )


@compiled
def _find_facts(
    sums: I64Array, nexts: I32Array, heads: I64Array, first: int, mine: I64Array, known: I32Array,
    facts: I64Array, count: int, theirs: I64Array, slots: I32Array, links: I32Array, used: I64Array,
    found: I64Array,
) -> int:  # fmt: skip
    """The places of the latest living facts of the next groups, -1 for none; the group after them.

    Shapes: `found` (BLOCK + 1,), of which the last one is of no use.
    """
    last, read, lost = min(first + BLOCK, heads.size), np.int64(0), 0
    hashes, which = np.empty(BLOCK + 1, np.uint64), np.empty(BLOCK, np.int64)
    for group in range(first, last):
        row = np.int64(known[heads[group]])
        found[group - first] = row
        read ^= sums[heads[group], 0] ^ sums[heads[group], sums.shape[1] - 1]
        read ^= np.int64(nexts[heads[group]])
        if 0 <= row < count:
            read ^= facts[row, 0] ^ facts[row, facts.shape[1] - 1]
    for group in range(first, last):
        head = heads[group]
        if not _is_fact_of(sums, head, mine, facts, count, found[group - first], theirs):
            hashes[lost], which[lost] = hash_of(sums, head, mine), group
            lost += 1
    rows_ahead(lost, facts, slots, used, hashes)
    for at in range(lost):
        head = heads[which[at]]
        slot = find_slot(
            sums, head, mine, sums.shape[1] - 3, hashes[at], facts, theirs, facts.shape[1] - 3,
            slots, used,
        )  # fmt: skip
        row = living_row(facts, links, row_in(slots, slot, used))
        found[which[at] - first] = known[head] = row
    found[BLOCK] = read
    return int(last)


@inlined
def _is_simple(
    sums: I64Array, nexts: I32Array, head: Word, since: Word, last: Word
) -> bool:  # fmt: skip
    """Whether a group has one sum, from before an instant on without an end."""
    width = sums.shape[1]
    return bool(
        nexts[head] < 0
        and one_time(sums, head, last)
        and sums[head, width - 2] <= since
        and sums[head, width - 1] == END_WORD
    )


@inlined
def _put_together(out: I64Array, size: Word, gone: Word, come: Word, fresh: Word) -> None:
    """Move what comes, which is behind `size` rows, and what is new, at the end, up to the rest."""
    for at in range(come + fresh if gone < size else 0):
        source = size + at if at < come else out.shape[0] - 1 - (at - come)
        for column in range(out.shape[1]):
            out[gone + at, column] = out[source, column]


@compiled
def _change_standing(
    sums: I64Array, nexts: I32Array, heads: I64Array, since: I64Array, past: int, groups: int,
    last: int, known: I32Array, facts: I64Array, count: int, theirs: I64Array, slots: I32Array,
    links: I32Array, used: I64Array, first: int, kinds: I64Array, out: I64Array,
    floats: F64Array, rest: I64Array,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Write facts that go, that come in their place, and those of new groups, to `out`.

    The numbers of each, and of the groups left to `rest`, which has their places in `heads`.
    """
    gone, come, fresh, left, size, wide = 0, 0, 0, 0, heads.size, facts.shape[1]
    mine, found, base, ready = np.arange(groups), np.empty(BLOCK + 1, np.int64), 0, 0
    for group in range(size):
        if group >= ready:
            base = group
            ready = _find_facts(
                sums, nexts, heads, group, mine, known, facts, count, theirs, slots, links, used,
                found,
            )  # fmt: skip
        head, row, start = heads[group], found[group - base], since[group]
        if row >= 0 and facts[row, wide - 1] <= start:
            row = -1  # what is behind it in its chain ended before
        stands = row < 0 or (
            start <= past and facts[row, wide - 2] <= start and facts[row, wide - 1] == END_WORD
        )
        empty, new = sums[head, groups + 2] == 0, size + come if row >= 0 else 2 * size - 1 - fresh
        if not (stands and _is_simple(sums, nexts, head, start, last)) or not (
            empty or finish_group(sums, head, groups, first, kinds, out, floats, new)
        ):
            rest[left] = group
            left += 1
            continue
        if not empty:
            out[new, wide - 2] = start
        if row < 0:
            fresh += 0 if empty else 1
            continue
        if not empty and same_values(out, new, 0, facts, row):
            continue
        for column in range(wide):
            out[gone, column] = facts[row, column]
        out[gone, wide - 2], out[gone, wide] = start, -1
        gone += 1
        if empty:
            facts[row, wide - 1] = start
            continue
        for column in range(wide - 1):
            facts[row, column] = out[new, column]
        come += 1
    _put_together(out, size, gone, come, fresh)
    return gone, come, fresh, left


def change_standing(
    sums: Arrangement, heads: I64Array, since: I64Array, past: int, groups: int, last: int,
    known: I32Array, facts: Arrangement, first: int, kinds: I64Array,
) -> tuple[Change, int, int, I64Array]:  # fmt: skip
    """Changes of facts that are changed where they stand, then facts that are to be added.

    The numbers of facts that go, which are the first, and of changes that are made follow. Then the
    places in `heads` of other groups, of which nothing is done. Each group changes from an instant
    of its own on, and nobody asks of what is before `past`. Facts have the group in the columns
    from `first` on, and no index has others. `known` has places of facts by sum. Cost: O(groups).
    """
    theirs = np.arange(first, first + groups)
    mine, index = sums.index(range(groups)), facts.index(theirs.tolist())
    out = np.empty((2 * len(heads), facts.columns + 3), np.int64)
    rest = np.empty(len(heads), np.int64)
    gone, come, fresh, left = _change_standing(
        sums.rows, mine.nexts, heads, since, past, groups, last, known, facts.rows, len(facts),
        theirs, index.slots, index.nexts, index.used, first, kinds, out, out.view(np.float64),
        rest,
    )  # fmt: skip
    return out[: gone + come + fresh], gone, gone + come, rest[:left]
