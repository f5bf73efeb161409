"""Clocks: matches completed by the ticks that their guards allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.interval_updates import (
    BEGIN_WORD,
    END_WORD,
    Change,
    Merged,
    tick,
)
from tidemill.arrangement.interval_updates.clocks import tick_pairs
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.dataflow.expressions import Expressions
from tidemill.datalog.dataflow.plan import MODERATE, Clock, Untick
from tidemill.datalog.instants import usable_clock
from tidemill.datalog.limits import LimitPassed
from tidemill.datalog.logical.forms import Constant, Expression, Type, Wildcard, variables_of
from tidemill.datalog.presence import END
from tidemill.datalog.values import Failed

Fail = Callable[[str, Change], None]
"""Takes a reason and the matches that fail for it."""

TICKS_MAX = 1 << 26
"""Ticks that one change may meet in one rule."""


def _distance(left: I64Array, right: I64Array) -> npt.NDArray[np.uint64]:
    """The distances of words from others that are not above them."""
    return right.astype(np.uint64) - left.astype(np.uint64)


def first_tick(step: Untick, value: Callable[[Expression], Any]) -> int:
    """The instant from which on a clock has ticked as asked, the greatest word for never.

    Raises: Failed.
    """
    given = [value(step.offset), value(step.period)]
    asked = {name: None if isinstance(term, Wildcard) else value(term) for name, term in step.asked}
    offset, period = usable_clock(*given)
    wild = {name for name, term in step.asked if isinstance(term, Wildcard)}
    end = END if "expires" in wild else asked.get("expires", END)
    time = offset if "time" in wild else asked.get("time", offset)
    if type(time) is not int or end != END or not asked.keys() <= {"time", "expires"}:
        return END_WORD
    return time if time >= offset and (time - offset) % period == 0 else END_WORD


class OpenClock:
    """Matches of one clock without an upper limit. Their ticks below `upper` have come.

    A row is a match with its offset and period before its nulls. `lower` was `upper` before. Rows
    wait until the matches are looked at: only the sum of all delta plans says what comes and goes.
    """

    def __init__(self, width: int) -> None:
        self._matches = Merged(width + 2, range(width + 1), width + 1)
        self._waiting: list[Change] = []
        self.lower = self.upper = BEGIN_WORD

    def go_on(self, upper: int) -> None:
        """The frontier is at a later instant."""
        self.lower, self.upper = self.upper, upper

    def take(self, matches: Change, offset: I64Array, period: I64Array) -> None:
        """Keep matches, or let them go. Cost: O(matches)."""
        parts = [matches[:, :-4], offset[:, None], period[:, None], matches[:, -4:]]
        self._waiting.append(np.concatenate(parts, axis=1))

    def _settled(self) -> Merged:
        """The matches after all that waits."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._matches.take(np.concatenate(waiting))
        return self._matches

    def kept(self) -> tuple[Change, I64Array, I64Array]:
        """The matches that live, with their offsets and periods."""
        matches = self._settled()
        rows = np.concatenate([matches.facts.living(), matches.spare.living()])
        rows = rows[rows[:, -1] > self.lower]
        ones = np.ones((len(rows), 1), np.int64)
        found = np.concatenate([rows[:, :-5], rows[:, -3:], ones], axis=1)
        return found, rows[:, -5].copy(), rows[:, -4].copy()

    def words(self) -> list[int]:
        """The different words of the matches."""
        matches = self._settled()
        parts = [matches.facts.living(), matches.spare.living()]
        found: list[int] = np.unique(np.concatenate(parts)).tolist()
        return found

    @property
    def soonest(self) -> int:
        """The first tick that has not come, the greatest word for none."""
        _, offset, period = self.kept()
        waits = -((offset - self.upper) // period) * period
        first = np.where(offset >= self.upper, offset, offset + waits)
        return min((at for at in first.tolist() if at >= self.upper), default=END_WORD)

    def compact(self, since: int) -> None:
        """Forget what has ended by `since`."""
        self._settled().compact(since)


class Ticks:
    """One clock of one rule."""

    def __init__(self, clock: Clock, expressions: Expressions) -> None:
        self._clock = clock
        self._expressions = expressions
        self._columns = np.array(clock.columns, np.int64)
        self._constant = isinstance(clock.offset, Constant) and isinstance(clock.period, Constant)
        self._usable: tuple[int, int] | None = None

    @property
    def atom(self) -> int:
        """A number of the clock's atom."""
        return self._clock.columns[1]

    def apply(self, matches: Change, fail: Fail, open_: OpenClock, keep: bool = True) -> Change:
        """Matches with their ticks; those whose clock cannot be used go to `fail`.

        Of matches without an upper limit the ticks below the frontier come; with `keep` the others
        come when they are `due`. Raises: LimitPassed beyond `TICKS_MAX`. Cost: O(matches + ticks).
        """
        if not len(matches):
            return matches
        matches, offset, period = self._clocks(matches, fail)
        columns = self._clock.columns
        high = self._high(matches)
        endless = (high == END_WORD) & self._clock.withheld
        if not self._clock.bound:
            if keep and endless.any():
                open_.take(matches[endless], offset[endless], period[endless])
            low = self._low(matches)
            high = np.minimum(high, np.where(endless, max(open_.upper, -END_WORD) - 1, END_WORD))
            rows, times = self._between(matches, offset, period, low, high)
        else:
            times = matches[:, columns[0]]
            null = matches[:, self._expressions.columns.nulls] >> columns[0] & 1
            kept = (
                (null == 0)
                & (times >= offset)
                & (_distance(offset, times) % period.view(np.uint64) == 0)
            )
            kept &= ~endless | (times < open_.upper)
            rows = kept.nonzero()[0]
            times = times[rows]
        return tick(matches, rows, times, (offset, period), self._columns, self._clock.timed)

    def due(self, open_: OpenClock) -> Change:
        """Matches that are kept, with the ticks that the frontier has reached. Cost: those kept."""
        matches, offset, period = open_.kept()
        low = np.maximum(self._low(matches), open_.lower)
        high = np.full(len(matches), open_.upper - 1)
        rows, times = self._between(matches, offset, period, low, high)
        return tick(matches, rows, times, (offset, period), self._columns, self._clock.timed)

    @staticmethod
    def _between(
        matches: Change, offset: I64Array, period: I64Array, low: I64Array, high: I64Array
    ) -> tuple[I64Array, I64Array]:
        """The ticks of matches between limits. Shapes: the number of the match, and the time."""
        found = tick_pairs(offset, period, low, high, (matches[:, -2], END_WORD), TICKS_MAX)
        if found is None:
            raise LimitPassed(f"a clock ticks more than {TICKS_MAX:,} times for one change")
        return found

    def _clocks(self, matches: Change, fail: Fail) -> tuple[Change, I64Array, I64Array]:
        """The matches with a clock that can be used, and its offsets and periods."""
        evaluate, clock = self._expressions.value, self._clock
        if self._constant and self._usable is None and len(matches) > 1:
            self._clocks(matches[:1], lambda reason, failed: None)
        if self._usable is not None:
            offset, period = self._usable
            return matches, np.full(len(matches), offset), np.full(len(matches), period)
        kept, clocks = [], []
        for row, match in enumerate(matches):
            try:
                clocks.append(
                    usable_clock(evaluate(clock.offset, match), evaluate(clock.period, match))
                )
                kept.append(row)
            except Failed as failed:
                fail(failed.reason, matches[row : row + 1])
        if self._constant and clocks:
            self._usable = clocks[0]
        pairs = np.array(clocks, np.int64).reshape(-1, 2)
        return matches[kept], pairs[:, 0].copy(), pairs[:, 1].copy()

    def _low(self, matches: Change) -> I64Array:
        """The least time of each match, the greatest word for none."""
        found = np.full(len(matches), BEGIN_WORD, np.int64)
        for limit in self._clock.limits.low:
            np.maximum(found, self._limit(matches, limit, BEGIN_WORD, END_WORD), out=found)
        return found

    def _high(self, matches: Change) -> I64Array:
        """The greatest time of each match, the least word for none."""
        found = np.full(len(matches), END_WORD, np.int64)
        for limit in self._clock.limits.high:
            np.minimum(found, self._limit(matches, limit, END_WORD, BEGIN_WORD), out=found)
        return found

    def _limit(self, matches: Change, limit: Expression, free: int, never: int) -> I64Array:
        """A limit of each match, `free` for numbers that may overflow; `never` for a null."""
        words, nulls, failures = self._expressions.words(limit, Type.INT, matches)
        found = words.copy() if nulls is None else np.where(nulls, never, words)
        found[[row for row, _ in failures]] = free
        for name in variables_of(limit):
            column, kind = self._expressions.columns.variables[name]
            if kind is Type.INT:
                far = (matches[:, column] >= MODERATE) | (matches[:, column] <= -MODERATE)
                found[far] = free
        return found
