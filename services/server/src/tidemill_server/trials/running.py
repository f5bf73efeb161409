"""Runs of a case: the order that was given, then others; the answers are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random  # noqa: TID251  the type of what is handed in
from typing import Any, TypeAlias, TypeVar

from tidemill.catalog.entry import PlannedView
from tidemill.datalog.records import Record, format_record, parse_record
from tidemill.datalog.strategy import Strategy
from tidemill.datalog.why_not import why_not
from tidemill.errors import UsageError
from tidemill.time import is_fixed, read_at
from tidemill_compute.actions.outbox import BEGIN, CHANGE, END, Firing
from tidemill_server.trials.answers import (
    ActionOutput,
    Cut,
    Facts,
    Rules,
    evaluate,
    facts_of,
    firing_line,
    output_of,
    present,
)
from tidemill_server.trials.cases import Absent, Case
from tidemill_server.trials.staging import Staged, given_rows, reordered, stage

Evaluator: TypeAlias = "Callable[[PlannedView, Facts, int], Facts]"
"""Presences from 0 on and below an instant of the outputs of a view, from facts."""

T = TypeVar("T")

BEYOND_MS = 1_000
"""Milliseconds of the timeline that a case runs past the last instant that it names."""


@dataclass(frozen=True, slots=True)
class Run:
    """One way to run a case: an order of arrival, the cut into steps, the strategy."""

    shuffled: bool
    cut: Cut
    strategy: Strategy

    def __str__(self) -> str:
        order = "another order" if self.shuffled else "the given order"
        return f"{order}, {self.cut}, strategy {self.strategy}"


RUNS = (
    Run(False, "each instant", "strata"),
    Run(False, "all at once", "retraction"),
    Run(False, "some cuts", "strata"),
    Run(True, "each instant", "retraction"),
    Run(True, "all at once", "strata"),
    Run(True, "some cuts", "retraction"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Answers of one run: facts by view, what actions told, what sources made of their rows."""

    inputs: Mapping[str, Facts]
    derived: Mapping[str, Facts]
    told: Mapping[str, ActionOutput]
    staged: Mapping[str, Staged]
    upper: int


def differences(
    rules: Rules, case: Case, random: Random, elsewhere: Evaluator | None = None
) -> list[str]:
    """Lines that say what a case expects and does not get, or which run gives another answer.

    A last run is `elsewhere`, if that is given; it has outputs only. Raises: UsageError for a case
    that does not fit the resources.
    """
    first, *others = RUNS
    outcome = run(rules, case, first, random)
    if found := [*_compared(rules, case.expect, outcome)]:
        return found
    wanted = _shown(outcome)
    for other in others:
        got = _shown(run(rules, case, other, random))
        if got != wanted:
            return [
                f"the answer depends on the run: {first}, against {other}",
                *_lines(sorted(wanted - got), sorted(got - wanted)),
            ]
    if elsewhere is None:
        return []
    outputs = {
        name: {each: facts[each] for each in rules.views[name].outputs}
        for name, facts in outcome.derived.items()
    }
    wanted = _shown(replace(outcome, derived=outputs))
    got = _shown(run(rules, case, first, random, elsewhere))
    if got != wanted:
        lines = _lines(sorted(wanted - got), sorted(got - wanted))
        return ["the answer of Spark is another:", *lines]
    return []


def run(
    rules: Rules, case: Case, how: Run, random: Random, elsewhere: Evaluator | None = None
) -> Outcome:
    """Everything that follows from the rows of a case, by the dataflow or `elsewhere`.

    Raises: UsageError.
    """
    unknown = sorted(set(case.given) - set(rules.inputs))
    if unknown:
        there = ", ".join(sorted(rules.inputs)) or "none"
        raise UsageError(f"{unknown[0]} is no source or table; there are: {there}", reason="case")
    staged = {}
    for name, (stored, entry) in rules.inputs.items():
        given: Any = given_rows(stored, case.given.get(name, ()))
        if how.shuffled:
            given = reordered(stored, given, random)
        staged[name] = stage(stored, entry, given)
    upper = _upper(case, staged.values())
    known: dict[str, Facts] = {name: {name: each.presences} for name, each in staged.items()}
    inputs: dict[str, Facts] = {}
    for name, view in rules.views.items():
        inputs[name] = facts_of(rules, view, known)
        if elsewhere is not None:
            known[name] = elsewhere(view, inputs[name], upper)
            continue
        known[name] = evaluate(
            view.program, inputs[name], upper, strategy=how.strategy, cut=how.cut, random=random
        )
    derived = {name: known[name] for name in rules.views}
    told = {
        name: output_of(spec, rules.views[spec.view], derived[spec.view])
        for name, spec in rules.actions.items()
    }
    return Outcome(inputs, derived, told, staged, upper)


def _upper(case: Case, staged: Any) -> int:
    """An instant beyond all that a case names and all that its facts begin or end at."""
    times = [_instant(at) for at in case.expect.as_of]
    times += [each.as_of for each in case.expect.absent]
    for one in staged:
        for each in one.presences:
            times += [int(at) for at in (each.start, each.end) if abs(at) != float("inf")]
    return max(times, default=0) + BEYOND_MS


def _shown(outcome: Outcome) -> set[str]:
    """All answers of a run from 0 on, as lines."""
    found = set()
    for view, facts in outcome.derived.items():
        for presences in facts.values():
            for each in presences:
                if each.end > 0:
                    stretch = f"[{max(each.start, 0)},{each.end})"
                    found.add(f"{view}: {stretch} {format_record(each.record)}")
    for name, told in outcome.told.items():
        found |= {f"{name} fires {firing_line(each)}" for each in told.fired}
        found |= {
            f"{name} corrects {c.instant}: {c.old or 'nothing'} -> {c.new or 'nothing'}"
            for c in told.corrections
        }
    return found


