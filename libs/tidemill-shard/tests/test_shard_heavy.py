"""Parts tell which values many of their rows have, wherever these rows are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemill.shard import Description
from tidemill.shard.heavy_values import ROWS_MIN, HeavyValues, heavy_over
from tidemill.shard.parts import encode_parts, sorted_updates

SCHEMA = pa.schema(
    [("k", pa.int64()), ("n", pa.int64()), ("s", pa.string()), ("f", pa.float64()), ("b", pa.bool_())]
)  # fmt: skip


def parts_of(rows: int, heavy: dict[str, Any], **limits: int) -> list[HeavyValues]:
    """Parts of rows of which three in ten have the heavy values, spread at random."""
    random = np.random.default_rng(3)
    chosen = random.random(rows) < 0.3
    columns: dict[str, list[Any]] = {
        "k": list(range(rows)), "n": random.integers(0, 1 << 40, rows).tolist(),
        "s": [f"row {n}" for n in range(rows)], "f": random.random(rows).tolist(),
        "b": [True] * rows,
    }  # fmt: skip
    for name, value in heavy.items():
        columns[name] = [
            value if here else each for here, each in zip(chosen, columns[name], strict=True)
        ]
    data = {**columns, "_time": [0] * rows, "_diff": [1] * rows}
    table = pa.table(data, schema=Description(SCHEMA).update_schema())
    return [part.heavy for part, _ in encode_parts(sorted_updates(table, ("k",)), ("k",), **limits)]


@pytest.mark.parametrize(
    ("column", "value"), [("n", 7), ("n", None), ("s", "often"), ("s", None), ("f", 0.5)]
)
def test_a_value_of_many_rows_is_told_with_about_their_number(column: str, value: object) -> None:
    rows = 3 * ROWS_MIN
    found = heavy_over(parts_of(rows, {column: value}))
    assert found.keys() == {column, "b"}
    assert found[column].keys() == {value}
    assert 0.25 * rows < found[column][value] < 0.35 * rows  # type: ignore[index]  # one of them
    assert 0.9 * rows < found["b"][True] < 1.1 * rows


def test_values_of_many_parts_are_added_up() -> None:
    rows = 8 * ROWS_MIN
    parts = parts_of(rows, {"n": 7}, part_bytes_max=3 << 20)
    assert len(parts) > 1
    assert 0.25 * rows < heavy_over(parts)["n"][7] < 0.35 * rows


def test_a_small_part_and_a_long_text_are_not_told_of() -> None:
    assert heavy_over(parts_of(ROWS_MIN - 1, {"n": 7})) == {}
    assert heavy_over(parts_of(ROWS_MIN, {"s": "x" * 65})).keys() == {"b"}
