"""Collections as ticks see them: only what holds at the instant of a tick counts."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from tidemill.arrangement.interval_updates import END_WORD, Change
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.dataflow.operators.output import Output
from tidemill.datalog.dataflow.schema import instant_of
from tidemill.datalog.presence import Instant

_FEW = 16


class Sampled(Output):
    """Matches that hold at ticks: a match between two of them has never been."""

    def tell_at(self, ticks: I64Array) -> Change:
        """Matches that begin or end for the ticks, each once, from the first one that sees it."""
        moves = self.tell(int(ticks[-1]) + 1)
        change = np.empty((len(moves), moves.shape[1] + 1), np.int64)
        change[:, :-3] = moves[:, :-2]
        change[:, -3] = ticks[np.searchsorted(ticks, moves[:, -2])]
        change[:, -2], change[:, -1] = END_WORD, moves[:, -1]
        return change


class Agenda:
    """The instants at which collections change by themselves."""

    def __init__(self) -> None:
        self._instants: list[int] = []
        self._known: set[int] = set()

    def note(self, change: Change, last: int) -> None:
        """The begins and ends of a change after an instant. Cost: O(change · log)."""
        borders = change[:, -3:-1]
        for at in (np.unique(borders) if len(change) > _FEW else borders.ravel()).tolist():
            if last < at < END_WORD and at not in self._known:
                self._known.add(at)
                heappush(self._instants, at)

    def soonest(self, last: int) -> Instant:
        """The first of them after an instant, END for none."""
        while self._instants and self._instants[0] <= last:
            self._known.discard(heappop(self._instants))
        return instant_of(self._instants[0] if self._instants else END_WORD)
