"""Functions of instants and days over columns: whole divisions in the place of a call for each.

Instants of a stream are nearly all different, so a call for each different one is a call for each
row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.columns.column import Column, constant
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.logical.forms import Type

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_OF_CLOCK = {
    "hour": (_DAY, 3_600 * _SECOND), "minute": (3_600 * _SECOND, 60 * _SECOND),
    "second": (60 * _SECOND, _SECOND), "millisecond": (_SECOND, 1_000), "microsecond": (_SECOND, 1),
}  # fmt: skip
"""The microseconds that a unit counts within, and those of the unit."""
_FRACTIONS = frozenset({"millisecond", "microsecond"})


def _months(days: I64Array) -> I64Array:
    """Months since January 1970."""
    return days.view("M8[D]").astype("M8[M]").astype(np.int64)


def _days(months: I64Array) -> I64Array:
    """The first days of months."""
    return months.view("M8[M]").astype("M8[D]").astype(np.int64)


def _new_year(days: I64Array) -> I64Array:
    months = _months(days)
    return _days(months - months % 12)


def _weekday(days: I64Array) -> I64Array:
    return (days + 3) % 7 + 1


def _week(days: I64Array) -> I64Array:
    thursdays = days - _weekday(days) + 4
    return (thursdays - _new_year(thursdays)) // 7 + 1


_FIRST_DAY: Mapping[str, Callable[[I64Array], I64Array]] = {
    "year": _new_year,
    "quarter": lambda days: _days(_months(days) // 3 * 3),
    "month": lambda days: _days(_months(days)),
    "week": lambda days: days - _weekday(days) + 1,
    "day": lambda days: days,
}
_PARTS: Mapping[str, Callable[[I64Array], I64Array]] = {
    "year": lambda days: _months(days) // 12 + 1970,
    "quarter": lambda days: _months(days) % 12 // 3 + 1,
    "month": lambda days: _months(days) % 12 + 1,
    "week": _week,
    "day": lambda days: days - _days(_months(days)) + 1,
    "weekday": _weekday,
    "yearday": lambda days: days - _new_year(days) + 1,
}


def in_utc(name: str, arguments: Sequence[Column], texts: Texts) -> I64Array | None:
    """Words of `date`, `truncate` or `part` of each row, None for others and outside of UTC.

    A row without a value has the word 0. Cost: O(n), some 40 ns a row. Twin: functions of values.
    """
    told = _told(name, arguments, texts)
    if told is None or told[-1] != "UTC":
        return None
    nulls = arguments[0].nulls
    words = np.ascontiguousarray(arguments[0].values)
    found = _found(name, told[0], words, arguments[0].kind is Type.TIMESTAMP)
    return found if found is None or nulls is None else np.where(nulls, 0, found)


def _found(name: str, unit: str, words: I64Array, is_instant: bool) -> I64Array | None:
    """The words of `in_utc`, where rows without a value have any."""
    if name == "date":
        return words // _DAY if is_instant else None
    if is_instant and unit in _OF_CLOCK:
        whole, size = _OF_CLOCK[unit]
        return words - words % size if name == "truncate" else words % whole // size
    of_days = (_FIRST_DAY if name == "truncate" else _PARTS).get(unit)
    if of_days is None:
        return None
    found = of_days(words // _DAY if is_instant else words)
    return found * _DAY if is_instant and name == "truncate" else found


def by_seconds(name: str, arguments: Sequence[Column], texts: Texts) -> Sequence[Column]:
    """The arguments with instants cut to seconds where the function says the same of both."""
    told = _told(name, arguments, texts)
    if told is None or arguments[0].kind is not Type.TIMESTAMP or told[0] in _FRACTIONS:
        return arguments
    words = arguments[0].values
    cut = Column(Type.TIMESTAMP, words - words % _SECOND, arguments[0].nulls)
    return [cut, *arguments[1:]]


def _told(name: str, arguments: Sequence[Column], texts: Texts) -> tuple[str, str] | None:
    """Unit and zone of all rows, None where rows differ in them or the function has none."""
    if name not in ("date", "truncate", "part") or not len(arguments[0]):
        return None
    if arguments[0].kind not in (Type.TIMESTAMP, Type.DATE):
        return None
    if not all(constant(each) and each.kind is Type.TEXT for each in arguments[1:]):
        return None
    words = [texts.texts(each.values[:1])[0] for each in arguments[1:]]
    unit = "day" if name == "date" else words.pop(0)
    if words and arguments[0].kind is Type.DATE:  # a date has no zone
        return None
    return unit, words[0] if words else "UTC"
