"""Groups of rows over time: the stretches in which the same rows of a group are present, and the
best of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemill.arrangement.kernels.arrays import BoolArray, I64Array, compiled
from tidemill.arrangement.relational.grouping import buckets_of, deal, number_few
from tidemill.arrangement.relational.selecting import extent

_INSERTED_MAX = 32
"""Groups of up to so many rows are put in order by insertion."""


@compiled
def _uniform(ids: I64Array, start: I64Array, stop: I64Array, firsts: I64Array) -> BoolArray:
    same = np.ones(firsts.size, np.bool_)
    for row in range(ids.size):
        first = firsts[ids[row]]
        if start[row] != start[first] or stop[row] != stop[first]:
            same[ids[row]] = False
    return same


def uniform_groups(ids: I64Array, start: I64Array, stop: I64Array, firsts: I64Array) -> BoolArray:
    """For each group whether all of its rows come and go together. Cost: O(n)."""
    return _uniform(ids, start, stop, firsts)


@dataclass(frozen=True, slots=True)
class Runs:
    """The stretches of all groups, in the order (group, start), also those in which nobody is
    present.

    Of each run its group, start, stop, and how many rows are present. `events` are the comings
    (row) and goings (~row) in that order, those of run i are events[bounds[i]:bounds[i + 1]]; they
    happen at its start.
    """

    group: I64Array
    start: I64Array
    stop: I64Array
    present: I64Array
    events: I64Array
    bounds: I64Array

    @property
    def firsts(self) -> BoolArray:
        """Whether each run is the first of its group."""
        first = np.ones(len(self.group), np.bool_)
        first[1:] = self.group[1:] != self.group[:-1]
        return first

    def of_events(self) -> I64Array:
        """The run of each event."""
        return np.repeat(np.arange(len(self.group)), np.diff(self.bounds))


@compiled
def _ascending(rows: I64Array, instants: I64Array, first: int, last: int) -> None:
    """Put rows[first:last] in the order of their instants; those of one instant stay in their
    order.
    """
    for at in range(first + 1, last):
        if instants[rows[at]] < instants[rows[at - 1]]:
            if last - first > _INSERTED_MAX:
                part = rows[first:last].copy()
                order = np.argsort(instants[part], kind="mergesort")
                for place in range(order.size):
                    rows[first + place] = part[order[place]]
                return
            row, place = rows[at], at
            while place > first and instants[rows[place - 1]] > instants[row]:
                rows[place] = rows[place - 1]
                place -= 1
            rows[place] = row


@compiled
def _cut(
    start: I64Array,
    stop: I64Array,
    starts: I64Array,
    comings: I64Array,
    goings: I64Array,
    events: I64Array,
    runs: I64Array,
    bounds: I64Array,
) -> int:
    """The stretches of groups whose rows are comings[starts[i]:starts[i + 1]], also in `goings`."""
    count = -1
    at = 0
    for group in range(starts.size - 1):
        first, last = starts[group], starts[group + 1]
        _ascending(comings, start, first, last)
        _ascending(goings, stop, first, last)
        come, go, present = first, first, 0
        while go < last:
            coming = come < last and start[comings[come]] <= stop[goings[go]]
            instant = start[comings[come]] if coming else stop[goings[go]]
            if come + go == 2 * first or runs[1, count] != instant:
                if come + go > 2 * first:
                    runs[2, count] = instant
                count += 1
                runs[0, count] = group
                runs[1, count] = instant
                runs[2, count] = instant
                bounds[count] = at
            if coming:
                events[at] = comings[come]
                present += 1
                come += 1
            else:
                events[at] = ~goings[go]
                present -= 1
                go += 1
            at += 1
            runs[3, count] = present
    bounds[count + 1] = at
    return count + 1


def runs_of(ids: I64Array, start: I64Array, stop: I64Array) -> Runs:
    """The stretches of every group; every row stops after it starts.

    Shapes: n rows; at most 2n runs. Cost: O(n + greatest id) where the rows of each group come in
    the order of their starts, and of their stops; O(n log n) else.
    """
    n = len(ids)
    dealt = buckets_of(ids, int(ids.max()) + 1 if n else 0)
    events = np.empty(2 * n, np.int64)
    runs = np.empty((4, 2 * n + 1), np.int64)
    bounds = np.empty(2 * n + 1, np.int64)
    count = _cut(start, stop, dealt.starts, dealt.order, dealt.order.copy(), events, runs, bounds)
    return Runs(
        runs[0, :count], runs[1, :count], runs[2, :count], runs[3, :count], events,
        bounds[: count + 1],
    )  # fmt: skip


@compiled
def _best(ids: I64Array, ranks: I64Array, known: BoolArray, best: I64Array) -> None:
    for row in range(ids.size):
        if known[row]:
            mine = best[ids[row]]
            if mine < 0 or ranks[row] < ranks[mine]:
                best[ids[row]] = row


def best_by_group(ids: I64Array, ranks: I64Array, known: BoolArray, groups: int) -> I64Array:
    """Of each group the row with the least rank among the known ones, -1 for none. Cost: O(n)."""
    best = np.full(groups, -1, np.int64)
    _best(ids, ranks, known, best)
    return best


@compiled
def _sink(heap: I64Array, size: int, ranks: I64Array) -> None:
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and ranks[heap[child + 1]] < ranks[heap[child]]:
            child += 1
        if ranks[heap[at]] <= ranks[heap[child]]:
            break
        heap[at], heap[child] = heap[child], heap[at]
        at = child


@compiled
def _best_run(
    group: I64Array,
    events: I64Array,
    bounds: I64Array,
    ranks: I64Array,
    known: BoolArray,
    best: I64Array,
) -> None:
    heap = np.empty(events.size + 1, np.int64)
    gone = np.zeros(ranks.size, np.bool_)
    size = 0
    for run in range(group.size):
        if run == 0 or group[run] != group[run - 1]:
            size = 0
        for at in range(bounds[run], bounds[run + 1]):
            event = events[at]
            if event < 0:
                gone[~event] = True
            elif known[event]:
                heap[size] = event
                place = size
                size += 1
                while place and ranks[heap[place]] < ranks[heap[(place - 1) >> 1]]:
                    above = (place - 1) >> 1
                    heap[place], heap[above] = heap[above], heap[place]
                    place = above
        while size and gone[heap[0]]:
            size -= 1
            heap[0] = heap[size]
            _sink(heap, size, ranks)
        best[run] = heap[0] if size else -1


def best_by_run(runs: Runs, ranks: I64Array, known: BoolArray) -> I64Array:
    """Of each run the present row with the least rank among the known ones, -1 for none.

    Cost: O(n log n).
    """
    best = np.full(len(runs.group), -1, np.int64)
    _best_run(runs.group, runs.events, runs.bounds, ranks, known, best)
    return best


@compiled
def _cover(
    ids: I64Array, start: I64Array, stop: I64Array, order: I64Array, starts: I64Array, out: I64Array
) -> int:
    """Draw the intervals of each group together; `starts` are where those of each group begin."""
    count = 0
    last = -1
    for at in range(order.size):
        row = order[at]
        group = ids[row]
        while last < group:
            last += 1
            starts[last] = count
        if count > starts[group] and start[row] <= out[1, count - 1]:
            out[1, count - 1] = max(out[1, count - 1], stop[row])
        else:
            out[0, count] = start[row]
            out[1, count] = stop[row]
            count += 1
    while last < starts.size - 1:
        last += 1
        starts[last] = count
    return count


@compiled
def _arrange(ids: I64Array, start: I64Array, starts: I64Array, order: I64Array) -> None:
    """The rows of each number in the order of their starts."""
    deal(ids, starts, order)
    for group in range(starts.size - 1):
        _ascending(order, start, starts[group], starts[group + 1])


def covers(
    ids: I64Array, groups: int, start: I64Array, stop: I64Array
) -> tuple[I64Array, I64Array, I64Array]:
    """When any row of each group is present: (where each group begins, starts, stops).

    Cost: O(n + groups) where the rows of each group come in the order of their starts; O(n log n)
    else.
    """
    starts = np.zeros(groups + 1, np.int64)
    order = np.empty(len(ids), np.int64)
    _arrange(ids, start, starts, order)
    out = np.empty((2, len(ids)), np.int64)
    count = _cover(ids, start, stop, order, starts, out)
    return starts, out[0, :count], out[1, :count]


@compiled
def _draw(
    start: I64Array,
    stop: I64Array,
    marks: I64Array,
    starts: I64Array,
    order: I64Array,
    out: I64Array,
) -> int:
    """Fill `out`; how many stretches there are, -1 where the marks of a group differ; without marks
    they do not.
    """
    found = 0
    for group in range(starts.size - 1):
        first, last, base = starts[group], starts[group + 1], found
        ascends = False
        while not ascends:
            ascends = True
            row = order[first]
            latest, mark = start[row], marks[row] if marks.size else 0
            out[0, base], out[1, base], out[2, base] = row, latest, stop[row]
            found = base + 1
            for at in range(first + 1, last):
                row = order[at]
                begin = start[row]
                if marks.size and marks[row] != mark:
                    return -1
                if begin < latest:
                    ascends = False
                    _ascending(order, start, first, last)
                    break
                latest = begin
                if begin <= out[2, found - 1]:
                    out[2, found - 1] = max(out[2, found - 1], stop[row])
                else:
                    out[0, found], out[1, found], out[2, found] = row, begin, stop[row]
                    found += 1
    return found


def drawn_together(
    ids: I64Array, groups: int, start: I64Array, stop: I64Array, marks: I64Array
) -> tuple[I64Array, I64Array, I64Array] | None:
    """Stretches in which any row of a group is present: a row of it, start, stop.

    None where marks of a group differ.

    Stretches of one group neither overlap nor touch; they come in the order of the groups. Every
    group has a row. Cost: O(n + groups) where the rows of each group come in the order of their
    starts; O(n log n) else.
    """
    dealt = buckets_of(ids, groups)
    out = np.empty((3, len(ids)), np.int64)
    if len(marks):
        least, greatest = extent(marks)
        marks = marks if least < greatest else marks[:0]
    found = _draw(start, stop, marks, dealt.starts, dealt.order, out)
    return None if found < 0 else (out[0, :found], out[1, :found], out[2, :found])


@compiled
def _draw_few(
    words: I64Array, start: I64Array, stop: I64Array, marks: I64Array, out: I64Array
) -> tuple[int, int]:
    """How many different rows there are, and how many stretches; `out` is filled where there are
    fewer than rows.
    """
    n = words.shape[0]
    ids, firsts = np.empty(n, np.int64), np.empty(n, np.int64)
    slots = np.empty(4 * n + 1024, np.int64)
    groups, _ = number_few(words, ids, firsts, slots, np.empty((3, words.shape[1]), np.int64))
    if groups == n:
        return groups, n
    starts = np.zeros(groups + 1, np.int64)
    deal(ids, starts, firsts)
    least, greatest = marks[0], marks[0]
    for row in range(n):
        least, greatest = min(least, marks[row]), max(greatest, marks[row])
    return groups, _draw(start, stop, marks if least < greatest else marks[:0], starts, firsts, out)


def few_drawn_together(
    words: I64Array, start: I64Array, stop: I64Array, marks: I64Array
) -> tuple[int, I64Array | None]:
    """How many different rows of words there are, and if fewer than rows the stretches of each as
    columns of one array.

    As `drawn_together` for few rows, in one call; no stretches where marks of equal rows differ.
    Shapes: (n, k) words.
    """
    out = np.empty((3, len(start)), np.int64)
    groups, found = _draw_few(words, start, stop, marks, out)
    return groups, None if found < 0 or groups == len(start) else out[:, :found]


@compiled
def _subtract(
    ids: I64Array,
    start: I64Array,
    stop: I64Array,
    starts: I64Array,
    cover_start: I64Array,
    cover_stop: I64Array,
    out: I64Array,
) -> int:
    found = 0
    room = out.shape[1]
    for row in range(ids.size):
        begin = start[row]
        end = stop[row]
        if ids[row] >= 0:
            for at in range(starts[ids[row]], starts[ids[row] + 1]):
                if cover_stop[at] <= begin:
                    continue
                if cover_start[at] >= end:
                    break
                if cover_start[at] > begin:
                    if found < room:
                        out[0, found] = row
                        out[1, found] = begin
                        out[2, found] = cover_start[at]
                    found += 1
                begin = max(begin, cover_stop[at])
        if begin < end:
            if found < room:
                out[0, found] = row
                out[1, found] = begin
                out[2, found] = end
            found += 1
    return found


def subtract(
    ids: I64Array,
    start: I64Array,
    stop: I64Array,
    cover: tuple[I64Array, I64Array, I64Array],
) -> tuple[I64Array, I64Array, I64Array]:
    """What is left of each row's interval outside the cover of its group: (row, start, stop).

    `ids` are -1 for rows that nothing covers. Cost: O(rows + intervals of their covers).
    """
    room = np.empty((3, max(16, len(ids))), np.int64)
    found = _subtract(ids, start, stop, *cover, room)
    if found > room.shape[1]:
        room = np.empty((3, found), np.int64)
        _subtract(ids, start, stop, *cover, room)
    return room[0, :found], room[1, :found], room[2, :found]
