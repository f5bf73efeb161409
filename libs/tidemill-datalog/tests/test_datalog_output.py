"""Outputs tell each begin and end once, and keep no moves that have been taken back."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from tidemill.arrangement.interval_updates import END_WORD
from tidemill.datalog.dataflow.operators.output import Output

Interval = tuple[int, int]


def change(*rows: tuple[int, Interval, int]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Rows of one column on their intervals, with their diffs."""
    return np.array([(row, *where, diff) for row, where, diff in rows], np.int64).reshape(-1, 4)


def moves_of(rows: Counter[tuple[int, Interval]]) -> Counter[tuple[int, int]]:
    """Obvious: the begins and ends of rows."""
    found: Counter[tuple[int, int]] = Counter()
    for (row, (start, end)), diff in rows.items():
        found[row, start] += diff
        if end != END_WORD:
            found[row, end] -= diff
    return Counter({move: diff for move, diff in found.items() if diff})


@pytest.mark.parametrize("seed", range(20))
def test_what_is_told_is_what_the_intervals_say_however_often_they_are_said_anew(seed: int) -> None:
    random, output = Random(seed), Output(1, of_set=True)
    held: dict[int, Interval] = {}
    rows: Counter[tuple[int, Interval]] = Counter()
    told: Counter[tuple[int, int]] = Counter()
    upper = 0
    for _ in range(120):
        said = []
        for row in random.sample(range(9), random.randrange(5)):
            known = held.pop(row, None)
            start = upper + random.randrange(4)
            if known is not None and known[1] > upper:
                start = known[0]
                said.append((row, known, -1))
                if start < upper:  # what has begun keeps its begin
                    said[-1] = (row, (upper, known[1]), -1)
                    start = upper
            end = random.choice((END_WORD, start + random.randrange(1, 40)))
            held[row] = start, end
            said.append((row, (start, end), 1))
        for row, where, diff in said:
            rows[row, where] += diff
        output.take(change(*said))
        upper += random.randrange(3)
        for row, at, diff in output.tell(upper).tolist():
            assert at < upper
            told[row, at] += diff
        due = {move: diff for move, diff in moves_of(rows).items() if move[1] < upper}
        assert {move: diff for move, diff in told.items() if diff} == due


def test_moves_to_come_that_are_said_anew_with_each_row_are_kept_once() -> None:
    """A count of events, each with an end of its own: all later counts are others with each."""
    output, ends, most = Output(1, of_set=True), 200, 0
    before = np.empty((0, 4), np.int64)
    for number in range(1, ends):
        lives = [
            (count, (1_000 + number - count, 1_001 + number - count)) for count in range(number)
        ]
        after = change(*((count, where, 1) for count, where in lives))
        gone = before.copy()
        gone[:, -1] = -1
        output.take(np.concatenate([gone, after]))
        output.tell(number)
        before = after
        most = max(most, sum(len(run) for _, run in output._runs))
    assert most <= 8 * ends
    assert len(output.tell(END_WORD)) == 2 * (ends - 1)
