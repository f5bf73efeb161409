"""Groups whose matches are in several ranges: their parts add up to what one process says."""

from __future__ import annotations

import pytest

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.logical import partial
from tidemill.datalog.logical.partial import PARTIAL
from tidemill.datalog.parser import parse
from tidemill.datalog.placement import placement_document, placement_lines, placement_of
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.values import INT_MAX
from tidemill.testkit.drawing import Presences
from tidemill.testkit.evaluated import Evaluation, evaluated
from tidemill.testkit.ranges import task
from tidemill.testkit.ranges.evaluating import evaluated_by_ranges, feed
from tidemill.testkit.ranges.running import Ranges
from tidemill.testkit.ranges.task import RangeSettings, evaluate_range

UPPER = 40


def program(text: str) -> CheckedProgram:
    """A program over readings at times, places of sensors, and large numbers."""
    schemas = {
        "reading": InputSchema(
            "reading", "events", (("sensor", "int"), ("value", "int"), ("unit", "text"))
        ),
        "place": InputSchema("place", "relation", (("sensor", "int"), ("room", "int"))),
        "large": InputSchema("large", "relation", (("id", "int"), ("value", "int"))),
    }
    parsed = parse(text)
    used = {atom.application.name for rule in parsed.rules for atom in rule.atoms}
    return check(parsed, InputSchemas({n: each for n, each in schemas.items() if n in used}))


def inputs() -> Presences:
    """Readings begin and end, sensors move, and large numbers leave."""
    readings = []
    for n in range(60):
        start, ends = n * 7 % UPPER, None if n % 3 else n * 7 % UPPER + 3 + n % 9
        value = None if n % 11 == 5 else n % 6 - 2
        record = Record("reading", (n % 17, value, "abc"[n % 3]), start, ends)
        readings.append(Presence(record, start, END if ends is None else ends))
    places = [
        Presence(Record("place", (n, (n + part) % 3)), 10 * part, 10 * part + 10 + 15 * (n % 2))
        for n in range(17)
        for part in range(3)
    ]
    large = [
        Presence(Record("large", (n, INT_MAX if n % 2 else -INT_MAX)), 0, END if n < 6 else 9 + n)
        for n in range(13)
    ]
    return {"reading": readings, "place": places, "large": large}


def answer(evaluation: Evaluation) -> object:
    """Presences and errors, without an order."""
    found = {
        name: {(str(p.record), p.start, p.end) for p in each}
        for name, each in evaluation.presences.items()
    }
    return found, {(e.text, e.start, e.end) for e in evaluation.errors}


GROUPS = {
    "one group of all": "all() @count(v) @sum(v) @average(v) := reading(_, v, _);",
    "one group of rows without a name": "all() @count(1) := reading(_, _, _);",
    "groups of a join": """
        of(r) @sum(v) @count(v) := reading(s, v, _) ^ place(s, r);
        hot(r) ~sum ~count := of(r) @sum(n) if n > 20;
    """,
    "groups by a computed key": "per(v % 2) @count(s) @max(s) @min(u) := reading(s, v, u);",
    "sets and extents": """
        of(r % 2) @set(v) := reading(s, v, _) ^ place(s, r);
        wide(r + 1) @extent(v, v, u) := reading(s, v, u) ^ place(s, r);
    """,
    "values that are counted once": """
        of(r) @count_distinct(v) @count(u) := reading(s, v, u) ^ place(s, r);
        kinds() @count_distinct(u) := reading(_, _, u);
    """,
    "times": "of(r % 2) @earliest(t) @latest(t) := reading(s, _, _) @time(t) ^ place(s, r);",
    "sums beyond a word, of parts alone": """
        zero() @sum(v) @average(v) := large(_, v);
        most(n % 2) @sum(v) @max(v) := large(n, v);
    """,
    "values that fail": "of(r) @sum(6 / v) := reading(s, v, _) ^ place(s, r);",
    "what is not there": "rest(r) @count(v) := reading(s, v, u) ^ place(s, r) ^ not large(s, _);",
}  # fmt: skip
MATCHES = {
    "floats": ("of(r) @sum(float(v) / 3.0) := reading(s, v, _) ^ place(s, r);", "type float"),
    "contributions that meet again": (
        "of(r) @count(v) := reading(s, v, _) ^ place(s, r); more(r) := of(r) ^ place(_, r);",
        "is passed on",
    ),
    "two rules that count": (
        "of(r) @count(v) := reading(s, v, _) ^ place(s, r); of(r) @count(s) := place(s, r);",
        "other rules add to it",
    ),
    "extremes of groups that may be small": (
        "of(r) @max(v) := reading(s, v, _) ^ place(s, r);", "may be small",
    ),
    "sets that are counted, too": (
        "of(r % 2) @set(v) @count(v) := reading(s, v, _) ^ place(s, r);", "is passed on",
    ),
}  # fmt: skip


