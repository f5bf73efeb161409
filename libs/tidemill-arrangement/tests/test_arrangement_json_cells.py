"""Values of JSON as columns: no digit that was written is lost on the way to a typed column."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.arrangement.json_cells import json_column, numeral
from tidemill.errors import UsageError

LONG = "12345678901234567890.123456789012345678"


@pytest.mark.parametrize(
    "text", ["1.5", "-0.1", "123456789012345.6", "1.005", LONG, "1e-9", "1e400"]
)
def test_a_numeral_has_all_its_digits(text: str) -> None:
    found = numeral(text)
    assert Decimal(repr(found) if isinstance(found, float) else found) == Decimal(text)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=9))
def test_a_numeral_that_is_a_float_writes_the_same_number(number: Decimal) -> None:
    found = numeral(f"{number:f}")
    assert Decimal(repr(found) if isinstance(found, float) else found) == number


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ([1, 2.5, None], [1.0, 2.5, None]),
        ([1, Decimal(LONG), None], [Decimal(1), Decimal(LONG), None]),
        ([99_999_999_999_999_999_999, 0.1], [Decimal("99999999999999999999"), Decimal("0.1")]),
        ([Decimal("1.0000000000000000001")], [Decimal("1.0000000000000000001")]),
        ([Decimal("1e300"), 1, Decimal(LONG)], [1e300, 1.0, float(LONG)]),
        ([{"b": Decimal("1.10"), "a": [1e-9]}, [2]], ['{"a":[1e-9],"b":1.1}', "[2]"]),
        (["a", None], ["a", None]),
        ([True, None], [True, None]),
    ],
)
def test_values_of_rows_are_columns_with_their_digits(
    values: list[object], column: list[object]
) -> None:
    assert json_column(values).to_pylist() == column


def test_what_is_no_value_of_json_or_of_one_type_is_refused() -> None:
    deep: object = []
    for _ in range(200):
        deep = [deep]
    for wrong in ({"a": object()}, {"a": float("nan")}, deep, ["\ud800"]):
        with pytest.raises(UsageError, match="is none of JSON"):
            json_column([wrong])
    with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError)):
        json_column([Decimal(LONG), "a"])
