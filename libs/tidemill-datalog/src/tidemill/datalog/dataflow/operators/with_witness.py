"""The matches of one rule of which some atoms only have to have a fact (`witnessing`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tidemill.arrangement.interval_updates import (
    BEGIN_WORD,
    END_WORD,
    Change,
    Facts,
    Witnesses,
    WitnessShape,
    begin,
    no_change,
)
from tidemill.arrangement.kernels import BoolArray, I64Array
from tidemill.datalog.dataflow.operators.iterating import joined
from tidemill.datalog.dataflow.operators.matching import Matches
from tidemill.datalog.dataflow.plan import MODERATE, DeltaPlan, Join, Witness, WitnessSide
from tidemill.datalog.dataflow.schema import TIME, Schema
from tidemill.datalog.logical.forms import Expression, Type


class Witnessed:
    """The matches of a rule at the instants at which they have a witness of each side.

    Each side is told of matches as the one before it tells of them. Numbers beyond `MODERATE`
    may make an expression fail, and each error names all facts. So facts with such numbers, once
    there are any, are matched each with each.
    """

    def __init__(
        self, plan: Witness, matches: Matches, schemas: Mapping[str, Schema]
    ) -> None:  # fmt: skip
        self._plan = plan
        self._matches = matches
        self._template = matches.plan.columns.template.copy()
        self._template[-1] |= sum(1 << column for column in plan.own)
        self._wild = _Wild()
        self._sides = [
            _Side(side, matches, schemas[side.right].columns, self._wild) for side in plan.sides
        ]

    @property
    def nbytes(self) -> int:
        """The bytes of all sides."""
        return sum(side.held.nbytes for side in self._sides)

    @property
    def looked(self) -> int:
        """Rows that matches have looked at so far, which the time goes with."""
        return sum(side.held.looked for side in self._sides)

    def compact(self, since: int) -> None:
        """Forget what has ended by `since`."""
        for side in self._sides:
            side.held.compact(since)
        self._wild.end(since)

    def take(
        self, deltas: Sequence[DeltaPlan], change: Change, facts: Mapping[str, Facts], lower: int
    ) -> Change:
        """The matches that come and go with a change of one collection, at `lower` or later."""
        source, found = deltas[0].source, no_change(self._matches.plan.columns.width)
        for delta in self._plan.left:
            if delta.source == source:
                found = joined([found, self._of_left(delta, change, facts)])
        for side in self._sides:
            found = side.take(found, change if side.plan.right == source else None, lower)
        if self._wild.lives:
            parts = [self._matches.of_change(delta, change, facts) for delta in deltas]
            found = joined([found, *(matches[self._is_wild(matches)] for matches in parts)])
        return found

    def _of_left(self, delta: DeltaPlan, change: Change, facts: Mapping[str, Facts]) -> Change:
        """The matches of a change without witnesses. No condition sees a number that is wild."""
        matches = begin(change, self._template, delta.begin)
        if delta.sign < 0:
            matches[:, -1] *= -1
        first = next(
            (at for at, step in enumerate(delta.steps) if not isinstance(step, Join)),
            len(delta.steps),
        )
        matches = self._matches.completed(matches, delta.steps[:first], change, facts)
        wild = _immoderate(matches, self._plan.numbers)
        if wild.any():
            if not delta.absent:
                self._wild.note(matches[wild])
            matches = matches[~wild]
        return self._matches.completed(matches, delta.steps[first:], change, facts)

    def _is_wild(self, matches: Change) -> BoolArray:
        """Which matches of pairs have a number that is not moderate."""
        return _immoderate(matches, (*self._plan.numbers, *self._plan.limited))

    def without_witness(self, matches: Change) -> Change:
        """Matches of pairs, of which an older state tells, as those of this operator.

        Those with numbers that are not moderate are pairs here too.
        """
        own, nulls = list(self._plan.own), self._matches.plan.columns.nulls
        plain = np.flatnonzero(~self._is_wild(matches))
        matches[np.ix_(plain, np.array(own, np.int64))] = 0
        matches[plain, nulls] |= sum(1 << column for column in own)
        return matches


class _Side:
    """One witness of matches."""

    def __init__(self, plan: WitnessSide, matches: Matches, columns: int, wild: _Wild) -> None:
        mine = matches.plan.columns
        self.plan = plan
        self._matches = matches
        self._wild = wild
        timed = plan.rank == TIME
        self._upward = bool(plan.low) and not plan.high and not timed
        self._columns = columns
        expiries = (mine.expiry, plan.expiring) if plan.expiring >= 0 else (-1, -1)
        shape = WitnessShape(
            mine.width, columns, plan.keys, plan.apart, plan.rank < 0, expiries, timed
        )
        self.held = Witnesses(shape)
        kept = {*plan.keys[1].tolist(), *plan.apart[1].tolist(), plan.rank, plan.expiring} - {-1}
        self._kept = np.array(sorted(kept), np.int64)

    def take(self, matches: Change, change: Change | None, lower: int) -> Change:
        """The change of matches with a witness, by one of all matches and by one of witnesses."""
        parts = [matches]
        if len(matches):
            parts = [self._of_matches(matches)]
        if change is not None:
            parts.append(self._of_witnesses(change, lower))
        return joined(parts)

    def _of_matches(self, matches: Change) -> Change:
        plan = self.plan
        low = self._limit(plan.low, matches, True)
        high = self._limit(plan.high, matches, False)
        if low is not None and self._upward:
            high = np.subtract(-1, low)  # the other way round, without overflow
            low = None
        elif low is not None and high is None:
            high = np.full(len(matches), END_WORD)
        return self.held.take_matches(matches, high, low, self._matches.allowance.require)

    def _limit(
        self, limits: Sequence[Expression], matches: Change, low: bool
    ) -> I64Array | None:  # fmt: skip
        """The greatest of lower limits, or the least of upper ones; beyond all for a null."""
        found: I64Array | None = None
        for each in limits:
            words, nulls, _ = self._matches.expressions.words(each, Type.INT, matches)
            if nulls is not None:
                words = np.where(nulls, END_WORD if low else BEGIN_WORD, words)
            pick = np.maximum if low else np.minimum
            found = words if found is None else pick(found, words)
        return found

    def _of_witnesses(self, change: Change, lower: int) -> Change:
        plan, nulls = self.plan, self._columns - 1
        known = change[:, nulls] & plan.known == 0
        if plan.rank >= 0:
            known &= change[:, nulls] >> plan.rank & 1 == 0
            wild = _immoderate(change, (plan.rank,)) & known
            if wild.any():
                self._wild.note(change[wild])
                known &= ~wild
        for mine, other in plan.same.T.tolist():
            null = (change[:, nulls] >> mine ^ change[:, nulls] >> other) & 1
            known &= (change[:, mine] == change[:, other]) & (null == 0)
        if not known.all():
            change = change[known]
        rows = np.zeros_like(change)
        rows[:, self._kept] = change[:, self._kept]
        rows[:, nulls] = change[:, nulls] & int(np.bitwise_or.reduce(1 << self._kept, initial=0))
        rows[:, -3:] = change[:, -3:]
        rank = rows[:, plan.rank] if plan.rank >= 0 else None
        if self._upward and rank is not None:
            rank = -1 - rank
        return self.held.take_witnesses(rows, rank, lower, self._matches.allowance.require)


class _Wild:
    """Whether facts with numbers that are not moderate may be alive, or may still change."""

    __slots__ = ("_endless", "_until", "lives")

    def __init__(self) -> None:
        self.lives = False
        self._endless, self._until = 0, BEGIN_WORD

    def note(self, change: Change) -> None:
        """Such facts come or go. Cost: O(change)."""
        endless = change[:, -2] == END_WORD
        self._endless += int(change[endless, -1].sum())
        last = np.where(endless, change[:, -3], change[:, -2]).max()
        self._until, self.lives = max(self._until, int(last)), True

    def end(self, since: int) -> None:
        """Nothing of what has ended by an instant changes any more."""
        self.lives = self._endless > 0 or self._until > since


def _immoderate(rows: I64Array, columns: Sequence[int]) -> BoolArray:
    """Which rows have a number of some columns that is far from zero."""
    found = np.zeros(len(rows), np.bool_)
    for column in columns:
        words = rows[:, column]
        found |= (words > MODERATE) | (words < -MODERATE)
    return found
