"""Goals, firings and the key of an action."""

from __future__ import annotations

import pytest

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.goals import action_key, compile_goal, goal_over
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.records import Record, parse_record
from tidemill.errors import UsageError


@pytest.fixture
def program() -> CheckedProgram:
    catalog = InputSchemas({"lvl": InputSchema("lvl", "events", (("tank", "text"), ("v", "int")))})
    return check(parse("alarm(tank: x, level: v) := lvl(tank: x, v: v) if v > 5;"), catalog)


def test_a_question_binds_its_variables_by_position_or_by_name(program: CheckedProgram) -> None:
    records = [Record("alarm", ("a", 6), 1), Record("alarm", ("b", 7), 2)]
    everything = compile_goal("alarm(t, level)", program)
    assert [everything.bindings(each) for each in records] == [
        {"t": "a", "level": 6},
        {"t": "b", "level": 7},
    ]
    named = compile_goal("alarm(level: 7)", program)
    assert [named.bindings(each) for each in records] == [None, {}]
    timed = compile_goal('alarm("a", _) @time(t)', program)
    assert [timed.bindings(each) for each in records] == [{"t": 1}, None]


def test_goals_that_do_not_fit_are_refused_with_what_there_is(program: CheckedProgram) -> None:
    for text in ("alarm(x)", "nothing(x)", "alarm(a: 1)", "alarm(x, 1 + 1)", "not alarm(x, y)"):
        with pytest.raises(UsageError):
            compile_goal(text, program)
    with pytest.raises(ProgramErrors):
        compile_goal("alarm(x,", program)


def test_the_key_of_an_action_is_typed_and_leaves_out_what_may_change() -> None:
    record = parse_record('alarm("a", 25) @time(10) @expires(20) @count(3)')
    key = action_key("alarms", record)
    assert key == action_key("alarms", parse_record('alarm("a", 25) @time(10)'))
    others = [
        action_key("alarm", record),
        action_key("alarms", parse_record('alarm("a", 25.0) @time(10)')),
        action_key("alarms", parse_record('alarm("a", "25") @time(10)')),
        action_key("alarms", parse_record('alarm("a", 25)')),
        action_key("alarms", parse_record('alarm("a", 25) @time(11)')),
        action_key("alarms", parse_record('alarm("a", null) @time(10)')),
        action_key("alarms", parse_record('alarm("a", true) @time(10)')),
        action_key("alarms", parse_record('alarm("a", 2) @time(10)')),
    ]
    assert len({key, *others}) == 9
    zero = (Record("p", (0.0, frozenset({2, 1}))), Record("p", (-0.0, frozenset({1, 2}))))
    assert action_key("g", zero[0]) == action_key("g", zero[1])


def test_the_key_of_an_action_never_changes_between_releases() -> None:
    record = parse_record('alarm("caf\u00e9", -1, 2.5, null, true, {1,2}) @time(1700000000000)')
    assert action_key("alarms", record) == KEY


KEY = "64b20d311f9e62ca7f4244cce64211f6f35a9140e6042288c852b2e3ad66022a"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("late(p", " 1 | late(p\n   |       ^"),
        ("", " 1 | \n   | ^"),
        ("late(p) late(q)", " 1 | late(p) late(q)\n   |         ^^^^"),
        ("late(p,\n  ~x)", " 2 |   ~x)\n   |   ^"),
    ],
)
def test_a_mistake_in_a_goal_is_shown_in_its_own_text(text: str, shown: str) -> None:
    with pytest.raises(ProgramErrors) as error:
        goal_over(text, {"late": [("p", "text")]})
    assert shown in error.value.render()
    assert "`;`" not in error.value.diagnostics[0].message
