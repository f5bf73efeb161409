"""The ranges of many facts at once: columns of Arrow in place of values.

Source: twin in tests/test_datalog_ranges.py, by the hash of one value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.column_types import column_type
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.placement.hashing import FALSE, MOMENTS, NULL, SEED, TRUE, hash_of
from tidemill.time.typed import READ, Json

_Hashes = npt.NDArray[np.uint64]
KeyColumn: TypeAlias = "pa.Array | npt.NDArray[np.uint64]"
"""A column of keys: its values, or where Arrow has no form for them their hashes."""
_MIX_1, _MIX_2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT, _HALF = np.uint64(33), np.uint64(32)


def ranges_of_columns(key: Sequence[KeyColumn], ranges: int) -> I64Array:
    """The range of each row by the columns of a key, as `range_of` says it. Cost: O(rows).

    Columns are of a type of the language, or of nulls.
    """
    return ranges_of_spots(spots_of_columns(key), ranges)


def ranges_of_spots(spots: npt.NDArray[np.uint64], ranges: int) -> I64Array:
    """The range of each row by the spot of its key."""
    return (spots * np.uint64(ranges) >> _HALF).astype(np.int64)


def spots_of_columns(key: Sequence[KeyColumn]) -> npt.NDArray[np.uint64]:
    """The spot of each row by the columns of a key, as `spot_of` says it; see above."""
    with np.errstate(over="ignore"):
        hashes = np.full(len(key[0]), SEED, np.uint64)
        for column in key:
            hashes += _hashes(column)
        return _mixed(hashes) >> _HALF


def _mixed(words: _Hashes) -> _Hashes:
    words = (words ^ words >> _SHIFT) * _MIX_1
    words = (words ^ words >> _SHIFT) * _MIX_2
    return words ^ words >> _SHIFT


def _hashes(column: KeyColumn) -> _Hashes:
    if isinstance(column, np.ndarray):
        return column
    if pa.types.is_null(column.type):
        return np.full(len(column), NULL, np.uint64)
    if pa.types.is_string(column.type):
        found = _text_hashes(column)
    elif pa.types.is_boolean(column.type):
        flags = column.fill_null(False).to_numpy(zero_copy_only=False)
        found = np.where(flags, np.uint64(TRUE), np.uint64(FALSE))
    elif (kind := (column_type(column.type) or "").partition("(")[0]) in READ:
        found = _typed_hashes(column, kind)
    else:
        numbers = column.fill_null(pa.scalar(0).cast(column.type)).to_numpy(zero_copy_only=False)
        words = (numbers.astype(np.float64) + 0.0).view(np.uint64)
        found = _mixed(words + np.uint64(SEED))
    if column.null_count:
        found = np.where(column.is_null().to_numpy(zero_copy_only=False), np.uint64(NULL), found)
    return found


_MADE: Mapping[str, Callable[[Any], Any]] = {
    "uuid": lambda data: UUID(bytes=data), "json": Json,
}  # fmt: skip
"""Values of the language from what Arrow has in their place."""


def _typed_hashes(column: pa.Array, kind: str) -> _Hashes:
    """Hashes of times, decimal numbers, bytes, UUIDs or JSON; see `_text_hashes`."""
    if kind in MOMENTS:
        counts = column.view(pa.int32()).cast(pa.int64()) if kind == "date" else column
        words = counts.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return _mixed(words.view(np.uint64) + np.uint64(MOMENTS[kind]))
    made = _MADE.get(kind, _itself)
    return _coded_hashes(column, lambda value: hash_of(made(value)))


def _itself(value: Any) -> Any:
    return value


def _text_hashes(column: pa.Array) -> _Hashes:
    """Each different text is hashed once."""
    return _coded_hashes(column, hash_of)


def _coded_hashes(column: pa.Array, hashed: Callable[[Any], int]) -> _Hashes:
    coded = column.dictionary_encode()
    known = np.array([*map(hashed, coded.dictionary.to_pylist())] or [0], np.uint64)
    places = coded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    found: _Hashes = known[places]
    return found
