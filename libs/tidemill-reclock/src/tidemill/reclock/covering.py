"""Coverage of source offsets over whole columns of bindings: the least time at which all are in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.errors import UsageError
from tidemill.time import Partitions


def covered_since(bindings: pa.Table, wanted: Sequence[Partitions], since: int) -> int | None:
    """The least t ≥ `since` at which each partition of each range is in up to its offset, or None.

    This is the lower adjoint of R: for t ≥ `since` it is at most t exactly if R(t) says at least
    `wanted`.

    Shapes: the updates of a remap collection, its contents at `since` among them: lo, hi, offset,
    _time,
        _diff. The ranges of `wanted` are disjoint and ascend.
    Raises: UsageError for ranges that do not.
    Cost: O(n log m) for n updates and m ranges; no Python per update.
    Source: twin `covered_at` in tidemill.testkit.twins.reclocking.
    """
    _refuse_overlaps(wanted)
    # A binding that says less goes as R advances, and its successor says more: the last one that
    # goes decides.
    less = _say_less(bindings, wanted)
    if int(bindings.column(DIFF).to_numpy()[less].sum()) > 0:
        return None
    return max(since, int(_u64(bindings, TIME)[less].max(initial=since)))


def _say_less(bindings: pa.Table, wanted: Sequence[Partitions]) -> npt.NDArray[np.bool_]:
    """Of each element of R whether some partition of its range is wanted further than its
    offset.
    """
    los, his, offsets = (_u64(bindings, name) for name in ("lo", "hi", "offset"))
    begins = np.array([each.lo for each in wanted], np.uint64)
    ends = np.array([each.hi for each in wanted], np.uint64)
    goals = np.array([each.offset for each in wanted], np.uint64)
    first = np.searchsorted(ends, los, side="left")
    last = np.searchsorted(begins, his, side="right")
    furthest = np.zeros(len(los), np.uint64)
    one = last - first == 1
    furthest[one] = goals[first[one]]
    # Elements over several ranges are those of partitions that nobody had seen: few of them differ.
    several = last - first > 1
    spans, which = np.unique(np.stack([first, last])[:, several], axis=1, return_inverse=True)
    most = np.array([goals[a:b].max() for a, b in spans.T], np.uint64)
    furthest[several] = most[which.ravel()]
    return furthest > offsets


def _u64(bindings: pa.Table, name: str) -> npt.NDArray[np.uint64]:
    column: npt.NDArray[np.uint64] = bindings.column(name).to_numpy()
    return column


def _refuse_overlaps(wanted: Sequence[Partitions]) -> None:
    for before, after in pairwise(wanted):
        if after.lo <= before.hi:
            raise UsageError(
                f"offsets refused: the partitions {before.lo} to {before.hi} and {after.lo} to "
                f"{after.hi} overlap or do not ascend; give each partition once",
                reason="offsets",
            )
    if wrong := [each for each in wanted if each.lo > each.hi]:
        raise UsageError(
            f"offsets refused: there are no partitions from {wrong[0].lo} to {wrong[0].hi}",
            reason="offsets",
        )
