"""Instants as people write them: milliseconds, ISO-8601, or `latest`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from tidemill.errors import UsageError
from tidemill.time import U64_MAX, Frontier

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
_NUMBER = re.compile(r"-?[0-9]{1,30}")
ISO_FROM_MS = 100_000_000_000
"""Smaller numbers (before March 1973) are taken for counters and shown as they are."""


def instant(written: int | str | datetime | None) -> int | None:
    """The time in milliseconds; None for `latest`, which is the last definite one.

    A date stands for its first instant, and a time without a zone is UTC. Fractions of a
    millisecond are dropped. Raises: UsageError if it is none of these, or before 1970.
    """
    match written:
        case None | "" | "latest":
            return None
        case int() if not isinstance(written, bool):
            found = written
        case datetime():
            found = _since_epoch(written)
        case str() if _NUMBER.fullmatch(written):
            found = int(written)
        case _:
            try:
                found = _since_epoch(datetime.fromisoformat(written))  # type: ignore[arg-type]
            except (ValueError, TypeError):
                raise UsageError(
                    f"{written!r} is no instant: write milliseconds (1357002000000), ISO-8601 "
                    "(2013-01-01T06:00:00Z) or latest",
                    reason="instant",
                ) from None
    if not 0 <= found <= U64_MAX:
        raise UsageError(f"the instant {written} is outside of the timeline", reason="instant")
    return found


def shown(time: int) -> str:
    """The time as a number, with its date where it is one."""
    date = _date(time)
    return str(time) if date is None else f"{time} ({date})"


def shown_frontier(held: Frontier | None) -> str:
    """The frontier's time, `closed` for the empty one, a dash for none."""
    if held is None:
        return "-"
    return ", ".join(shown(time) for time in held) or "closed"


def short_frontier(held: Frontier | None) -> str:
    """The frontier's date where it has one, else its time; for lists, where room is short."""
    if held is None:
        return "-"
    return ", ".join(_date(time) or str(time) for time in held) or "closed"


def shown_duration(milliseconds: int | None) -> str:
    """A duration in its two largest units, such as `2h 5m`; a dash for none."""
    if milliseconds is None:
        return "-"
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    seconds = milliseconds // 1000
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def _date(time: int) -> str | None:
    """The time as ISO-8601 if it looks like milliseconds since 1970."""
    if time < ISO_FROM_MS:
        return None
    try:
        date = EPOCH + time * MILLISECOND
    except OverflowError:
        return None
    text = date.isoformat(timespec="milliseconds" if time % 1000 else "seconds")
    return text.replace("+00:00", "Z")


def _since_epoch(date: datetime) -> int:
    aware = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return (aware - EPOCH) // MILLISECOND
