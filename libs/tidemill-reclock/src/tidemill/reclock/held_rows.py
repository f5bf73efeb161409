"""The rows of a keyed source as bytes in a few arrays: no object of a key.

Importing it loads loops: callers that may not need it import it where they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.kernels import BoolArray, I64Array, U64Array
from tidemill.arrangement.kernels.byte_hashes import KEYS as SECRET
from tidemill.arrangement.kernels.byte_hashes import Bytes
from tidemill.arrangement.kernels.capacity import grow, zeros
from tidemill.arrangement.updates import TIME as TIME_COLUMN
from tidemill.errors import Exhausted
from tidemill.reclock.held_row_loops import (
    BEGUN,
    COUNTS,
    CREATE,
    DELETE,
    HELD,
    KEYS,
    LIVE,
    ROWS,
    SET,
    UPDATE,
    USED,
    WASTE,
    fill_slots,
    keep_living,
    take_changes,
)

_KEYS_FIRST, _BYTES_FIRST = 64, 4_096
_KEYS_MAX = (1 << 31) - 2
_MORE = 8
"""A table that is full grows by one part in so many."""
_WASTE_SHARE = 4
"""Bytes of use to nobody are given back when they are one part in so many."""
_SPARSE = 4
"""Then the columns are made anew where less than one part in so many of them is in use."""
_COLUMNS = "_starts", "_key_sizes", "_sizes", "_hashes", "_latest"
_KINDS = {"set": SET, "read": SET, "create": CREATE, "update": UPDATE, "delete": DELETE}


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows that went and came, packed one behind the other, and the changes that were refused."""

    data: Bytes
    stops: I64Array
    times: U64Array
    diffs: I64Array
    order: I64Array
    """Rows of the changes by time, then by place."""
    refused: I64Array
    """For each change why it was not applied; 0 if it was."""


