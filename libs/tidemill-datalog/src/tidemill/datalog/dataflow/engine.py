"""The engine `dataflow`: arrangements of interval updates, kept up to date by steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.arrangement.interval_updates import (
    BEGIN_WORD,
    END_WORD,
    Arrangement,
    Change,
    Latch,
    Merged,
    project,
)
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columnar.columns import Texts
from tidemill.datalog.dataflow.deltas import pairs
from tidemill.datalog.dataflow.lowering import lower
from tidemill.datalog.dataflow.operators.errors import Errors
from tidemill.datalog.dataflow.operators.iterating import Iteration
from tidemill.datalog.dataflow.operators.matching import Matches
from tidemill.datalog.dataflow.operators.output import Output
from tidemill.datalog.dataflow.operators.reducing import Reduction
from tidemill.datalog.dataflow.plan import UNIT, DeltaPlan, RulePlan
from tidemill.datalog.dataflow.scheduler import AsTheyCome, ByStrata, Pending, Strategy
from tidemill.datalog.dataflow.schema import (
    Schema,
    instant_of,
    record_of,
    rows_of_presences,
)
from tidemill.datalog.evaluation.failures import ErrorPresence
from tidemill.datalog.evaluation.limits import Limits
from tidemill.datalog.evaluation.logical import LogicalPlan, logical_plan
from tidemill.datalog.presence import Instant, Presence
from tidemill.datalog.records import Record
from tidemill.errors import UsageError


@dataclass(frozen=True, slots=True)
class Told:
    """Changes of one collection in a step: rows (columns, instant, diff), by instant."""

    schema: Schema
    moves: I64Array
    texts: Texts

    def __len__(self) -> int:
        return len(self.moves)

    def records(self) -> Iterable[tuple[Instant, Record, int]]:
        """The changes one by one: instant, record, 1 or -1."""
        for move in self.moves.tolist():
            record = record_of(self.schema, move, self.texts)
            yield instant_of(move[-2]), record, move[-1]


class _Rule:
    """A rule with its state: established solutions, groups."""

    def __init__(self, plan: RulePlan, engine: DataflowEngine) -> None:
        self.plan = plan
        schemas, name = engine.schemas, plan.form.head.predicate
        self.predicate = name
        self.matches = Matches(plan, schemas, engine.texts, engine.all_errors)
        columns = plan.columns
        self.latch: Latch | None = None
        if plan.head.outlives:
            self.latch = Latch(columns.width, columns.identity, columns.expiry)
        self.reduction: Reduction | None = None
        if plan.reduce is not None:
            self.reduction = Reduction(
                plan.reduce, self.matches, schemas[name], engine.all_errors, engine.texts,
                plan.scope.lattices,
            )  # fmt: skip

    def take(self, delta: DeltaPlan, change: Change, facts: Mapping[str, Arrangement]) -> Change:
        """A change of the predicate of the head: rows, or matches to be reduced."""
        matches = self.matches.of_change(delta, change, facts)
        if len(matches):
            matches = self.matches.timed(self.matches.sound(matches))
        if self.latch is not None and len(matches):
            matches = self.latch.take(matches)
        if self.reduction is not None or not len(matches):
            return matches
        return self.matches.rows(matches)

    @property
    def nbytes(self) -> int:
        """The bytes of the state."""
        latch = 0 if self.latch is None else self.latch.nbytes
        return latch + (0 if self.reduction is None else self.reduction.nbytes)

    def compact(self, since: int) -> None:
        """Forget what has ended by `since`."""
        if self.latch is not None:
            self.latch.compact(since)
        if self.reduction is not None:
            self.reduction.compact(since)


class DataflowEngine:
    """At every instant below `upper`, the derived facts are what the program says of the inputs.

    Inputs are changes of rows with their intervals, at instants at or after `upper`; a step takes
    all that waits, however many instants it has. Cost: what changes, and what it meets in the
    arrangements. Not for use by several threads at once. Raises: NotInDataflow for a construct that
    is not here yet.
    """

    def __init__(
        self,
        checked: CheckedProgram,
        *,
        plan: LogicalPlan | None = None,
        strategy: Strategy = "strata",
        texts: Texts | None = None,
        watch: Iterable[str] = (),
        keep: bool = False,
        limits: Limits | None = None,
    ) -> None:
        """Changes are told of derived predicates and of `watch`; with `keep` history is kept."""
        logical = plan or logical_plan(checked)
        self.checked = logical.checked
        self.texts = texts or Texts()
        self.all_errors = Errors()
        self.plan = lower(logical, self.texts)
        self.schemas = {name: each.schema for name, each in self.plan.collections.items()}
        self._keep = keep
        self._limits = limits or Limits()
        looped = {name for loop in self.plan.loops for name in loop}
        self._merged = {
            name: Merged(schema.columns, schema.key, schema.expiry, best_only=name in looped)
            for name, schema in self.schemas.items()
        }
        self._facts: dict[str, Arrangement] = {n: m.facts for n, m in self._merged.items()}
        self._readers: dict[str, list[tuple[_Rule, DeltaPlan]]] = {}
        self._rules = []
        self._reductions: dict[str, Reduction] = {}
        for each in self.plan.rules:
            rule = _Rule(each, self)
            self._rules.append(rule)
            if rule.reduction is not None:
                self._reductions[rule.predicate] = rule.reduction
            if rule.predicate not in looped:
                for delta in each.deltas:
                    self._readers.setdefault(delta.source, []).append((rule, delta))
        self._iterations: dict[str, Iteration] = {}
        self._entries: dict[str, list[tuple[str, int, DeltaPlan]]] = {}
        for loop in self.plan.loops:
            self._add_loop(loop)
        self._covers: dict[str, list[tuple[str, I64Array]]] = {}
        for name, collection in self.plan.collections.items():
            if collection.cover is not None:
                source, columns = collection.cover
                copies = pairs([(column, at) for at, column in enumerate(columns, 1)])
                self._covers.setdefault(source, []).append((name, copies))
        watched = {*self.checked.derived, *watch}
        self._outputs = {n: Output(s.columns) for n, s in self.schemas.items() if n in watched}
        ranks = {name: each.rank for name, each in self.plan.collections.items()}
        self._pending: Pending = ByStrata(ranks) if strategy == "strata" else AsTheyCome()
        self._upper = BEGIN_WORD
        unit = np.zeros((1, self.schemas[UNIT].columns + 3), np.int64)
        unit[0] = [0, END_WORD, 1, BEGIN_WORD, END_WORD, 1]
        self._pending.put(UNIT, unit)

    def _add_loop(self, loop: Sequence[str]) -> None:
        """A recursion, and what it reads of other collections."""
        mine = [rule for rule in self._rules if rule.predicate in loop]
        deltas = [[delta for delta in rule.plan.deltas if delta.alone] for rule in mine]

        def derive(number: int, delta: DeltaPlan, change: Change) -> Change:
            return mine[number].take(delta, change, self._facts)

        def forget(number: int, first: int) -> None:
            self.all_errors.forget(mine[number].plan.form.number, first)

        self._iterations[loop[0]] = Iteration(
            {name: self._merged[name] for name in loop},
            [(rule.predicate, found) for rule, found in zip(mine, deltas, strict=True)],
            derive, forget, self._limits.rounds,
        )  # fmt: skip
        for number, found in enumerate(deltas):
            for delta in found:
                if delta.source not in loop:
                    entry = loop[0], number, delta
                    self._entries.setdefault(delta.source, []).append(entry)

    @property
    def upper(self) -> Instant:
        """Everything below this instant is done."""
        return instant_of(self._upper)

    @property
    def nbytes(self) -> int:
        """The bytes of all state, with room for more."""
        kept = sum(merged.nbytes for merged in self._merged.values())
        return kept + sum(rule.nbytes for rule in self._rules)

    def feed(self, predicate: str, change: Change) -> None:
        """Add input rows on their intervals, or take them away.

        Intervals from below `upper` begin there. Shapes: those of the schema of the predicate.
        """
        if predicate not in self.schemas:
            return
        late = change[:, -3] < self._upper
        if late.any():
            change = change.copy()
            change[:, -3] = np.maximum(change[:, -3], self._upper)
            change = change[change[:, -3] < change[:, -2]]
        self._pending.put(predicate, change)

    def feed_presences(self, predicate: str, presences: Sequence[Presence], diff: int = 1) -> None:
        """Records in the place of rows; see `feed`."""
        if predicate in self.schemas:
            schema = self.schemas[predicate]
            self.feed(predicate, rows_of_presences(schema, presences, self.texts, diff))

    def step(self, upper: int) -> dict[str, Told]:
        """Go on to an instant; what changed below it, of each predicate that is told.

        Raises: UsageError where `upper` goes back; NegativeRow for an input.
        """
        if upper < self._upper:
            raise UsageError(
                f"step refused: {upper} is below the upper {self._upper}; ask for a later instant",
                reason="BelowUpper", at=upper, upper=self._upper,
            )  # fmt: skip
        while (found := self._pending.take()) is not None:
            self._take(*found)
        self._upper = upper
        if not self._keep:
            self._compact(upper)
        return {
            name: Told(self.schemas[name], moves, self.texts)
            for name, output in self._outputs.items()
            if len(moves := output.tell(upper))
        }

    def errors(self) -> Sequence[ErrorPresence]:
        """The error collection below `upper`."""
        return self.all_errors.presences(self._upper)

    def _take(self, collection: str, change: Change) -> None:
        """Take a change into a collection, and hand it to all readers."""
        iteration = self._iterations.get(collection)
        if iteration is not None:
            for name, found in iteration.take(self._facts):
                self._tell(name, found)
            return
        reduction = self._reductions.get(collection)
        if reduction is not None:
            change = reduction.take(change, self._facts[collection], self._upper)
        self._tell(collection, self._merged[collection].take(change))

    def _tell(self, collection: str, change: Change) -> None:
        """Hand on what a collection has changed."""
        if not len(change):
            return
        output = self._outputs.get(collection)
        if output is not None:
            output.take(change)
        for name, copies in self._covers.get(collection, ()):
            schema = self.schemas[name]
            rows = project(change, copies, schema.columns)
            rows[:, 0], rows[:, schema.expiry] = 0, END_WORD
            rows[:, schema.nulls] |= 1
            self._pending.put(name, rows)
        for rule, delta in self._readers.get(collection, ()):
            self._pending.put(rule.predicate, rule.take(delta, change, self._facts))
        for loop, number, delta in self._entries.get(collection, ()):
            self._iterations[loop].put(number, delta, change)
            self._pending.wake(loop)

    def _compact(self, since: int) -> None:
        for merged in self._merged.values():
            merged.compact(since)
        for rule in self._rules:
            rule.compact(since)
