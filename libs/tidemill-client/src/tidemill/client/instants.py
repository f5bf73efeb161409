"""Instants as people write them at this machine, and as they are shown to them."""

from __future__ import annotations

from datetime import datetime

from tidemill.runtime.clock import SystemClock
from tidemill.time import DATES_FROM_MS, EPOCH, MILLISECOND, Frontier, read_at


def instant(written: int | str | datetime | None) -> int | None:
    """The time in milliseconds, as `read_at` reads it by the clock of this machine.

    Raises: UsageError.
    """
    return read_at(written, SystemClock().now_ms)


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
    if time < DATES_FROM_MS:
        return None
    try:
        date = EPOCH + time * MILLISECOND
    except OverflowError:
        return None
    text = date.isoformat(timespec="milliseconds" if time % 1000 else "seconds")
    return text.replace("+00:00", "Z")
