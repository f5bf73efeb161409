"""The greatest and the least of values whose words are numbers of texts, by their ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.interval_updates import Change
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.logical.forms import Type
from tidemill.time.typed import DIGITS_MAX, SCALE_MAX

RANKED = frozenset({Type.TEXT, Type.DECIMAL, Type.BYTES, Type.UUID})
"""Types of which texts have the order of the values, or numbers that Arrow reads from them."""


def put_ranks(
    rows: Change, column: int, kind: Type, texts: Texts, room: Callable[[int], object]
) -> I64Array:
    """Put ranks in the place of words in a column of rows; the word of each rank, and one more.

    Nulls have rank 0, whatever it is the rank of. `room` is told the bytes that will be copied,
    before the rows change. Raises: as `room`. Cost: O(rows), and to sort the different values.
    Source: twin in tests/test_datalog_stretches.py, by `values.compare`.
    """
    nulls = rows.shape[1] - 4
    some = rows[:, nulls] >> column & 1 == 0
    known, of = np.unique(rows[some, column], return_inverse=True)
    room(texts.size(known))
    order = _in_order(texts.large(known), kind)
    ranks = np.empty(len(known), np.int64)
    ranks[order] = np.arange(len(known))
    rows[:, column] = 0
    rows[some, column] = ranks[of]
    words: I64Array = np.append(known[order], 0)
    return words


def _in_order(texts: pa.Array, kind: Type) -> I64Array:
    """The places of texts in the order of what they spell."""
    if kind is Type.DECIMAL:
        texts = texts.cast(pa.decimal128(DIGITS_MAX, SCALE_MAX))
    order: I64Array = pc.sort_indices(texts).to_numpy().astype(np.int64)
    return order
