"""Functions of timestamps, dates and durations, with the calendars of named zones.

Zones are those of the package tzdata, so their rules change with a release and not with a machine.
A wall clock that shows a time twice means the first; one that skips a time moves on by the gap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from importlib.resources import files
from zoneinfo import ZoneInfo

from tidemill.datalog.scalar import ScalarFunction, function, made, text_of, whole_of
from tidemill.datalog.values import (
    NOT_A_FORM,
    NOT_A_UNIT,
    NOT_A_ZONE,
    NOT_OF_TYPE,
    OVERFLOW,
    WRONG_TYPE,
    Failed,
    Value,
    instant,
    whole,
)
from tidemill.time.typed import (
    EPOCH,
    SPAN_MAX,
    days_of_date,
    has_offset,
    micros_of_instant,
    micros_of_span,
    read_date,
    read_instant,
    read_span,
)

_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,40}(/[A-Za-z0-9_+-]{1,40}){0,2}")
_MIDNIGHT = time()


@lru_cache(maxsize=1_024)
def _named_zone(name: str) -> tzinfo | None:
    if name == "UTC":
        return UTC
    if not _ZONE.fullmatch(name):
        return None
    try:
        with files("tzdata.zoneinfo").joinpath(*name.split("/")).open("rb") as rules:
            return ZoneInfo.from_file(rules, name)
    except (OSError, ValueError):
        return None


def _zone(name: Value) -> tzinfo:
    found = _named_zone(text_of(name))
    if found is None:
        raise Failed(NOT_A_ZONE)
    return found


def _known(found: Value) -> Value:
    if found is None:
        raise Failed(NOT_OF_TYPE)
    return found


def _at(wall: datetime, zone: tzinfo) -> datetime:
    """The instant at which a clock of a zone shows a time."""
    return instant(lambda: wall.replace(tzinfo=zone).astimezone(UTC))


def _local(moment: datetime, zone: tzinfo) -> datetime:
    return instant(lambda: moment.astimezone(zone))


def _timestamp(x: Value, zone: Value = "UTC") -> Value:
    """The timestamp of a text, of whole milliseconds since 1970, or of a date at midnight.

    A text without an offset, and a date, are of the zone.
    """
    if isinstance(x, str):
        found = read_instant(x)
        if zone == "UTC" or found is None or has_offset(x):
            return _known(found)
        return _at(found, _zone(zone))
    if type(x) is int:
        if abs(x) > SPAN_MAX:
            raise Failed(OVERFLOW)
        return instant(lambda: EPOCH + timedelta(milliseconds=x))
    if isinstance(x, date) and not isinstance(x, datetime):
        return _at(datetime.combine(x, _MIDNIGHT), _zone(zone))
    raise Failed(WRONG_TYPE)


def _date(x: Value, zone: Value = "UTC") -> Value:
    """The date of a text, or of a timestamp in a zone."""
    if isinstance(x, str):
        return _known(read_date(x))
    return _local(_moment(x), _zone(zone)).date()


def _duration(x: Value) -> Value:
    """The duration of a text such as 1h30m, or of whole milliseconds."""
    if isinstance(x, str):
        return _known(read_span(x))
    millis = whole_of(x)
    if abs(millis) * 1_000 > SPAN_MAX:
        raise Failed(OVERFLOW)
    return timedelta(milliseconds=millis)


def _moment(x: Value) -> datetime:
    if isinstance(x, datetime):
        return x
    raise Failed(WRONG_TYPE)


def _millis(x: Value) -> Value:
    """Whole milliseconds of a duration, or from 1970 to a timestamp; a part of one is cut off."""
    if isinstance(x, timedelta):
        micros = micros_of_span(x)
        return micros // 1_000 if micros >= 0 else -(-micros // 1_000)
    return micros_of_instant(_moment(x)) // 1_000


def _seconds(x: Value) -> Value:
    """Seconds of a duration, a float."""
    if isinstance(x, timedelta):
        return micros_of_span(x) / 1_000_000
    raise Failed(WRONG_TYPE)


_PARTS: Mapping[str, Callable[[date], int]] = {
    "year": lambda d: d.year, "quarter": lambda d: (d.month + 2) // 3, "month": lambda d: d.month,
    "week": lambda d: d.isocalendar().week, "day": lambda d: d.day,
    "weekday": lambda d: d.isoweekday(), "yearday": lambda d: d.timetuple().tm_yday,
}  # fmt: skip
_CLOCK: Mapping[str, Callable[[datetime], int]] = {
    "hour": lambda t: t.hour, "minute": lambda t: t.minute, "second": lambda t: t.second,
    "millisecond": lambda t: t.microsecond // 1_000, "microsecond": lambda t: t.microsecond,
}  # fmt: skip


def _part(x: Value, unit: Value, zone: Value = "UTC") -> Value:
    """A part of a timestamp in a zone, or of a date, such as `year`, `week` or `hour`.

    Further ones are `quarter`, `month`, `day`, `weekday` (1 is Monday), `yearday`, `minute`,
    `second`, `millisecond` and `microsecond`.
    """
    name = text_of(unit)
    if isinstance(x, datetime):
        local = _local(x, _zone(zone))
        if name in _CLOCK:
            return _CLOCK[name](local)
        x = local
    if not isinstance(x, date):
        raise Failed(WRONG_TYPE)
    if name not in _PARTS:
        raise Failed(NOT_A_UNIT)
    return _PARTS[name](x)


_FIRST_DAY: Mapping[str, Callable[[date], date]] = {
    "year": lambda d: date(d.year, 1, 1),
    "quarter": lambda d: date(d.year, (d.month - 1) // 3 * 3 + 1, 1),
    "month": lambda d: date(d.year, d.month, 1),
    "week": lambda d: d - timedelta(days=d.isoweekday() - 1),
    "day": lambda d: d,
}
_SMALLER: Mapping[str, dict[str, int]] = {
    "hour": {"minute": 0, "second": 0, "microsecond": 0}, "minute": {"second": 0, "microsecond": 0},
    "second": {"microsecond": 0}, "millisecond": {}, "microsecond": {},
}  # fmt: skip


def _truncate(x: Value, unit: Value, zone: Value = "UTC") -> Value:
    """The beginning of a unit of a timestamp in a zone, or of a date: `year` to `millisecond`."""
    name = text_of(unit)
    if isinstance(x, datetime):
        wall = _zone(zone)
        local = _local(x, wall)
        if name in _SMALLER:
            cut = local.microsecond % 1_000 if name == "millisecond" else 0
            found = local.replace(**_SMALLER[name]) - timedelta(microseconds=cut)  # type: ignore[arg-type]  # numbers alone
            return instant(lambda: found.replace(fold=local.fold).astimezone(UTC))
        return _at(datetime.combine(_first_day(local.date(), name), _MIDNIGHT), wall)
    if isinstance(x, date):
        return _first_day(x, name)
    raise Failed(WRONG_TYPE)


def _first_day(day: date, unit: str) -> date:
    if unit not in _FIRST_DAY:
        raise Failed(NOT_A_UNIT)
    try:
        return _FIRST_DAY[unit](day)
    except OverflowError:
        raise Failed(OVERFLOW) from None


_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip


def _offset(moment: datetime) -> str:
    shift = moment.utcoffset() or timedelta()
    minutes = abs(shift) // timedelta(minutes=1)
    return f"{'-' if shift < timedelta() else '+'}{minutes // 60:02}{minutes % 60:02}"


_SHOWN: Mapping[str, Callable[[datetime], str]] = {
    "Y": lambda t: f"{t.year:04}", "m": lambda t: f"{t.month:02}", "d": lambda t: f"{t.day:02}",
    "H": lambda t: f"{t.hour:02}", "M": lambda t: f"{t.minute:02}", "S": lambda t: f"{t.second:02}",
    "f": lambda t: f"{t.microsecond:06}", "L": lambda t: f"{t.microsecond // 1_000:03}",
    "I": lambda t: f"{(t.hour + 11) % 12 + 1:02}", "p": lambda t: "AM" if t.hour < 12 else "PM",
    "j": lambda t: f"{t.timetuple().tm_yday:03}", "u": lambda t: f"{t.isoweekday()}",
    "V": lambda t: f"{t.isocalendar().week:02}", "G": lambda t: f"{t.isocalendar().year:04}",
    "a": lambda t: _DAYS[t.weekday()][:3], "A": lambda t: _DAYS[t.weekday()],
    "b": lambda t: _MONTHS[t.month - 1][:3], "B": lambda t: _MONTHS[t.month - 1],
    "z": _offset, "%": lambda t: "%",
}  # fmt: skip
_DIRECTIVE = re.compile(r"%(.?)", re.DOTALL)


def _format_time(x: Value, form: Value, zone: Value = "UTC") -> Value:
    """The text of a timestamp in a zone, or of a date, by a form such as `%Y-%m-%d %H:%M`.

    The letters are those of strftime, with English names; `%L` is milliseconds.
    """
    if isinstance(x, datetime):
        shown = _local(x, _zone(zone))
    elif isinstance(x, date):
        shown = datetime.combine(x, _MIDNIGHT, UTC)
    else:
        raise Failed(WRONG_TYPE)

    def written(match: re.Match[str]) -> str:
        known = _SHOWN.get(match[1])
        if known is None:
            raise Failed(NOT_A_FORM)
        return known(shown)

    return made(_DIRECTIVE.sub(written, text_of(form)))


FORM_CHARS_MAX = 1_000
"""Characters of a form that is read: a thousand forms are remembered."""

_READ: Mapping[str, str] = {
    "Y": r"\d{4}", "m": r"\d\d?", "d": r"\d\d?", "H": r"\d\d?", "M": r"\d\d?", "S": r"\d\d?",
    "f": r"\d{1,9}", "L": r"\d{3}", "I": r"\d\d?", "p": "AM|PM|am|pm",
    "b": "|".join(month[:3] for month in _MONTHS), "B": "|".join(_MONTHS),
    "z": r"Z|[+-]\d\d:?\d\d",
}  # fmt: skip


@lru_cache(maxsize=1_024)
def _reader(form: str) -> re.Pattern[str] | None:
    """The pattern that reads a form; None of a form that names a part twice, or is none."""
    text, seen = "", set()
    for piece in re.split(r"(%.?)", form, flags=re.DOTALL):
        if not piece.startswith("%"):
            text += re.escape(piece)
            continue
        letter = piece[1:]
        if letter != "%" and (letter not in _READ or letter in seen):
            return None
        seen.add(letter)
        text += "%" if letter == "%" else f"(?P<{letter}>{_READ[letter]})"
    return re.compile(text, re.ASCII)


def _parse_time(text: Value, form: Value, zone: Value = "UTC") -> Value:
    """The timestamp that a text shows in a form such as `%d.%m.%Y %H:%M`, in a zone.

    Parts that the form leaves out are the least ones; an offset, `%z`, goes before the zone.
    """
    pattern = _reader(text_of(form)) if len(text_of(form)) <= FORM_CHARS_MAX else None
    if pattern is None:
        raise Failed(NOT_A_FORM)
    found = pattern.fullmatch(text_of(text))
    if found is None:
        raise Failed(NOT_OF_TYPE)
    parts = found.groupdict()
    month = parts.get("m") or _month(parts.get("b") or parts.get("B"))
    hour = int(parts.get("H") or 0)
    if "I" in parts:
        hour = int(parts["I"]) % 12 + 12 * (parts.get("p", "AM").upper() == "PM")
    fraction = parts.get("f") or parts.get("L") or "0"
    try:
        wall = datetime(
            int(parts.get("Y") or 1970), int(month), int(parts.get("d") or 1), hour,
            int(parts.get("M") or 0), int(parts.get("S") or 0), int(fraction.ljust(6, "0")[:6]),
        )  # fmt: skip
    except ValueError:
        raise Failed(NOT_OF_TYPE) from None
    if "z" not in parts:
        return _at(wall, _zone(zone))
    return _known(read_instant(f"{wall.isoformat()}{parts['z']}"))


def _month(name: str | None) -> int:
    return 1 if name is None else 1 + [m[:3] for m in _MONTHS].index(name[:3])


def _days(x: Value) -> Value:
    """Days from 1970 to a date."""
    if isinstance(x, date) and not isinstance(x, datetime):
        return whole(days_of_date(x))
    raise Failed(WRONG_TYPE)


TIME_FUNCTIONS: tuple[ScalarFunction, ...] = (
    function(
        "timestamp", _timestamp, ("text", "text"), "timestamp", 1,
        ((("int",), "timestamp"), (("date", "text"), "timestamp")),
    ),
    function("date", _date, ("timestamp", "text"), "date", 1, ((("text",), "date"),)),
    function("duration", _duration, ("text",), "duration", also=((("int",), "duration"),)),
    function("millis", _millis, ("timestamp",), "int", also=((("duration",), "int"),)),
    function("seconds", _seconds, ("duration",), "float"),
    function("days", _days, ("date",), "int"),
    function(
        "part", _part, ("timestamp", "text", "text"), "int", 1, ((("date", "text"), "int"),)
    ),
    function(
        "truncate", _truncate, ("timestamp", "text", "text"), "timestamp", 1,
        ((("date", "text"), "date"),),
    ),
    function(
        "format_time", _format_time, ("timestamp", "text", "text"), "text", 1,
        ((("date", "text"), "text"),),
    ),
    function("parse_time", _parse_time, ("text", "text", "text"), "timestamp", 1),
)  # fmt: skip
