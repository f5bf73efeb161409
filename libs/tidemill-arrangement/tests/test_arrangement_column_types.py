"""Names of column types, and what Arrow has for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest

from tidemill.arrangement.arrow_bytes import is_stored
from tidemill.arrangement.column_types import arrow_type, column_type, shown_as_text, type_named

NAMES = (
    "int", "float", "text", "bool", "timestamp", "date", "duration", "bytes", "uuid", "json",
    "decimal(38,18)", "decimal(1,0)", "decimal(1,1)",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_each_type_is_one_of_arrow_that_collections_store(name: str) -> None:
    kind = arrow_type(name)
    assert column_type(kind) == name
    assert is_stored(kind)


@pytest.mark.parametrize(
    "name", ["decimal", "decimal(0,0)", "decimal(39,19)", "decimal(2,3)", "decimal(22,1)", "time"]
)
def test_a_name_of_no_type_names_none(name: str) -> None:
    assert type_named(name) is None


def test_blanks_in_a_name_mean_nothing() -> None:
    assert type_named("decimal( 10, 2 )") == "decimal(10,2)"


@pytest.mark.parametrize(
    "kind", [pa.int32(), pa.timestamp("us"), pa.decimal128(38, 2), pa.decimal256(10, 2)]
)
def test_other_types_of_arrow_have_no_name(kind: pa.DataType) -> None:
    assert column_type(kind) is None


def test_values_are_shown_as_texts_where_asked() -> None:
    one = UUID(int=1)
    table = pa.table(
        {
            "u": pa.array([one.bytes, None], arrow_type("uuid")),
            "b": pa.array([b"\0", None], arrow_type("bytes")),
            "s": pa.array([timedelta(seconds=90), None], arrow_type("duration")),
            "p": pa.array([Decimal("1.50"), None], arrow_type("decimal(3,2)")),
            "t": pa.array([datetime(2026, 1, 1, tzinfo=UTC), None], arrow_type("timestamp")),
        }
    )
    shown = shown_as_text(table, "uuid", "bytes", "duration", "decimal").to_pylist()
    assert shown[0] == {
        "u": str(one), "b": "AA==", "s": "1m30s", "p": "1.50", "t": datetime(2026, 1, 1, tzinfo=UTC)
    }  # fmt: skip
    assert set(shown[1].values()) == {None}
