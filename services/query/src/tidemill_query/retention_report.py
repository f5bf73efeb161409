"""Holders of a collection's frontiers, with their times, and the reason for which it keeps
history.
"""

from __future__ import annotations

from datetime import UTC, datetime

from tidemill.shard import KEEP_ALL_MS, CollectionStatus, Holder


def why_kept(status: CollectionStatus) -> list[str]:
    """A line for each holder for whose sake since is not later, the longest first, and for
    retention.
    """
    holding = sorted(status.holding_back, key=lambda holder: (holder.moved_ms, holder.owner))
    lines = [f"{status.id} at {_shown(holder)}" for holder in holding]
    if status.retained is not None and status.retained.precedes(status.since):
        lines.append(f"{status.id} at {status.since}: retention, {_retention(status)}")
    return lines


def who_holds(status: CollectionStatus) -> list[str]:
    """A line for each holder of since and of upper, with the key by which an admin ends it."""
    rights = (("since", status.holders), ("upper", status.writing))
    return [
        f"{right} of {status.id} at {_shown(holder)}, key {holder.key}"
        for right, holders in rights
        for holder in holders
    ]


def _shown(holder: Holder) -> str:
    lease = "no lease"
    if holder.lease_end_ms is not None:
        lease = f"lease until {_instant(holder.lease_end_ms)}"
    since = f"since {_instant(holder.moved_ms)}"
    if holder.since_ms < holder.moved_ms:
        since += f", a holder since {_instant(holder.since_ms)}"
    return f"{holder.frontier}: {holder.owner or 'a session'} {since}, {lease}"


def _retention(status: CollectionStatus) -> str:
    retain_ms = status.description.retain_ms
    if retain_ms == KEEP_ALL_MS:
        return "all history"
    return "a fixed frontier" if retain_ms is None else f"{retain_ms} ms behind upper"


def _instant(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
