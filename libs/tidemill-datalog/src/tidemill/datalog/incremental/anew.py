"""A component that is evaluated anew whenever something it reads changes, and compared with what it
was.

For the two shapes whose changes do not follow from kept matches: rules with `~expires` on an atom
of the body, whose solutions stay while some of their facts leave, and recursions that group facts
which have times or ends, where a later round may take back what an earlier one said. The answers
are those of the engine `scratch`; a change costs the facts that the component reads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidemill.datalog.evaluation.compiled import CompiledRule
from tidemill.datalog.evaluation.fixpoint import Strata
from tidemill.datalog.evaluation.timelines import merge_parts
from tidemill.datalog.incremental.facts import Value, merged_value, row_of, same_value
from tidemill.datalog.incremental.lent import Olds
from tidemill.datalog.incremental.surroundings import Present
from tidemill.datalog.incremental.unit import Fact, Reporter
from tidemill.datalog.limits import Limits
from tidemill.datalog.logical.plan import Component
from tidemill.datalog.presence import END, Instant
from tidemill.datalog.state import EngineState
from tidemill.datalog.tables import Key, Row, Table, Timelines
from tidemill.datalog.values import Failed


class AnewUnit:
    """The rules of one component, run over whole tables; `later` ones hold in another tick."""

    recursive = True
    waits_for_all = True

    def __init__(
        self,
        component: Component,
        present: Present,
        reporter: Reporter,
        limits: Limits,
        number: int,
        later: bool = False,
    ) -> None:
        self._planned = component
        self.component = component.predicates
        self.number = number
        self.level = 0
        self.stratum = 0
        self.scheduled = False
        self.runs = 0
        self.seconds = 0.0
        self.present = present
        self.compiled = [CompiledRule(form) for form in component.rules]
        self.inbox: dict[str, Olds] = {}
        self.state = EngineState()
        self._told = EngineState()
        self._later = later
        self._reporter = reporter
        self._limits = limits
        self._given: dict[str, dict[Key, dict[Any, Value]]] = {}
        self._errors: dict[str, int] = {}
        forms = component.rules
        clocks = any(atom.is_clock for form in forms for atom in form.atoms)
        clocks = clocks or any(absent.is_clock for form in forms for absent in form.absent)
        self._foresees = clocks or any(form.head.time or form.head.expires for form in forms)
        self._reads = {name for form in forms for name in form.reads} - set(self.component)

    @property
    def reads(self) -> set[str]:
        """The predicates of other units and inputs that the rules read."""
        return self._reads

    def monotone_in(self, predicate: str) -> bool:
        """Not known of rules that are evaluated anew."""
        return False

    def begin(self) -> None:
        """Derive what needs no facts."""
        self._reporter.schedule(self)

    def support(self, predicate: str, key: Key, source: Any, value: Value) -> None:
        """An input fact of the component."""
        self._given.setdefault(predicate, {}).setdefault(key, {})[source] = value
        self._reporter.schedule(self)

    def withdraw(self, predicate: str, key: Key, source: Any) -> None:
        """An input fact of the component is gone."""
        supports = self._given[predicate][key]
        del supports[source]
        if not supports:
            del self._given[predicate][key]
        self._reporter.schedule(self)

    def restore(self, state: EngineState) -> None:
        """Go on with what an earlier run left, as far as it is of these rules."""
        mine = {rule.form.number for rule in self.compiled}
        self.state = self._told = EngineState(
            {rule: kept for rule, kept in state.established.items() if rule in mine},
            {rule: kept for rule, kept in state.lingering.items() if rule in mine},
        )

    def take_state_changes(self) -> tuple[EngineState, EngineState]:
        """What has left the state and what has come to it since the last call. Cost: O(state)."""
        before, self._told = self._told, self.state
        return _missing(before, self.state), _missing(self.state, before)

    def run(self) -> None:
        """Evaluate the component at this instant, and find out when time alone changes it."""
        self.runs += 1
        timer = self.present.timer
        began = timer() if timer is not None else 0.0
        self._evaluate_anew()
        if timer is not None:
            self.seconds += timer() - began

    def _evaluate_anew(self) -> None:
        self.inbox.clear()
        now = self.present.now
        strata = self._evaluated(now, now + 1, frozen=True)
        self.state = strata.state()
        for predicate in self.component:
            self._compare(predicate, strata.table(predicate))
        around = strata.around
        errors = {e.text: e.rule for e in strata.failures.presences(around.lower, around.upper)}
        for text, rule in self._errors.items():
            self.present.errors.remove(rule, text)
        for text, rule in errors.items():
            self.present.errors.add(rule, text)
        self._errors = errors
        if self._foresees:
            self._foresee(now)

    def _evaluated(self, lower: Instant, upper: Instant, frozen: bool) -> Strata:
        present = self.present
        around = replace(
            present.around,
            checked=present.checked,
            lower=present.around.lower if frozen else lower,
            upper=upper,  # type: ignore[arg-type]  # before the first instant it is no number
            frozen=frozen,
        )
        start = around.lower
        tables = {
            name: Table([(start, END, *row[2:]) for row in present.table(name).rows])
            for name in self._reads
        }
        given: dict[str, Timelines] = {}
        for predicate, facts in self._given.items():
            timelines = given[predicate] = {}
            for key, supports in facts.items():
                value = self._merged(supports)
                if value is not None:
                    timelines[key] = [(start, END, *value)]
        strata = Strata(self.compiled, around, tables, self.state, self._limits)
        if self._later:
            (predicate,) = self.component
            strata.tables[predicate] = Table.of_timelines(self._derived(strata))
        else:
            strata.run(self._planned, {name: given.get(name, {}) for name in self.component})
        return strata

    def _derived(self, strata: Strata) -> Timelines:
        """What the rules derive for another tick."""
        found: Timelines = {}
        for rule in self.compiled:
            for key, parts in strata.derive(rule).items():
                found.setdefault(key, []).extend(parts)
        lattices = self.present.lattices
        return {key: merge_parts(parts, lattices, _ignore) for key, parts in found.items()}

    def _merged(self, supports: dict[Any, Value]) -> Value | None:
        try:
            return merged_value(supports, self.present.lattices)
        except Failed:
            return None

    def _compare(self, predicate: str, found: Table) -> None:
        """Change the facts of a predicate to those found."""
        table = self.present.table(predicate)
        changed: dict[Fact, Row | None] = {}
        keys: set[Key] = set()
        for row in found.rows:
            key = row[4:]
            keys.add(key)
            old = table.get(key)
            value = (row[2], row[3])
            if old is None or not same_value(old, value):
                changed[predicate, key] = old
                table.put(key, row_of(key, value))
        for row in [row for row in table.rows if row[4:] not in keys]:
            changed[predicate, row[4:]] = row
            table.put(row[4:], None)
        for (name, key), old in changed.items():
            self._reporter.changed(self, name, key, old)

    def _foresee(self, now: Instant) -> None:
        """Come back when a solution begins or ends by itself, or where that is not known any more."""
        horizon = self.present.horizon
        if horizon <= now:
            return
        strata = self._evaluated(now, horizon, frozen=False)
        borders = {
            border
            for predicate in self.component
            for row in strata.table(predicate).rows
            for border in row[:2]
        }
        errors = strata.failures.presences(now, horizon)
        borders.update(border for error in errors for border in (error.start, error.end))
        borders.update(strata.state().beginnings())  # also of heads withheld beyond the horizon
        later = [border for border in borders if now < border < END]
        soonest = min((*later, horizon))
        self.present.agenda.add(soonest, lambda: self._reporter.schedule(self))


def _missing(of: EngineState, there: EngineState) -> EngineState:
    """The solutions of one state that the other has not."""
    rows = set(there.to_rows())
    return EngineState.from_rows(row for row in of.to_rows() if row not in rows)


def _ignore(reason: str, start: Instant, end: Instant) -> None:
    """A merged sum that overflows drops the fact; the tick that merged it first has reported it."""
