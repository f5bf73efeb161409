"""Ticked programs: one instant after the other, with what `@next` carries and `@async` sends
(language.md 7).

A tick sees the inputs as they are at its instant, what the last tick carried and what messages
brought, runs the deductive rules to their fixed point, and then evaluates the rules with `@next`
and `@async` once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tidemill.datalog.evaluation.timelines import merge_parts
from tidemill.datalog.failures import ErrorPresence
from tidemill.datalog.lattices import Parafacts, inject_given, observe_parafacts
from tidemill.datalog.logical.forms import RuleForm, Variable
from tidemill.datalog.presence import BEGINNING, END, Instant, Presence, normalise
from tidemill.datalog.records import Record, Value
from tidemill.datalog.scratch.engine import Engine, presences_of
from tidemill.datalog.state import EngineState
from tidemill.datalog.tables import Key, Table, Timelines
from tidemill.datalog.values import widen

Fact: TypeAlias = "tuple[str, Key]"
Told: TypeAlias = "tuple[Instant, Parafacts]"
"""What one reason for a fact says of it: its expiry and its parafacts."""


def merged(values: Iterable[Told], at: float) -> tuple[Instant, set[str]] | None:
    """The reasons for a fact that live after an instant, as one; None without any."""
    living = [value for value in values if value[0] > at]
    if not living:
        return None
    return max(ends for ends, _ in living), {repr(parafacts) for _, parafacts in living}


@dataclass(frozen=True, slots=True)
class Message:
    """A fact on its way to a node, where it holds in one later tick."""

    node: Value
    record: Record


@dataclass(frozen=True, slots=True)
class TickState:
    """What one tick hands to the next: facts carried by `@next`, solutions that live on.

    `carried` are timelines without begin or end; a predicate that a rule `p(x) @next := p(x)` only
    keeps is handed on as the same table, indexes included, at no cost.
    """

    carried: Mapping[str, Timelines] = field(default_factory=dict)
    kept: Mapping[str, Table] = field(default_factory=dict)
    solutions: EngineState = field(default_factory=EngineState)


@dataclass(frozen=True, slots=True)
class Tick:
    """The answer of one tick."""

    tables: Mapping[str, Table] = field(repr=False)
    messages: tuple[Message, ...]
    errors: list[ErrorPresence]
    state: TickState
    engine: Engine = field(repr=False)

    def records(self, predicate: str) -> list[Record]:
        """The records of a predicate in this tick."""
        table = self.tables.get(predicate)
        if table is None:
            return []
        presences = presences_of(predicate, table.rows, self.engine.lattices)
        return [presence.record for presence in presences]


class Ticker:
    """Runs the ticks of one program at one node; the state between ticks is the caller's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept = {rule.form.number for rule in engine.later_rules if _keeps(rule.form)}

    def tick(
        self, at: int, inputs: Mapping[str, Iterable[Record]], state: TickState | None = None
    ) -> Tick:
        """The tick at the instant `at`; `inputs` are the facts present then, messages among them.

        A carried fact that has expired by `at` is gone. Cost: that of evaluating the program on the
        facts of the tick; facts that a rule only keeps cost nothing while nothing of their
        predicate changes.
        """
        engine = self._engine
        before = state or TickState()
        given = self._given(at, inputs, before)
        derived = set(engine.checked.derived)
        tables = {
            name: Table.of_timelines(timelines)
            for name, timelines in given.items()
            if name not in derived
        }
        strata = engine.strata(tables, BEGINNING, at + 1, before.solutions, frozen=True)
        for planned in engine.plan.components:
            component = planned.predicates
            if len(component) == 1 and self._unchanged(component[0], given, before, at):
                tables[component[0]] = before.kept[component[0]]
            else:
                strata.run(planned, {name: given.get(name, {}) for name in component})
        carried: dict[str, Timelines] = {}
        kept: dict[str, Table] = {}
        sent: dict[str, Timelines] = {}
        for rule in engine.later_rules:
            form = rule.form
            name = form.head.predicate
            if form.number in self._kept and not self._blocked(form, tables):
                kept[name] = strata.table(name)
                continue
            timelines = strata.derive(rule)
            _add((sent if form.sends else carried).setdefault(name, {}), timelines)
        for name in list(kept):
            if name in carried:
                _add(carried[name], _timelines_of(kept.pop(name)))
        messages = tuple(
            message
            for name, timelines in sent.items()
            for message in self._messages(name, timelines)
        )
        result = engine.result(strata, ())
        return Tick(tables, messages, result.errors, TickState(carried, kept, result.state), engine)

    def _given(
        self, at: int, inputs: Mapping[str, Iterable[Record]], before: TickState
    ) -> dict[str, Timelines]:
        carried: dict[Fact, list[Told]] = {
            (name, key): [(part[2], part[3]) for part in parts]
            for name, timelines in before.carried.items()
            for key, parts in timelines.items()
        }
        for name, table in before.kept.items():
            if not self._unchanged(name, inputs, before, at):
                for row in table.rows:
                    carried.setdefault((name, row[4:]), []).append((row[2], row[3]))
        return given_facts(self._engine, at, inputs, carried)

    def _unchanged(
        self, name: str, inputs: Mapping[str, Iterable[object]], before: TickState, at: int
    ) -> bool:
        """Whether a kept table is all there is of its predicate in this tick."""
        table = before.kept.get(name)
        if table is None or name in before.carried or inputs.get(name) or table.traits.expiring:
            return False
        return not any(rule.form.head.predicate == name for rule in self._engine.rules)

    def _blocked(self, form: RuleForm, tables: Mapping[str, Table]) -> bool:
        """Whether any atom under `not` of a keeping rule has facts."""
        return any(
            absent.is_clock or (absent.predicate in tables and tables[absent.predicate].rows)
            for absent in form.absent
        )

    def _messages(self, name: str, timelines: Timelines) -> Iterable[Message]:
        """One for each fact and node; what several rules say of it is merged."""
        lattices = self._engine.lattices
        for key, parts in timelines.items():
            for _, _, expires, parafacts in merge_parts(parts, lattices, _ignore):
                record = Record(
                    name,
                    tuple(key[2:]),
                    key[0],
                    None if expires == END else int(expires),
                    observe_parafacts(parafacts, lattices),
                )
                yield Message(key[1], record)


