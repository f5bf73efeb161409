"""Cases of kind `ticks`: rows per tick, updates on a timeline, or steps of several nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.joining import joining_inputs
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record, format_fact, format_record, format_value
from tidemill.datalog.tick_plan import Admission, TickPlan
from tidemill.datalog.ticking import TickRun, TickStart
from tidemill.datalog.ticks import Message
from tidemill.testkit.conformance.language_engines import Held, Ticks, strategy_of
from tidemill.testkit.conformance.language_inputs import (
    Fed,
    InputError,
    Updates,
    check_program,
    coerced,
    compare_lists,
    compare_sets,
    known_inputs,
    only_fields,
    only_keys,
    row_of,
    strata_differences,
    value_of,
)
from tidemill.testkit.conformance.registry import Case, Options
from tidemill.testkit.conformance.values import CaseError, Json
from tidemill.testkit.twins.sampling import change_instants, present_at


def run_ticks(case: Case, options: Options) -> list[str]:
    """Differences between the ticks of a case and the expected ones."""
    if "steps" in case:
        only_keys(case, "steps")
        return _run_steps(case, options)
    only_keys(case, "in", "out", "updates", "tick", "upper", "admission")
    if "updates" in case:
        return _run_updates(case, options)
    fed = _fed(case.get("in", {}).values())
    checked = check_program(case, fed, {}, "relation")
    last = max((int(tick) for tick in (*case.get("in", {}), *case["out"])), default=-1)
    ticker = Ticks(options, checked)
    found = strata_differences(case, checked)
    for number in range(last + 1):
        answer = ticker.tick(number, _inputs(checked, case.get("in", {}).get(number, {})))
        found += _compare_out(f"out.{number}", checked, answer, case["out"].get(number, {}))
    return found


def _fed(sets: Iterable[Mapping[str, Json]]) -> Fed:
    fed: dict[str, list[tuple[Any, ...]]] = {}
    for rows_by_name in sets:
        for name, rows in rows_by_name.items():
            fed.setdefault(name, []).extend(map(row_of, rows))
    return fed


def _inputs(checked: CheckedProgram, rows_by_name: Mapping[str, Json]) -> dict[str, list[Record]]:
    return {
        name: [Record(name, coerced(checked, name, row_of(row))) for row in rows]
        for name, rows in rows_by_name.items()
        if name in checked.columns
    }


def _compare_out(
    field: str,
    checked: CheckedProgram,
    answer: Held,
    expected: Mapping[str, Json],
) -> list[str]:
    found: list[str] = []
    for name, entries in expected.items():
        records = answer.records(name)
        if any(isinstance(entry, str) for entry in entries):
            wanted, got = list(entries), [format_record(record) for record in records]
        else:
            wanted = [format_fact(name, coerced(checked, name, _wanted(row))) for row in entries]
            got = [format_fact(name, record.arguments) for record in records]
        found += compare_sets(f"{field}.{name}", wanted, got)
    return found


def _wanted(written: Json) -> tuple[Any, ...]:
    """An expected row; a list inside it is a set."""
    if not isinstance(written, list | tuple):
        raise CaseError(f"not a row: {written!r}")
    return tuple(
        frozenset(map(value_of, value)) if isinstance(value, list) else value_of(value)
        for value in written
    )


def _run_updates(case: Case, options: Options) -> list[str]:
    updates = Updates(case["updates"], case.get("schema"))
    checked = check_program(case, updates.fed, updates.kinds, "relation")
    upper = case.get("upper", END)
    presences = updates.presences(checked, upper)
    if isinstance(presences, InputError):
        return [f"input_error: + {presences}"]
    inputs = known_inputs(checked, presences)
    last = max(map(int, case["out"]), default=-1)
    tick = case["tick"]
    only_fields(tick, "period", "on")
    if "admission" in case:
        return _run_admitted(case, options, checked, inputs)
    if "period" in tick:
        instants = [number * tick["period"] for number in range(last + 1)]
    else:
        instants = change_instants(presences, upper)
    ticker = Ticks(options, checked)
    found = strata_differences(case, checked)
    if len(instants) <= last:
        found.append(f"tick: - tick {last} + {len(instants)} ticks")
    for number, at in enumerate(instants[: last + 1]):
        answer = ticker.tick(at, present_at(inputs, at))
        found += _compare_out(f"out.{number}", checked, answer, case["out"].get(number, {}))
    return found


def _run_admitted(
    case: Case,
    options: Options,
    checked: CheckedProgram,
    inputs: Mapping[str, Sequence[Presence]],
) -> list[str]:
    """Differences at instants of the timeline, as rows may join the ticks between two of them."""
    from tidemill.datalog.dataflow.ticker import DataflowTicker  # loads loops

    joining = joining_inputs(checked)
    admission: dict[str, Admission] = {
        name: "tick" if policy == "stratum" and name not in joining else policy
        for name, policy in case["admission"].items()
    }
    changes = {name: list(_changes(presences)) for name, presences in inputs.items()}
    run = TickRun(
        TickPlan(case["tick"].get("period"), admission=admission),
        changes,
        lambda _, handed: DataflowTicker(checked, handed=handed, strategy=strategy_of(options)),
        TickStart(0, True, dict.fromkeys(changes, ())),
        lambda *_: None,
    )
    run.take(changes)
    told: Counter[Record] = Counter()
    found = strata_differences(case, checked)
    for at in sorted(case["out"]):
        while (now := min(run.next_arrival(), run.next_tick())) <= at:
            if run.next_arrival() <= now:
                run.arrive(int(now))
                continue
            for ran in run.tick(int(now)):
                told.update(dict(ran.answer.facts))
        alive = [r for r in +told if r.expires is None or r.expires > at]
        held = {name: Counter(r for r in alive if r.predicate == name) for name in checked.columns}
        found += _compare_out(f"out.{at}", checked, Held(held, ()), case["out"][at])
    return found


def _changes(presences: Iterable[Presence]) -> Iterable[tuple[Record, int, int]]:
    """Presences as changes, instant by instant."""
    moves = [(p.record, max(0, int(p.start)), 1) for p in presences]
    moves += [(p.record, int(p.end), -1) for p in presences if p.end != END]
    return sorted(moves, key=lambda each: each[1])


def _run_steps(case: Case, options: Options) -> list[str]:
    fed = _fed(step.get("in", {}) for step in case["steps"])
    checked = check_program(case, fed, {}, "relation")
    nodes: dict[Any, Ticks] = {}
    counts: dict[Any, int] = {}
    mail: dict[Any, list[Message]] = {}
    found = strata_differences(case, checked)
    for number, step in enumerate(case["steps"]):
        only_fields(step, "node", "in", "out", "sent")
        node = value_of(step["node"])
        inputs = _inputs(checked, step.get("in", {}))
        for message in mail.pop(node, []):
            inputs.setdefault(message.record.predicate, []).append(message.record)
        at = counts.get(node, 0)
        answer = nodes.setdefault(node, Ticks(options, checked)).tick(at, inputs)
        counts[node] = at + 1
        for message in answer.messages:
            mail.setdefault(message.node, []).append(message)
        found += _compare_out(f"steps.{number}.out", checked, answer, step.get("out", {}))
        if "sent" in step:
            wanted = [_sent(checked, value_of(n), name, row) for n, name, *row in step["sent"]]
            got = [
                _sent(checked, m.node, m.record.predicate, m.record.arguments)
                for m in answer.messages
            ]
            found += compare_sets(f"steps.{number}.sent", wanted, got)
    return found


def _sent(checked: CheckedProgram, node: Any, name: str, row: Iterable[Any]) -> str:
    arguments = coerced(checked, name, _wanted(list(row)))
    return f"{format_value(node)} {format_fact(name, arguments)}"


__all__ = ["compare_lists", "run_ticks"]