def _compared(rules: Rules, expect: Any, outcome: Outcome) -> Iterator[str]:
    """Lines of what differs, with the given rows that are none if the case does not name them."""
    lines = list(_differences(rules, expect, outcome))
    yield from lines
    for name, staged in outcome.staged.items() if lines else ():
        if name not in expect.refused:
            yield from (f"{name} refuses {each}" for each in staged.unreadable)


def _differences(rules: Rules, expect: Any, outcome: Outcome) -> Iterator[str]:
    for written, goals in expect.as_of.items():
        at = _instant(written)
        for text, lines in goals.items():
            view, goal = rules.goal(text)
            here = present(outcome.derived[view].get(goal.predicate, ()), at)
            got = [record for record in here if goal.bindings(record) is not None]
            yield from _difference(f"as of {at}, {text}", lines, got, _means, str)
    for name, lines in expect.fires.items():
        fired = _told(outcome, name).fired
        yield from _difference(f"{name} fires", lines, fired, _means_firing, firing_line)
    for name, lines in expect.corrections.items():
        got_lines = [
            f"{c.instant}: {_bare(c.old)} -> {_bare(c.new)}"
            for c in _told(outcome, name).corrections
        ]
        yield from _headed(f"corrections of {name}", lines, got_lines)
    for name, rows in expect.refused.items():
        refused = outcome.staged[name].refused if name in outcome.staged else ()
        yield from _headed(f"{name} refuses", [*map(str, rows)], [str(dict(r)) for r in refused])
    for absent in expect.absent:
        yield from _absence(rules, absent, outcome)


def _told(outcome: Outcome, action: str) -> ActionOutput:
    if action not in outcome.told:
        known = ", ".join(outcome.told) or "none"
        raise UsageError(f"there is no action {action}; there are: {known}", reason="case")
    return outcome.told[action]


def _absence(rules: Rules, absent: Absent, outcome: Outcome) -> Iterator[str]:
    view, _ = rules.goal(absent.record.partition("(")[0])
    record = parse_record(absent.record.rpartition("/")[2])
    letters = [
        replace(late, predicate=predicate)
        for predicate, entry in rules.views[view].inputs.items()
        if entry.name in outcome.staged
        for late in outcome.staged[entry.name].late
    ]
    reasons = why_not(
        rules.views[view].program, outcome.inputs[view], record, absent.as_of,
        upper=outcome.upper, letters=letters,
    )  # fmt: skip
    causes = [reason.reason for reason in reasons]
    if causes == ["present"]:
        yield f"as of {absent.as_of}: {absent.record} is present, and was to be absent"
    elif absent.because and absent.because not in causes:
        yield f"as of {absent.as_of}, {absent.record} is absent:"
        yield f"  - {absent.because}"
        yield from (f"  + {reason.reason}: {reason.render()}" for reason in reasons)


def _difference(
    head: str,
    expected: Sequence[str],
    got: Sequence[T],
    means: Callable[[str, T], bool],
    shown: Callable[[T], str],
) -> Iterator[str]:
    """Expected lines against what is there; each line names as much as it wants to."""
    left = list(got)
    missing = []
    for line in expected:
        at = next((n for n, each in enumerate(left) if means(line, each)), None)
        if at is None:
            missing.append(line)
        else:
            left.pop(at)
    others = [shown(each) for each in left]
    if missing or others:
        yield f"{head}:"
        yield from _lines(missing, others)


def _headed(head: str, expected: Sequence[str], got: Sequence[str]) -> Iterator[str]:
    missing = [line for line in expected if line not in got]
    others = [line for line in got if line not in expected]
    if missing or others or len(expected) != len(got):
        yield f"{head}:"
        yield from _lines(missing or expected, others or got)


def _lines(missing: Sequence[str], others: Sequence[str]) -> list[str]:
    return [*(f"  - {line}" for line in missing), *(f"  + {line}" for line in others)]


def _means_firing(line: str, firing: Firing) -> bool:
    """Whether an expected line is this firing; its instant and its phase count if it has them."""
    first, colon, rest = line.partition(":")
    if colon and first.strip().lstrip("-").isdigit():
        if firing.instant != int(first):
            return False
        line = rest.strip()
    phase, _, rest = line.partition(" ")
    if firing.event and phase in (BEGIN, CHANGE, END):
        if phase != firing.phase:
            return False
        line = rest.strip()
    return _means(line, parse_record(firing.record))


def _means(line: str, record: Record) -> bool:
    """Whether an expected line is this record; its parafacts count if it has them."""
    wanted = parse_record(line)
    named = replace(
        record,
        time=record.time if wanted.time is not None else None,
        expires=record.expires if wanted.expires is not None else None,
        parafacts=tuple(p for p in record.parafacts if p[0] in dict(wanted.parafacts)),
    )
    return format_record(wanted) == format_record(named)


def _bare(record: Record | None) -> str:
    return "nothing" if record is None else format_record(record)


def _instant(written: str) -> int:
    """An instant of a case: a number or a date. Raises: UsageError."""
    found = read_at(written, lambda: 0) if is_fixed(written) else None
    if found is None:
        raise UsageError(
            f"{written!r} is no instant of a case: write milliseconds or a date", reason="case"
        )
    return found
