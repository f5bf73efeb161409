"""Heartbeats: records that say how far event time has come where no event does."""

from __future__ import annotations

from tidemill.errors import UsageError

MARK = "tidemill-heartbeat:"
"""Prefix of a heartbeat's text, in each format of the events beside it."""
_MARK = MARK.encode()
LAST = 2**63 - 1
"""The last instant that a heartbeat can name."""


def heartbeat(until: int) -> str:
    """The record that promises that nothing before `until` follows in its partition.

    Raises: UsageError for an instant outside of the timeline.
    """
    if not 0 <= until <= LAST:
        raise UsageError(
            f"the heartbeat until {until} is outside of the timeline: 0 to {LAST} ms",
            reason="instant",
        )
    return f"{MARK} {until}"


def is_heartbeat(value: bytes | None) -> bool:
    """Whether a record says that it is a heartbeat, a good one or not."""
    return value is not None and value.startswith(_MARK)


def heartbeat_until(value: bytes) -> int | None:
    """The instant, in milliseconds, that a heartbeat names; None if it names none."""
    digits = value[len(_MARK) :].strip()
    if not digits.isdigit() or len(digits) > len(str(LAST)):
        return None
    until = int(digits)
    return until if until <= LAST else None
