"""Cases of kind `events`: streams with arrival, actions, dead letters and frontiers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.goals import Goal, compile_goal
from tidemill.datalog.presence import BEGINNING, END, Instant, Presence
from tidemill.datalog.records import Record, format_record
from tidemill.datalog.values import INT_MIN
from tidemill.testkit.conformance.event_stage import Arrival, stage
from tidemill.testkit.conformance.language_engines import Answer, evaluate_case
from tidemill.testkit.conformance.language_inputs import (
    Delivery,
    check_program,
    compare_lists,
    compare_sets,
    only_fields,
    only_keys,
    presence_lines,
    record_of,
    strata_differences,
)
from tidemill.testkit.conformance.registry import Case, Options
from tidemill.testkit.conformance.values import CaseError, Json
from tidemill_compute.actions.firings import Firings, RecordChange
from tidemill_compute.actions.outbox import Firing


@dataclass(slots=True)
class Arrived:
    """The outcome of the arrivals of a case."""

    presences: dict[str, list[Presence]] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    late_records: list[Record] = field(default_factory=list)
    frontiers: list[Instant] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)


def arrive(case: Case) -> Arrived:
    """The arrived events of a case, as `take_in` gives them, for code that is not asynchronous."""
    return asyncio.run(take_in(case))


async def take_in(case: Case) -> Arrived:
    """The inputs of a case, in their order, through the event stage of the service."""
    entries: Sequence[Json] = case["inputs"]
    partitions = case.get("partitions", [0] * len(entries))
    walls = case.get("wall")
    if not isinstance(walls, list):
        walls = [walls] * len(entries)
    if len(partitions) != len(entries) or len(walls) != len(entries):
        raise CaseError("partitions and wall must have one entry for each input")
    arrivals = [_arrival(*each) for each in zip(entries, partitions, walls, strict=True)]
    corrections = case.get("late_policy", "reject") == "correct"
    staged = await stage(
        arrivals, skew=case.get("skew", 0), corrections=corrections,
        max_ahead=case.get("max_ahead"), upper=case["upper"],
    )  # fmt: skip
    frontiers = [BEGINNING if each is None else each for each in staged.frontiers]
    before = [BEGINNING, *frontiers]
    found = Arrived(frontiers=frontiers)
    for at, (entry, arrival) in enumerate(zip(entries, arrivals, strict=True)):
        # Under `correct` the stage writes no letter of a late event, but lets it appear later.
        corrected = corrections and arrival.text is not None and arrival.at < before[at]
        if at in staged.refused or corrected:
            found.late.append(entry)
            found.late_records.append(record_of(entry))
    for step, released in groupby(staged.releases, key=lambda each: each.step):
        delivered: dict[str, list[Presence]] = {}
        for each in released:
            record = record_of(each.text)
            end = END if record.expires is None else record.expires
            delivered.setdefault(record.predicate, []).append(Presence(record, each.start, end))
        found.deliveries.append((before[step], delivered))
        for name, presences in delivered.items():
            found.presences.setdefault(name, []).extend(presences)
    return found


def _arrival(entry: Json, partition: int, wall: int | None) -> Arrival:
    if isinstance(entry, dict):
        only_fields(entry, "heartbeat")
        return Arrival(None, entry["heartbeat"], None, partition, wall)
    record = record_of(entry)
    if record.time is None:
        raise CaseError(f"not an event: {entry!r}")
    return Arrival(entry, record.time, record.expires, partition, wall)


def check_events(case: Case) -> CheckedProgram:
    """The program of a case whose inputs are event streams."""
    fed: dict[str, list[tuple[object, ...]]] = {}
    for entry in case["inputs"]:
        if isinstance(entry, str):
            record = record_of(entry)
            fed.setdefault(record.predicate, []).append(record.arguments)
    return check_program(case, fed, {}, "events")  # type: ignore[arg-type]


def run_events(case: Case, options: Options) -> list[str]:
    """Differences between the answers of a case and the expected ones."""
    only_keys(
        case, "inputs", "skew", "late_policy", "partitions", "max_ahead", "wall", "upper", "derived",
        "goals", "fired", "late", "errors", "frontiers", "definite_after", "as_of",
    )  # fmt: skip
    checked = check_events(case)
    arrivals = arrive(case)
    upper = case["upper"]
    evaluation = evaluate_case(options, checked, arrivals.deliveries, upper)
    found = strata_differences(case, checked)
    derived = derived_presences(checked, evaluation)
    if "derived" in case:
        found += compare_sets("derived", case["derived"], presence_lines(derived))
    found += _compare_fired(case, checked, evaluation, arrivals)
    found += compare_lists("late", case.get("late", []), arrivals.late)
    errors = {error.text for error in evaluation.errors}
    found += compare_sets("errors", case.get("errors", []), errors)
    if "frontiers" in case:
        shown = [_shown(frontier) for frontier in arrivals.frontiers]
        found += compare_lists("frontiers", case["frontiers"], shown)
    for at, expected in case.get("as_of", {}).items():
        present = [format_record(p.record) for p in derived if p.start <= at < p.end]
        found += compare_sets(f"as_of.{at}", expected, present)
    return found


def derived_presences(checked: CheckedProgram, evaluation: Answer) -> list[Presence]:
    """The presences of all predicates that are the head of a rule with a formula."""
    names = dict.fromkeys(rule.predicate for rule in checked.rules if rule.source.has_formula)
    return [presence for name in names for presence in evaluation.presences.get(name, [])]


def _shown(frontier: Instant) -> Json:
    return "-inf" if frontier in (BEGINNING, INT_MIN) else frontier


def _compare_fired(
    case: Case, checked: CheckedProgram, evaluation: Answer, arrivals: Arrived
) -> list[str]:
    firings = [
        firing
        for text in case.get("goals", [])
        for firing in _fired(compile_goal(text, checked), evaluation)
    ]
    firings.sort(key=lambda firing: (firing.instant, firing.record, firing.action))
    found: list[str] = []
    if "fired" in case:
        found += compare_lists(
            "fired", case["fired"], [f"{_shown(each.instant)}: {each.record}" for each in firings]
        )
    if "definite_after" in case:
        after: list[Json] = []
        for firing in firings:
            passed = [n for n, f in enumerate(arrivals.frontiers, 1) if f > firing.instant]
            after.append(passed[0] if passed else "close")
        found += compare_lists("definite_after", case["definite_after"], after)
    return found


def _fired(goal: Goal, evaluation: Answer) -> list[Firing]:
    """The firings of a history, as an action of the service finds them."""
    changes: list[RecordChange] = []
    for each in evaluation.presences.get(goal.predicate, ()):
        changes.append((each.record, int(max(each.start, INT_MIN)), 1))
        if each.end != END:
            changes.append((each.record, int(each.end), -1))
    return Firings(goal, follow=False).take(changes)[0]
