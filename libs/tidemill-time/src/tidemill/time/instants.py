"""Instants as people write them, for every surface alike: a number, a date, or a word."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from tidemill.errors import UsageError
from tidemill.time.antichain import Frontier
from tidemill.time.orders import U64_MAX
from tidemill.time.typed import EPOCH, read_span

MILLISECOND = timedelta(milliseconds=1)

LATEST = "latest"
"""The word for the last instant that is definite, which only who answers knows."""

DATES_FROM_MS = 100_000_000_000
"""Smaller instants (before March 1973) are taken for counters, which have no unit."""

_UNITS = (("seconds", 1000, 1), ("microseconds", 1, 1000), ("nanoseconds", 1, 1_000_000))
"""Units that clocks count in beside milliseconds: factor and divisor that lead to these."""

_NUMBER = re.compile(r"-?[0-9]{1,30}")
_NOW = re.compile(r"now(?:-([0-9a-z]{1,40}))?")


def read_at(written: int | str | datetime | None, now_ms: Callable[[], int]) -> int | None:
    """The time in milliseconds; None for `latest`.

    `now` is the reader's clock, `now-1h30m` a duration before it. A date stands for its first
    instant, and a time without a zone is UTC. Fractions of a millisecond are dropped. Raises:
    UsageError if it is none of these, or before 1970.
    """
    match written:
        case None | "":
            return None
        case str() if written == LATEST:
            return None
        case int() if not isinstance(written, bool):
            found: int | None = written
        case datetime():
            found = ms_since_epoch(written)
        case str() if _NUMBER.fullmatch(written):
            found = int(written)
        case str() if (word := _NOW.fullmatch(written)) is not None:
            before = read_span(word[1] or "0s")
            found = None if before is None else now_ms() - before // MILLISECOND
        case _:
            try:
                found = ms_since_epoch(datetime.fromisoformat(written))  # type: ignore[arg-type]
            except (ValueError, TypeError):
                found = None
    if found is None:
        raise UsageError(
            f"{written!r} is no instant: write milliseconds (1357002000000), ISO-8601 "
            "(2013-01-01T06:00:00Z), latest, now, or a duration before it (now-5m)",
            reason="instant",
        )
    if not 0 <= found <= U64_MAX:
        raise UsageError(f"the instant {written} is outside of the timeline", reason="instant")
    return found


def is_fixed(written: str | int | None) -> bool:
    """Whether a text means the same instant whenever it is read."""
    words = ("", LATEST)
    return written is not None and written not in words and not str(written).startswith("now")


def ms_since_epoch(date: datetime) -> int:
    """Milliseconds since 1970 of a date; one without a zone is UTC."""
    aware = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return (aware - EPOCH) // MILLISECOND


def unit_doubt(at: int, *frontiers: Frontier) -> str:
    """A sentence if an instant would be near the latest frontier in another unit; empty if not.

    Near is half to twice as far from 1970. A frontier that is no date says nothing.
    """
    near = max((time for held in frontiers for time in held), default=0)
    for unit, factor, divisor in _UNITS if near >= DATES_FROM_MS else ():
        meant = at * factor // divisor
        if near // 2 <= meant <= near * 2:
            return f"{at} looks like {unit}: instants are milliseconds, such as {meant}"
    return ""
