"""Joins of interval updates: rows that agree, on what their intervals share, products of diffs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tidemill.arrangement.interval_updates.arranged import AsOf
from tidemill.arrangement.interval_updates.long_chains import LONG, is_long, looks_at
from tidemill.arrangement.interval_updates.rows import Change, Word, end_as_of
from tidemill.arrangement.interval_updates.shared import Facts
from tidemill.arrangement.interval_updates.slots import (
    BLOCK,
    I32Array,
    chains_ahead,
    find_slot,
    is_past,
    look_ahead,
    row_in,
)
from tidemill.arrangement.kernels.arrays import I64Array, compiled, inlined

_MANY = 1 << 10
"""So many matches are found without a question for memory."""
_FEW = 3
"""So many looks at a long chain walk along it, for less than its rows in order cost."""
NO_GUARDS = np.empty((0, 4), np.int64)
LESS, AT_MOST, EQUAL, DIFFERENT = 0, 1, 2, 3
"""Signs of guards."""


@dataclass(frozen=True, slots=True)
class JoinShape:
    """Which columns of a match and of a row of the right side have to do with each other.

    Shapes: (2, n) each, columns of the match above those of the row. `keys` are equal, and the row
    is looked up by them; `copies` are taken into the match; `checks` are equal after that. The last
    columns of a match are its time, expiry and nulls. The time becomes the greater one where
    `timed`. The expiry becomes the lesser one; -1 for `expiring` leaves it. Column 0 of a row is
    its time. No column in the mask `known` of the row may be null. The `guards`, (n, 4), compare
    columns of the match: a sign, a left and a right column, the word in the place of column -1.
    Order with a null is false; a null equals a null alone.
    """

    keys: I64Array
    copies: I64Array
    checks: I64Array
    timed: bool
    expiring: int
    known: int = 0
    guards: I64Array = field(default_factory=lambda: NO_GUARDS)


@inlined
def _taken(
    out: I64Array, at: Word, right: I64Array, row: Word, copies: I64Array, checks: I64Array,
    timed: bool, expiring: Word, known: Word, guards: I64Array,
) -> bool:  # fmt: skip
    """Complete a match by a row; whether its checks and guards hold."""
    width = out.shape[1] - 3
    nulls, theirs = out[at, width - 1], right[row, right.shape[1] - 3]
    for copy in range(copies.shape[1]):
        mine, other = copies[0, copy], copies[1, copy]
        out[at, mine] = right[row, other]
        nulls |= ((theirs >> other) & 1) << mine
    if timed and theirs & 1 == 0:
        none = (nulls >> (width - 3)) & 1
        if none:
            out[at, width - 3] = right[row, 0]
            nulls ^= np.int64(1) << (width - 3)
        else:
            out[at, width - 3] = max(out[at, width - 3], right[row, 0])
    if expiring >= 0:
        out[at, width - 2] = min(out[at, width - 2], right[row, expiring])
    out[at, width - 1] = nulls
    holds = bool(theirs & known == 0)
    for check in range(checks.shape[1]):
        mine, other = checks[0, check], checks[1, check]
        if out[at, mine] != right[row, other] or ((nulls >> mine) ^ (theirs >> other)) & 1:
            holds = False
    for guard in range(guards.shape[0]):
        sign, mine, other = guards[guard, 0], guards[guard, 1], guards[guard, 2]
        a, b, none, nil = guards[guard, 3], guards[guard, 3], np.int64(0), np.int64(0)
        if mine >= 0:
            a, none = out[at, mine], (nulls >> mine) & 1
        if other >= 0:
            b, nil = out[at, other], (nulls >> other) & 1
        if sign == LESS:
            holds = holds and a < b and none | nil == 0
        elif sign == AT_MOST:
            holds = holds and a <= b and none | nil == 0
        else:
            holds = holds and (a == b and none == nil) == (sign == EQUAL)
    return holds


@inlined
def _matched(
    left: I64Array, i: Word, right: I64Array, row: Word, end: Word, counts: I64Array,
    copies: I64Array, checks: I64Array, timed: bool, expiring: Word, known: Word, guards: I64Array,
    out: I64Array, found: int,
) -> int:  # fmt: skip
    """Write the match of a row of the left with one of the right; how many there are then."""
    width = left.shape[1] - 3
    for column in range(width):
        out[found, column] = left[i, column]
    out[found, width] = max(left[i, width], right[row, right.shape[1] - 2])
    out[found, width + 1] = min(left[i, width + 1], end)
    diff = left[i, width + 2]
    out[found, width + 2] = diff if row < counts[1] else -diff
    if _taken(out, found, right, row, copies, checks, timed, expiring, known, guards):
        return found + 1
    return found


@compiled
def _join(
    left: I64Array, right: I64Array, counts: I64Array, slots: I32Array, nexts: I32Array,
    used: I64Array, keys: I64Array, copies: I64Array, checks: I64Array, timed: bool, expiring: int,
    known: int, guards: I64Array, as_of: AsOf, ordered: bool, places: I64Array, aside: I64Array,
    out: I64Array,
) -> int:  # fmt: skip
    """Fill `out` from where `places` say: a row of the left, and where its chain goes on.

    Then they say how many looks are set aside, each with the row at which a long chain goes on.
    """
    place, lasts = as_of
    width = left.shape[1] - 3
    nulls, mine, theirs = right.shape[1] - 3, keys[0], keys[1]
    found, hashes = 0, np.empty(BLOCK + 1, np.uint64)
    i, row = places[0], places[1]
    base, ready = i, i
    while i < left.shape[0]:
        if row == -2:
            if i >= ready:
                last = left.shape[0]
                base, ready = i, look_ahead(left, i, last, mine, right, slots, used, hashes)
                chains_ahead(ready - i, nexts, slots, used, hashes)
            at = find_slot(
                left, i, mine, width - 1, hashes[i - base], right, theirs, nulls, slots, used
            )
            row = row_in(slots, at, used)
        looked = 0
        while row >= 0:
            if looked == LONG:
                aside[places[2], 0], aside[places[2], 1] = i, row
                places[2] += 1
                break
            looked += 1
            end = end_as_of(right, row, place, lasts)
            if max(left[i, width], right[row, nulls + 1]) < min(left[i, width + 1], end):
                if found == out.shape[0]:
                    places[0], places[1] = i, row
                    return found
                found = _matched(
                    left, i, right, row, end, counts, copies, checks, timed, expiring, known,
                    guards, out, found,
                )  # fmt: skip
            past = ordered and is_past(right, row, left[i, width], place)
            row = np.int64(-1) if past else np.int64(nexts[row])
        i += 1
        row = -2
    places[0], places[1] = i, row
    return found


@compiled
def _join_in_order(
    left: I64Array, right: I64Array, counts: I64Array, copies: I64Array, checks: I64Array,
    timed: bool, expiring: int, known: int, guards: I64Array, asking: I64Array, rows: I64Array,
    ends: I64Array, first: I64Array, last: I64Array, places: I64Array, out: I64Array,
) -> int:  # fmt: skip
    """Fill `out` from where `places` say: a look at a long chain, how many rows of it are done."""
    width, start, found = left.shape[1] - 3, right.shape[1] - 2, 0
    while places[0] < asking.size:
        i = asking[places[0]]
        for at in range(first[places[0]] + places[1], last[places[0]]):
            row = rows[at]
            if max(left[i, width], right[row, start]) < min(left[i, width + 1], ends[at]):
                if found == out.shape[0]:
                    places[1] = at - first[places[0]]
                    return found
                found = _matched(
                    left, i, right, row, ends[at], counts, copies, checks, timed, expiring, known,
                    guards, out, found,
                )  # fmt: skip
        places[0], places[1] = places[0] + 1, 0
    return found


def join(
    left: Change, right: Facts, shape: JoinShape,
    require: Callable[[int], None] = lambda wanted: None,
) -> Change:  # fmt: skip
    """The matches of `left`, each completed by a row of the right side that agrees with it.

    `require` is asked for the bytes of many matches before they are found, and may raise.
    Cost: O(left + matches + r log r), of which r are the rows of the right with a key of the left.
    """
    if not len(left) or not len(right):
        return left[:0]
    places, aside = np.array([0, -2, 0], np.int64), np.empty((len(left), 2), np.int64)
    parts: list[Change] = []
    index = right.hold(shape.keys[1].tolist())
    rows, counts = right.rows, right.counts
    told = shape.copies, shape.checks, shape.timed, shape.expiring, shape.known, shape.guards

    def filled(fill: Callable[[Change], int], places: I64Array, looks: int) -> None:
        room = 2 * looks + 16
        while places[0] < looks:
            if room > _MANY:
                require(8 * left.shape[1] * (room + sum(map(len, parts))))
            out = np.empty((room, left.shape[1]), np.int64)
            parts.append(out[: fill(out)])
            room *= 2

    try:
        walk = partial(
            _join, left, rows, counts, index.slots, index.nexts, index.used, shape.keys, *told,
            right.as_of, index.ordered, places, aside,
        )  # fmt: skip
        filled(walk, places, len(left))
        long = aside[: places[2]]
        for looks in looks_at(long, left, rows, index.nexts, right.as_of, _FEW):
            done = np.zeros(2, np.int64)
            search = partial(_join_in_order, left, rows, counts, *told, *looks, done)
            filled(search, done, len(looks.left))
    finally:
        right.release()
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@compiled
def _begin(
    change: I64Array, template: I64Array, keys: I64Array, copies: I64Array, checks: I64Array,
    timed: bool, expiring: int, known: int, guards: I64Array, out: I64Array,
) -> int:  # fmt: skip
    found = 0
    nulls, width = change.shape[1] - 4, template.size
    for row in range(change.shape[0]):
        for at in range(width):
            out[found, at] = template[at]
        for at in range(3):
            out[found, width + at] = change[row, nulls + 1 + at]
        holds = True
        for key in range(keys.shape[1]):
            mine, other = keys[0, key], keys[1, key]
            differ = ((template[width - 1] >> mine) ^ (change[row, nulls] >> other)) & 1
            if template[mine] != change[row, other] or differ:
                holds = False
        # The nulls of a change stand one column before those of an arrangement's row.
        if holds and _taken(
            out, found, change[:, :-1], row, copies, checks, timed, expiring, known, guards
        ):
            found += 1
    return found


def begin(change: Change, template: I64Array, shape: JoinShape) -> Change:
    """The matches of a change with the first atom. `template` is a match with constants alone.

    Cost: O(change).
    """
    out = np.empty((len(change), template.size + 3), np.int64)
    found = _begin(
        change, template, shape.keys, shape.copies, shape.checks, shape.timed, shape.expiring,
        shape.known, shape.guards, out,
    )  # fmt: skip
    return out[:found]


@inlined
def _is_absent_by(
    left: I64Array, i: Word, right: I64Array, row: Word, mine: Word, other: Word
) -> bool:  # fmt: skip
    """Whether a row counts against a match: it has no lesser word, nor a null that others lack."""
    width, nulls = left.shape[1] - 3, right.shape[1] - 3
    return bool(
        mine < 0
        or right[row, other] > left[i, mine]
        or (right[row, other] == left[i, mine] and right[row, nulls] & ~left[i, width - 1] == 0)
    )


@compiled
def _subtract(
    left: I64Array, columns: I64Array, right: I64Array, slots: I32Array, nexts: I32Array,
    used: I64Array, theirs: I64Array, least: tuple[int, int], as_of: AsOf, ordered: bool,
    places: I64Array, stack: I64Array, out: I64Array, aside: I64Array,
) -> int:  # fmt: skip
    """`places`: a row of the left, pieces on the stack, looks at long chains set aside."""
    width = left.shape[1] - 3
    nulls = right.shape[1] - 3
    mine, other = least
    place, lasts = as_of
    found, i, top = 0, places[0], places[1]
    hashes, base, ready = np.empty(BLOCK + 1, np.uint64), i, i
    while i < left.shape[0]:
        if i >= ready:
            last = left.shape[0]
            base, ready = i, look_ahead(left, i, last, columns, right, slots, used, hashes)
        at = find_slot(
            left, i, columns, width - 1, hashes[i - base], right, theirs, nulls, slots, used
        )
        head = row_in(slots, at, used)
        if top < 0:
            stack[0, 0], stack[0, 1] = left[i, width], left[i, width + 1]
            top = 1
            if is_long(right, nexts, head, left[i, width], place, ordered):
                aside[places[2], 0], aside[places[2], 1] = i, head
                places[2] += 1
                top = 0
        while top > 0:
            if found == out.shape[0] or top + 2 > stack.shape[0]:
                places[0], places[1] = i, top
                return found
            top -= 1
            start, end = stack[top, 0], stack[top, 1]
            row = np.int64(head)
            while row >= 0:
                first = max(start, right[row, nulls + 1])
                last = min(end, end_as_of(right, row, place, lasts))
                if first < last and _is_absent_by(left, i, right, row, mine, other):
                    break
                past = ordered and is_past(right, row, start, place)
                row = np.int64(-1) if past else np.int64(nexts[row])
            if row >= 0:
                if start < first:
                    stack[top, 0], stack[top, 1] = start, first
                    top += 1
                if last < end:
                    stack[top, 0], stack[top, 1] = last, end
                    top += 1
            else:
                _rest(left, i, start, end, out, found)
                found += 1
        i += 1
        top = -1
    places[0], places[1] = i, top
    return found


@inlined
def _rest(left: I64Array, i: Word, start: Word, end: Word, out: I64Array, found: Word) -> None:
    """Write a piece of a match."""
    width = left.shape[1] - 3
    for column in range(width + 3):
        out[found, column] = left[i, column]
    out[found, width], out[found, width + 1] = start, end


@compiled
def _subtract_in_order(
    left: I64Array, right: I64Array, least: tuple[int, int], asking: I64Array, rows: I64Array,
    ends: I64Array, first: I64Array, last: I64Array, places: I64Array, out: I64Array,
) -> int:  # fmt: skip
    """Fill `out` from where `places` say: a look at a long chain. It has room for any one look."""
    width, begin, found = left.shape[1] - 3, right.shape[1] - 2, 0
    mine, other = least
    while places[0] < asking.size:
        look = places[0]
        i = asking[look]
        if found + last[look] - first[look] + 1 > out.shape[0]:
            return found
        start, end = left[i, width], left[i, width + 1]
        for at in range(first[look], last[look]):
            row = rows[at]
            if ends[at] > start and _is_absent_by(left, i, right, row, mine, other):
                if start < right[row, begin]:
                    _rest(left, i, start, right[row, begin], out, found)
                    found += 1
                start = ends[at]
        if start < end:
            _rest(left, i, start, end, out, found)
            found += 1
        places[0] += 1
    return found


def subtract(
    left: Change, right: Facts, columns: I64Array, theirs: I64Array,
    least: tuple[int, int] = (-1, -1),
) -> Change:  # fmt: skip
    """Each match outside the intervals of the rows that agree with it.

    Shapes: `columns` of the match are compared with `theirs` of the rows. With `least`, (column of
    the match, column of the row), rows with a lesser word there do not count. Of equal words a row
    with a null that the match lacks does not count. Cost: O(left + pieces + r log r), of which r
    are the rows of the right with a key of the left.
    """
    if not len(left) or not len(right):
        return left
    places, aside = np.array([0, -1, 0], np.int64), np.empty((len(left), 2), np.int64)
    stack = np.empty((16, 2), np.int64)
    parts = []
    room = len(left) + 16
    index = right.hold(theirs.tolist())
    try:
        while places[0] < len(left):
            out = np.empty((room, left.shape[1]), np.int64)
            found = _subtract(
                left, columns, right.rows, index.slots, index.nexts, index.used, theirs,
                least, right.as_of, index.ordered, places, stack, out, aside,
            )  # fmt: skip
            parts.append(out[:found])
            room *= 2
            stack = np.concatenate([stack, np.empty_like(stack)])
        for looks in looks_at(aside[: places[2]], left, right.rows, index.nexts, right.as_of):
            done, room = np.zeros(1, np.int64), int((looks.last - looks.first).max()) + 1
            while done[0] < len(looks.left):
                out = np.empty((room, left.shape[1]), np.int64)
                found = _subtract_in_order(left, right.rows, least, *looks, done, out)
                parts.append(out[:found].copy() if 2 * found < room else out[:found])
    finally:
        right.release()
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@compiled
def _project(
    matches: I64Array, copies: I64Array, time: int, expiry: int, out: I64Array
) -> None:  # fmt: skip
    width, nulls = matches.shape[1] - 3, out.shape[1] - 4
    for row in range(matches.shape[0]):
        mask = np.int64(0)
        theirs = matches[row, width - 1]
        for copy in range(copies.shape[1]):
            other, mine = copies[0, copy], copies[1, copy]
            out[row, mine] = matches[row, other]
            mask |= ((theirs >> other) & 1) << mine
        if time >= 0:
            out[row, time] = matches[row, width - 3]
            mask |= ((theirs >> (width - 3)) & 1) << time
        if expiry >= 0:
            out[row, expiry] = matches[row, width - 2]
        out[row, nulls] = mask
        for at in range(3):
            out[row, nulls + 1 + at] = matches[row, width + at]


def project(
    matches: Change, copies: I64Array, columns: int, time: int = -1, expiry: int = -1
) -> Change:
    """Other rows for matches: copied columns, their times and expiries where asked for, else 0.

    Shapes: `copies` (2, n), columns of the matches above those of the rows. Cost: O(matches).
    """
    out = np.zeros((len(matches), columns + 3), np.int64)
    _project(matches, copies, time, expiry, out)
    return out


@compiled
def _tick(
    matches: I64Array, rows: I64Array, times: I64Array, offset: I64Array, period: I64Array,
    columns: I64Array, timed: bool, out: I64Array,
) -> int:  # fmt: skip
    width, found = matches.shape[1] - 3, 0
    for i in range(rows.size):
        row, time = rows[i], times[i]
        start = max(matches[row, width], time)
        if start >= matches[row, width + 1]:
            continue
        for column in range(width + 3):
            out[found, column] = matches[row, column]
        out[found, width] = start
        out[found, columns[0]] = time
        out[found, columns[1]], out[found, columns[2]] = offset[row], period[row]
        if timed:
            bit = np.int64(1) << (width - 3)
            if matches[row, width - 1] & bit == 0:
                time = max(time, matches[row, width - 3])
            out[found, width - 3] = time
            out[found, width - 1] &= ~bit
        found += 1
    return found


def tick(
    matches: Change, rows: I64Array, times: I64Array, clock: tuple[I64Array, I64Array],
    columns: I64Array, timed: bool,
) -> Change:  # fmt: skip
    """Matches, by number, each from the time of a tick on. Cost: O(ticks).

    Shapes: `rows` and `times` of each tick; offset and period in `clock` of each match. Time,
    offset and period go into `columns`. The time of a match becomes the greater one where `timed`.
    """
    out = np.empty((len(rows), matches.shape[1]), np.int64)
    found = _tick(matches, rows, times, *clock, columns, timed, out)
    return out[:found]
