"""Speed of sources and views, and how much is left, from what their parts report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from tidemill.host.speed import time_left_ms


class Progress(TypedDict, total=False):
    """Fields of the status of a source or view; none of other resources."""

    records_per_s: float
    records_behind: int
    left_ms: int | None


def progress_of(details: Mapping[str, Any]) -> Progress:  # details are any JSON
    """The progress that the details of a resource tell of; empty where a part tells of none.

    Details of a source come from two parts, remap and reclock.
    """
    if "changesBehind" in details:
        behind, per_s = details["changesBehind"], details["changesPerSecond"]
        arriving = 0.0
    elif "offsetsWritten" in details and "offsetsKnown" in details:
        written, per_s = details["offsetsWritten"], details["writesPerSecond"]
        known = details["offsetsKnown"]
        behind = sum(max(0, offset - written.get(p, 0)) for p, offset in known.items())
        arriving = details["arrivesPerSecond"]
    else:
        return {}
    left_ms = time_left_ms(behind, per_s, arriving)
    return {"records_per_s": per_s, "records_behind": behind, "left_ms": left_ms}
