"""Joins that rules have in common: done once or by each rule, the answers, errors and reasons are the same."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.evaluation.profile import profile_lines
from tidemill.datalog.evaluation.sharing import Sharing
from tidemill.datalog.incremental import IncrementalEngine, Strategy
from tidemill.datalog.incremental.explaining import explain_plan
from tidemill.datalog.incremental.shared import JoinUnit
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record, format_record
from tidemill.datalog.scratch import Engine
from tidemill.testkit import tidelog_columns
from tidemill.testkit.seeded_backend import seeded_backend
from tidemill.testkit.tidelog import DERIVED, UPPER, Example, inputs, programs_alike

SHARINGS: tuple[Sharing, ...] = ("none", "all")
LIMITS = Limits(rounds=500)
EXAMPLES = int(os.environ.get("LAW_EXAMPLES", "150"))
Inputs = Mapping[str, Sequence[Presence]]
STEADY = settings(
    max_examples=EXAMPLES, backend=seeded_backend(7), deadline=None, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip


def followed(
    checked: CheckedProgram, given_: Inputs, strategy: Strategy, sharing: Sharing
) -> tuple[IncrementalEngine, list[object]]:
    """The engine, and what it holds and has failed at each instant."""
    engine = IncrementalEngine(checked, strategy=strategy, sharing=sharing, limits=LIMITS)
    for name, presences in given_.items():
        engine.feed(name, presences)
    answers: list[object] = []
    for at in range(-1, UPPER):
        engine.advance(at + 1)
        records = {name: sorted(map(format_record, engine.records(name))) for name in DERIVED}
        answers.append((at, records, engine.errors()))
    return engine, answers


def shared(engine: IncrementalEngine) -> list[JoinUnit]:
    return [unit for unit in engine.units if isinstance(unit, JoinUnit)]


PAIRS = {name: InputSchema(name, "relation", (("k", "int"), ("v", "int"))) for name in "ab"}
ALIKE = """
r1(x, z) := a(x, y) ^ b(y, z) if x < z;
r2(z) @count(x) := b(w, z) ^ a(x, w) if z > x ^ 6 / x != 3;
r3(v) := a(v, w) ^ b(w, u) ^ b(u, _) ^ not a(u, v) if v < u;
"""
PLAN = """\
plan
  stratum 0: join 1, joined once for rules 1, 2 and 3
    a(x, y) ^ b(y, z) if x < z
      on a -> b by (k) if x < z
      on b -> a by (v) if x < z
  stratum 0: r1, followed
    rule 1: r1(x, z) := a(x, y) ^ b(y, z) if x < z;
      on join 1 if x < z
  stratum 1: r3, followed
    rule 3: r3(v) := a(v, w) ^ b(w, u) ^ b(u, _) ^ not a(u, v) if v < u;
      on join 1 if v < u -> b by (k)
      on b -> join 1 by (b.v) if v < u
      unless a by (k, v)
  stratum 1: r2, followed
    rule 2: r2(z) @count(x) := b(w, z) ^ a(x, w) if z > x ^ 6 / x != 3;
      on join 1 if z > x ^ 6 / x != 3
