"""The engine `dataflow`: arrangements of interval updates, kept up to date by steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from weakref import proxy

import numpy as np

from tidemill.arrangement.interval_updates import (
    BEGIN_WORD,
    END_WORD,
    Change,
    Facts,
    Merged,
    NegativeRow,
    RowsAsOf,
    no_change,
    project,
    subtract,
)
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.deltas import pairs
from tidemill.datalog.dataflow.forgetting import Forgetting
from tidemill.datalog.dataflow.holdings import Holdings, Outputs
from tidemill.datalog.dataflow.kept_plans import kept_plan, numbered
from tidemill.datalog.dataflow.operators.blending import Blended
from tidemill.datalog.dataflow.operators.errors import Errors
from tidemill.datalog.dataflow.operators.growing import Growth, from_instant
from tidemill.datalog.dataflow.operators.iterating import Iteration
from tidemill.datalog.dataflow.operators.opening import Opening
from tidemill.datalog.dataflow.operators.reducing import Reduction
from tidemill.datalog.dataflow.operators.sampling import Agenda
from tidemill.datalog.dataflow.output_changes import OutputChanges
from tidemill.datalog.dataflow.plan import UNIT, DeltaPlan
from tidemill.datalog.dataflow.rule_state import Figures, RuleState, tell_state
from tidemill.datalog.dataflow.scheduler import AsTheyCome, ByStrata, Pending
from tidemill.datalog.dataflow.schema import Schema, instant_of, rows_of_presences, rows_of_records
from tidemill.datalog.dataflow.sharing import Derivations, count_of, kept_derivations, shared_inputs
from tidemill.datalog.limits import Limits
from tidemill.datalog.logical.partial import GATHERED
from tidemill.datalog.logical.plan import GIVEN, LogicalPlan
from tidemill.datalog.presence import ErrorPresence, Instant, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.state import LINGERING, WHOLE, Shares, StateRow
from tidemill.datalog.strategy import Strategy
from tidemill.errors import Corrupt, UsageError

_FEW = 16


class DataflowEngine:
    """At every instant below `upper`, the derived facts are what the program says of the inputs.

    Inputs are changes of rows with their intervals, at instants at or after `upper`; a step takes
    all that waits, however many instants it has. Cost: what changes, and what it meets in the
    arrangements. Not for use by several threads at once. Raises: NotInDataflow for a construct that
    is not here yet. IMPORTANT: its parts hold no reference to it but a weak one. In a cycle all
    that it keeps would wait for the garbage collector, which holds the interpreter for seconds.
    """

    def __init__(
        self,
        checked: CheckedProgram,
        *,
        plan: LogicalPlan | None = None,
        strategy: Strategy = "strata",
        texts: Texts | None = None,
        limits: Limits | None = None,
        ticked: bool = False,
        allowance: Allowance | None = None,
        told: Iterable[str] | None = None,
        keeps_state: bool = False,
        carrying: Iterable[str] = (),
        whole: Iterable[str] = (),
        timer: Callable[[], float] = lambda: 0.0,
        shares: bool = False,
    ) -> None:
        """Changes are told of `told`, by default all derived predicates.

        Facts of the inputs in `carrying` may carry any lattice, those of others what their schema
        says. Those of `whole` keep the contributions to their tallies.
        With `keeps_state` `tell_state` has to be asked each step. A ticker runs a `ticked` engine.
        With `shares` its inputs are kept for others too.
        """
        self.checked, lowered = kept_plan(checked if plan is None else plan, carrying, whole)
        self.ticked, self.keeps_state, self.timer = ticked, keeps_state, timer
        self.ticks, self._agenda = np.empty(0, np.int64), Agenda()
        self.allowance = allowance or Allowance()
        """The count of memory that the engine draws on."""
        self.texts = Texts() if texts is None else texts
        self.all_errors = Errors()
        self.plan = numbered(lowered, self.texts)
        self.schemas = {name: each.schema for name, each in self.plan.collections.items()}
        self._limits = limits or Limits()
        self.plan.values.set_values_max = self._limits.set_values
        self._merged = self._make_merged(shares)
        self.holdings = Holdings()
        self.figures = {name: Figures() for name in self.schemas}
        """Work of each collection: its derivations merged and, where it has groups, reduced."""
        self._facts: dict[str, Facts] = {n: m.facts for n, m in self._merged.items()}
        self._readers: dict[str, list[tuple[RuleState, list[DeltaPlan]]]] = {}
        self._openings = self._make_openings()
        self._restored: dict[str, Change] = {}
        self._lived: dict[str, Change] = {}
        """Rows by which the lives of recursions are restored in the step under way."""
        lives = [each.lives for each in self._openings.values()]
        self.sampled = {name for each in lives for name in (each.met, each.stays)}
        """Collections of which only what ticks see counts, in a ticked engine."""
        self._rules: list[RuleState] = []
        self._reductions: dict[str, Reduction] = {}
        for each in self.plan.rules:
            self._add_rule(RuleState(each, proxy(self)))
        self._iterations: dict[str, Iteration | Growth] = {}
        self._entries: dict[str, list[tuple[str, int, DeltaPlan]]] = {}
        self._place: dict[RuleState, tuple[str, int]] = {}
        self._loop_of = {loop[0]: loop for loop in self.plan.loops}
        for loop in self.plan.loops:
            self._add_loop(loop)
        self._clocked = [rule for rule in self._rules if rule.clocked]
        self._sampling: list[tuple[int, int]] = []
        self._covers = self._find_covers()
        watched = dict.fromkeys(self.checked.derived if told is None else told)
        self._outputs = Outputs({n: self.schemas[n].columns for n in watched if n in self.schemas})
        self._pending = self._make_pending(strategy)
        self._upper = self._lower = self._first = BEGIN_WORD
        self._forgetting = Forgetting(
            self.plan.values, self.schemas, self._merged, self._outputs, self._rules, self._openings
        )
        self._put_unit()

    def _put_unit(self) -> None:
        """The fact that rules without atoms read."""
        unit = np.zeros((1, self.schemas[UNIT].columns + 3), np.int64)
        unit[0] = [0, END_WORD, 1, BEGIN_WORD, END_WORD, 1]
        self._pending.put(UNIT, unit)

    def _add_rule(self, rule: RuleState) -> None:
        """A rule; outside of recursions it reads its sources by itself."""
        self._rules.append(rule)
        if rule.reduction is not None:
            self._reductions[rule.predicate] = rule.reduction
        if any(rule.predicate in loop for loop in self.plan.loops):
            return
        if rule.reduction is not None:
            rule.reduction.contributes_ahead = True
        deltas = rule.plan.deltas
        for source in dict.fromkeys(delta.source for delta in deltas):
            mine = [delta for delta in deltas if delta.source == source]
            self._readers.setdefault(source, []).append((rule, mine))

    def _make_merged(self, shares: bool) -> dict[str, Derivations]:
        """The derivations of each collection."""
        self.shared = shared_inputs(self.plan) if shares else {}
        return kept_derivations(self.plan, self.shared, self.all_errors, self.texts, self.ticked)

    def _make_pending(self, strategy: Strategy) -> Pending:
        """The order in which changes are taken."""
        ranks = {name: each.rank for name, each in self.plan.collections.items()}
        if strategy == "strata":
            return ByStrata(ranks, self.plan.inputs)
        lives = self._openings.items()
        return AsTheyCome({n: ranks[n] for n, each in lives if not each.lives.looped})

    def _make_openings(self) -> dict[str, Opening]:
        """The lives of matches that outlive their facts."""
        return {
            name: Opening(name, each.lives, self.schemas, self.texts)
            for name, each in self.plan.collections.items()
            if each.lives is not None
        }

    def _find_covers(self) -> dict[str, list[tuple[str, I64Array]]]:
        """The covers of each collection, with the columns that they copy."""
        found: dict[str, list[tuple[str, I64Array]]] = {}
        for name, collection in self.plan.collections.items():
            if collection.cover is not None:
                source, columns = collection.cover
                copies = pairs([(column, at) for at, column in enumerate(columns, 1)])
                found.setdefault(source, []).append((name, copies))
        return found

    def _add_loop(self, loop: Sequence[str]) -> None:
        """A recursion, and what it reads of other collections."""
        mine = [rule for rule in self._rules if rule.predicate in loop]
        rules = [rule.plan for rule in mine]
        engine: DataflowEngine = proxy(self)

        def derive(number: int, delta: DeltaPlan, change: Change) -> Change:
            return mine[number].take((delta,), change, engine._facts)

        def again(number: int, asked: Change) -> Change:
            return mine[number].again(asked, engine._facts)

        def forget(number: int, first: int) -> None:
            engine.all_errors.forget(mine[number].plan.form.number, first)

        if not self.schemas[loop[0]].aged:
            for rule in mine:
                if rule.remembers:
                    rule.keep_rows()
            remembers = [rule.remembers for rule in mine]
            self._iterations[loop[0]] = Growth(
                loop, [(plan.form.head.predicate, plan.deltas) for plan in rules], derive,
                lambda *of: engine.merge(*of), lambda *of: engine.cut(*of), forget,
                lambda number, first: mine[number].kept(first), remembers, self._limits,
            )  # fmt: skip
        else:
            merged = {n: m for n, m in self._merged.items() if n in loop and isinstance(m, Merged)}
            schemas = {name: self.schemas[name] for name in loop}
            self._iterations[loop[0]] = Iteration(
                merged, schemas, rules, derive, again, lambda *of: engine._lost(*of),
                lambda *of: engine._tell_round(*of), self._limits,
            )  # fmt: skip
        for number, rule in enumerate(mine):
            self._place[rule] = loop[0], number
            for delta in rule.plan.deltas:
                if delta.source not in loop:
                    entry = loop[0], number, delta
                    self._entries.setdefault(delta.source, []).append(entry)

    @property
    def upper(self) -> Instant:
        """Everything below this instant is done."""
        return instant_of(self._upper)

    @property
    def lower(self) -> int:
        """The word of an instant before which nothing changes in the step under way."""
        return self._lower

    @property
    def nbytes(self) -> int:
        """The bytes of all state, with room for more."""
        return self.holdings.nbytes

    def merged_of(self, collection: str) -> Derivations:
        """The derivations of a collection."""
        return self._merged[collection]

    def rows(self, predicate: str) -> int:
        """Number of rows of a collection."""
        merged = self._merged.get(self._named(predicate))
        return 0 if merged is None else count_of(merged)

    def kept(self, collection: str) -> tuple[int, int]:
        """Rows and bytes that a collection keeps."""
        merged = self._merged[collection]
        return len(merged.facts) + len(merged.spare), merged.nbytes

    def rules_of(self, collection: str) -> list[RuleState]:
        """The rules that derive a collection."""
        return [rule for rule in self._rules if rule.predicate == collection]

    def schema_of(self, predicate: str) -> Schema | None:
        """The columns in which an input is fed, None where no rule reads it."""
        return self.schemas.get(self._named(predicate))

    def shared_of(self, predicate: str) -> RowsAsOf | None:
        """The rows of an input that other engines may share, None where it has none."""
        return self.shared.get(self._named(predicate))

    def feed(self, predicate: str, change: Change) -> None:
        """Add input rows on their intervals, or take them away.

        Intervals from below `upper` begin there. Shapes: those of the schema of the predicate.
        """
        predicate = self._named(predicate)
        if predicate not in self.schemas:
            return
        starts = change[:, -3]
        first = min(starts.tolist(), default=END_WORD) if len(starts) < _FEW else int(starts.min())
        if first < self._upper:
            change = change.copy()
            change[:, -3] = np.maximum(change[:, -3], self._upper)
            change = change[change[:, -3] < change[:, -2]]
        self._first = min(self._first, first)
        self._pending.put(predicate, change)

    def feed_presences(self, predicate: str, presences: Sequence[Presence], diff: int = 1) -> None:
        """Records in the place of rows; see `feed`."""
        predicate = self._named(predicate)
        if predicate in self.schemas:
            schema = self.schemas[predicate]
            self.feed(predicate, rows_of_presences(schema, presences, self.texts, diff))

    def feed_records(self, predicate: str, records: Iterable[tuple[Record, int, int, int]]) -> None:
        """Records with their starts, ends and diffs in the place of rows; see `feed`."""
        predicate = self._named(predicate)
        if predicate in self.schemas:
            self.feed(predicate, rows_of_records(self.schemas[predicate], records, self.texts))

    def step(self, upper: int) -> dict[str, OutputChanges]:
        """Go on to an instant; what changed below it, of each predicate that is told.

        Its lattices are read before the next step.

        Raises: UsageError where `upper` goes back; Corrupt for an input of which more is taken
        away than was put in; Exhausted, LimitPassed. After an error the engine is of no use.
        """
        if upper < self._upper:
            raise UsageError(
                f"step refused: {upper} is below the upper {self._upper}; ask for a later instant",
                reason="BelowUpper", at=upper, upper=self._upper,
            )  # fmt: skip
        for each in self.shared.values():
            each.go_to(upper)
        if not (self._clocked or self._openings or self.ticked):
            # No change begins before those that wait, of which some may begin after the step.
            self._lower = max(self._upper, min(self._first, upper - 1))
        self._release(upper)
        self.settle()
        self.finish(upper)
        told = {
            name: OutputChanges(self.schemas[name], moves, self.texts)
            for name in self._outputs.due(upper)
            if len(moves := self.moves(name, upper))
        }
        self.forget_values((each.schema, each.moves) for each in told.values())
        return told

    def settle(self) -> bool:
        """Take in all that waits, and what follows from it; whether anything did."""
        worked = False
        while (found := self._pending.take()) is not None or self._restored:
            if found is None:  # lives of which nothing has said whether they go on
                found = self._restored.popitem()
            self._take(*found)
            worked = True
        return worked

    def finish(self, upper: int) -> None:
        """Everything below an instant is done. Raises: as `Allowance.settle`."""
        self._upper = self._lower = upper
        self._first = END_WORD
        self._lived.clear()
        for each in self.shared.values():
            each.arrive()
        self.holdings.finish(upper, self.allowance)

    def moves(self, predicate: str, upper: int) -> I64Array:
        """The moves of a predicate below an instant that were not told yet, by instant."""
        return self._outputs.tell(predicate, upper)

    def forget_values(self, held: Iterable[tuple[Schema, I64Array]]) -> None:
        """Forget the values of lattices that no row has any more, where that may be half of them.

        `held` are rows that are told. Cost: amortised O(1) for each value that has come.
        """
        if self._forgetting.due:
            self.holdings.compact(self._upper)
            self._forgetting.forget(held)

    def due(self, upper: int) -> list[str]:
        """The predicates of which `moves` may tell something."""
        return self._outputs.due(upper)

    def begin_ticks(self, ticks: I64Array) -> None:
        """The next ticks are at these instants, which ascend from `upper` on."""
        self.ticks = ticks
        self._release(int(ticks[-1]) + 1)
        last, due = int(ticks[-1]), set[int]()
        while self._sampling and self._sampling[0][0] <= last:
            due.add(heappop(self._sampling)[1])
        for number in sorted(due):
            rule = self._rules[number]
            self._put(rule, rule.due())

    def sample(self, at: int, rule: RuleState) -> None:
        """A rule has matches that begin or end by themselves at an instant."""
        heappush(self._sampling, (at, self._rules.index(rule)))

    def _release(self, upper: int) -> None:
        """Release the ticks of clocks below an instant, before anything else of the step."""
        for rule in self._clocked:
            self._put(rule, rule.go_on(upper, self._facts))

    def _put(self, rule: RuleState, rows: Change) -> None:
        """Rows that a rule derives by itself wait for its predicate."""
        if rule not in self._place:
            self._wait(rule, rows)
        elif len(rows):
            loop, number = self._place[rule]
            iteration = self._iterations[loop]
            assert isinstance(iteration, Growth)
            iteration.wait(number, rows)
            self._pending.wake(loop)

    def _wait(self, rule: RuleState, rows: Change) -> None:
        self._pending.put(rule.predicate, rows)
        if rule.waiting:
            self._pending.wake(rule.predicate)

    def note(self, change: Change) -> None:
        """Remember when a change begins and ends to hold after the ticks under way."""
        self._agenda.note(change, int(self.ticks[-1]))

    @property
    def soonest(self) -> Instant:
        """The first instant from `upper` on at which time alone may change what holds."""
        return min(self._agenda.soonest(self._upper - 1), instant_of(self._next_tick))

    @property
    def turn(self) -> int:
        """The first instant, as a word, at which outputs, errors or the state change alone."""
        kept = [each.soonest for each in self._rules]
        kept += [each.soonest for each in self._openings.values()]
        return min(self._next_tick, self._outputs.soonest, self.all_errors.soonest, *kept)

    @property
    def _next_tick(self) -> int:
        return min((rule.matches.soonest() for rule in self._clocked), default=END_WORD)

    def _named(self, predicate: str) -> str:
        """The collection that is fed for a predicate."""
        return GIVEN + predicate if GIVEN + predicate in self.schemas else predicate

    def errors(self) -> Sequence[ErrorPresence]:
        """The error collection below `upper`."""
        return self.all_errors.presences(self._upper)

    def restore(self, rows: Iterable[StateRow], lower: int, shares: Shares = WHOLE) -> None:
        """Restore the solutions of a state that was written just before `lower`, or shares of it.

        Raises: Corrupt for rows that cannot be read.
        """
        self._first = BEGIN_WORD
        by_rule: dict[int, list[StateRow]] = {}
        for row in rows:
            by_rule.setdefault(row[0], []).append(row)
        rules = {r.plan.form.number: r for r in self._rules if r.predicate not in self.sampled}
        openings = {each.lives.rule: (name, each) for name, each in self._openings.items()}
        for number, mine in sorted(by_rule.items()):
            if number not in rules:
                raise Corrupt(f"the state has solutions of rule {number}, which is not there")
            living = [row for row in mine if row[1] == LINGERING] if number in openings else []
            if living:
                name, opening = openings[number]
                met = opening.restore(living, lower, shares.get(number))
                self._restore_lives(name, opening, met, lower)
            others = [row for row in mine if row[1] != LINGERING] if living else mine
            if others:
                share = shares.get(number)
                if share is not None and number in openings:
                    share = openings[number][1].lives.share(share)
                self._put(rules[number], rules[number].restore(others, lower, share))

    def _restore_lives(self, name: str, opening: Opening, met: Change, lower: int) -> None:
        """Matches of a rule lived before `lower`; the step tells which of them go on.

        A recursion finds that out by itself, also where it finds its facts anew in this step.
        """
        self._put(self.rules_of(opening.lives.met)[0], met)
        if opening.lives.looped:
            self._lived[opening.lives.met] = met
            return
        schema = self.schemas[name]
        touched = np.zeros((len(met), schema.columns + 3), np.int64)
        touched[:, : schema.expiry] = met[:, : schema.expiry]
        touched[:, schema.nulls] = met[:, -4] & ((1 << schema.expiry) - 1)
        touched[:, -3], touched[:, -2] = lower, END_WORD
        self._restored[name] = touched

    def tell_state(self) -> tuple[list[StateRow], list[StateRow]]:
        """Rows of the state that have gone and come since the last call, at `upper`."""
        gone, come = self.tell_state_late()
        return gone, [*come()]

    def tell_state_late(self) -> tuple[list[StateRow], Callable[[], list[StateRow]]]:
        """The same: what has come is made when it is asked for, by any thread."""
        return tell_state(self._rules, self._openings.values(), self._upper)

    def tell_errors(self) -> list[tuple[str, int, int]]:
        """Each begin and end of an error below `upper` that was not told: (text, instant, diff)."""
        return self.all_errors.tell(self._upper)

    def _take(self, collection: str, change: Change) -> None:
        """Take a change into a collection, and hand it to all readers."""
        self.allowance.take(int(change.nbytes))
        began = self.timer()
        iteration = self._iterations.get(collection)
        if iteration is not None:
            self.holdings.reach(self._merged[name] for name in self._loop_of[collection])
            if isinstance(iteration, Iteration):
                iteration.take()
                return
            for name, found in iteration.take(self._facts):
                self._tell(name, found)
            return
        reduction, taken = self._reductions.get(collection), len(change)
        if reduction is not None:
            taken += reduction.waiting
            self.allowance.take(reduction.waiting_bytes)
        told = self.merge(collection, change)
        self.figures[collection].add(taken, len(told), self.timer() - began)
        self._tell(collection, told, net=reduction is not None and reduction.told_net)

    def merge(self, collection: str, change: Change) -> Change:
        """Take in what rules derive of a collection; what that changes of its facts."""
        reduction, opening = self._reductions.get(collection), self._openings.get(collection)
        merged, whole, made = self._merged[collection], None, 0
        self.holdings.reach((merged,))
        if reduction is not None:
            assert not isinstance(merged, RowsAsOf)
            alone = opening is None and isinstance(merged, Merged)
            change, made = reduction.take(change, merged.facts, self._upper, in_place=alone)
            if alone:
                whole, change = change, change[made:]
            else:
                change = np.concatenate([change[made:], change[:made]])
        if opening is not None:
            change = opening.take(change, self._facts)
        try:
            told = merged.take(change)
        except NegativeRow as error:
            if collection not in self.plan.inputs:
                raise
            raise Corrupt(
                f"input {collection.removeprefix(GIVEN)}: a row is taken away more often than it "
                "was put in", reason="NegativeMultiplicity",
            ) from error  # fmt: skip
        if whole is not None and reduction is not None:
            reduction.told_net &= told is change
            told = whole if told is change else np.concatenate([whole[:made], told])
        self._limit_rows(collection)
        return told

    def _limit_rows(self, collection: str) -> None:
        if collection not in self.plan.inputs and not collection.startswith(GATHERED):
            self._limits.require_rows(collection, count_of(self._merged[collection]))

    def cut(self, collection: str, first: int) -> Change:
        """Forget what holds of a collection from an instant on.

        Gives the rows of lives that this has cut, and of matches that only the state has told.
        """
        if isinstance(merged := self._merged[collection], Merged | Blended):
            merged.cut(first)
        reduction = self._reductions.get(collection)
        if reduction is not None:
            reduction.cut(first)
        if collection in self._lived:
            return from_instant(self._lived[collection][:, :-1], first, 1)
        opening = self._openings.get(collection)
        if opening is None:
            return no_change(self.schemas[collection].columns)
        return opening.ended_at(first, self._facts[collection])

    def _lost(self, collection: str, gone: Change) -> Change:
        """The parts of rows where no fact of their key is as good: it ends as late or later."""
        schema = self.schemas[collection]
        key, order = np.array(schema.key, np.int64), (schema.order, schema.order)
        return subtract(gone, self._facts[collection], key, key, order)

    def _tell_round(self, collection: str, change: Change) -> None:
        self._limit_rows(collection)
        self._tell(collection, change)

    def _tell(self, collection: str, change: Change, net: bool = False) -> None:
        """Hand on what a collection has changed, `net` if no row stands beside its opposite."""
        if not len(change):
            return
        opening = self._openings.get(collection)
        if opening is not None and self.keeps_state:
            opening.note(change)
        if self.ticked and opening is None:
            self.note(change)
        self._outputs.take(collection, change, net)
        for name, copies in self._covers.get(collection, ()):
            schema = self.schemas[name]
            rows = project(change, copies, schema.columns)
            rows[:, 0], rows[:, schema.expiry] = 0, END_WORD
            rows[:, schema.nulls] |= 1
            self._pending.put(name, rows)
        for rule, deltas in self._readers.get(collection, ()):
            self._wait(rule, rule.take(deltas, change, self._facts))
        for loop, number, delta in self._entries.get(collection, ()):
            self._iterations[loop].put(number, delta, change)
            self._pending.wake(loop)
