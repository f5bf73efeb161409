"""Functions of decimal numbers, bytes, UUIDs and JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from tidemill.datalog.scalar import ScalarFunction, function, made, text_of, whole_of
from tidemill.datalog.values import (
    DIVISION_BY_ZERO,
    NOT_A_NUMBER,
    NOT_OF_TYPE,
    OVERFLOW,
    WRONG_TYPE,
    Failed,
    Value,
    decimal,
    finite,
    whole,
)
from tidemill.time.typed import (
    BYTES_MAX,
    DIGITS_MAX,
    EXACT,
    READ,
    SCALE_MAX,
    Json,
    json_of_tree,
    json_tree,
    json_value,
    read_decimal,
)


def _decimal(x: Value, digits: Value = SCALE_MAX) -> Value:
    """The decimal number of a text or a number, with so many digits behind the point.

    A half moves away from zero.
    """
    if isinstance(x, str):
        found = read_decimal(x)
        if found is None:
            raise Failed(NOT_A_NUMBER)
        return _rounded(found, digits)
    if isinstance(x, Decimal):
        return _rounded(x, digits)
    if type(x) is int or type(x) is float:
        return _rounded(Decimal(finite(x)), digits)
    raise Failed(WRONG_TYPE)


def _rounded(number: Decimal, digits: Value) -> Decimal:
    scale = whole_of(digits)
    if not 0 <= scale <= SCALE_MAX or number.adjusted() >= DIGITS_MAX:
        raise Failed(OVERFLOW)
    return decimal(number.quantize(Decimal((0, (1,), -scale)), ROUND_HALF_UP, EXACT))


def _quotient(a: Value, b: Value, digits: Value) -> Value:
    """The decimal number `a / b` with so many digits behind the point; a half moves away from
    zero.
    """
    if not (isinstance(a, Decimal) and isinstance(b, Decimal)):
        raise Failed(WRONG_TYPE)
    scale = whole_of(digits)
    if not 0 <= scale <= SCALE_MAX:
        raise Failed(OVERFLOW)
    if not b:
        raise Failed(DIVISION_BY_ZERO)
    over = int(EXACT.scaleb(abs(a), scale + SCALE_MAX))
    under = int(EXACT.scaleb(abs(b), SCALE_MAX))
    units = (2 * over + under) // (2 * under)
    found = EXACT.scaleb(Decimal(units), -scale)
    return decimal(found.copy_negate() if (a < 0) != (b < 0) else found)


def _read(kind: str) -> Callable[[Value], Value]:
    """A function from the text form of a type to its value."""

    def read(text: Value) -> Value:
        found = READ[kind](text_of(text))
        if found is None:
            raise Failed(NOT_OF_TYPE)
        return found

    return read


def _uuid(text: Value) -> Value:
    """The UUID that 32 hexadecimal digits write, in groups or not."""
    return _read("uuid")(text)


def _bytes(text: Value) -> Value:
    """The bytes that hexadecimal digits write."""
    return _read("bytes")(text)


def _json(text: Value) -> Value:
    """The JSON value that a text writes."""
    return _read("json")(text)


def _bytes_of(x: Value) -> bytes:
    if isinstance(x, bytes):
        return x
    raise Failed(WRONG_TYPE)


def _utf8(text: Value) -> Value:
    """The bytes of the text in UTF-8."""
    data = text_of(text).encode()
    if len(data) > BYTES_MAX:
        raise Failed(OVERFLOW)
    return data


def _base64(x: Value) -> Value:
    """The bytes in base64, as text."""
    return base64.b64encode(_bytes_of(x)).decode()


def _unbase64(text: Value) -> Value:
    """The bytes that a text in base64 writes."""
    try:
        data = base64.b64decode(text_of(text), validate=True)
    except ValueError:
        raise Failed(NOT_OF_TYPE) from None
    if len(data) > BYTES_MAX:
        raise Failed(OVERFLOW)
    return data


_ABSENT = object()


def _at(x: Value, path: Value, read: Callable[[Json], Any] = json_value) -> Any:
    """The value at a path as `read` has it, `_ABSENT` where there is none. Raises: Failed."""
    if not isinstance(x, Json):
        raise Failed(WRONG_TYPE)
    found, steps = read(x), text_of(path)
    for step in steps[1:].split("/") if steps.startswith("/") else [steps] if steps else []:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isascii() and name.isdigit() and len(name) < 10:
            found = found[int(name)] if int(name) < len(found) else _ABSENT
        else:
            return _ABSENT
    return found


def _json_get(json: Value, path: Value) -> Value:
    """The part of a JSON value at a path, `name` or `/items/0/price`; null where there is none."""
    found = _at(json, path, json_tree)
    return None if found is _ABSENT else json_of_tree(found)


def _typed(json: Value, path: Value, kinds: tuple[type, ...]) -> Any:
    found = _at(json, path)
    if found is _ABSENT or found is None:
        return None
    if type(found) not in kinds:
        raise Failed(WRONG_TYPE)
    return found


def _json_text(json: Value, path: Value = "") -> Value:
    """The text at a path of a JSON value; null where there is none, or null."""
    found: str | None = _typed(json, path, (str,))
    return None if found is None else made(found)


def _json_int(json: Value, path: Value = "") -> Value:
    """The whole number at a path of a JSON value; null where there is none, or null."""
    found = _typed(json, path, (int,))
    return None if found is None else whole(found)


def _json_float(json: Value, path: Value = "") -> Value:
    """The number at a path of a JSON value, as a float; null where there is none, or null."""
    found = _typed(json, path, (int, Decimal))
    try:
        return None if found is None else finite(float(found)) + 0.0
    except OverflowError:
        raise Failed(OVERFLOW) from None


def _json_decimal(json: Value, path: Value, digits: Value) -> Value:
    """The number at a path, as a decimal number with so many digits behind the point; null for
    none.
    """
    found = _typed(json, path, (int, Decimal))
    return None if found is None else _rounded(Decimal(found), digits)


def _json_bool(json: Value, path: Value = "") -> Value:
    """The truth value at a path of a JSON value; null where there is none, or null."""
    found: bool | None = _typed(json, path, (bool,))
    return found


_NAMES = {
    dict: "object", list: "array", str: "text", int: "number", Decimal: "number", bool: "boolean",
    type(None): "null",
}  # fmt: skip


def _json_type(json: Value, path: Value = "") -> Value:
    """The kind of value at a path of a JSON value: object, array, text, number, boolean or null;
    null where there is none.
    """
    found = _at(json, path)
    return None if found is _ABSENT else _NAMES[type(found)]


def _json_length(json: Value, path: Value = "") -> Value:
    """The number of members of the object, or elements of the array, at a path; null for none."""
    found = _typed(json, path, (dict, list))
    return None if found is None else len(found)


TYPED_FUNCTIONS: tuple[ScalarFunction, ...] = (
    function(
        "decimal", _decimal, ("text", "int"), "decimal", 1,
        ((("float", "int"), "decimal"), (("decimal", "int"), "decimal")),
    ),
    function("quotient", _quotient, ("decimal", "decimal", "int"), "decimal"),
    function("uuid", _uuid, ("text",), "uuid"),
    function("bytes", _bytes, ("text",), "bytes"),
    function("utf8", _utf8, ("text",), "bytes"),
    function("base64", _base64, ("bytes",), "text"),
    function("unbase64", _unbase64, ("text",), "bytes"),
    function("json", _json, ("text",), "json"),
    function("json_get", _json_get, ("json", "text"), "json"),
    function("json_text", _json_text, ("json", "text"), "text", optional=1),
    function("json_int", _json_int, ("json", "text"), "int", optional=1),
    function("json_float", _json_float, ("json", "text"), "float", optional=1),
    function("json_decimal", _json_decimal, ("json", "text", "int"), "decimal"),
    function("json_bool", _json_bool, ("json", "text"), "bool", optional=1),
    function("json_type", _json_type, ("json", "text"), "text", optional=1),
    function("json_length", _json_length, ("json", "text"), "int", optional=1),
)  # fmt: skip
