"""When rows are present, from when how many copies of them come and go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, compiled
from tidemill.arrangement.relational.grouping import Buckets

_FOREVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Stretches:
    """Stretches [start, stop) in which a group has a copy, and the groups that have one at the end.

    Shapes: `groups`, `start`, `stop` one for each stretch, the stop of an open one the greatest
    word; `alive`, `since` (its last start) and `copies` one for each group alive. `wrong` is an
    update that takes away more than there is, the earliest, -1 for none; then the rest means
    nothing.
    """

    groups: I64Array
    start: I64Array
    stop: I64Array
    alive: I64Array
    since: I64Array
    copies: I64Array
    wrong: int


@compiled
def _accumulate(
    starts: I64Array,
    order: I64Array,
    times: I64Array,
    diffs: I64Array,
    out: I64Array,
    held: I64Array,
) -> tuple[int, int, int]:
    """Fill `out` and `held`; how many of each, and the first wrong update."""
    found, living, wrong = 0, 0, -1
    for group in range(starts.size - 1):
        copies, since = 0, 0
        at, end = starts[group], starts[group + 1]
        while at < end:
            row = order[at]
            time, change = times[row], 0
            while at < end and times[order[at]] == time:
                change += diffs[order[at]]
                at += 1
            before = copies
            copies += change
            if copies < 0:
                if wrong < 0 or time < times[wrong]:
                    wrong = row
                break
            if before == 0 and copies > 0:
                since = time
            elif before > 0 and copies == 0:
                out[0, found], out[1, found], out[2, found] = group, since, time
                found += 1
        if copies > 0:
            out[0, found], out[1, found], out[2, found] = group, since, _FOREVER
            found += 1
            held[0, living], held[1, living], held[2, living] = group, since, copies
            living += 1
    return found, living, wrong


def accumulate_groups(buckets: Buckets, times: I64Array, diffs: I64Array) -> Stretches:
    """When each group has a copy.

    Updates of a group ascend by time; those of one time are added up.

    Cost: O(updates + groups).
    """
    out = np.empty((3, len(times) + 1), np.int64)
    held = np.empty((3, len(buckets.starts)), np.int64)
    found, living, wrong = _accumulate(buckets.starts, buckets.order, times, diffs, out, held)
    return Stretches(
        out[0, :found], out[1, :found], out[2, :found],
        held[0, :living], held[1, :living], held[2, :living], wrong,
    )  # fmt: skip
