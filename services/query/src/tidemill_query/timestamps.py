"""Which instant a question over several collections gets, and what decides it."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.rpc.messages import CollectionInfo, HolderInfo, TimestampExplanation
from tidemill.time import sole_time

Input = tuple[str, CollectionInfo]


def chosen_of(inputs: Sequence[Input], as_of: int | None) -> TimestampExplanation:
    """The instant asked for, else the last one before the least upper (F13), if no since is past it
    (F12).

    Frontiers of different timelines cannot be compared: then none is chosen.
    """
    told = tuple(inputs)
    timelines = sorted({info.timeline for _, info in inputs})
    if len(timelines) > 1:
        reason = f"none: these are of several timelines, {', '.join(timelines)}"
        return TimestampExplanation(None, reason, told)
    last = _last(inputs)
    first = _first(inputs)
    wanted = as_of if as_of is not None else last[0] if last is not None else first[0]
    if last is not None and wanted > last[0]:
        return TimestampExplanation(
            None, f"none yet: {wanted} is not before the upper of {_upper(last[1])}", told
        )
    if wanted < first[0]:
        return TimestampExplanation(
            None, f"none: {wanted} is before the since of {_since(first[1])}", told
        )
    if as_of is not None:
        return TimestampExplanation(wanted, f"{wanted} was asked for, and is definite", told)
    if last is None:
        return TimestampExplanation(wanted, "all are closed: any instant from since on", told)
    return TimestampExplanation(wanted, f"the last before the upper of {_upper(last[1])}", told)


def _last(inputs: Sequence[Input]) -> tuple[int, CollectionInfo] | None:
    """The last instant at which all are definite, and which collection ends there; None if all are
    closed.
    """
    ends = [(sole_time(i.upper) - 1, i) for _, i in inputs if not i.upper.empty]
    return min(ends, key=lambda end: end[0]) if ends else None


def _first(inputs: Sequence[Input]) -> tuple[int, CollectionInfo]:
    """The first instant at which all are known; past every instant if one is a tombstone."""
    begins = [(2**64 if i.since.empty else sole_time(i.since), i) for _, i in inputs]
    return max(begins, key=lambda begin: begin[0])


def _upper(info: CollectionInfo) -> str:
    said = f"{info.id}, {info.upper}"
    holding = [writer for writer in info.writers if writer.frontier == info.upper]
    if holding:
        said += f", held by {_named(holding)}"
    return said


def _since(info: CollectionInfo) -> str:
    said = f"{info.id}, {info.since}"
    return f"{said}, where it came by {info.moved_by}" if info.moved_by else said


def _named(holders: Sequence[HolderInfo]) -> str:
    return ", ".join(f"{holder.owner or 'a session'} ({holder.key})" for holder in holders)
