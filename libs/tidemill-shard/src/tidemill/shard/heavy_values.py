"""Values that many rows have in one column: estimates by a sample, for whoever divides work.

A part tells of each column which values at least one in 128 of its rows has, at most 16 of them.
Nothing but where work is done follows from that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ROWS_MIN = 16 * 1024
"""Rows of a part that is told of: fewer are quickly done wherever they are."""
SAMPLE_ROWS = 4 * 1024
"""So many rows of a part are looked at, and up to a quarter more."""
SHARE = 128
"""A value is heavy that one row in so many has."""
VALUES_MAX = 16
"""Values of a column that are told of."""
TEXT_CHARS_MAX = 64
"""Longer texts are told of nowhere: a description of a part stays short."""
Heavy: TypeAlias = "int | float | str | bool | None"
HeavyValues: TypeAlias = "Mapping[str, tuple[tuple[Heavy, int], ...]]"
"""By column: values, and about how many rows have each."""


def heavy_values(piece: pa.Table) -> Iterator[tuple[str, tuple[tuple[Heavy, int], ...]]]:
    """The heavy values of the data columns of a part, the heaviest first.

    Columns of numbers, texts, truth values and nulls have some. Cost: O(columns · sample).
    """
    if piece.num_rows < ROWS_MIN:
        return
    step = piece.num_rows // SAMPLE_ROWS
    places = pa.array(np.arange(0, piece.num_rows, step))
    for name in piece.column_names[:-2]:
        column = piece.column(name)
        if _comparable(column.type):
            found = tuple(_heavy(column.take(places), step))
            if found:
                yield name, found


def heavy_over(told: Iterable[HeavyValues]) -> dict[str, dict[Heavy, int]]:
    """About how many rows have the heavy values that several parts tell, by column."""
    found: dict[str, Counter[Heavy]] = {}
    for each in told:
        for name, values in each.items():
            found.setdefault(name, Counter()).update(dict(values))
    return {name: dict(counts) for name, counts in found.items()}


def _comparable(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_float64(kind) or pa.types.is_string(kind)
        or pa.types.is_boolean(kind) or pa.types.is_null(kind)
    )  # fmt: skip


def _heavy(sample: pa.ChunkedArray, step: int) -> Iterator[tuple[Heavy, int]]:
    counted = pc.value_counts(sample)
    counts = counted.field("counts").to_numpy()
    places = np.flatnonzero(counts * SHARE >= len(sample))
    for at in places[np.argsort(-counts[places], kind="stable")][:VALUES_MAX].tolist():
        value = counted.field("values")[at].as_py()
        if value == value and not (isinstance(value, str) and len(value) > TEXT_CHARS_MAX):
            yield value, int(counts[at]) * step