def given_facts(
    engine: Engine,
    at: int,
    inputs: Mapping[str, Iterable[Record]],
    carried: Mapping[Fact, Iterable[Told]],
) -> dict[str, Timelines]:
    """The facts that a tick has before any rule: inputs, messages among them, and what was carried
    to it.

    What has expired by `at` is gone; what several say of one fact is merged.
    """
    given: dict[str, Timelines] = {}
    for (name, key), values in carried.items():
        parts = given.setdefault(name, {}).setdefault(key, [])
        parts += [(BEGINNING, END, *value) for value in values]
    for name, records in inputs.items():
        mine = given.setdefault(name, {})
        floats = [kind == "float" for _, kind in engine.checked.columns.get(name, ())]
        for record in records:
            parafacts = inject_given(record, engine.lattices) if record.parafacts else None
            expires = END if record.expires is None else record.expires
            arguments = tuple(
                widen(value) if floating else value
                for value, floating in zip(record.arguments, floats, strict=True)
            )
            part = (BEGINNING, END, expires, parafacts)
            mine.setdefault((record.time, *arguments), []).append(part)
    for timelines in given.values():
        for key, parts in list(timelines.items()):
            present = [(BEGINNING, END, *part[2:]) for part in parts if part[2] > at]
            if present:
                timelines[key] = merge_parts(present, engine.lattices, _ignore)
            else:
                del timelines[key]
    return given


def _ignore(reason: str, start: float, end: float) -> None:
    """A merged sum that overflows drops the fact; the tick that merged it first has reported it."""


def _add(into: Timelines, timelines: Timelines) -> None:
    for key, parts in timelines.items():
        into.setdefault(key, []).extend((BEGINNING, END, *part[2:]) for part in parts)


def _timelines_of(table: Table) -> Timelines:
    timelines: Timelines = {}
    for row in table.rows:
        timelines.setdefault(row[4:], []).append((BEGINNING, END, row[2], row[3]))
    return timelines


def _keeps(form: RuleForm) -> bool:
    """Whether the rule only keeps its predicate: `p(x, y) @next := p(x, y)`, perhaps with `not`
    atoms.
    """
    if not form.next_tick or len(form.atoms) != 1 or form.conditions or form.head.lattices:
        return False
    atom, head = form.atoms[0], form.head
    if atom.predicate != head.predicate or atom.lattices or atom.suppressed or head.suppressed:
        return False
    names = [term.name for term in atom.terms if isinstance(term, Variable)]
    return (
        not head.time
        and not head.expires
        and atom.terms == head.terms
        and len(set(names)) == len(atom.terms)
    )


def change_instants(inputs: Mapping[str, Sequence[Presence]], upper: float = END) -> list[int]:
    """The instants below `upper` at which the set of facts present in some input differs from just
    before.
    """
    stretches: dict[object, list[tuple[float, float]]] = {}
    for presences in inputs.values():
        for presence in presences:
            if presence.start < presence.end:
                key = presence.record.key
                stretches.setdefault(key, []).append((presence.start, presence.end))
    borders = {
        border
        for intervals in stretches.values()
        for interval in normalise(intervals)
        for border in interval
    }
    return sorted(int(border) for border in borders if BEGINNING < border < min(upper, END))


def present_at(inputs: Mapping[str, Sequence[Presence]], at: int) -> dict[str, list[Record]]:
    """The input records at one instant."""
    return {
        name: [p.record for p in presences if p.start <= at < p.end]
        for name, presences in inputs.items()
    }
