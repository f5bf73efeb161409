"""Views and actions over the facts of a case, evaluated by the dataflow in steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random  # noqa: TID251  the type of what is handed in
from types import MappingProxyType
from typing import Literal, TypeAlias

from tidemill.catalog.apply.plan import plan_reader
from tidemill.catalog.catalog import Catalog
from tidemill.catalog.entry import CatalogEntry, PlannedView
from tidemill.catalog.store import Stored
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import DataflowEngine, NotInDataflow
from tidemill.datalog.dataflow.evaluating import presences_of, undeclared
from tidemill.datalog.goals import Goal, compile_goal
from tidemill.datalog.presence import END, Instant, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.strategy import Strategy
from tidemill.errors import UsageError
from tidemill.runtime.resources import ActionSpec, Resource, SourceSpec, TableSpec, ViewSpec
from tidemill_compute.actions.corrections import Correction
from tidemill_compute.actions.firings import Firings, RecordChange
from tidemill_compute.actions.limiting import limiter_of
from tidemill_compute.actions.outbox import Firing
from tidemill_server.trials.staging import renamed

Facts: TypeAlias = "Mapping[str, Sequence[Presence]]"
Change: TypeAlias = "tuple[Instant, Record, int]"
Cut: TypeAlias = Literal["each instant", "all at once", "some cuts"]


@dataclass(slots=True)
class Rules:
    """The resources of a case, planned as an apply plans them."""

    catalog: Catalog = field(default_factory=Catalog)
    inputs: dict[str, tuple[Stored, CatalogEntry]] = field(default_factory=dict)
    views: dict[str, PlannedView] = field(default_factory=dict)
    actions: dict[str, ActionSpec] = field(default_factory=dict)

    def goal(self, text: str) -> tuple[str, Goal]:
        """The view that derives a predicate, and the goal; a name alone stands for all records.

        Raises: UsageError for a predicate of no view, or of several.
        """
        name = text.partition("(")[0].strip()
        view, _, predicate = name.rpartition("/")
        names = [
            each for each, planned in self.views.items()
            if predicate in planned.program.derived and view in ("", each)
        ]  # fmt: skip
        if len(names) != 1:
            several = f"{' and '.join(names)} derive" if names else "no view derives"
            raise UsageError(f"{several} {predicate}: write VIEW/{predicate}", reason="case")
        checked = self.views[names[0]].program
        written = text[len(view) + 1 :] if view else text
        if "(" not in written:
            written = f"{predicate}({', '.join('_' * len(checked.columns[predicate]))})"
        return names[0], compile_goal(written, checked)


Columns: TypeAlias = "Mapping[str, Sequence[Mapping[str, object]]]"
"""Columns of sources whose resources state none, by the name of the source."""


def rules_of(resources: Sequence[Resource], inferred: Columns = MappingProxyType({})) -> Rules:
    """Plan resources, views after what they read. Raises: UsageError, ProgramErrors."""
    found = Rules()
    readers: list[Stored] = []
    for resource in resources:
        stored = Stored(resource, 0)
        if isinstance(resource.spec, SourceSpec | TableSpec):
            if isinstance(resource.spec, SourceSpec) and not resource.spec.columns:
                if resource.name not in inferred:
                    raise UsageError(
                        f"{resource.position}: {resource} infers its columns from rows: state them",
                        reason="columns",
                    )
                stored = Stored(resource, 0, resolved={"columns": inferred[resource.name]})
            found.catalog.plan(stored)
            found.inputs[resource.name] = stored, found.catalog.named(resource.name)
        elif isinstance(resource.spec, ViewSpec | ActionSpec):
            readers.append(stored)
    while readers:
        refused: list[tuple[Stored, UsageError]] = []
        for stored in readers:
            try:
                view = plan_reader(stored, found.catalog)
            except UsageError as error:
                refused.append((stored, error))
                continue
            _add(found, stored, view)
        if len(refused) == len(readers):
            raise refused[0][1]
        readers = [stored for stored, _ in refused]
    return found


def _add(found: Rules, stored: Stored, view: PlannedView | None) -> None:
    resource, spec = stored.resource, stored.resource.spec
    if isinstance(spec, ActionSpec):
        found.actions[resource.name] = spec
        return
    assert view is not None
    if view.ticks is not None:
        raise UsageError(
            f"{resource.position}: {resource} runs in ticks: write a case of tidemill conformance",
            reason="TickedProgram",
        )
    found.views[resource.name] = view


def facts_of(rules: Rules, view: PlannedView, known: Mapping[str, Facts]) -> Facts:
    """The inputs of a view by its own names for them.

    `known` has facts by source, table or view, and then by predicate. Raises: UsageError for an
    input that a case cannot give.
    """
    found = {}
    for predicate, entry in view.inputs.items():
        owner, _, output = entry.name.rpartition("/")
        held = known.get(owner or entry.name)
        if held is None:
            raise UsageError(f"a case cannot give {entry.name}: it is no source, table or view")
        found[predicate] = renamed(held.get(output or entry.name, ()), predicate)
    return found


def evaluate(
    program: CheckedProgram,
    facts: Facts,
    upper: int,
    *,
    strategy: Strategy,
    cut: Cut,
    random: Random,
) -> dict[str, list[Presence]]:
    """Presences below `upper` of all that a program derives, as collections hold them.

    Raises: UsageError for a construct that the dataflow lacks, or a rule that fails. Cost: the
    steps of an engine.
    """
    told: dict[str, list[Change]] = {}
    try:
        engine = DataflowEngine(program, strategy=strategy, carrying=undeclared(program, facts))
        for reached, delivered in (*deliveries(facts, cut, random), (upper, {})):
            if reached > engine.upper:
                for name, each in engine.step(int(min(reached, upper))).items():
                    told.setdefault(name, []).extend(each.records())
            for name, presences in delivered.items():
                engine.feed_presences(name, presences)
    except NotInDataflow as missing:
        raise UsageError(f"the dataflow does not evaluate {missing}", reason="case") from None
    for error in engine.errors():
        raise UsageError(f"a rule fails: {error.text}", reason="case")
    return {
        name: presences_of(_kept(program, name, told.get(name, ()))) for name in program.derived
    }


def _kept(program: CheckedProgram, name: str, told: Sequence[Change]) -> Sequence[Change]:
    """The same changes as a collection has them, which begins at 0.

    It has no ends of facts without a time: one that goes as it comes with another end just stays.
    """
    timed = name in program.carries_time
    diffs = Counter[tuple[Instant, Record]]()
    for at, record, diff in told:
        diffs[max(at, 0), record if timed else replace(record, expires=None)] += diff
    moves = [(at, record, diff) for (at, record), diff in diffs.items() if diff]
    return sorted(moves, key=lambda move: move[0])


def deliveries(facts: Facts, cut: Cut, random: Random) -> Iterator[tuple[Instant, Facts]]:
    """Facts in steps: everything below the instant is definite, then these are known."""
    steps: dict[Instant, dict[str, list[Presence]]] = {}
    for name, presences in facts.items():
        for each in presences:
            steps.setdefault(each.start, {}).setdefault(name, []).append(each)
    merged: dict[str, list[Presence]] = {}
    begun: Instant | None = None
    for at in sorted(steps):
        if begun is not None and (
            cut == "each instant" or (cut != "all at once" and random.random() < 0.5)
        ):
            yield begun, merged
            merged, begun = {}, None
        begun = at if begun is None else begun
        for name, presences in steps[at].items():
            merged.setdefault(name, []).extend(random.sample(presences, len(presences)))
    if begun is not None:
        yield begun, merged


@dataclass(frozen=True, slots=True)
class ActionOutput:
    """Output of an action: its firings by instant and key, and the corrections of them."""

    fired: Sequence[Firing]
    corrections: Sequence[Correction]


def output_of(action: ActionSpec, view: PlannedView, derived: Facts) -> ActionOutput:
    """Firings of an action from the beginning on, within its limit, and corrections of what has
    fired.

    A fact that always was begins with the timeline, at 0.
    """
    goal = compile_goal(action.goal, view.program)
    columns = view.outputs[goal.predicate].shape.argument_columns
    limiter = limiter_of(action.limit, [name for name, _ in columns])
    firings, corrections = Firings(goal, action.follow, limiter, action.remember).take(
        _changes(derived, goal.predicate)
    )
    return ActionOutput([each for each in firings if not each.limited], corrections)


def _changes(derived: Facts, predicate: str) -> Iterator[RecordChange]:
    for each in derived.get(predicate, ()):
        yield each.record, int(max(each.start, 0)), 1
        if each.end != END:
            yield each.record, int(each.end), -1


def firing_line(firing: Firing) -> str:
    """A firing as cases write it: `INSTANT: RECORD`, with the phase of a followed event."""
    phase = f"{firing.phase} " if firing.event else ""
    return f"{firing.instant}: {phase}{firing.record}"


def present(presences: Sequence[Presence], at: int) -> list[Record]:
    """Records that are present at an instant."""
    return [each.record for each in presences if each.start <= at < each.end]