@pytest.mark.parametrize("ranges", [1, 3, 16])
@pytest.mark.parametrize("name", GROUPS)
def test_parts_of_groups_add_up_to_what_one_process_says(name: str, ranges: int) -> None:
    checked = program(GROUPS[name])
    assert any(n.startswith(PARTIAL) for n in placement_of(checked).plan.checked.columns)
    found = evaluated_by_ranges(checked, inputs(), upper=UPPER, cuts=(3, 11, 12, 30), ranges=ranges)
    assert answer(found) == answer(evaluated(checked, inputs(), upper=UPPER))


@pytest.mark.parametrize("name", MATCHES)
def test_groups_without_parts_cross_match_by_match_and_say_why(name: str) -> None:
    text, why = MATCHES[name]
    checked = program(text)
    placement = placement_of(checked)
    lines = placement_lines(placement_document(placement, checked))
    assert [line for line in lines if "one fact for each match" in line and why in line], lines
    assert not any(n.startswith(PARTIAL) for n in placement.plan.checked.columns)
    found = evaluated_by_ranges(checked, inputs(), upper=UPPER, cuts=(11, 30))
    assert answer(found) == answer(evaluated(checked, inputs(), upper=UPPER))


def test_what_one_range_says_is_told_from_what_others_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """The companion: where facts do not name their range, equal parts of a group are one."""
    checked = program(GROUPS["groups of a join"])
    given = {
        "place": [Presence(Record("place", (n, n % 3)), 0) for n in range(17)],
        "reading": [Presence(Record("reading", (n, 1, "a"), 0), 0) for n in range(17)],
    }
    wanted = answer(evaluated(checked, given, upper=UPPER))
    assert answer(evaluated_by_ranges(checked, given, upper=UPPER, ranges=7)) == wanted
    monkeypatch.setattr(task, "plan_in", lambda plan, number: partial.plan_in(plan, 0))
    assert answer(evaluated_by_ranges(checked, given, upper=UPPER, ranges=7)) != wanted


def test_one_fact_crosses_for_a_group_of_a_range_however_many_matches_it_has() -> None:
    checked = program("of(r) @sum(v) := reading(s, v, _) ^ place(s, r);")
    places = [Presence(Record("place", (n, n % 2)), 0) for n in range(200)]
    readings = [Presence(Record("reading", (n, v, "a"), 0), 0) for n in range(200) for v in (1, 2)]
    running = Ranges(placement_of(checked), 4, checked.derived, RangeSettings())
    feed(running, {"place": places, "reading": readings})
    crossed = 0
    steps = running.step(1)
    tasks = next(steps)
    try:
        while True:
            found = []
            for each in tasks:
                fragment = running.placement.fragments[each.fragment]
                found.append(
                    evaluate_range(fragment, each, running.told_of(fragment), RangeSettings())
                )
                moves = found[-1].moves
                crossed += sum(len(m) for n, m in moves.items() if n.startswith(PARTIAL))
            tasks = steps.send(found)
    except StopIteration as done:
        merged = done.value
    assert crossed == 2 * 4
    assert sorted(str(record) for _, record, _ in merged.moves["of"])
    assert len(merged.moves["of"]) == 2
