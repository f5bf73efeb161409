"""Interval updates row by row: twins of `tidemill.arrangement.interval_updates`.

Rows are lists of words: columns, start, end, diff; a move is columns, instant, diff.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from tidemill.arrangement.interval_updates import COUNT, DIFFERENT, END_WORD, EQUAL, LESS, SUM

Row = Sequence[int]


def moves_of(changes: Iterable[Row], lower: int, upper: int) -> list[tuple[int, ...]]:
    """The begins and ends of rows at instants in [lower, upper), by instant, ends first.

    Moves of one row and instant are added up; those that add up to 0 are left out.
    """
    found: Counter[tuple[int, ...]] = Counter()
    for *columns, start, end, diff in changes:
        for instant, sign in ((start, diff), (end, -diff)):
            if lower <= instant < upper and instant != END_WORD:
                found[*columns, instant] += sign
    moves = [(*move, diff) for move, diff in found.items() if diff]
    return sorted(moves, key=lambda move: (move[-2], move[-1], move))


def all_new(changes: Iterable[Row], change: Iterable[Row], key: Sequence[int]) -> bool:
    """Whether the rows of a change differ in their key, also from those of earlier changes."""

    def keys(rows: Iterable[Row]) -> list[tuple[int, ...]]:
        return [tuple(row[at] for at in key) for row in rows]

    known, new = set(keys(changes)), keys(change)
    return len(set(new)) == len(new) and known.isdisjoint(new)


def rows_by_key(rows: Sequence[Row], columns: Sequence[int]) -> dict[Row, list[int]]:
    """The numbers of the rows of each key that are not dead, from new to old.

    Shapes: columns, of which the last one has a bit for each null, start, end.
    """
    found: dict[Row, list[int]] = {}
    for number, row in enumerate(rows):
        if row[-2] < row[-1]:
            key = (*(row[at] for at in columns), *(row[-3] >> at & 1 for at in columns))
            found.setdefault(key, []).insert(0, number)
    return found


def lives_of(changes: Iterable[Row], identity: Sequence[int], expiry: int) -> set[tuple[int, ...]]:
    """The matches that live, with their stretches: from when they held first to their expiry.

    Shapes: identity, start, end. The intervals of a match are added up at every instant.
    """
    held: dict[tuple[int, ...], Counter[int]] = {}
    ends: dict[tuple[int, ...], int] = {}
    for row in changes:
        key = tuple(row[at] for at in identity)
        ends[key] = row[expiry]
        moves = held.setdefault(key, Counter())
        moves[row[-3]] += row[-1]
        moves[row[-2]] -= row[-1]
    lives = set()
    for key, moves in held.items():
        starts = [instant for instant in sorted(moves) if moves[instant]]
        if starts and starts[0] < ends[key]:
            lives.add((*key, starts[0], ends[key]))
    return lives


def holds(sign: int, left: int | None, right: int | None) -> bool:
    """Whether a comparison by the sign of a guard is true; None is null."""
    if sign in (EQUAL, DIFFERENT):
        return (left == right) == (sign == EQUAL)
    if left is None or right is None:
        return False
    return left < right if sign == LESS else left <= right


def finished(stretch: Row, groups: int, kinds: Sequence[int]) -> list[float | int | None]:
    """The values of a stretch of sums, of a kind each; None is null."""
    found: list[float | int | None] = []
    for at, kind in enumerate(kinds):
        count, high, low = stretch[groups + 3 + 3 * at : groups + 6 + 3 * at]
        total = (high << 32) + low
        if kind == COUNT or not count:
            found.append(count if kind == COUNT else None)
        else:
            found.append(total if kind == SUM else total / count)
    return found


def ticked(match: Row, time: int, offset: int, period: int) -> list[int] | None:
    """A match of the columns (time of the tick, offset, period, time, expiry, nulls) at a tick."""
    start, end, diff = max(match[6], time), *match[7:]
    own = time if match[5] & 8 else max(match[3], time)
    words = [time, offset, period, own, match[4], match[5] & ~8, start, end, diff]
    return words if start < end else None


def best_at(
    rows: Iterable[Row], key: Sequence[int], expiry: int, instants: Iterable[int]
) -> set[tuple[Row, int]]:
    """The derivation of each key that ends last at each instant, with the instant.

    Of those alike it is one with fewest nulls, which stand before start and end.
    """
    found: dict[tuple[Row, int], Row] = {}
    known = [tuple(row) for row in rows]
    for instant in instants:
        for row in known:
            if row[-2] <= instant < row[-1]:
                at = (tuple(row[each] for each in key), instant)
                best = found.get(at)
                if best is None or (row[expiry], -row[-3]) > (best[expiry], -best[-3]):
                    found[at] = row[:-2]
    return {(row, instant) for (_, instant), row in found.items()}


def tallied(contributions: Iterable[Row], kinds: Sequence[int], instant: int) -> set[Row]:
    """The facts of groups at an instant: none (0), group, first expiry, values, nulls.

    A contribution is group, time, expiry, values, nulls, start, end, diff; of no value is told what
    is null in all of them.
    """
    groups: dict[int, list[Row]] = {}
    for row in contributions:
        if row[-3] <= instant < row[-2]:
            groups.setdefault(row[0], []).append(row)
    found = set[Row]()
    for group, rows in groups.items():
        ends = Counter[int]()
        for row in rows:
            ends[row[2]] += row[-1]
        if not sum(ends.values()):
            continue
        values, nulls = list[int](), 1
        for at, kind in enumerate(kinds, 3):
            known = [row for row in rows if not row[-4] >> at & 1]
            count, total = sum(r[-1] for r in known), sum(r[-1] * r[at] for r in known)
            if kind in (COUNT, SUM):
                values.append(count if kind == COUNT else total)
            else:
                values.append(int(np.float64(total / max(count, 1)).view(np.int64)))
            nulls |= (kind != COUNT and not count) << at
        expiry = min(each for each, count in ends.items() if count > 0)
        found.add((0, group, expiry, *values, nulls))
    return found


def with_witness(
    match: Row, rank: tuple[int, int], witnesses: Iterable[Row], places: Sequence[int],
    instant: int,
) -> int | None:  # fmt: skip
    """The greatest expiry of the witnesses of a match at an instant; None where it has none.

    Matches are (key, id, time, expiry, nulls, start, end), of witnesses `places` are the columns of
    key, rank, id and expiry. An id at -1 does not matter. They agree in the key, differ in the id,
    and admit ranks from the first up to the second one of `rank`.
    """
    if not match[5] <= instant < match[6]:
        return None
    key, place, other, expiry = places
    found = [
        row[expiry]
        for row in witnesses
        if row[key] == match[0]
        and row[-3] >> key & 1 == match[4] & 1
        and (other < 0 or row[other] != match[1])
        and rank[0] <= row[place] <= rank[1]
        and row[-2] <= instant < row[-1]
    ]
    return min(match[3], max(found)) if found else None
