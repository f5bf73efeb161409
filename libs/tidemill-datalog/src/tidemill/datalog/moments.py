"""The facts of single instants, with solutions that live on from earlier ones: for explanations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidemill.datalog.evaluation.failures import Failures
from tidemill.datalog.evaluation.fixpoint import Strata, Trace
from tidemill.datalog.evaluation.forms import RuleForm
from tidemill.datalog.evaluation.runtime import observer
from tidemill.datalog.evaluation.state import (
    EngineState,
    EstablishedSolution,
    LingeringSolution,
)
from tidemill.datalog.evaluation.tables import Key, Table, Timelines
from tidemill.datalog.lattices import observe_parafacts
from tidemill.datalog.matching import Matcher
from tidemill.datalog.presence import BEGINNING, END, Instant, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.scratch.engine import Engine, load
from tidemill.datalog.values import INT_MIN


class History(Protocol):
    """Facts for an explanation: the inputs of any instant, and the state just before it."""

    def inputs_at(self, at: int) -> Mapping[str, Sequence[Record]]:
        """The input records present at an instant; more than needed does no harm."""
        ...

    def state_before(self, at: int) -> EngineState:
        """The solutions that live on from instants before, as a window ending at `at` leaves
        them.
        """
        ...


class RecordedHistory:
    """A history given as presences; solutions that live on are found by one evaluation up to
    `upper`.
    """

    def __init__(
        self,
        engine: Engine,
        inputs: Mapping[str, Sequence[Presence]],
        upper: int,
        only: Collection[str],
    ) -> None:
        self._inputs = inputs
        self._established: dict[int, tuple[EstablishedSolution, ...]] = {}
        self._lives: dict[int, list[tuple[Instant, LingeringSolution]]] = {}
        needed = [form for form in engine.forms if form.head.predicate in only]
        if any(form.outlives or form.lingers for form in needed):
            failures = Failures()
            loaded = {
                name: load(engine.checked, name, found, BEGINNING, upper, engine.lattices, failures)
                for name, found in inputs.items()
            }
            strata = engine.complete(loaded, BEGINNING, upper, None, only=only)
            self._established = {n: tuple(known.known()) for n, known in strata.established.items()}
            self._lives = {
                number: [(life.end, life.solution) for life in known.lives]
                for number, known in strata.lingering.items()
            }

    def inputs_at(self, at: int) -> Mapping[str, Sequence[Record]]:
        """The records of the presences that contain the instant."""
        return {
            name: [p.record for p in presences if p.start <= at < p.end]
            for name, presences in self._inputs.items()
        }

    def state_before(self, at: int) -> EngineState:
        """Solutions that the evaluation has found to live just before the instant."""
        established = {
            number: tuple(
                _until(solution, at)
                for solution in solutions
                if solution.expires >= at and min(v[0] for v in solution.versions) < at
            )
            for number, solutions in self._established.items()
        }
        lingering = {
            number: tuple(
                LingeringSolution(
                    solution.keys,
                    solution.values,
                    tuple(version for version in solution.versions if version[0] < at),
                )
                for end, solution in lives
                if end >= at and min(v[0] for v in solution.versions) < at
            )
            for number, lives in self._lives.items()
        }
        return EngineState(established, lingering)


def _until(solution: EstablishedSolution, at: Instant) -> EstablishedSolution:
    versions = tuple(version for version in solution.versions if version[0] < at)
    return EstablishedSolution(
        solution.identity, solution.arguments, solution.time, solution.expires, solution.values,
        versions,
    )  # fmt: skip


@dataclass(slots=True)
class Moment:
    """The program at one instant: its facts, how they match, and what lives on."""

    at: int
    engine: Engine
    strata: Strata
    given: Mapping[str, Timelines]
    state: EngineState
    place: int = 0
    """Under which number proofs know it: the instant, or the number of a tick."""
    _ranks: dict[tuple[tuple[str, ...], frozenset[tuple[str, Key]]], dict[tuple[str, Key], int]] = (
        field(default_factory=dict)
    )

    @classmethod
    def of(cls, engine: Engine, history: History, at: Instant, only: Collection[str]) -> Moment:
        """The instant `at`, evaluated as far as the predicates in `only` need."""
        instant = INT_MIN if at == BEGINNING else int(at)
        failures = Failures()
        given = {
            name: load(
                engine.checked, name, [Presence(record) for record in records], BEGINNING,
                instant + 1, engine.lattices, failures,
            )
            for name, records in history.inputs_at(instant).items()
            if name in only
        }  # fmt: skip
        state = history.state_before(instant)
        strata = engine.complete(given, BEGINNING, instant + 1, state, only=only, frozen=True)
        return cls(instant, engine, strata, given, state, instant)

    def table(self, predicate: str) -> Table:
        """The facts of a predicate at this instant."""
        return self.strata.table(predicate)

    @property
    def matcher(self) -> Matcher:
        """Finds matches at this instant."""
        seen = observer(self.engine.lattices)
        return Matcher(self.table, self.engine.functions, seen, self.at, self.engine.allowance)

    def is_given(self, predicate: str, key: Key) -> bool:
        """Whether the fact is an input at this instant."""
        return key in self.given.get(predicate, {})

    def record(self, predicate: str, key: Key) -> Record | None:
        """The record of a fact at this instant, None if it is absent."""
        rows = self.table(predicate).of_key(key)
        if not rows:
            return None
        row = rows[0]
        return Record(
            predicate,
            key[1:],
            key[0],
            None if row[2] == END else int(row[2]),
            observe_parafacts(row[3], self.engine.lattices),
        )

    def ranked(self, component: tuple[str, ...], excluded: frozenset[tuple[str, Key]]) -> bool:
        """Whether `ranks` knows its answer already."""
        return (component, excluded) in self._ranks

    def ranks(
        self, component: tuple[str, ...], excluded: frozenset[tuple[str, Key]]
    ) -> Mapping[tuple[str, Key], int]:
        """In which round of its fixed point each fact of a component comes, without the excluded
        ones.
        """
        known = self._ranks.get((component, excluded))
        if known is None:
            planned = next(c for c in self.engine.plan.components if component[0] in c.predicates)
            inside = planned.predicates
            tables = {
                name: table for name, table in self.strata.tables.items() if name not in inside
            }
            strata = self.engine.strata(tables, BEGINNING, self.at + 1, self.state, frozen=True)
            strata.trace = Trace(excluded)
            strata.run(planned, {name: self.given.get(name, {}) for name in inside})
            known = self._ranks[component, excluded] = strata.trace.ranks
        return known

    def established(self, form: RuleForm) -> list[tuple[EstablishedSolution, Instant]]:
        """The living solutions of a rule that outlives its facts, each with when it was
        established.
        """
        known = self.strata.established.get(form.number)
        if known is None:
            return []
        return [
            (solution, min(version[0] for version in solution.versions))
            for solution in known.known()
            if solution.expires > self.at
        ]

    def lingering(
        self, form: RuleForm
    ) -> list[tuple[LingeringSolution, int | None, tuple[object, ...], Instant]]:
        """The living solutions of a rule with `~expires`: solution, time, arguments, since when."""
        known = self.strata.lingering.get(form.number)
        if known is None:
            return []
        return [
            (life.solution, life.time, life.arguments, min(v[0] for v in life.solution.versions))
            for life in known.lives
        ]
