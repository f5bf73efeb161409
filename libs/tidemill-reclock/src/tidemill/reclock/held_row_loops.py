"""Compiled loops over the table of held rows: changes in, rows that go and come out.

Importing it loads loops: callers that may not need it import it where they do.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.kernels.arrays import (
    BoolArray,
    I64Array,
    U64Array,
    compiled,
    inlined,
)
from tidemill.arrangement.kernels.byte_hashes import Bytes, hash_of_bytes

Number: TypeAlias = "int | np.int64"
I32Array: TypeAlias = npt.NDArray[np.int32]
U32Array: TypeAlias = npt.NDArray[np.uint32]

SET, CREATE, UPDATE, DELETE = 0, 1, 2, 3
"""Kinds of changes."""
EXISTS, LACKS, DIFFERS = 1, 2, 3
"""Reasons why a change does not follow from what is held; 0 if it does."""
KEYS, LIVE, USED, WASTE, TIME, TOUCHED, BEGUN, ROWS, HELD = 0, 1, 2, 3, 4, 5, 6, 7, 8
"""Places in `counts`. Keys in the table, those with a row, bytes in use, and those of no use.
Then the present time, the keys that changed at it, bytes of their rows before, and rows told.
The last one is the size of a held row for which `begun` has no room, else 0.
"""
COUNTS = 9


@inlined
def _same(left: Bytes, first: Number, right: Bytes, other: Number, size: Number) -> bool:
    at = 0
    while at < size and left[first + at] == right[other + at]:
        at += 1
    return at == size


@inlined
def _copy(source: Bytes, first: Number, to: Bytes, at: Number, size: Number) -> None:
    for i in range(size):
        to[at + i] = source[first + i]


@compiled
def fill_slots(hashes: U32Array, count: int, slots: I32Array) -> None:
    """Put the first `count` keys into slots, all of which are free."""
    mask = slots.size - 1
    for number in range(count):
        slot = np.int64(hashes[number]) & mask
        while slots[slot] != 0:
            slot = (slot + 1) & mask
        slots[slot] = number + 1


@compiled
def keep_living(
    data: Bytes, starts: I64Array, key_sizes: I32Array, sizes: I32Array, hashes: U32Array,
    kept: Bytes, counts: I64Array,
) -> None:  # fmt: skip
    """Move keys that have a row to the front, and their bytes into `kept`; others are gone."""
    to, used = 0, 0
    for number in range(counts[KEYS]):
        if sizes[number] >= 0:
            size = np.int64(key_sizes[number]) + sizes[number]
            _copy(data, starts[number], kept, used, size)
            starts[to], key_sizes[to], sizes[to] = used, key_sizes[number], sizes[number]
            hashes[to] = hashes[number]
            to, used = to + 1, used + size
    counts[KEYS], counts[USED], counts[WASTE] = to, used, 0


@compiled
def _close(
    data: Bytes, starts: I64Array, key_sizes: I32Array, sizes: I32Array, touched: I64Array,
    begun: Bytes, begun_stops: I64Array, begun_nulls: BoolArray, told: Bytes, told_stops: I64Array,
    told_times: U64Array, told_diffs: I64Array, counts: I64Array,
) -> bool:  # fmt: skip
    """Tell the rows that went and came at the present time; False if there is no room for them."""
    room = told.size - told_stops[counts[ROWS]] - counts[BEGUN]
    for at in range(counts[TOUCHED]):
        room -= max(sizes[touched[at]], 0)
    if room < 0:
        return False
    row = counts[ROWS]
    for at in range(counts[TOUCHED]):
        number = touched[at]
        first, size = begun_stops[at], begun_stops[at + 1] - begun_stops[at]
        place, now = starts[number] + key_sizes[number], np.int64(sizes[number])
        if begun_nulls[at] and now < 0:
            continue
        if not begun_nulls[at] and size == now and _same(begun, first, data, place, size):
            continue
        if not begun_nulls[at]:
            _copy(begun, first, told, told_stops[row], size)
            told_times[row], told_diffs[row] = counts[TIME], -1
            told_stops[row + 1] = told_stops[row] + size
            row += 1
        if now >= 0:
            _copy(data, place, told, told_stops[row], now)
            told_times[row], told_diffs[row] = counts[TIME], 1
            told_stops[row + 1] = told_stops[row] + now
            row += 1
    counts[ROWS], counts[TOUCHED], counts[BEGUN] = row, 0, 0
    return True


@inlined
def _find(
    mine: np.uint32, keys: Bytes, first: Number, size: Number, data: Bytes, starts: I64Array,
    key_sizes: I32Array, hashes: U32Array, slots: I32Array,
) -> np.int64:  # fmt: skip
    """The slot of a key, a free one if it is not there."""
    mask = slots.size - 1
    slot = np.int64(mine) & mask
    while slots[slot] != 0:
        number = slots[slot] - 1
        if (
            hashes[number] == mine
            and key_sizes[number] == size
            and _same(keys, first, data, starts[number], size)
        ):
            break
        slot = (slot + 1) & mask
    return np.int64(slot)


@compiled
def _put(
    number: Number, after: Bytes, first: Number, size: Number, data: Bytes, starts: I64Array,
    key_sizes: I32Array, sizes: I32Array, counts: I64Array,
) -> None:  # fmt: skip
    """Hold a row of `size` bytes, or none if that is below zero; there is room for it."""
    had, key_size = np.int64(sizes[number]), np.int64(key_sizes[number])
    if had >= 0:
        counts[LIVE] -= 1
        counts[WASTE] += key_size + had
    if size >= 0:
        counts[LIVE] += 1
        counts[WASTE] -= key_size + size
    if size > had:
        counts[WASTE] += key_size + size
        _copy(data, starts[number], data, counts[USED], key_size)
        starts[number] = counts[USED]
        counts[USED] += key_size + size
    if size >= 0:
        _copy(after, first, data, starts[number] + key_size, size)
    sizes[number] = size


@inlined
def _refusal(
    kind: Number, before: Bytes, first: Number, size: Number, data: Bytes, place: Number,
    held: Number,
) -> int:  # fmt: skip
    """Why a change that has not happened does not follow from the held row.

    Sizes below zero are of no row.
    """
    if kind == SET:
        return 0
    if kind == CREATE:
        return 0 if held < 0 else EXISTS
    if held < 0:
        return LACKS
    if size >= 0 and (size != held or not _same(before, first, data, place, held)):
        return DIFFERS
    return 0


@inlined
def _size(stops: I64Array, nulls: BoolArray, row: Number) -> np.int64:
    """Bytes of a value, -1 of one that is null."""
    return np.int64(-1) if nulls[row] else np.int64(stops[row + 1] - stops[row])


@inlined
def _touch(
    number: Number, held: Number, place: Number, data: Bytes, latest: I32Array, touched: I64Array,
    begun: Bytes, begun_stops: I64Array, begun_nulls: BoolArray, counts: I64Array,
) -> None:  # fmt: skip
    """Keep what a key has before its first change at the present time."""
    known = np.int64(latest[number])
    if known >= counts[TOUCHED] or touched[known] != number:
        known = counts[TOUCHED]
        latest[number], touched[known] = known, number
        begun_nulls[known] = held < 0
        begun_stops[known] = counts[BEGUN]
        if held > 0:
            _copy(data, place, begun, counts[BEGUN], held)
            counts[BEGUN] += held
        begun_stops[known + 1] = counts[BEGUN]
        counts[TOUCHED] += 1


@compiled
def take_changes(
    secret: U64Array, order: I64Array, times: U64Array, kinds: I64Array,
    keys: Bytes, key_stops: I64Array,
    before: Bytes, before_stops: I64Array, before_nulls: BoolArray,
    after: Bytes, after_stops: I64Array, after_nulls: BoolArray, begin: int,
    data: Bytes, starts: I64Array, key_sizes: I32Array, sizes: I32Array, hashes: U32Array,
    latest: I32Array, slots: I32Array,
    touched: I64Array, begun: Bytes, begun_stops: I64Array, begun_nulls: BoolArray,
    told: Bytes, told_stops: I64Array, told_times: U64Array, told_diffs: I64Array,
    refused: I64Array, counts: I64Array,
) -> int:  # fmt: skip
    """Take changes in from place `begin` of `order` on; the place at which there is no more room.

    It is one more than there are changes when the last time has been told too. A change to what
    is held already touches nothing.
    """
    counts[HELD] = 0
    for at in range(begin, order.size):
        row = order[at]
        if counts[TIME] != np.int64(times[row]):
            if not _close(
                data, starts, key_sizes, sizes, touched, begun, begun_stops, begun_nulls,
                told, told_stops, told_times, told_diffs, counts,
            ):  # fmt: skip
                return at
            counts[TIME] = np.int64(times[row])
        first, key_size = key_stops[row], key_stops[row + 1] - key_stops[row]
        after_size = _size(after_stops, after_nulls, row)
        if (
            counts[KEYS] == starts.size
            or 4 * counts[KEYS] + 4 > 3 * slots.size
            or counts[USED] + key_size + max(after_size, 0) > data.size
        ):
            return at
        whole = hash_of_bytes(secret[0], secret[1], keys, first, first + key_size)
        mine = np.uint32(whole >> np.uint64(32))
        slot = _find(mine, keys, first, key_size, data, starts, key_sizes, hashes, slots)
        number = np.int64(slots[slot]) - 1
        held = np.int64(-1) if number < 0 else np.int64(sizes[number])
        place = np.int64(0) if number < 0 else starts[number] + key_size
        if after_size == held and (held < 0 or _same(after, after_stops[row], data, place, held)):
            continue
        before_size = _size(before_stops, before_nulls, row)
        refused[row] = _refusal(
            kinds[row], before, before_stops[row], before_size, data, place, held
        )  # fmt: skip
        if refused[row] != 0:
            continue
        if held > begun.size - counts[BEGUN]:
            counts[HELD] = held
            return at
        if number < 0:
            number = counts[KEYS]
            counts[KEYS] += 1
            slots[slot], hashes[number], latest[number] = number + 1, mine, 0
            starts[number], key_sizes[number], sizes[number] = counts[USED], key_size, -1
            _copy(keys, first, data, counts[USED], key_size)  # where `_put` wants it
        _touch(
            number, held, place, data, latest, touched, begun, begun_stops, begun_nulls, counts
        )  # fmt: skip
        _put(
            number, after, after_stops[row], after_size, data, starts, key_sizes, sizes,
            counts,
        )  # fmt: skip
    if not _close(
        data, starts, key_sizes, sizes, touched, begun, begun_stops, begun_nulls,
        told, told_stops, told_times, told_diffs, counts,
    ):  # fmt: skip
        return order.size
    return order.size + 1
