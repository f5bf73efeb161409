"""Begins and ends of rows as moves: (columns, instant, diff), those below an instant and later."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.interval_updates.rows import END_WORD, Change, Word, hash_of
from tidemill.arrangement.interval_updates.slots import BLOCK, I32Array
from tidemill.arrangement.kernels.arrays import I64Array, compiled, inlined

_FEW = 16
"""At most this many moves are compared each with each."""


@inlined
def _move(change: I64Array, row: Word, at: Word, diff: Word, out: I64Array, place: Word) -> None:
    """Write the begin or end of a row, whose instant stands in the column `at`."""
    width = out.shape[1] - 2
    for column in range(width):
        out[place, column] = change[row, column]
    out[place, width], out[place, width + 1] = change[row, at], diff


@compiled
def _cut(change: I64Array, upper: int, out: I64Array) -> tuple[int, int]:
    """Moves below an instant from the front of `out`, others from its back; how many of both."""
    width, now, later = change.shape[1] - 3, 0, 0
    for row in range(change.shape[0]):
        diff = change[row, width + 2]
        if change[row, width] < upper:
            _move(change, row, width, diff, out, now)
            now += 1
        else:
            later += 1
            _move(change, row, width, diff, out, out.shape[0] - later)
        if change[row, width + 1] == END_WORD:
            continue
        if change[row, width + 1] < upper:
            _move(change, row, width + 1, -diff, out, now)
            now += 1
        else:
            later += 1
            _move(change, row, width + 1, -diff, out, out.shape[0] - later)
    return now, later


def cut_moves(change: Change, upper: int) -> tuple[I64Array, I64Array]:
    """The moves of a change below an instant, and those at or after it. Cost: O(change).

    Shapes: (n, columns + 2) each. An end at `END_WORD` is no move.
    """
    out = np.empty((2 * len(change), change.shape[1] - 1), np.int64)
    now, later = _cut(change, upper, out)
    return out[:now], out[len(out) - later :]


@compiled
def _moves_ahead(
    moves: I64Array, first: int, last: int, columns: I64Array, slots: I32Array, bits: int,
    places: I64Array,
) -> None:  # fmt: skip
    """The slots of moves, read ahead with the moves that they lead to.

    Shapes: `places` (BLOCK + 1,), of which the last one is of no use.
    """
    read, down = np.int64(0), np.uint64(64 - bits)
    for row in range(first, last):
        places[row - first] = np.int64(hash_of(moves, row, columns) >> down)
    for at in range(last - first):
        read ^= np.int64(slots[places[at]])
    for at in range(last - first):
        known = np.int64(slots[places[at]])
        if known >= 0:
            read ^= moves[known, 0] ^ moves[known, moves.shape[1] - 1]
    places[BLOCK] = read


@compiled
def _net(moves: I64Array, columns: I64Array, slots: I32Array, bits: int) -> int:
    """Add moves of one row and instant up, at the first of them; how many rows are left."""
    width, found, ready, base = moves.shape[1], 0, 0, 0
    places = np.empty(BLOCK + 1, np.int64)
    for row in range(moves.shape[0]):
        if row >= ready:
            base, ready = row, min(row + BLOCK, moves.shape[0])
            _moves_ahead(moves, base, ready, columns, slots, bits, places)
        at = places[row - base]
        while slots[at] >= 0:
            known, same = np.int64(slots[at]), True
            for column in range(width - 1):
                if moves[known, column] != moves[row, column]:
                    same = False
                    break
            if same:
                break
            at = (at + 1) & (slots.size - 1)
        if slots[at] >= 0:
            moves[slots[at], width - 1] += moves[row, width - 1]
            continue
        slots[at] = found
        if found != row:
            for column in range(width):
                moves[found, column] = moves[row, column]
        found += 1
    left = 0
    for row in range(found):
        if moves[row, width - 1] != 0:
            if left != row:
                for column in range(width):
                    moves[left, column] = moves[row, column]
            left += 1
    return left


@compiled
def _net_few(moves: I64Array) -> int:
    """Add up and order moves in place; how many rows are left. Cost: O(n²)."""
    width, found = moves.shape[1], 0
    for row in range(moves.shape[0]):
        known = 0
        while known < found:
            column = 0
            while column < width - 1 and moves[known, column] == moves[row, column]:
                column += 1
            if column == width - 1:
                break
            known += 1
        if known < found:
            moves[known, width - 1] += moves[row, width - 1]
            continue
        for column in range(width):
            moves[found, column] = moves[row, column]
        found += 1
    left = 0
    for row in range(found):
        at, diff = moves[row, width - 2], moves[row, width - 1]
        if diff == 0:
            continue
        place = left
        while place > 0 and (
            moves[place - 1, width - 2] > at
            or (moves[place - 1, width - 2] == at and moves[place - 1, width - 1] > diff)
        ):
            place -= 1
        for column in range(width):
            word = moves[row, column]
            for other in range(left, place, -1):
                moves[other, column] = moves[other - 1, column]
            moves[place, column] = word
        left += 1
    return left


@compiled
def _delay(moves: I64Array, instants: I64Array, expiry: int, out: I64Array) -> int:
    width, found = moves.shape[1] - 2, 0
    for row in range(moves.shape[0]):
        at = instants[np.searchsorted(instants, moves[row, width]) + 1]
        if at < moves[row, expiry]:
            for column in range(width):
                out[found, column] = moves[row, column]
            out[found, width], out[found, width + 1] = at, moves[row, expiry]
            out[found, width + 2] = moves[row, width + 1]
            found += 1
    return found


def delayed(moves: I64Array, instants: I64Array, expiry: int) -> Change:
    """Moves as changes from the second instant on that is not before them, until their expiry.

    Shapes: instants ascend, and two of them are not before any move; `expiry` is a column. A row
    that has ended by then is left out. Cost: O(moves).
    """
    out = np.empty((len(moves), moves.shape[1] + 1), np.int64)
    return out[: _delay(moves, instants, expiry, out)]


@compiled
def _looked_over(moves: I64Array) -> tuple[bool, bool]:
    """Whether the diffs of moves are all 1 or all -1, and whether the moves are in order."""
    width, alike, ordered = moves.shape[1], True, True
    for row in range(1, moves.shape[0]):
        before, at = moves[row - 1, width - 2], moves[row, width - 2]
        first, diff = moves[row - 1, width - 1], moves[row, width - 1]
        alike = alike and first == diff
        ordered = ordered and (before < at or (before == at and first <= diff))
    return alike and abs(moves[0, width - 1]) == 1, ordered


def net_moves(moves: I64Array, of_set: bool = False, net: bool = False) -> I64Array:
    """Moves with those of one row and instant added up, by instant; ends before begins.

    The array given is written to. Moves `of_set` are those of rows that are there once or not at
    all: if none of them ends, all of them differ. Those that are `net` differ in any case. Cost:
    O(n log n) for the order, which is near O(n) where moves come nearly in order.
    """
    if len(moves) < _FEW:
        return moves[: _net_few(moves)] if len(moves) > 1 else moves
    alike, ordered = _looked_over(moves)
    if not net and not (of_set and alike):
        bits = int(2 * len(moves) - 1).bit_length()
        columns = np.arange(moves.shape[1] - 1)
        moves = moves[: _net(moves, columns, np.full(1 << bits, -1, np.int32), bits)]
        ordered = False
    if ordered:
        return moves
    in_order: I64Array = moves[np.lexsort((moves[:, -1], moves[:, -2]))]
    return in_order