class HeldRows:
    """Packed rows by their packed keys.

    Cost: some 45 bytes a key beside both; O(bytes) a change, and other threads may compute. A
    later `take` gives bytes that deletions leave back once they are a quarter of all. With them
    goes memory by key of which three quarters have no use.
    Source: twin `tidemill.testkit.twins.keyed`.
    """

    def __init__(self) -> None:
        self._data: Bytes = zeros((_BYTES_FIRST,), np.uint8)
        self._starts: I64Array = zeros((_KEYS_FIRST,), np.int64)
        self._key_sizes: npt.NDArray[np.int32] = zeros((_KEYS_FIRST,), np.int32)
        self._sizes: npt.NDArray[np.int32] = zeros((_KEYS_FIRST,), np.int32)
        self._hashes: npt.NDArray[np.uint32] = zeros((_KEYS_FIRST,), np.uint32)
        self._latest: npt.NDArray[np.int32] = zeros((_KEYS_FIRST,), np.int32)
        self._slots: npt.NDArray[np.int32] = zeros((2 * _KEYS_FIRST,), np.int32)
        self._counts = np.zeros(COUNTS, np.int64)
        self._begun_size = _BYTES_FIRST
        """Room for the rows before, with which the last `take` ended."""

    def __len__(self) -> int:
        """Number of keys that have a row."""
        return int(self._counts[LIVE])

    def take(self, changes: pa.Table) -> Taken:
        """Take changes in, as `KeyedRows.apply` says. Raises: Exhausted for two billion keys.

        Cost: O(bytes of the changes and of the rows they replace), and of all while it grows or
        gives back.
        """
        count = changes.num_rows
        names = (TIME_COLUMN, "_partition", "_offset")
        by_place = [(name, "ascending") for name in names]
        order = pc.sort_indices(changes, sort_keys=by_place).to_numpy().astype(np.int64)
        kinds = np.array(list(_KINDS.values()))[
            pc.index_in(changes["_op"], pa.array(list(_KINDS))).to_numpy()
        ]
        keys, key_stops, _ = _bytes_of(changes["_key"])
        before, after = _bytes_of(changes["_before"]), _bytes_of(changes["_after"])
        came = int(after[1][-1] - after[1][0])
        told: Bytes = np.empty(2 * came + _BYTES_FIRST, np.uint8)
        begun: Bytes = np.empty(self._begun_size, np.uint8)
        of_keys = (
            np.empty(count, np.int64),
            np.zeros(count + 1, np.int64),
            np.empty(count, np.bool_),
        )
        stops, refused = np.zeros(2 * count + 1, np.int64), np.zeros(count, np.int64)
        times, diffs = np.empty(2 * count, np.uint64), np.empty(2 * count, np.int64)
        times_in = changes[TIME_COLUMN].to_numpy().astype(np.uint64)
        self._counts[ROWS] = 0
        self._give_back()
        begin = 0
        while True:
            begin = take_changes(
                SECRET, order, times_in, kinds, keys, key_stops, *before, *after, begin,
                self._data, self._starts, self._key_sizes, self._sizes, self._hashes,
                self._latest, self._slots, of_keys[0], begun, *of_keys[1:], told, stops, times,
                diffs, refused, self._counts,
            )  # fmt: skip
            if begin > count:
                rows, self._begun_size = int(self._counts[ROWS]), len(begun)
                return Taken(told, stops[: rows + 1], times[:rows], diffs[:rows], order, refused)
            row = order[min(begin, count - 1)]
            needed = int(key_stops[row + 1] - key_stops[row] + after[1][row + 1] - after[1][row])
            self._make_room(needed)
            used = int(self._counts[BEGUN])
            told = _larger(told, int(stops[self._counts[ROWS]]), used + came)
            begun = _larger(begun, used, int(self._counts[HELD]))

    def _make_room(self, size: int) -> None:
        """Have room for one more key, and for so many bytes."""
        keys, used = int(self._counts[KEYS]), int(self._counts[USED])
        if keys >= _KEYS_MAX:
            raise Exhausted(f"a keyed source with {keys:,} keys: share it among several sources")
        if used + size > len(self._data):
            grow(self, "_data", used + max(used // _MORE, _BYTES_FIRST) + size, used)
        if keys == len(self._starts):
            for name in _COLUMNS:
                grow(self, name, keys + max(keys // _MORE, _KEYS_FIRST), keys)
        if 4 * keys + 4 > 3 * len(self._slots):
            self._slots = zeros((2 * len(self._slots),), np.int32)
            fill_slots(self._hashes, keys, self._slots)

    def _give_back(self) -> None:
        """Forget bytes of use to nobody, once they are many, and then columns that are sparse."""
        used, waste = int(self._counts[USED]), int(self._counts[WASTE])
        if waste > _BYTES_FIRST + used // _WASTE_SHARE:
            kept = zeros((used - waste + _BYTES_FIRST,), np.uint8)
            columns = self._starts, self._key_sizes, self._sizes, self._hashes
            keep_living(self._data, *columns, kept, self._counts)
            self._data = kept
            keys = int(self._counts[KEYS])
            if _SPARSE * keys < len(self._starts):
                self._make_columns_anew(keys)
            self._slots[:] = 0
            fill_slots(self._hashes, keys, self._slots)

    def _make_columns_anew(self, keys: int) -> None:
        """Have columns and slots of the size that so many keys need, the slots all free."""
        room = keys + max(keys // _MORE, _KEYS_FIRST)
        for name in _COLUMNS:
            column = getattr(self, name)
            fitting = zeros((room,), column.dtype)
            fitting[:keys] = column[:keys]
            setattr(self, name, fitting)
        size = 2 * _KEYS_FIRST
        while 4 * room > 3 * size:
            size *= 2
        self._slots = zeros((size,), np.int32)


def _larger(array: Bytes, used: int, more: int) -> Bytes:
    """The array, if it has room for so many bytes more, else one that has."""
    if used + more <= len(array):
        return array
    larger = np.empty(2 * used + more, np.uint8)
    larger[:used] = array[:used]
    return larger


def _bytes_of(column: Any) -> tuple[Bytes, I64Array, BoolArray]:  # pyarrow has no common type
    """Bytes of a column of binaries, their stops, and which of them are null."""
    whole = column.cast(pa.large_binary()).combine_chunks()
    nulls = np.array(whole.is_null().to_numpy(zero_copy_only=False), np.bool_)
    stops = np.zeros(len(whole) + 1, np.int64)
    values = np.frombuffer(b"\0", np.uint8)
    if len(whole):
        _, found, data = whole.buffers()
        stops[:] = np.frombuffer(found, np.int64)[whole.offset : whole.offset + len(whole) + 1]
        values = np.frombuffer(data or b"\0", np.uint8)
    values.flags.writeable = False  # of one type whoever made them
    return values, stops, nulls
