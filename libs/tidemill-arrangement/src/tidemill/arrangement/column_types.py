"""Types of columns by their names, and as Arrow has them."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pyarrow as pa

from tidemill.time.typed import DIGITS_MAX, SCALE_MAX, WHOLE_DIGITS_MAX, write_typed

_ARROW: Mapping[str, pa.DataType] = {
    "int": pa.int64(), "float": pa.float64(), "text": pa.string(), "bool": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"), "date": pa.date32(), "duration": pa.duration("us"),
    "bytes": pa.binary(), "uuid": pa.binary(16), "json": pa.large_string(),
}  # fmt: skip
TYPE_NAMES = tuple(_ARROW)
"""The types that are one word."""
_NAMES = {kind: name for name, kind in _ARROW.items()}
_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,2})\s*,\s*([0-9]{1,2})\s*\)")
COLUMN_TYPE_RULE = (
    f"a type is {', '.join(_ARROW)}, or decimal(p, s) of p digits, s of them behind the point: at most "
    f"{WHOLE_DIGITS_MAX} before it and {SCALE_MAX} behind it"
)


def type_named(name: str) -> str | None:
    """The name of a type without blanks, None if there is no such type."""
    found = _DECIMAL.fullmatch(name)
    if found is None:
        return name if name in _ARROW else None
    digits, scale = int(found[1]), int(found[2])
    fits = 0 < digits <= DIGITS_MAX and scale <= min(digits, SCALE_MAX)
    return f"decimal({digits},{scale})" if fits and digits - scale <= WHOLE_DIGITS_MAX else None


def arrow_type(name: str) -> pa.DataType:
    """The type in Arrow. JSON is large text, which is no other type, and a UUID 16 bytes.

    Raises: KeyError for a name that `type_named` does not know.
    """
    found = _DECIMAL.fullmatch(name)
    return _ARROW[name] if found is None else pa.decimal128(int(found[1]), int(found[2]))


def column_type(kind: pa.DataType) -> str | None:
    """The name of the type that Arrow has so, None for one of other collections."""
    if pa.types.is_decimal128(kind):
        return type_named(f"decimal({kind.precision},{kind.scale})")
    return _NAMES.get(kind)


def shown_as_text(table: pa.Table, *kinds: str) -> pa.Table:
    """The table with the values of these types as texts, as JSON has them: bytes in base64.

    Cost: O(bytes) of such columns.
    """
    for at, field in enumerate(table.schema):
        kind = (column_type(field.type) or "").partition("(")[0]
        if kind in kinds:
            shown = [None if v is None else _shown(v, kind) for v in table[at].to_pylist()]
            table = table.set_column(at, field.name, pa.array(shown, pa.string()))
    return table


def _shown(value: Any, kind: str) -> str:
    if kind == "uuid":
        return str(UUID(bytes=value))
    if kind == "decimal":
        return f"{value:f}"
    return base64.b64encode(value).decode() if kind == "bytes" else write_typed(value)
