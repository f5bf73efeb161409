"""Cases of kind `events`: streams with arrival, actions, dead letters and frontiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidemill.datalog.arrival import Admitted, Ahead, ArrivalPolicy, EventStream, event_presence
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.goals import compile_goal, fired
from tidemill.datalog.presence import Instant, Presence
from tidemill.datalog.records import Record, format_record
from tidemill.testkit.conformance.language_engines import Answer, Delivery, evaluate_case
from tidemill.testkit.conformance.language_inputs import (
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


@dataclass(slots=True)
class Arrived:
    """What the arrivals of a case came to."""

    presences: dict[str, list[Presence]] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    late_records: list[Record] = field(default_factory=list)
    frontiers: list[Instant] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)


def arrive(case: Case) -> Arrived:
    """Admit the inputs of a case in their order."""
    entries: Sequence[Json] = case["inputs"]
    partitions = case.get("partitions", [0] * len(entries))
    walls = case.get("wall")
    if not isinstance(walls, list):
        walls = [walls] * len(entries)
    if len(partitions) != len(entries) or len(walls) != len(entries):
        raise CaseError("partitions and wall must have one entry for each input")
    policy = ArrivalPolicy(
        case.get("skew", 0), case.get("late_policy", "reject"), case.get("max_ahead")
    )
    stream = EventStream.of_partitions(policy, partitions or [0])
    arrived = Arrived()
    for entry, partition, wall in zip(entries, partitions, walls, strict=True):
        before = stream.frontier
        if isinstance(entry, dict):
            only_fields(entry, "heartbeat")
            stream.heartbeat(entry["heartbeat"], partition)
        else:
            presence = _admit(stream, entry, partition, wall, arrived)
            if presence is not None:
                name = presence.record.predicate
                arrived.presences.setdefault(name, []).append(presence)
                arrived.deliveries.append((before, {name: [presence]}))
        arrived.frontiers.append(stream.frontier)
    return arrived


def _admit(
    stream: EventStream, entry: str, partition: int, wall: int | None, arrived: Arrived
) -> Presence | None:
    record = record_of(entry)
    if record.time is None:
        raise CaseError(f"not an event: {entry!r}")
    verdict = stream.admit(record.time, partition, wall)
    if not isinstance(verdict, Admitted):
        arrived.late.append(entry)
        arrived.late_records.append(record)
    if isinstance(verdict, Ahead) or verdict.start is None:
        return None
    return event_presence(record, verdict.start)


def check_events(case: Case) -> CheckedProgram:
    """The program of a case whose inputs are event streams."""
    fed: dict[str, list[tuple[object, ...]]] = {}
    for entry in case["inputs"]:
        if isinstance(entry, str):
            record = record_of(entry)
            fed.setdefault(record.predicate, []).append(record.arguments)
    return check_program(case, fed, {}, "events")  # type: ignore[arg-type]


def run_events(case: Case, options: Options) -> list[str]:
    """What differs between the answers of a case and those expected."""
    only_keys(
        case, "inputs", "skew", "late_policy", "partitions", "max_ahead", "wall", "upper", "derived",
        "goals", "fired", "late", "errors", "frontiers", "definite_after", "as_of",
    )  # fmt: skip
    checked = check_events(case)
    arrived = arrive(case)
    upper = case["upper"]
    evaluation = evaluate_case(options, checked, arrived.deliveries, upper)
    found = strata_differences(case, checked)
    derived = derived_presences(checked, evaluation)
    if "derived" in case:
        found += compare_sets("derived", case["derived"], presence_lines(derived))
    found += _compare_fired(case, checked, evaluation, arrived)
    found += compare_lists("late", case.get("late", []), arrived.late)
    errors = {error.text for error in evaluation.errors}
    found += compare_sets("errors", case.get("errors", []), errors)
    if "frontiers" in case:
        shown = [_shown(frontier) for frontier in arrived.frontiers]
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
    return "-inf" if frontier == float("-inf") else frontier


def _compare_fired(
    case: Case, checked: CheckedProgram, evaluation: Answer, arrived: Arrived
) -> list[str]:
    goals = [compile_goal(text, checked) for text in case.get("goals", [])]
    firings = fired(goals, evaluation.presences)
    found: list[str] = []
    if "fired" in case:
        found += compare_lists("fired", case["fired"], [str(firing) for firing in firings])
    if "definite_after" in case:
        after: list[Json] = []
        for firing in firings:
            passed = [n for n, f in enumerate(arrived.frontiers, 1) if f > firing.at]
            after.append(passed[0] if passed else "close")
        found += compare_lists("definite_after", case["definite_after"], after)
    return found
