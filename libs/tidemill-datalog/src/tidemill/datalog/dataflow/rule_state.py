"""One rule with its state: matches that wait or live on, and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tidemill.arrangement.interval_updates import (
    END_WORD,
    Change,
    Facts,
    Latch,
    Merged,
    no_change,
)
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.holdings import Holdings, StatePart
from tidemill.datalog.dataflow.operators.errors import Errors, Unheard
from tidemill.datalog.dataflow.operators.growing import from_instant
from tidemill.datalog.dataflow.operators.iterating import joined
from tidemill.datalog.dataflow.operators.matching import Matches
from tidemill.datalog.dataflow.operators.open_solutions import LateRow, OpenSolutions
from tidemill.datalog.dataflow.operators.opening import Opening
from tidemill.datalog.dataflow.operators.reducing import Reduction
from tidemill.datalog.dataflow.operators.regrouping import words_in
from tidemill.datalog.dataflow.operators.sampling import Sampled
from tidemill.datalog.dataflow.operators.with_witness import Witnessed
from tidemill.datalog.dataflow.plan import DeltaPlan, Join, RulePlan, Subtract
from tidemill.datalog.dataflow.schema import Schema
from tidemill.datalog.state import Share, StateRow
from tidemill.errors import Corrupt

_STRAIGHT_ROWS = 1 << 13
"""Rows of a change that are contributions as they are, of which so many are taken at once."""


@dataclass(slots=True)
class Figures:
    """Work of one operator so far: changed rows in and out, and seconds."""

    rows_in: int = 0
    rows_out: int = 0
    seconds: float = 0.0

    def add(self, rows_in: int, rows_out: int, seconds: float) -> None:
        """One piece of work more."""
        self.rows_in += rows_in
        self.rows_out += rows_out
        self.seconds += seconds


def tell_state(
    rules: Iterable[RuleState], openings: Iterable[Opening], upper: int
) -> tuple[list[StateRow], Callable[[], list[StateRow]]]:
    """See `DataflowEngine.tell_state_late`."""
    gone: list[StateRow] = []
    late: list[LateRow] = []
    come: list[StateRow] = []
    for rule in rules:
        if rule.open is not None:
            left, rows = rule.open.tell(upper)
            gone += left
            late += rows
    for opening in openings:
        left, entered = opening.tell(upper)
        gone += left
        come += entered
    return gone, lambda: [each.row() for each in late] + come


class RuleEngine(Protocol):
    """The engine, as its rules know it."""

    schemas: dict[str, Schema]
    texts: Texts
    all_errors: Errors
    allowance: Allowance
    timer: Callable[[], float]
    holdings: Holdings
    keeps_state: bool
    ticked: bool
    ticks: I64Array
    sampled: set[str]

    @property
    def lower(self) -> int:
        """The word of an instant before which nothing changes in the step under way."""
        ...

    def merged_of(self, collection: str) -> StatePart:
        """The derivations of a collection."""
        ...

    def note(self, change: Change) -> None:
        """Remember when a change begins and ends to hold after the ticks under way."""
        ...

    def sample(self, at: int, rule: RuleState) -> None:
        """A rule has matches that begin or end by themselves at an instant."""
        ...


class RuleState:
    """A rule with its state: established solutions, groups."""

    def __init__(self, plan: RulePlan, engine: RuleEngine) -> None:
        self.plan = plan
        schemas, name = engine.schemas, plan.form.head.predicate
        self.predicate = name
        self.matches = Matches(
            plan, schemas, engine.texts, engine.all_errors, engine.allowance
        )  # fmt: skip
        self._unheard: Matches | None = None
        self._witnessed: Witnessed | None = None
        if plan.witness is not None:
            self._witnessed = Witnessed(plan.witness, self.matches, schemas)
        columns = plan.columns
        self.latch: Latch | None = None
        if plan.head.outlives:
            told = () if plan.head.passes is None else (plan.head.passes.into,)
            self.latch = Latch((*columns.identity, *told), columns.expiry, columns.times)
        self.open: OpenSolutions | None = None
        if self.latch is not None and engine.keeps_state:
            self.open = OpenSolutions(self.matches, schemas, engine.texts, ticked=engine.ticked)
        samples = engine.ticked and (self.latch is not None or name in engine.sampled)
        self.sampled = Sampled(columns.width) if samples else None
        self._engine = engine
        self.clocked = any(atom.is_clock for atom in plan.form.atoms)
        names = {
            s.collection for d in plan.deltas for s in d.steps if isinstance(s, Join | Subtract)
        }
        self._met: tuple[StatePart, ...] = tuple(engine.merged_of(name) for name in sorted(names))
        """The facts that complete matches: their size may change with a change, as its own may."""
        self.figures = Figures()
        self._told: Merged | None = None
        self.reduction: Reduction | None = None
        if plan.reduce is not None:
            self.reduction = Reduction(
                plan.reduce, self.matches, schemas[name], engine.all_errors, engine.texts,
                plan.scope.lattices,
            )  # fmt: skip

    def take(
        self, deltas: Sequence[DeltaPlan], change: Change, facts: Mapping[str, Facts]
    ) -> Change:
        """A change of the predicate of the head: rows, or matches to be reduced.

        Only the sum of all delta plans of a source says what comes and goes.
        """
        began, waited = self._engine.timer(), self.waiting
        self._engine.holdings.reach((self, *self._met))
        if self._witnessed is not None:
            found = self._with_witness(deltas, change, facts)
        elif self.latch is None and self.sampled is None:
            parts = [self._solved(delta, change, facts) for delta in deltas]
            found = self._noted(joined(parts))
        else:
            parts = [self.matches.solutions(delta, change, facts) for delta in deltas]
            found = self._derived(joined(parts))
        told = len(found) + self.waiting - waited
        self.figures.add(len(change), told, self._engine.timer() - began)
        return found

    def _solved(self, delta: DeltaPlan, change: Change, facts: Mapping[str, Facts]) -> Change:
        """The change of the head by matches, which are not made where a reduction needs none.

        A group that takes rows as they are takes them in smaller pieces, which stay in the cache.
        """
        reduction = self.reduction
        sources = None if reduction is None else reduction.straight(delta)
        if reduction is None or sources is None or not reduction.contributes_ahead:
            return self.matches.solutions(delta, change, facts, self._finished)
        lower = self._engine.lower
        pieces = range(0, max(len(change), 1), _STRAIGHT_ROWS)
        return joined(
            [reduction.ahead(change[at : at + _STRAIGHT_ROWS], lower, sources) for at in pieces]
        )

    def _with_witness(
        self, deltas: Sequence[DeltaPlan], change: Change, facts: Mapping[str, Facts]
    ) -> Change:  # fmt: skip
        assert self._witnessed is not None
        lower = self._engine.lower
        matches = self.matches.solved(self._witnessed.take(deltas, change, facts, lower))
        if self.latch is None and self.sampled is None:
            return self._rows(matches)
        return self._derived(matches)

    @property
    def waiting(self) -> int:
        """Matches that the reduction has taken in ahead, which wait for their predicate."""
        return 0 if self.reduction is None else self.reduction.waiting

    @property
    def remembers(self) -> bool:
        """Whether it derives rows in the course of time, without a change of what it reads."""
        return self.latch is not None or self.sampled is not None or self.clocked

    def keep_rows(self) -> None:
        """Keep what is derived from now on, for `kept`."""
        name = self.predicate
        columns = self._engine.schemas[name].columns
        if self.reduction is not None:
            columns = self.plan.columns.width
        self._told = Merged(columns, range(columns - 1), columns - 1)

    def kept(self, first: int) -> Change:
        """The rows that are derived, from an instant on. Cost: O(rows)."""
        assert self._told is not None
        parts = [each.living() for each in (self._told.facts, self._told.spare)]
        return from_instant(np.concatenate(parts), first, 1)

    def told_words(self, columns: Sequence[int]) -> set[int]:
        """The words in the rows that are kept, of matches in some columns."""
        if self._told is None:
            return set()
        if self.reduction is None:
            columns = self._engine.schemas[self.predicate].numbered
        kept = (self._told.facts, self._told.spare)
        return {word for each in kept for word in words_in(each.rows[: len(each)], columns)}

    def again(self, asked: Change, facts: Mapping[str, Facts]) -> Change:
        """Rows of facts of the head that still have a derivation, and maybe others that hold."""
        assert self.plan.again is not None
        began = self._engine.timer()
        self._engine.holdings.reach((self, *self._met))
        if self._unheard is None:
            engine = self._engine
            self._unheard = Matches(
                self.plan, engine.schemas, engine.texts, Unheard(), engine.allowance
            )
        found = self._rows(self._unheard.solutions(self.plan.again, asked, facts))
        self.figures.add(len(asked), len(found), self._engine.timer() - began)
        return found

    def due(self) -> Change:
        """The change by matches that the ticks see begin or end by themselves."""
        return self._derived(no_change(self.plan.columns.width))

    def go_on(self, upper: int, facts: Mapping[str, Facts]) -> Change:
        """The change of the predicate by ticks that a later frontier has reached."""
        self._engine.holdings.reach((self, *self._met))
        return self._derived(self.matches.go_on(upper, facts))

    def _derived(self, matches: Change) -> Change:
        if self.sampled is not None:
            self.sampled.take(matches)
            self._engine.note(matches)
            matches = self.sampled.tell_at(self._engine.ticks)
            if self.sampled.soonest is not None:
                self._engine.sample(self.sampled.soonest, self)
        if self.latch is not None and len(matches):
            matches = self.latch.take(matches)
            if self.open is not None:
                self.open.take(matches)
        return self._rows(matches)

    def restore(self, rows: Sequence[StateRow], lower: int, share: Share | None = None) -> Change:
        """The change of the predicate of the head by solutions that lived before `lower`."""
        if self.latch is None or self.open is None:
            raise Corrupt(
                f"the state has solutions of rule {self.plan.form.number}, which has none"
            )
        matches = self.open.restore(rows, lower, share)
        if self._witnessed is not None:
            matches = self._witnessed.without_witness(matches)
        return self._rows(self.latch.take(matches))

    def _rows(self, matches: Change) -> Change:
        return self._noted(self._finished(self.matches.seen(matches)))

    def _finished(self, matches: Change) -> Change:
        """Matches as rows of the predicate, or as its reduction takes them."""
        if self.reduction is None:
            return self.matches.rows(matches)
        if not self.reduction.contributes_ahead:
            return matches
        return self.reduction.ahead(matches, self._engine.lower)

    def _noted(self, rows: Change) -> Change:
        if self._told is not None:
            self._told.take(rows)
        return rows

    @property
    def soonest(self) -> int:
        """The first instant at which rows of the state go by themselves."""
        return END_WORD if self.open is None else self.open.soonest

    @property
    def nbytes(self) -> int:
        """The bytes of the state."""
        latch = 0 if self.latch is None else self.latch.nbytes
        latch += 0 if self.open is None else self.open.nbytes
        latch += 0 if self._told is None else self._told.nbytes
        latch += 0 if self._witnessed is None else self._witnessed.nbytes
        return latch + (0 if self.reduction is None else self.reduction.nbytes)

    def compact(self, since: int) -> None:
        """Forget what has ended by `since`."""
        self.matches.compact(since)
        if self._witnessed is not None:
            self._witnessed.compact(since)
        if self.latch is not None:
            self.latch.compact(since)
        if self._told is not None:
            self._told.compact(since)
        if self.reduction is not None:
            self.reduction.compact(since)
