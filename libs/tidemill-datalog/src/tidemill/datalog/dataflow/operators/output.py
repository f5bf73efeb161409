"""Changes of a collection as told: each begin and end of a row below the frontier, once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.arrangement.interval_updates import Change, cut_moves, net_moves
from tidemill.arrangement.kernels import I64Array


class Output:
    """The begins and ends of rows, told when the frontier has passed them.

    A *move* is a row: columns, instant, diff. Moves to come lie in runs by instant, each less than
    half as long as the run before it. Each run has its first instant beside it, and no opposite
    moves. Rows `of_set` are there once or not at all at each instant. Memory: the moves to come,
    but for those of the shorter runs that these take back.
    """

    def __init__(self, columns: int, of_set: bool = False) -> None:
        self._columns = columns
        self._of_set = of_set
        self._taken: list[Change] = []
        self._net = False
        self._runs: list[tuple[int, I64Array]] = []

    def take(self, change: Change, net: bool = False) -> None:
        """Add rows on their intervals, or take them away.

        In a change that is `net` no two rows have one move, nor opposite ones.
        """
        if len(change):
            self._net = net and not self._taken
            self._taken.append(change)

    def tell(self, upper: int) -> I64Array:
        """The moves below an instant that were not told yet, by instant; opposites are gone.

        Cost: O(moves told · log of them), and for each move to come O(log moves to come) in all.
        """
        parts: list[I64Array] = []
        for change in self._taken:
            now, later = cut_moves(change, upper)
            if len(now):
                parts.append(now)
            if len(later):
                self._defer(later)
        self._taken.clear()
        if any(first < upper for first, _ in self._runs):
            self._net = False
            parts += self._due(upper)
        if not parts:
            return np.empty((0, self._columns + 2), np.int64)
        if len(parts) == 1:
            return net_moves(parts[0], self._of_set, self._net)
        return net_moves(np.concatenate(parts), self._of_set)

    @property
    def soonest(self) -> int | None:
        """The first instant of the moves that `tell` has left for later, None for none."""
        return min((first for first, _ in self._runs), default=None)

    def words(self, columns: Sequence[int]) -> set[int]:
        """The words that stand in some columns of the moves to come."""
        kept = [run[:, list(columns)] for _, run in self._runs]
        kept += [change[:, list(columns)] for change in self._taken]
        return {word for each in kept for word in np.unique(each).tolist()}

    def _defer(self, moves: I64Array) -> None:
        """Keep moves to come as a run, merged with shorter runs."""
        runs, parts, size = self._runs, [moves], len(moves)
        while runs and len(runs[-1][1]) < 2 * size:
            _, run = runs.pop()
            size += len(run)
            parts.append(run)
        parts.reverse()
        if len(parts) > 1:
            # IMPORTANT: a key that is counted may say all of its ends anew with each row.
            moves = net_moves(np.concatenate(parts), self._of_set)
        elif size > 1:
            moves = moves[np.argsort(moves[:, self._columns], kind="stable")]
        if len(moves):
            runs.append((int(moves[0, self._columns]), moves))

    def _due(self, upper: int) -> list[I64Array]:
        """Take the moves below an instant from the front of each run."""
        parts, left = [], []
        for first, moves in self._runs:
            if first >= upper:
                left.append((first, moves))
                continue
            last = int(np.searchsorted(moves[:, self._columns], upper))
            parts.append(moves[:last])
            if last < len(moves):
                rest = moves[last:] if 2 * last < len(moves) else moves[last:].copy()
                left.append((int(rest[0, self._columns]), rest))
        self._runs = sorted(left, key=lambda run: -len(run[1]))
        return parts
