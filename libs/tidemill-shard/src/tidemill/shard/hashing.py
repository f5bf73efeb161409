"""Hashes of rows' keys, the same on every machine: what parts are split by and found by."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, TIME, one_array

Hashes: TypeAlias = npt.NDArray[np.uint64]
Column: TypeAlias = "pa.ChunkedArray[pa.Scalar[pa.DataType]]"
Values: TypeAlias = "pa.Array[pa.Scalar[pa.DataType]]"

HASH_MAX = 2**64 - 1
PREFIX_BYTES = 128
"""So much of a long text counts from its beginning, and as much from its end."""

_SEED = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_NULL = np.uint64(0x5BF0_3635_DCD1_3A6D)
_SHIFT = np.uint64(33)
_TEXTS = (
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_large_string,
    pa.types.is_large_binary,
)


def key_hashes(table: pa.Table, key: Sequence[str]) -> Hashes:
    """A 64-bit hash of each row's key columns (of all data columns if `key` is empty).

    Equal keys of one schema have equal hashes. Cost: O(rows), without a loop over rows unless a
    column is nested or decimal.
    """
    names = list(key) or [name for name in table.column_names if name not in (TIME, DIFF)]
    hashes = np.full(table.num_rows, _SEED, np.uint64)
    with np.errstate(over="ignore"):
        for name in names:
            hashes = _mixed(hashes ^ _column_hashes(table.column(name)))
    return hashes


def fingerprint(rows: pa.Table) -> str:
    """A digest of a multiset of rows, in whatever order; of long texts their ends count.

    Cost: O(rows).
    """
    hashes = key_hashes(rows, rows.column_names)
    return f"{rows.num_rows}-{int(hashes.sum(dtype=np.uint64)):016x}"


def _mixed(values: Hashes) -> Hashes:
    """The finalizer of MurmurHash3: every bit of the input matters to every bit of the output."""
    values = (values ^ (values >> _SHIFT)) * _MIX_1
    values = (values ^ (values >> _SHIFT)) * _MIX_2
    return values ^ (values >> _SHIFT)


def _column_hashes(column: Column) -> Hashes:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    values = one_array(column)
    kind = values.type
    if any(is_text(kind) for is_text in _TEXTS):
        hashes = _text_hashes(values.cast(pa.large_binary()))
    elif (numbers := _numbers(values)) is not None:
        hashes = _mixed(numbers + _SEED)
    else:
        hashes = _slow_hashes(values)
    if values.null_count:
        hashes = np.where(np.asarray(values.is_null()), _NULL, hashes)
    return hashes


def _numbers(values: Values) -> Hashes | None:
    """Fixed-width values as 64-bit words, equal iff the values are; None for other types."""
    kind = values.type
    if pa.types.is_boolean(kind):
        words = values.cast(pa.uint8())
    elif pa.types.is_integer(kind):
        words = values
    elif pa.types.is_float64(kind) or pa.types.is_float32(kind):
        # Adding zero makes negative zero positive; all NaN become one.
        numbers = np.asarray(values.cast(pa.float64()).fill_null(0.0), np.float64) + 0.0
        return cast(Hashes, np.where(np.isnan(numbers), np.nan, numbers).view(np.uint64))
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        words = values.cast(pa.int32())
    elif pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        words = values.cast(pa.int64())
    else:
        return None
    plain = np.asarray(pc.fill_null(words, 0))
    return plain.astype(np.int64 if plain.dtype.kind == "i" else np.uint64).view(np.uint64)


def _text_hashes(values: Values) -> Hashes:
    """Hashes of byte strings, eight bytes of all of them at a time."""
    count = len(values)
    _, offsets_buffer, data_buffer = values.buffers()
    if count == 0 or offsets_buffer is None:
        return np.full(count, _SEED, np.uint64)
    offsets = np.frombuffer(offsets_buffer, np.int64)[values.offset : values.offset + count + 1]
    starts, lengths = offsets[:-1], np.diff(offsets)
    data = b"" if data_buffer is None else data_buffer.to_pybytes()
    padded = data + bytes(8)
    words = np.ndarray((len(padded) - 7,), dtype="<u8", buffer=padded, strides=(1,))
    hashes = _mixed(lengths.astype(np.uint64) + _SEED)
    head = np.minimum(lengths, PREFIX_BYTES)
    hashes = _fold(hashes, words, starts, head)
    tail = np.minimum(lengths - head, PREFIX_BYTES)
    return _fold(hashes, words, starts + lengths - tail, tail)


def _fold(
    hashes: Hashes,
    words: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> Hashes:
    at = 0
    rows = np.flatnonzero(lengths > at)
    while len(rows):
        left = np.minimum(lengths[rows] - at, 8).astype(np.uint64)
        mask = np.uint64(HASH_MAX) >> (np.uint64(64) - np.uint64(8) * left)
        word = words[starts[rows] + at] & mask
        hashes[rows] = _mixed(hashes[rows] ^ word)
        at += 8
        rows = rows[lengths[rows] > at]
    return hashes


def _slow_hashes(values: Values) -> Hashes:
    """Hashes of the text of each distinct value: nested records and decimals."""
    texts = (repr(scalar.as_py()).encode() for scalar in values)
    numbers = [int.from_bytes(blake2b(text, digest_size=8).digest(), "little") for text in texts]
    return np.array(numbers, np.uint64)
