"""The matches of one rule of which an atom only has to have a fact (`witnessing`)."""

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
)
from tidemill.arrangement.kernels import BoolArray, I64Array
from tidemill.datalog.dataflow.operators.matching import Matches
from tidemill.datalog.dataflow.plan import MODERATE, DeltaPlan, Filter, Witness
from tidemill.datalog.dataflow.schema import Schema
from tidemill.datalog.logical.forms import Expression, Type


class Witnessed:
    """The matches of a rule at the instants at which they have a witness.

    Numbers beyond `MODERATE` may make an expression fail, and each error names both facts. So facts
    with such numbers, once there are any, are matched each with each.
    """

    def __init__(
        self, plan: Witness, matches: Matches, schemas: Mapping[str, Schema]
    ) -> None:  # fmt: skip
        columns = matches.plan.columns
        self._plan = plan
        self._matches = matches
        self._filters = tuple(map(Filter, plan.conditions))
        self._upward = bool(plan.low) and not plan.high
        self._columns = schemas[plan.right].columns
        expiries = (columns.expiry, plan.expiring) if plan.expiring >= 0 else (-1, -1)
        shape = WitnessShape(
            columns.width, self._columns, plan.keys, plan.apart, plan.rank < 0, expiries
        )
        self._sides = Witnesses(shape)
        kept = {*plan.keys[1].tolist(), *plan.apart[1].tolist(), plan.rank, plan.expiring} - {-1}
        self._kept = np.array(sorted(kept), np.int64)
        self._wild = False

    @property
    def nbytes(self) -> int:
        """The bytes of both sides."""
        return self._sides.nbytes

    def compact(self, since: int) -> None:
        """Forget what has ended by `since`."""
        self._sides.compact(since)

    def take(
        self, deltas: Sequence[DeltaPlan], change: Change, facts: Mapping[str, Facts], lower: int
    ) -> Change:
        """The matches that come and go with a change of either side, at `lower` or later."""
        plan, source, found = self._plan, deltas[0].source, list[Change]()
        if source == plan.left:
            found.append(self._of_matches(change, facts))
        if source == plan.right:
            found.append(self._of_witnesses(change, lower))
        if self._wild:
            parts = [self._matches.of_change(delta, change, facts) for delta in deltas]
            found += [matches[self._is_wild(matches)] for matches in parts]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _of_matches(self, change: Change, facts: Mapping[str, Facts]) -> Change:
        plan = self._plan
        matches = begin(change, plan.begin.template, plan.begin.shape)
        wild = _immoderate(matches, plan.numbers)
        if wild.any():
            self._wild, matches = True, matches[~wild]
        matches = self._matches.completed(matches, self._filters, change, facts)
        low = self._limit(plan.low, matches, True)
        high = self._limit(plan.high, matches, False)
        if low is not None and self._upward:
            high = np.subtract(-1, low)  # the other way round, without overflow
            low = None
        return self._sides.take_matches(matches, high, low, self._matches.allowance.require)

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
        plan, nulls = self._plan, self._columns - 1
        known = change[:, nulls] & plan.known == 0
        if plan.rank >= 0:
            known &= change[:, nulls] >> plan.rank & 1 == 0
            wild = _immoderate(change, (plan.rank,)) & known
            self._wild |= bool(wild.any())
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
        return self._sides.take_witnesses(rows, rank, lower, self._matches.allowance.require)

    def _is_wild(self, matches: Change) -> BoolArray:
        """Which matches of pairs have a number that is not moderate."""
        limited = self._plan.limited
        return _immoderate(matches, (*self._plan.numbers, *((limited,) if limited >= 0 else ())))

    def without_witness(self, matches: Change) -> Change:
        """Matches of pairs, of which an older state tells, as those of this operator.

        Those with numbers that are not moderate are pairs here too.
        """
        own, nulls = list(self._plan.own), self._matches.plan.columns.nulls
        plain = np.flatnonzero(~self._is_wild(matches))
        matches[np.ix_(plain, np.array(own, np.int64))] = 0
        matches[plain, nulls] |= sum(1 << column for column in own)
        return matches


def _immoderate(rows: I64Array, columns: Sequence[int]) -> BoolArray:
    """Which rows have a number of some columns that is far from zero."""
    found = np.zeros(len(rows), np.bool_)
    for column in columns:
        words = rows[:, column]
        found |= (words > MODERATE) | (words < -MODERATE)
    return found
