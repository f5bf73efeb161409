"""Long chains in the order of time: many looks at the rows of one key, each by a search.

A look that walks along a chain reads all of its rows. Loops set looks at long chains aside. The
rows of such a chain are sorted by their starts once for all looks of a change. `reach` is the
greatest end of a row and of those before it. So the rows that meet an interval lie between two
places that a search finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tidemill.arrangement.interval_updates.arranged import AsOf
from tidemill.arrangement.interval_updates.rows import Change, Word, end_as_of
from tidemill.arrangement.interval_updates.slots import I32Array, is_past
from tidemill.arrangement.kernels.arrays import I64Array, compiled, inlined

LONG = 512
"""A chain of more rows is long; to sort fewer takes more time than some walks along them."""


class Looks(NamedTuple):
    """Rows of a change that look at one long chain, and the rows of it that each may meet.

    Shapes: `rows` (n,) of the arrangement by their starts, `ends` (n,) as the reader sees them.
    `left`, `first` and `last` (m,): a row of the left may meet `rows[first:last]`.
    """

    left: I64Array
    rows: I64Array
    ends: I64Array
    first: I64Array
    last: I64Array


@inlined
def is_long(
    rows: I64Array, nexts: I32Array, head: Word, start: Word, place: Word, ordered: bool
) -> bool:  # fmt: skip
    """Whether a look from an instant on would read many rows of a chain."""
    row, size = np.int64(head), 0
    while row >= 0 and size < LONG:
        past = ordered and is_past(rows, row, start, place)
        row = np.int64(-1) if past else np.int64(nexts[row])
        size += 1
    return bool(row >= 0)


@compiled
def _length(nexts: I32Array, head: int) -> int:
    row, size = np.int64(head), 0
    while row >= 0:
        row = np.int64(nexts[row])
        size += 1
    return size


@compiled
def _read(
    rows: I64Array, nexts: I32Array, head: int, place: int, lasts: int, out: I64Array
) -> int:  # fmt: skip
    """Number, start and end of each row of a chain that a reader sees."""
    row, found, start = np.int64(head), 0, rows.shape[1] - 2
    while row >= 0:
        end = end_as_of(rows, row, place, lasts)
        if rows[row, start] < end:
            out[0, found], out[1, found], out[2, found] = row, rows[row, start], end
            found += 1
        row = np.int64(nexts[row])
    return found


def looks_at(
    aside: I64Array, left: Change, rows: I64Array, nexts: I32Array, as_of: AsOf, few: int = 0
) -> Iterator[Looks]:  # fmt: skip
    """The looks at each of the chains that looks were set aside for.

    A chain with `few` looks or less stays in its order, and each of them may meet all of its rows.
    Shapes: `aside` (n, 2), a row of the left and the first row of the rest of its chain.
    Cost: O(c log c + n log c) for chains of c rows.
    """
    if not len(aside):
        return
    aside = aside[np.argsort(aside[:, 1], kind="stable")]
    cuts = np.flatnonzero(np.diff(aside[:, 1])) + 1
    for looks in np.split(aside, cuts):
        head, asking = int(looks[0, 1]), looks[:, 0].copy()
        chain = np.empty((3, _length(nexts, head)), np.int64)
        seen = _read(rows, nexts, head, *as_of, chain)
        chain = np.ascontiguousarray(chain[:, :seen])
        if len(asking) <= few:
            none = np.zeros(len(asking), np.int64)
            yield Looks(asking, chain[0], chain[2], none, none + chain.shape[1])
            continue
        numbers, starts, ends = chain.take(np.argsort(chain[1], kind="stable"), axis=1)
        reach = np.maximum.accumulate(ends)
        first = np.searchsorted(reach, left[asking, -3], "right")
        last = np.searchsorted(starts, left[asking, -2], "left")
        yield Looks(asking, numbers, ends, first, last)
