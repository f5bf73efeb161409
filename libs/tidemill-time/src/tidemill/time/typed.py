"""Values of the types beside numbers, texts and truths: their text forms, read and written.

A text form that is read and written again is the canonical one, which is equal for equal values.
Python has a class for each type but JSON. Instants have a zone, and it is UTC.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from math import isfinite
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from tidemill.errors import UsageError
from tidemill.time.texts import is_normal, normal

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_OF_EPOCH = EPOCH.date().toordinal()
_MICRO = timedelta(microseconds=1)
INSTANT_MIN, INSTANT_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Microseconds since 1970 of the first and the last instant: years 1 to 9999."""
DAY_MIN, DAY_MAX = -719_162, 2_932_896
"""Days since 1970 of the first and the last date."""
SPAN_MAX = INSTANT_MAX - INSTANT_MIN
"""Microseconds of the longest duration, between the first instant and the last."""
DIGITS_MAX = 38
"""Digits of a decimal number."""
SCALE_MAX = 18
"""Digits behind the point of a decimal number."""
WHOLE_DIGITS_MAX = DIGITS_MAX - SCALE_MAX
"""Digits before the point of a decimal number."""
BYTES_MAX = 1 << 19
"""Bytes of a value of type bytes."""
JSON_CHARS_MAX = 1 << 20
"""Characters of a value of type json."""
JSON_LEVELS_MAX = 100
"""Levels of a value of type json."""
EXACT = Context(prec=80, Emin=-99_999, Emax=99_999, traps=[InvalidOperation])
"""Arithmetic of decimal numbers; two of them have an exact sum, difference and product in it."""


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON value by its canonical text: sorted names, no blanks, numbers without idle zeros."""

    text: str


Typed: TypeAlias = "datetime | date | timedelta | Decimal | UUID | bytes | Json"

_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?(Z|z|[+-]\d\d:?\d\d)?", re.ASCII
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def read_instant(text: str) -> datetime | None:
    """The instant that a text of ISO 8601 names, None if it names none.

    Without an offset it is one of UTC; digits beyond microseconds are cut off.
    """
    found = _INSTANT.fullmatch(text)
    if found is None:
        return None
    day, clock, fraction, offset = found.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=UTC)
        moment += timedelta(microseconds=int((fraction or "0").ljust(6, "0")[:6]))
        if offset is None or offset in "Zz":
            return moment
        hours, minutes = int(offset[1:3]), int(offset[-2:])
        if hours > 23 or minutes > 59:
            return None
        shift = timedelta(hours=hours, minutes=minutes)
        return moment - shift if offset[0] == "+" else moment + shift
    except (ValueError, OverflowError):
        return None


def has_offset(text: str) -> bool:
    """Whether a text names an instant with its offset, or Z, and not the wall clock of a place."""
    found = _INSTANT.fullmatch(text)
    return found is not None and found[4] is not None


def write_instant(moment: datetime) -> str:
    """The text of an instant: UTC, with milliseconds or microseconds where there are some."""
    shown = moment.replace(tzinfo=None).isoformat()
    return (shown.removesuffix("000") if "." in shown else shown) + "Z"


def read_date(text: str) -> date | None:
    """The date that a text such as 2026-03-01 names, None if it names none."""
    try:
        return date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


_UNITS = {
    "d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1,
}  # fmt: skip
"""Microseconds of each unit of a duration, the longest unit first."""
_SPAN_CHARS_MAX = 200
_PART = re.compile(r"(\d{1,18})(d|h|ms|m|s|us)", re.ASCII)
_ISO_SPAN = re.compile(
    r"P(?:0Y)?(?:0M)?(?:(\d{1,9})D)?(?:T(?:(\d{1,12})H)?(?:(\d{1,12})M)?(?:(\d{1,15})(?:\.(\d{1,9}))?S)?)?",
    re.ASCII,
)


def read_span(text: str) -> timedelta | None:
    """The duration that a text such as 1h30m, -5s or PT1.5S names, None if it names none.

    Years and months have no length: a text may name none of them, as connectors of databases do.
    """
    if len(text) > _SPAN_CHARS_MAX:
        return None
    bare = text.removeprefix("-")
    micros = _micros_of_iso(bare) if bare.startswith("P") else _micros_of_parts(bare)
    if micros is None or micros > SPAN_MAX:
        return None
    return timedelta(microseconds=-micros if text.startswith("-") else micros)


def _micros_of_parts(text: str) -> int | None:
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    sizes = [_UNITS[unit] for _, unit in parts]
    if sizes != sorted(set(sizes), reverse=True):
        return None
    return sum(int(number) * _UNITS[unit] for number, unit in parts)


def _micros_of_iso(text: str) -> int | None:
    found = _ISO_SPAN.fullmatch(text)
    if found is None or text.endswith(("P", "T")):
        return None
    *parts, fraction = found.groups()
    whole = sum(int(part or 0) * size for part, size in zip(parts, _UNITS.values(), strict=False))
    return whole + int((fraction or "0").ljust(6, "0")[:6])


def write_span(span: timedelta) -> str:
    """The text of a duration, in the largest units that are exact: 1h30m, -5s, 0s."""
    left = micros_of_span(span)
    if left == 0:
        return "0s"
    text, left = "-" if left < 0 else "", abs(left)
    for unit, size in _UNITS.items():
        count, left = divmod(left, size)
        text += f"{count}{unit}" if count else ""
    return text


_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_DECIMAL_CHARS_MAX = 200


def read_decimal(text: str) -> Decimal | None:
    """The decimal number that a text writes, None if it is none or has too many digits."""
    if len(text) > _DECIMAL_CHARS_MAX or not _DECIMAL.fullmatch(text):
        return None
    return fitting(Decimal(text))


def fitting(number: Decimal) -> Decimal | None:
    """The number without idle zeros, None if its digits are too many, or it is none."""
    if not number.is_finite():
        return None
    if not number:
        return Decimal(0)
    bare = EXACT.normalize(number)
    sign, digits, exponent = bare.as_tuple()
    assert isinstance(exponent, int)
    if bare.adjusted() >= WHOLE_DIGITS_MAX or exponent < -SCALE_MAX or bare != number:
        return None
    return bare if exponent <= 0 else Decimal((sign, (*digits, *[0] * exponent), 0))


def write_decimal(number: Decimal) -> str:
    """The digits of a decimal number, without an exponent and without idle zeros."""
    bare = fitting(number)
    return f"{number if bare is None else bare:f}"


def read_uuid(text: str) -> UUID | None:
    """The UUID that 32 hexadecimal digits write, in groups or not; None if they write none."""
    try:
        return UUID(text) if len(text) in (32, 36) else None
    except ValueError:
        return None


def read_hex(text: str) -> bytes | None:
    """The bytes that hexadecimal digits write, None if they write none."""
    try:
        return binascii.unhexlify(text) if len(text) <= 2 * BYTES_MAX else None
    except ValueError:
        return None


def read_base64(text: str) -> bytes | None:
    """The bytes that a text writes in base64, None if it is not the one text that writes them.

    NB: Python's decoder takes any number of `=` behind whole groups, and idle bits before one.
    """
    if len(text) > 2 * BYTES_MAX:
        return None
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    is_canonical = base64.b64encode(data).decode() == text
    return data if is_canonical and len(data) <= BYTES_MAX else None


def read_json(text: str) -> Json | None:
    """The JSON value of a text, None if it is none, or has too many characters or levels.

    Cost: O(length), a microsecond for a hundred characters; ten times that for a text with names or
    texts that are not in normal form. Source: twin `read_json_slowly`.
    """
    if len(text) > JSON_CHARS_MAX:
        return None
    try:
        value = _TREES.decode(text)
        found = json_of_tree(value)
    except _NOT_READ:
        return read_json_slowly(text)
    fits = len(found.text) <= JSON_CHARS_MAX and is_normal(found.text) and _is_flat(value, text)
    return found if fits else read_json_slowly(text)


def read_json_slowly(text: str) -> Json | None:
    """The same as `read_json` of a text that is not too long, by one rule for each value."""
    try:
        return json_of(json.loads(text, parse_float=Decimal, parse_constant=_refuse_constant))
    except (ValueError, ArithmeticError, RecursionError):
        return None


def json_of(value: Any) -> Json | None:
    """The JSON value of one of Python, floats as decimal numbers; None as `read_json`."""
    try:
        text = _written(value, 0)
        text.encode()
    except (ValueError, UnicodeEncodeError, UsageError, RecursionError):
        return None
    return Json(text) if len(text) <= JSON_CHARS_MAX else None


def json_value(value: Json) -> Any:
    """The value as Python has it: numbers with a point or an exponent are decimal numbers."""
    try:
        return _VALUES.decode(value.text)
    except _NOT_READ:
        return json.loads(value.text, parse_float=Decimal)


def json_tree(value: Json) -> Any:
    """The value as Python has it, but for numbers with a point: they are kept as they are written.

    `json_of_tree` writes it, and each part of it.
    """
    return _TREES.decode(value.text)


def json_of_tree(value: Any) -> Json:
    """The value of which this is the tree, or a part of one."""
    return Json(_WRITER.encode(value).decode())


def _kept_number(text: str) -> msgspec.Raw:
    """A number with a point or an exponent, as it is written."""
    bare = text.removeprefix("-")
    plain = bare[-1] != "0" and bare.replace(".", "", 1).isdigit()
    if not plain or bare.startswith("0.0000000"):
        text = _number_written(Decimal(text))
    return msgspec.Raw(text.encode())


_TREES = msgspec.json.Decoder(float_hook=_kept_number)
_VALUES = msgspec.json.Decoder(float_hook=Decimal)
_WRITER = msgspec.json.Encoder(order="sorted")
_NOT_READ = (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError)


def _is_flat(value: Any, text: str) -> bool:
    """Whether the value of a text has no more levels than it may have."""
    if text.count("{") + text.count("[") <= JSON_LEVELS_MAX:
        return True
    held = [value]
    for _ in range(JSON_LEVELS_MAX + 1):
        held = [each for one in held for each in _members(one)]
    return not held


def _members(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _written(value: Any, level: int) -> str:
    if level > JSON_LEVELS_MAX:
        raise ValueError("too many levels")
    if isinstance(value, dict):
        names = {normal(str(name)): each for name, each in value.items()}
        inner = (
            f"{json.dumps(name, ensure_ascii=False)}:{_written(each, level + 1)}"
            for name, each in sorted(names.items())
        )
        return "{" + ",".join(inner) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_written(each, level + 1) for each in value) + "]"
    if isinstance(value, str):
        return json.dumps(normal(value), ensure_ascii=False)
    if isinstance(value, float):
        value = Decimal(repr(value))
    if isinstance(value, Decimal):
        return _number_written(value)
    return json.dumps(value)


def _number_written(number: Decimal) -> str:
    if not number.is_finite():
        raise ValueError("no number of JSON")
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    kept = "".join(map(str, digits)).lstrip("0").rstrip("0")
    if not kept:
        return "0"
    exponent += len("".join(map(str, digits))) - len("".join(map(str, digits)).rstrip("0"))
    bare = Decimal((sign, tuple(map(int, kept)), exponent))
    plain = 0 <= exponent <= 20 - len(kept) or (exponent < 0 and bare.adjusted() >= -7)
    return f"{bare:f}" if plain else f"{bare:e}".replace("e+", "e")


def micros_of_instant(moment: datetime) -> int:
    """Microseconds since 1970."""
    return (moment - EPOCH) // _MICRO


def instant_of_micros(micros: int) -> datetime:
    """The instant so many microseconds after 1970. Raises: OverflowError."""
    return EPOCH + timedelta(microseconds=micros)


def days_of_date(day: date) -> int:
    """Days since 1970."""
    return day.toordinal() - _DAY_OF_EPOCH


def date_of_days(days: int) -> date:
    """The date so many days after 1970. Raises: ValueError, OverflowError."""
    return date.fromordinal(days + _DAY_OF_EPOCH)


def micros_of_span(span: timedelta) -> int:
    """Microseconds of a duration."""
    return span // _MICRO


READ: Mapping[str, Callable[[str], Typed | None]] = {
    "timestamp": read_instant, "date": read_date, "duration": read_span, "decimal": read_decimal,
    "uuid": read_uuid, "bytes": read_hex, "json": read_json,
}  # fmt: skip
"""Type → the function that reads its text form; None of a text that is no such form."""

_WRITE: Mapping[type, Callable[[Any], str]] = {
    datetime: write_instant, date: date.isoformat, timedelta: write_span, Decimal: write_decimal,
    UUID: str, bytes: bytes.hex, Json: lambda value: value.text,
}  # fmt: skip
TYPE_NAMES: Mapping[type, str] = {
    datetime: "timestamp", date: "date", timedelta: "duration", Decimal: "decimal", UUID: "uuid",
    bytes: "bytes", Json: "json",
}  # fmt: skip
"""Class of Python → the name of its type."""


def plain(value: Typed) -> Any:
    """A value as JSON has it: bytes as base64, JSON as it is, others in their text form.

    A number in JSON that is no float with all its digits is their text.
    """
    if isinstance(value, Json):
        return json.loads(value.text, parse_float=_float_or_text)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else write_typed(value)


def _float_or_text(text: str) -> float | str:
    number = float(text)
    return number if isfinite(number) and Decimal(repr(number)) == Decimal(text) else text


def write_typed(value: Typed) -> str:
    """The canonical text form of a value. Cost: O(length)."""
    return _WRITE[type(value)](value)
