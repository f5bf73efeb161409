"""Strata in order, each to its fixed point: derived tables from input tables.

A component of mutually recursive predicates runs semi-naively: in every round one recursive atom of
each rule reads only what the last round added. Where a recursion groups facts that have times or
ends, or lets a fact leave (`~expires`), a later round may take back what an earlier one said; there
every round starts anew from the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from tidemill.datalog.allowance import found_bytes
from tidemill.datalog.evaluation.compiled import (
    ALL_TRAITS,
    CompiledRule,
    Handover,
    Prepared,
    Surroundings,
    made_texts,
)
from tidemill.datalog.evaluation.groups import aggregate
from tidemill.datalog.evaluation.in_bulk import BulkEngine, Carrying
from tidemill.datalog.evaluation.runtime import decorate, observer
from tidemill.datalog.evaluation.solutions import Established, Lingering, Living
from tidemill.datalog.evaluation.timelines import absorb, merge_parts
from tidemill.datalog.failures import Failures
from tidemill.datalog.lattices import TALLIES, merge_parafacts
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.logical.forms import RuleForm, Type
from tidemill.datalog.logical.plan import Component, reads_any
from tidemill.datalog.presence import Instant
from tidemill.datalog.state import EngineState
from tidemill.datalog.tables import Key, Part, Row, Table, Timelines, Traits

NO_TRAITS = Traits(False, False, False, False)


@dataclass(slots=True)
class Trace:
    """What a recursion derives without some facts: `ranks` says in which round each fact was first
    there.
    """

    excluded: frozenset[tuple[str, Key]] = frozenset()
    ranks: dict[tuple[str, Key], int] = field(default_factory=dict)
    round: int = 0

    def strip(self, derived: Mapping[str, Timelines]) -> None:
        """Take away excluded facts and note new ones."""
        for predicate, timelines in derived.items():
            for key in list(timelines):
                if (predicate, key) in self.excluded:
                    del timelines[key]
                else:
                    self.ranks.setdefault((predicate, key), self.round)


class Strata:
    """Evaluates the components of a program one after the other over one window."""

    def __init__(
        self,
        rules: Sequence[CompiledRule],
        around: Surroundings,
        tables: dict[str, Table],
        state: EngineState,
        limits: Limits,
        bulk: BulkEngine | None = None,
    ) -> None:
        self._rules = {rule.form.number: rule for rule in rules}
        self._bulk = bulk.window(around, tables, state) if bulk is not None else None
        self.around = around
        self.tables = tables
        self._state = state
        self._limits = limits
        self._seen = observer(around.lattices)
        self.failures = Failures()
        self.trace: Trace | None = None
        self.established: dict[int, Carrying] = {}
        self.lingering: dict[int, Lingering] = {}

    def state(self) -> EngineState:
        """The solutions that live at the end of the window."""
        established = {number: known.carried() for number, known in self.established.items()}
        lingering = {number: known.carried() for number, known in self.lingering.items()}
        return EngineState(
            {number: kept for number, kept in established.items() if kept},
            {number: kept for number, kept in lingering.items() if kept},
        )

    def table(self, predicate: str) -> Table:
        """The facts of a predicate as known so far."""
        table = self.tables.get(predicate)
        if table is None:
            table = self.tables[predicate] = Table([])
        return table

    def run(self, planned: Component, given: Mapping[str, Timelines]) -> None:
        """Derive the predicates of one component; `given` are facts of them that are inputs."""
        profile = self.around.profile
        if profile is None or not planned.rules:
            self._run_component(planned, given)
        else:
            with profile.predicates(planned.predicates):
                self._run_component(planned, given)

    def _run_component(self, planned: Component, given: Mapping[str, Timelines]) -> None:
        component = planned.predicates
        rules = [self._rules[form.number] for form in planned.rules]
        if not rules and component[0] in self.tables:
            return  # an input, which is a finished table already
        allowance, before = self.around.allowance, self.around.allowance.held
        if not any(given.values()) and self._run_on_columns(planned):
            allowance.settle(before + sum(self.tables[name].bytes_held for name in component))
            return
        allowance.settle(before)  # whatever columns have tried
        self._run_on_rows(planned, rules, given)
        allowance.settle(before + sum(self.tables[name].bytes_held for name in component))

    def _run_on_rows(
        self, planned: Component, rules: Sequence[CompiledRule], given: Mapping[str, Timelines]
    ) -> None:
        component = planned.predicates
        if not planned.recursive:
            derived = self._derive(rules, given)
            for predicate in component:
                self.tables[predicate] = self._finished(predicate, derived[predicate])
        elif self._may_take_back(rules, component):
            self._iterate_anew(rules, component, given)
        else:
            self._iterate_changes(rules, component, given)

    def _run_on_columns(self, planned: Component) -> bool:
        """Derive a component on columns, if it is large and little in its rules fails."""
        if self._bulk is None or self.trace is not None:
            return False
        outer, self.failures = self.failures, Failures()
        taken = self._bulk.run(planned, self._limits, self._beside)
        tried, self.failures = self.failures, outer
        if taken is None:
            return False
        outer.extend(tried)
        self.tables.update(taken.tables)
        self.established.update(taken.established)
        return True

    def _beside(self, form: RuleForm, atom: int, facts: Table) -> Timelines | None:
        """What a rule derives of some facts at one atom; None if that belongs into groups with
        others.
        """
        handover = Handover.GROUP if form.head.aggregates else Handover.COLLECT
        prepared = self._rules[form.number].prepare(
            self.table, self.around, handover, delta=(atom, facts)
        )
        found: dict[Any, Any] = {}
        if prepared is not None:
            prepared.run(found, self.failures.of_match(form), self.failures.of_clock(form))
        return None if found and form.head.aggregates else found

    def _finished(self, predicate: str, timelines: Timelines) -> Table:
        if len(timelines) > self._limits.rows:
            raise LimitPassed(
                f"evaluation given up: {predicate} has more than {self._limits.rows} rows",
                reason="LimitPassed", limit="rows", predicate=predicate,
            )  # fmt: skip
        if "set" in self.around.checked.lattices_of(predicate):
            self._check_sets(predicate, timelines)
        return Table.of_timelines(timelines)

    def _check_sets(self, predicate: str, timelines: Timelines) -> None:
        most = self._limits.set_values
        for parts in timelines.values():
            for part in parts:
                if any(name == "set" and len(inner) > most for name, inner in part[3] or ()):
                    raise LimitPassed(
                        f"evaluation given up: a set of {predicate} has more than {most} values",
                        reason="LimitPassed", limit="set_values", predicate=predicate,
                    )  # fmt: skip

    def _count_round(self, rounds: int, component: Sequence[str]) -> None:
        if rounds > self._limits.rounds:
            raise LimitPassed(
                f"evaluation given up: no fixed point of {', '.join(component)} within "
                f"{self._limits.rounds} rounds",
                reason="LimitPassed", limit="rounds", predicate=component[0],
            )  # fmt: skip

    # One pass over rules that do not feed themselves.

    def derive(self, rule: CompiledRule) -> Timelines:
        """Every derivation of one rule from the tables as they are; those of one fact are not
        merged.
        """
        found: Timelines = {}
        self._apply(rule, found)
        return found

    def _derive(
        self, rules: Sequence[CompiledRule], given: Mapping[str, Timelines]
    ) -> dict[str, Timelines]:
        """The timelines of the heads of the rules over the tables as they are."""
        found: dict[str, Timelines] = {
            predicate: {key: list(parts) for key, parts in timelines.items()}
            for predicate, timelines in given.items()
        }
        numbers: dict[str, int] = {}
        for rule in rules:
            predicate = rule.form.head.predicate
            numbers.setdefault(predicate, rule.form.number)
            out = found.setdefault(predicate, {})
            with self.measured(rule, out):
                self._apply(rule, out)
        for predicate, timelines in found.items():
            for key, parts in timelines.items():
                if len(parts) > 1:
                    report = self.failures.of_fact(numbers.get(predicate, 0), predicate, key)
                    timelines[key] = merge_parts(parts, self.around.lattices, report)
        return found

    def measured(self, rule: CompiledRule, out: Sized) -> AbstractContextManager[None]:
        """The body is a run of the rule that adds what it finds to `out`."""
        profile = self.around.profile
        return nullcontext() if profile is None else profile.rule(rule.form.number, out.__len__)

    def _apply(self, rule: CompiledRule, out: Timelines) -> None:
        """Add every derivation of one rule to `out`."""
        form = rule.form
        if form.lingers:
            self._add_living(form, self._linger(rule), out)
        elif form.outlives:
            self._add_living(form, self._establish(rule).living(), out)
        elif form.head.aggregates:
            groups: dict[Any, list[Any]] = {}
            self._run(rule, Handover.GROUP, groups)
            self._add_groups(form, groups, out)
        else:
            self._run(rule, Handover.COLLECT, out)

    def _run(self, rule: CompiledRule, handover: Handover, out: Any) -> Prepared | None:
        prepared = rule.prepare(self.table, self.around, handover)
        if prepared is not None:
            prepared.run(out, self.failures.of_match(rule.form), self.failures.of_clock(rule.form))
        return prepared

    def _establish(self, rule: CompiledRule) -> Established:
        number = rule.form.number
        solutions = Established(
            self._state.established.get(number, ()),
            self.around.lower,
            self.around.upper,
            self.around.frozen,
        )
        if rule.form.lingers:
            for identity, arguments, time, values, parts in self._lingering_lives(rule):
                expires = self._own_expiry(rule.form, parts)
                for start, end, _, parafacts in parts:
                    solutions.add(identity, start, end, time, expires, arguments, values, parafacts)
        else:
            self._run(rule, Handover.ESTABLISH, solutions.add)
        self.established[number] = solutions
        return solutions

    @staticmethod
    def _own_expiry(form: RuleForm, parts: Sequence[Part]) -> float:
        return parts[0][2] if form.head.expires else float("inf")

    def _linger(self, rule: CompiledRule) -> Iterable[Living]:
        if rule.form.outlives:
            return self._establish(rule).living()
        return self._lingering_lives(rule)

    def _lingering_lives(self, rule: CompiledRule) -> list[Living]:
        number = rule.form.number
        carried = self._state.lingering.get(number, ())
        fail = self.failures.of_match(rule.form)
        prepared = rule.prepare(self.table, self.around, Handover.LINGER, always=bool(carried))
        if prepared is None:
            self.lingering.pop(number, None)
            return []
        solutions = Lingering(
            rule.form, prepared, carried, self.table, self._seen, self.around, fail
        )
        prepared.run(solutions.add, fail, self.failures.of_clock(rule.form))
        self.lingering[number] = solutions
        return solutions.living()

    def _add_living(self, form: RuleForm, living: Iterable[Living], out: Timelines) -> None:
        lattices = self.around.lattices
        groups: dict[Any, list[Any]] = {}
        for identity, arguments, time, values, parts in living:
            report = self.failures.of_fact(form.number, form.head.predicate, (time, *arguments))
            merged = merge_parts(parts, lattices, report)
            if form.head.aggregates:
                key = (arguments, time) if form.head.time else (arguments,)
                groups.setdefault(key, []).extend(
                    (start, end, time, expires, values, parafacts, identity)
                    for start, end, expires, parafacts in merged
                )
            else:
                out.setdefault((time, *arguments), []).extend(merged)
        self._add_groups(form, groups, out)

    def _add_groups(self, form: RuleForm, groups: Mapping[Any, list[Any]], out: Timelines) -> None:
        names = [name for name, _ in form.head.lattices]
        lattices = self.around.lattices
        predicate = form.head.predicate
        for key, solutions in groups.items():
            arguments = key[0]

            def report(
                reason: str, time: int | None, start: Any, end: Any, arguments: Any = arguments
            ) -> None:
                self.failures.of_fact(form.number, predicate, (time, *arguments))(
                    reason, start, end
                )

            for time, part in aggregate(names, solutions, lattices, report):
                out.setdefault((time, *arguments), []).append(part)

    # Recursion.

    def _may_take_back(self, rules: Sequence[CompiledRule], component: Sequence[str]) -> bool:
        """Whether a later round may say less than an earlier one."""
        inside = [rule.form for rule in rules if reads_any(rule.form, component)]
        if any(form.lingers for form in inside):
            return True
        if not any(form.head.aggregates for form in inside):
            return False
        traits = self._traits(rules, component)
        return traits.timed or traits.expiring

    def _traits(self, rules: Sequence[CompiledRule], component: Sequence[str]) -> Traits:
        """What facts of the component may carry."""
        traits = NO_TRAITS
        for rule in rules:
            form = rule.form
            head = Traits(
                bool(form.head.time), not form.head.time, bool(form.head.expires),
                bool(form.head.lattices),
            )  # fmt: skip
            traits = traits | head
            kept = self._state.established.get(form.number) or self._state.lingering.get(
                form.number
            )
            if kept:
                return ALL_TRAITS  # solutions of earlier windows may carry what no present row does
            for atom in form.atoms:
                if atom.is_clock:
                    traits = traits | Traits(True, False, False, False)
                elif atom.predicate not in component:
                    traits = traits | self.table(atom.predicate).traits
        for predicate in component:
            if predicate in self.tables:
                traits = traits | self.tables[predicate].traits
        return traits

    def _iterate_anew(
        self,
        rules: Sequence[CompiledRule],
        component: Sequence[str],
        given: Mapping[str, Timelines],
    ) -> None:
        outer = self.failures
        current: dict[str, Timelines] = {}
        earlier: dict[str, Timelines] | None = None
        rounds = 0
        for predicate in component:
            self.tables[predicate] = Table([])
        while True:
            rounds += 1
            self._count_round(rounds, component)
            self.failures = Failures()
            derived = self._derive(rules, given)
            if self.trace is not None:
                self.trace.round = rounds
                self.trace.strip(derived)
            if derived == current:
                break
            if derived == earlier:
                raise LimitPassed(
                    f"evaluation given up: {', '.join(component)} never settles, because what one "
                    "round derives takes away what it was derived from",
                    reason="LimitPassed", limit="rounds", predicate=component[0],
                )  # fmt: skip
            if rounds & (rounds - 1) == 0:
                earlier = derived  # a cycle of any length comes back to one of these
            current = derived
            for predicate in component:
                self.tables[predicate] = self._finished(predicate, derived.get(predicate, {}))
        outer.extend(self.failures)
        self.failures = outer

    def _iterate_changes(
        self,
        rules: Sequence[CompiledRule],
        component: Sequence[str],
        given: Mapping[str, Timelines],
    ) -> None:
        for predicate in component:
            self.tables.setdefault(
                predicate,
                Table([(*p, *k) for k, ps in given.get(predicate, {}).items() for p in ps]),
            )
        traits = self._traits(rules, component)
        base = [rule for rule in rules if not reads_any(rule.form, component)]
        inside = [rule for rule in rules if reads_any(rule.form, component)]
        timelines: dict[str, Timelines] = {predicate: {} for predicate in component}
        timelines |= self._derive(base, given)
        if self.trace is not None:
            self.trace.strip(timelines)
        outer, self.failures = self.failures, Failures()
        recursion = _Recursion(self, inside, component, timelines, traits)
        recursion.run()
        tried, self.failures = self.failures, outer
        for predicate in component:
            self.tables[predicate] = self._finished(predicate, timelines[predicate])
        for rule in inside:
            if rule.form.outlives:
                self.established[rule.form.number] = recursion.established[rule.form.number]
        if tried:  # report what fails at the fixed point, not what failed on the way
            for rule in inside:
                self._apply(rule, {})


class _Recursion:
    """Semi-naive rounds over one component; fills `timelines` in place."""

    def __init__(
        self,
        strata: Strata,
        rules: Sequence[CompiledRule],
        component: Sequence[str],
        timelines: dict[str, Timelines],
        traits: Traits,
    ) -> None:
        self._strata = strata
        self._rules = rules
        self._component = component
        self._timelines = timelines
        self._fresh: dict[str, list[Row]] = {predicate: [] for predicate in component}
        self._deltas = {predicate: Table([], traits) for predicate in component}
        self._prepared: dict[tuple[int, int], Prepared] = {}
        self.established: dict[int, Established] = {}
        self._outs = {rule.form.number: self._out(rule.form) for rule in rules}
        for predicate in component:
            rows = [(*p, *key) for key, parts in timelines[predicate].items() for p in parts]
            strata.tables[predicate] = Table(rows, traits)
            self._deltas[predicate].rows = list(rows)

    def run(self) -> None:
        """Rounds until nothing is new."""
        rounds = 0
        for rule in self._rules:
            self._start(rule.form)
        self._advance(first=True)
        while any(delta.rows for delta in self._deltas.values()):
            rounds += 1
            self._strata._count_round(rounds, self._component)
            if self._strata.trace is not None:
                self._strata.trace.round = rounds
            for rule in self._rules:
                for i, atom in enumerate(rule.form.atoms):
                    if atom.predicate in self._deltas and not atom.is_clock:
                        self._pass(rule, i, atom.predicate)
            self._advance()

    def _start(self, form: RuleForm) -> None:
        """Solutions that earlier windows established are there from the start."""
        established = self.established.get(form.number)
        if established is None:
            return
        for _, arguments, time, values, parts in established.living():
            for part in parts:
                self._absorb(form, (time, *arguments), self._decorated(form, part, values))

    def _pass(self, rule: CompiledRule, i: int, predicate: str) -> None:
        """One rule with its i-th atom reading only what the last round added."""
        delta = self._deltas[predicate]
        if not delta.rows:
            return
        strata = self._strata
        form = rule.form
        prepared = self._prepared.get((form.number, i))
        if prepared is None:
            handover = Handover.ESTABLISH if form.outlives else Handover.ABSORB
            prepared = rule.prepare(strata.table, strata.around, handover, (i, delta))
            if prepared is None:
                return
            self._prepared[form.number, i] = prepared
        with strata.measured(rule, self._fresh[form.head.predicate]):
            prepared.run(
                self._outs[form.number],
                strata.failures.of_match(form),
                strata.failures.of_clock(form),
            )

    def _advance(self, first: bool = False) -> None:
        for predicate, fresh in self._fresh.items():
            delta = self._deltas[predicate].rows
            if not first:
                delta.clear()
            if fresh:
                delta.extend(fresh)
                self._strata.tables[predicate].extend(fresh)
                fresh.clear()
            if len(self._timelines[predicate]) > self._strata._limits.rows:
                self._strata._finished(predicate, self._timelines[predicate])

    def _out(self, form: RuleForm) -> Any:
        if not form.outlives:
            return self._absorber(form)
        strata = self._strata
        solutions = self.established[form.number] = Established(
            strata._state.established.get(form.number, ()),
            strata.around.lower,
            strata.around.upper,
            strata.around.frozen,
        )

        def establish(identity: Any, *rest: Any) -> None:
            part = solutions.add(identity, *rest)
            if part is not None:
                time, arguments, values = rest[2], rest[4], rest[5]
                self._absorb(form, (time, *arguments), self._decorated(form, part, values))

        return establish

    def _decorated(self, form: RuleForm, part: Part, values: tuple[Any, ...]) -> Part:
        if not form.head.aggregates:
            return part
        lattices = self._strata.around.lattices
        names = [name for name, _ in form.head.lattices]
        assert not TALLIES.intersection(names)
        mine = decorate(names, values, lattices)
        return (*part[:3], merge_parafacts(part[3], mine, lattices))

    def _absorb(self, form: RuleForm, key: Key, part: Part) -> None:
        self._absorber(form)(key, part)

    def _absorber(self, form: RuleForm) -> Any:
        """A function that merges one derivation and notes what it changed."""
        predicate = form.head.predicate
        timelines = self._timelines[predicate]
        fresh = self._fresh[predicate]
        strata = self._strata
        lattices = strata.around.lattices
        trace = strata.trace
        allowance, size = strata.around.allowance, found_bytes(len(form.head.terms))
        kinds = [Type(kind) for _, kind in strata.around.checked.columns[predicate]]
        texts = made_texts(form, kinds)

        def take(key: Key, part: Part) -> None:
            timeline = timelines.get(key)
            if timeline is None:
                allowance.take(size)
                for at in texts:
                    allowance.keep(key[at + 1])
                if trace is not None:
                    if (predicate, key) in trace.excluded:
                        return
                    trace.ranks[predicate, key] = trace.round
                timelines[key] = [part]
                fresh.append((*part, *key))
                return
            if len(timeline) == 1:
                known = timeline[0]
                if (
                    known[0] <= part[0]
                    and part[1] <= known[1]
                    and part[2] <= known[2]
                    and part[3] is known[3]
                ):
                    return

            def report(reason: str, start: Instant, end: Instant) -> None:
                strata.failures.of_fact(form.number, predicate, key)(reason, start, end)

            for new in absorb(timeline, part, lattices, report):
                fresh.append((*new, *key))

        return take
