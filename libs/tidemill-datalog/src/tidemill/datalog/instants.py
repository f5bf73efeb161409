"""Values as instants: ends of facts, and the times of clocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidemill.datalog.presence import END, Instant
from tidemill.datalog.values import PERIOD_NOT_POSITIVE, WRONG_TYPE, Failed, Value


def expiry(value: Value) -> Instant:
    """The value as the end of an event, infinite for none. Raises: Failed(wrong type)."""
    if type(value) is int:
        return value
    if value == END:
        return END
    raise Failed(WRONG_TYPE)


def usable_clock(offset: Value, period: Value) -> tuple[int, int]:
    """Offset and period of a clock. Raises: Failed where there is no such clock."""
    if type(period) is float or type(offset) is not int or isinstance(period, str | bool):
        raise Failed(WRONG_TYPE)
    if type(period) is not int or period <= 0:
        raise Failed(PERIOD_NOT_POSITIVE)
    return offset, period


def ticks(offset: int, period: int, low: Instant | None, high: Instant) -> Iterable[int]:
    """The times of a clock in [low, high], ascending."""
    if low is None or low <= offset:
        first = offset
    elif low == END:
        return ()
    else:
        first = offset - (offset - int(low)) // period * period
    if high < first:
        return ()
    return range(first, int(high) + 1, period)


def tick_at(offset: int, period: int, time: Value, upper: Instant) -> Sequence[int]:
    """The one time if the clock ticks then and the tick is released, else nothing."""
    if type(time) is not int or time < offset or time >= upper or (time - offset) % period:
        return ()
    return (time,)