"""


def program(text: str) -> CheckedProgram:
    return check(parse(text), InputSchemas(PAIRS))


def begun(
    text: str, rows: Iterable[tuple[str, int, int]], sharing: Sharing = "auto"
) -> IncrementalEngine:
    engine = IncrementalEngine(program(text), sharing=sharing)
    for name, *values in rows:
        engine.update(name, Record(name, tuple(values)), 0, 1)
    engine.advance(1)
    return engine


def test_explain_shows_a_shared_join_once_and_who_reads_it() -> None:
    engine = begun(ALIKE, [("a", 0, 1), ("b", 1, 2)], sharing="all")
    lines = explain_plan(engine)
    assert PLAN in "\n".join(lines)
    assert lines[:4] == ["strata", "  inputs: a, b", "  0: r1", "  1: r3, r2"]
    assert "  join 1 by (b.v): 1 rows under 1 keys" in lines


def test_an_error_names_the_facts_of_its_rule_in_the_order_of_the_text() -> None:
    for sharing in SHARINGS:
        engine = begun(ALIKE, [("a", 0, 1), ("b", 1, 2)], sharing=sharing)
        assert bool(shared(engine)) == (sharing == "all")
        assert engine.errors() == [("division by zero: b(1, 2) ^ a(0, 1)", 2)]


def test_what_most_rules_have_no_use_for_is_not_kept_for_them() -> None:
    many = [("a", i, i % 5) for i in range(40)] + [("b", i % 5, i) for i in range(40)]
    rules = [f"r{i}(x, z) := a(x, y) ^ b(y, z)" for i in range(4)]
    wanted = begun(" ".join(f"{rule};" for rule in rules), many)
    assert [unit.shared.join.rules for unit in shared(wanted)] == [[1, 2, 3, 4]]
    dropped = begun(" ".join(f"{rule} if x == {i};" for i, rule in enumerate(rules)), many)
    assert shared(dropped) == []
    said = explain_plan(dropped)
    at = said.index("joined by each rule")
    assert said[at + 1 : at + 3] == [
        "  a(x, y) ^ b(y, z), by rules 1, 2, 3 and 4:",
        "    to keep about 320 solutions takes more than it saves",
    ]


def test_sharing_is_chosen_by_the_facts_that_an_engine_begins_with() -> None:
    text = "r1(x, z) := a(x, y) ^ b(y, z) ^ a(z, 1); r2(x, z) := a(x, y) ^ b(y, z) ^ a(z, 2);"
    apart = [("a", i, i) for i in range(50)] + [("b", i + 40, i) for i in range(50)]
    together = [("a", i, i % 2) for i in range(50)] + [("b", i % 2, i) for i in range(50)]
    assert shared(begun(text, together)) == []
    assert len(shared(begun(text, [*apart, *[("a", i, i + 99) for i in range(500)]]))) == 1


def test_who_asks_for_the_readers_of_an_input_finds_rules_and_no_joins() -> None:
    alone, joined = begun(ALIKE, [("a", 0, 1)], "none"), begun(ALIKE, [("a", 0, 1)], "all")
    for name in ("a", "b"):
        found = [
            {unit.component: unit.monotone_in(name) for unit in engine.readers(name)}
            for engine in (alone, joined)
        ]
        assert found[0] == found[1]
        assert len(found[0]) == 3


def test_rules_that_share_their_joins_say_what_they_say_alone() -> None:
    seen: Counter[str] = Counter()

    @STEADY
    @given(
        programs_alike(), inputs(rows_min=2, rows_max=4), st.sampled_from(["strata", "retraction"])
    )
    def agree(example: Example, given_: Inputs, strategy: Strategy) -> None:
        try:
            _, alone = followed(example.checked, given_, strategy, "none")
        except LimitPassed:
            assume(False)
        sharings: tuple[Sharing, ...] = ("all", "auto")
        for sharing in sharings:
            engine, found = followed(example.checked, given_, strategy, sharing)
            assert found == alone, (sharing, example.text)
            units = shared(engine)
            seen[sharing] += bool(units)
            seen[f"{sharing}, with solutions"] += any(unit.rules[0].found for unit in units)
            seen[f"{sharing}, a part"] += any(
                not use.whole for unit in units for use in unit.shared.join.uses
            )

    agree()
    assert seen["all"] > EXAMPLES * 0.4, seen
    assert seen["all, with solutions"] > EXAMPLES * 0.2, seen
    assert seen["all, a part"] > EXAMPLES * 0.2, seen
    assert seen["auto"] > EXAMPLES * 0.1, seen


def test_rules_on_columns_that_share_their_joins_say_what_they_say_alone() -> None:
    seen: Counter[str] = Counter()

    @settings(STEADY, max_examples=EXAMPLES // 2)
    @given(
        tidelog_columns.programs_alike(),
        tidelog_columns.bulk_inputs(),
        st.integers(1, tidelog_columns.UPPER - 1),
    )
    def agree(example: Example, given_: Inputs, cut: int) -> None:
        answers = []
        for sharing in SHARINGS:
            engine = Engine(example.checked, columns_from=0, sharing=sharing)
            found, state = [], None
            for lower, upper in ((None, cut), (cut, tidelog_columns.UPPER)):
                window = engine.evaluate(given_, lower=lower, upper=upper, state=state)
                state = window.state
                presences = {
                    name: sorted(map(repr, window.presences[name]))
                    for name in example.checked.derived
                }
                found.append((presences, window.errors, sorted(map(repr, state.to_rows()))))
            answers.append(found)
            assert engine.bulk is not None
            seen[sharing] += engine.bulk.shared > 0
        assert answers[0] == answers[1], example.text

    agree()
    assert seen["none"] == 0
    assert seen["all"] > EXAMPLES // 2 * 0.4, seen


def test_a_window_holds_no_more_matches_for_other_rules_than_it_may() -> None:
    rows = [Presence(Record(name, (i, i)), 0, END) for name in "ab" for i in range(50)]
    inputs_ = {name: [p for p in rows if p.record.predicate == name] for name in "ab"}
    text = "".join(f"r{i}(x, z) := a(x, y) ^ b(y, z);" for i in range(3))
    for most, shared_ in ((50, 2), (49, 0)):
        engine = Engine(program(text), columns_from=0)
        engine.column_bulk().found_max = most
        found = engine.evaluate(inputs_, upper=1)
        assert engine.column_bulk().shared == shared_
        assert [len(found.presences[f"r{i}"]) for i in range(3)] == [50, 50, 50]


def test_what_a_window_took_says_whose_join_a_rule_began_with() -> None:
    engine = Engine(program(ALIKE), columns_from=0, timer=itertools.count().__next__)
    given_ = {
        "a": [Presence(Record("a", (0, 1)), 0, END), Presence(Record("a", (4, 1)), 0, END)],
        "b": [Presence(Record("b", (1, 2)), 0, END), Presence(Record("b", (1, 9)), 0, END)],
    }
    found = engine.evaluate(given_, upper=1)
    assert found.profile is not None
    lines = profile_lines(engine.plan, found.tables, found.profile)
    assert any(line.endswith("columns, joined by rule 3") for line in lines)
