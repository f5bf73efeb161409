"""Changes of a collection as told: each begin and end of a row below the frontier, once."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.interval_updates import END_WORD, Change
from tidemill.arrangement.kernels import I64Array

_RUNS_MAX = 16


class Output:
    """The begins and ends of rows, told when the frontier has passed them.

    A *move* is a row: columns, instant, diff. Those to come lie in runs by instant; a step looks at
    the front of each run.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._runs: list[tuple[I64Array, int]] = []

    def take(self, change: Change) -> None:
        """Add rows on their intervals, or take them away."""
        if not len(change):
            return
        width = self._columns
        ends = change[change[:, width + 1] < END_WORD]
        moves = np.empty((len(change) + len(ends), width + 2), np.int64)
        moves[: len(change), :width], moves[len(change) :, :width] = (
            change[:, :width],
            ends[:, :width],
        )
        moves[: len(change), width], moves[len(change) :, width] = (
            change[:, width],
            ends[:, width + 1],
        )
        moves[: len(change), width + 1] = change[:, -1]
        moves[len(change) :, width + 1] = -ends[:, -1]
        self._runs.append((moves[np.argsort(moves[:, width], kind="stable")], 0))

    def tell(self, upper: int) -> I64Array:
        """The moves below an instant that were not told yet, by instant; opposites are gone.

        Cost: O(moves told · log of them), and O(moves to come) now and then.
        """
        parts, runs = [], []
        for moves, first in self._runs:
            last = first + int(np.searchsorted(moves[first:, self._columns], upper))
            if last > first:
                parts.append(moves[first:last])
            if last < len(moves):
                runs.append((moves, last))
        if len(runs) > _RUNS_MAX:
            rest = np.concatenate([moves[first:] for moves, first in runs])
            runs = [(rest[np.argsort(rest[:, self._columns], kind="stable")], 0)]
        self._runs = runs
        if not parts:
            return np.empty((0, self._columns + 2), np.int64)
        return netted(parts[0] if len(parts) == 1 else np.concatenate(parts))


def netted(moves: I64Array) -> I64Array:
    """Moves with those of one row and instant added up, by instant; ends before begins."""
    if len(moves) < 2:
        return moves
    width = moves.shape[1] - 2
    order = np.lexsort((*moves[:, :width].T, moves[:, width]))
    moves = moves[order]
    different = np.ones(len(moves), np.bool_)
    different[1:] = (moves[1:, : width + 1] != moves[:-1, : width + 1]).any(axis=1)
    firsts = different.nonzero()[0]
    diffs = np.add.reduceat(moves[:, -1], firsts)
    found = moves[firsts]
    found[:, -1] = diffs
    found = found[diffs != 0]
    ordered: I64Array = found[np.lexsort((found[:, -1], found[:, width]))]
    return ordered
