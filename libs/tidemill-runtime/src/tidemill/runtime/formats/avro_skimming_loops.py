"""The way of a skimming through the bytes of one value, compiled."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels import I64Array, compiled
from tidemill.runtime.formats.plain_wire import varint
from tidemill.runtime.packed_values import Bytes

PLACED, TRUTH, SHORT, LONG, TEXT, ENUM, UNION, RECORD, ARRAY, MAP = range(10)
"""Kinds of types; a placed value has as many bytes as its type says."""
GOOD, TORN, BRANCH, SYMBOL, NO_TRUTH, TOO_LONG, DEEP, MANY = range(8)
"""Results of a way."""
LEFT = -1


@compiled
def skim(
    data: Bytes, start: int, types: I64Array, items_max: int, levels_max: int, places: I64Array
) -> tuple[int, np.int64]:
    """Pass over the value of type 0 from `start` to the end of `data`.

    Type t has the kind `types[0, t]`. Its `types[1, t]` bytes, symbols or inner types stand in row
    3 from `types[2, t]` on. `places` gets the place of each field of a record, and the end. Returns
    the result, and the number that was wrong or the end.
    Cost: O(bytes + items).
    """
    kinds, counts, firsts, inner = types[0], types[1], types[2], types[3]
    end = np.zeros(1, np.int64)
    frames = np.empty((levels_max + 1, 2), np.int64)
    """The types and places around a value, a row for each level."""
    at, stop, top, kept, items = start, data.size, -1, 0, 0
    while True:
        if kept == LEFT:
            if top < 0:
                return GOOD, np.int64(at)
            around, left = frames[top, 0], frames[top, 1]
            if kinds[around] == RECORD:
                if top == 0:
                    places[left] = at
                if left == counts[around]:
                    top -= 1
                    continue
                frames[top, 1] = left + 1
                kept = inner[firsts[around] + left]
                continue
            fresh = left == 0
            ended, at, left = _item(
                data, at, stop, kinds[around] == MAP, left, items_max - items, end
            )
            if ended != GOOD:
                return ended, end[0]
            if left == LEFT:
                top -= 1
                continue
            items += left if fresh else 0
            frames[top, 1] = left - 1
            kept = inner[firsts[around]]
            continue
        if top + 1 >= frames.shape[0]:
            return DEEP, end[0]
        kind = kinds[kept]
        if kind == UNION:
            at, number = varint(data, at, stop)
            if at < 0:
                return TORN, end[0]
            end[0] = _signed(number)
            if not 0 <= end[0] < counts[kept]:
                return BRANCH, end[0]
            kept = inner[firsts[kept] + end[0]]
            continue
        if kind >= RECORD:
            top += 1
            frames[top, 0], frames[top, 1] = kept, 0
            if kind == RECORD:
                items += counts[kept]
                if items > items_max:
                    return MANY, end[0]
        else:
            at, ended = _leaf(data, at, stop, kind, counts[kept], end)
            if ended != GOOD:
                return ended, end[0]
        kept = LEFT


@compiled
def _signed(number: np.uint64) -> np.int64:
    return np.int64(number >> np.uint64(1)) ^ -np.int64(number & np.uint64(1))


@compiled
def _block(data: Bytes, at: int, stop: int) -> tuple[int, np.int64]:
    """End of the head of a block, and its number of items; the end is −1 if there is none."""
    at, number = varint(data, at, stop)
    if at < 0:
        return -1, np.int64(0)
    count = _signed(number)
    if count >= 0:
        return at, count
    at, number = varint(data, at, stop)
    return (-1 if count == -count else at), -count  # NB: −2⁶³ is its own opposite


@compiled
def _item(
    data: Bytes, at: int, stop: int, keyed: bool, left: int, room: int, end: I64Array
) -> tuple[int, int, int]:
    """Result of the way to an item, its place, and items of its block; LEFT behind the last."""
    if left == 0:
        at, found = _block(data, at, stop)
        if at < 0:
            return TORN, at, 0
        if found == 0:
            return GOOD, at, LEFT
        if found > room:  # their sum may have more than 64 bits
            return MANY, at, 0
        left = int(found)
    if keyed:
        at = _text_end(data, at, stop, end)
    return (GOOD if at >= 0 else TORN), at, left


@compiled
def _text_end(data: Bytes, at: int, stop: int, end: I64Array) -> int:
    """End of a text or of bytes; −1 if it is not there."""
    at, number = varint(data, at, stop)
    if at < 0:
        return -1
    end[0] = _signed(number)
    return at + end[0] if 0 <= end[0] <= stop - at else -1


@compiled
def _leaf(data: Bytes, at: int, stop: int, kind: int, count: int, end: I64Array) -> tuple[int, int]:
    """End of a value without inner ones, and how it ended."""
    if kind == PLACED:
        end[0] = count
        return (at + count, GOOD) if count <= stop - at else (at, TORN)
    if kind == TEXT:
        at = _text_end(data, at, stop, end)
        return at, GOOD if at >= 0 else TORN
    if kind == TRUTH:
        if at >= stop:
            return at, TORN
        end[0] = data[at]
        return at + 1, GOOD if data[at] <= 1 else NO_TRUTH
    at, number = varint(data, at, stop)
    if at < 0:
        return at, TORN
    end[0] = _signed(number)
    if kind == SHORT and not -(1 << 31) <= end[0] < 1 << 31:
        return at, TOO_LONG
    if kind == ENUM and not 0 <= end[0] < count:
        return at, SYMBOL
    return at, GOOD
