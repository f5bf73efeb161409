"""Mistakes of newcomers, each with the answer: the place, the code, and the correction.

`«` marks the place that has to be named.
"""

from __future__ import annotations

import pytest

from tidemill.datalog.check import check
from tidemill.datalog.diagnostics import Diagnostic, ProgramErrors
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.lint import warn_about_unused
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record, parse_record
from tidemill.datalog.why_not import why_not
from tidemill.errors import UsageError

OPEN = InputSchemas(closed=False)
EVENTS = InputSchemas(closed=False, default_kind="events")
COMMENT = "a comment begins with //"
QUOTES = 'write text between straight double quotes: "a"'
HEAD_FIRST = "the head stands first: p(x) := q(x) if x > 5;"

CASES = "write one rule for each case: p(x, 1) := q(x) if x > 5; p(x, 2) := q(x) if x <= 5;"
AGGREGATE = "an aggregate stands behind the head: p(k) @count(x) := q(k, x);"
NAMED = "give a value a name after `where`: … where n = …; compare after `if`, with =="

SAID = [
    (
        "p(x) := q(x) where x «> 5;",
        "E009",
        "write x = EXPRESSION; a condition stands after `if`: p(x) := q(x) if x > 5;",
    ),
    (
        "p(x) := q(x) ^ «if x > 5;",
        "E006",
        "`if` follows the atoms without ^: p(x) := q(x) if x > 5;",
    ),
    ("p(n) := q(x) ^ «n = x + 1;", "E006", NAMED),
    ("p(x) := q(x) if case «when x > 5 then 1 end;", "E001", CASES),
    ("p(x) := q(x) if (x > 5) «? true : false;", "E001", CASES),
    ("p(n) := count(«q(n));", "S113", AGGREGATE),
    ("p(x) := q(x) if x > 0 ^ «r(x);", "S113", "atoms stand before `if`: … ^ r(…) if …"),
    ("p(x) := q(x) ^ «no r(x);", "E006", "write not q(…)"),
    (
        "«select x from q;",
        "E006",
        "a rule derives facts: p(x) := q(x, y) if y > 5; for SQL ask tidemill sql",
    ),
    (
        '«import "x";',
        "E006",
        "a program reads the inputs of its view, and other views by name under spec.inputs",
    ),
    (
        "p(x) := «q(x) || r(x);",
        "E012",
        "write another rule with the same head; || stands within a guard, after `if`",
    ),
    (
        "p(x) := «q(x) && r(x);",
        "E012",
        "write ^ between atoms; && stands within a guard, after `if`",
    ),
    (
        "p(x) := q(x) «| r(x);",
        "E001",
        "write || within a guard; for other atoms write another rule",
    ),
    ("«if x > 5 then p(x);", "E006", HEAD_FIRST),
    ("p(x) := q(x) if x > 5 «then r(x);", "E001", HEAD_FIRST),
    (
        'p(x) := q(x) if x «like "a%";',
        "E001",
        'write starts_with(x, "a"), ends_with(x, "a") or contains(x, "a")',
    ),
    (
        "p(x) := q(x) if x «in (1, 2);",
        "E001",
        "write x == 1 || x == 2, or join with facts that hold the values",
    ),
    ("p(x) := q(x) if x «is null;", "E001", "write is_null(x), or is_null(x) == false"),
    ("p(x) := q(x) if x «between 1 and 2;", "E001", "write 1 <= x ^ x <= 2"),
    (
        "p(x) := q(x) «order by x;",
        "E001",
        "facts have no order; sort the answer, as with tidemill sql",
    ),
    (
        "p(x) := q(x) «limit 5;",
        "E001",
        "facts have no order, so none is first; limit the answer, as with tidemill sql",
    ),
    (
        "p(k) := q(k) «group by k;",
        "E001",
        "the columns of the head are the group: p(k) @count(x) := q(k, x);",
    ),
    (
        "p(x) @time(t «+ 5s) := q(x) @time(t);",
        "S120",
        "write duration(…) of milliseconds, or millis(…) of a duration",
    ),
    ("p(x) @expires(«2h) := q(x);", "S120", "write millis(…)"),
    ("p(x) := q(x) if x > 1.5«s;", "E001", "times are whole milliseconds: write 1500"),
    (
        "p(x) := q(x) if «now() > x;",
        "S113",
        "rules read no wall clock: match a time with @time(t), or clock(0, 1000) @time(t)",
    ),
    (
        "«clock(0, 100) @time(5);",
        "S110",
        "clocks tick by themselves: read one with clock(0, 100) @time(t), or take another name",
    ),
    ("p(x) := q(x, «“a”);", "E009", QUOTES),
    ("p(x) := q(«‘a’, x);", "E009", QUOTES),
    ("«# a comment\np(1);", "E006", COMMENT),
    ("p(1); «# a comment", "E006", COMMENT),
    ("«-- a comment\np(1);", "E006", COMMENT),
    ("p(1); «-- a comment", "E006", COMMENT),
    ("«p(x) <- q(x);", "E012", "write := between head and formula"),
    (
        "p(t) @time(«t + 5) := q(x) @time(t);",
        "S104",
        "derive the fact in one rule and its parafact in another, as in: "
        "seen(t) := e(_) @time(t); p(t) @time(u + 5) := seen(t) @time(u);",
    ),
    (
        "p(x) @max(«x) := q(x);",
        "S104",
        "derive the fact in one rule and its parafact in another, as in: "
        "pair(x, x) := e(x); p(x) @max(y) := pair(x, y);",
    ),
]

TOGETHER = "this guard is never true together with those before it"
WARNED = [
    (
        "flight(1, 2); late(p) := «fligth(p, d) if d > 5;",
        "W206",
        "no rule states or derives `fligth`: it is empty here",
        "did you mean `flight`?",
    ),
    (
        "flight(1, 2); late(p) := flight(p, d) ^ not «zzz(d);",
        "W206",
        "no rule states or derives `zzz`: it is empty here",
        "state facts of it, or write a rule",
    ),
    (
        "late(p) := flight(«N1, p);",
        "W205",
        "the variable `N1` is used once, so it matches anything",
        'write _ for any value, or "N1" in quotes for the text',
    ),
    (
        "late(plane) := flight(«plaen) ^ flight(plane);",
        "W205",
        "the variable `plaen` is used once, so it matches anything",
        'did you mean `plane`? write _ for any value, or "plaen" in quotes for the text',
    ),
    (
        "p(x) := q(x) if x > 5 ^ «x < 3;",
        "W204",
        TOGETHER,
        "|| within one guard holds if either does",
    ),
    (
        'p(x) := q(x) if x == "a" && «"b" == x;',
        "W204",
        TOGETHER,
        "|| within one guard holds if either does",
    ),
    (
        "p(1) @«expires(3) @time(5);",
        "W204",
        "the fact expires no later than its time, so it is never there",
        "write an expiry after the time, such as @expires(t + 1000)",
    ),
    (
        "m(x) @async(0) := s(x); «m(x) @async(0) := m(x);",
        "W207",
        "`m` is sent again whenever it arrives: a tick each millisecond, for ever",
        "stop it by a guard or by `not`, or keep facts with @next",
    ),
    (
        "«ping(x) @async(1) := pong(x); pong(x) := ping(x);",
        "W207",
        "`ping` is sent again whenever it arrives: a tick each millisecond, for ever",
        "stop it by a guard or by `not`, or keep facts with @next",
    ),
]

QUIET = [
    "late(p) := flight(_, p);",
    "p(x) := q(x) if x >= 5 ^ x <= 5;",
    "p(x) := q(x) if x > 5 || x < 3;",
    'p(x, y) := q(x, y) if x == "a" ^ y == "b";',
    "p(x) := q(x) if x != 3 ^ x != 4;",
    "p(1) @time(5) @expires(6);",
    "m(x) @async(0) := m(x) if x < 10;",
    "m(x) @async(0) := m(x) ^ not done(x);",
    "m(x) @next := m(x);",
    "p(x) := q(x, b) if b > 3;",
    "p(x + y) := q(x, z) where y = z;",
]  # fmt: skip


def place(marked: str) -> tuple[str, int, int]:
    before, _, after = marked.partition("«")
    return before + after, before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1


@pytest.mark.parametrize(("marked", "code", "hint"), SAID)
def test_c3_a_habit_from_elsewhere_is_met_with_what_to_write(
    marked: str, code: str, hint: str
) -> None:
    text, line, column = place(marked)
    with pytest.raises(ProgramErrors) as refused:
        check(parse(text), EVENTS)
    first = refused.value.diagnostics[0]
    assert (first.code, first.line, first.column, first.hint) == (code, line, column, hint)
    assert len({each.code for each in refused.value.diagnostics}) == 1


def test_c3_a_stated_clock_is_one_mistake() -> None:
    with pytest.raises(ProgramErrors) as refused:
        check(parse("clock(0, 100) @time(5);"), OPEN)
    assert [each.code for each in refused.value.diagnostics] == ["S110"]


@pytest.mark.parametrize(("marked", "code", "message", "hint"), WARNED)
def test_c3_what_is_likely_not_meant_is_warned_about(
    marked: str, code: str, message: str, hint: str
) -> None:
    text, line, column = place(marked)
    (found,) = check(parse(text), OPEN).warnings
    assert (found.code, found.line, found.column) == (code, line, column)
    assert (found.message, found.hint) == (message, hint)


@pytest.mark.parametrize("text", QUIET)
def test_what_is_meant_is_not_warned_about(text: str) -> None:
    assert check(parse(text), OPEN).warnings == ()


def test_c3_an_input_that_is_derived_as_well_has_a_remedy() -> None:
    known = InputSchemas({"b": InputSchema("b", "relation", (("x", "int"),))})
    (found,) = check(parse("b(1);"), known).warnings
    assert found.code == "W203"
    assert found.hint == (
        "what is derived joins what comes in; give what the rule derives a name of its own"
    )


def test_c3_a_rule_that_no_output_needs_is_warned_about() -> None:
    program = check(parse("p(x) := mid(x); mid(x) := q(x); lost(x) := q(x);"), OPEN)
    assert [_said(w) for w in warn_about_unused(program, ["p"])] == [
        ("W208", "no output needs `lost`", 33)
    ]
    assert [*warn_about_unused(program, ["p", "lost"])] == []


def test_c3_a_group_of_groups_that_takes_contributions_along_is_warned_about() -> None:
    groups = "m(n) @sum(x) := p(n, x); "
    (found,) = check(parse(groups + "top() @max(s) := m(_) @sum(s);"), OPEN).warnings
    assert (found.code, found.column) == ("W209", len(groups + "top() @max(s) := ") + 1)
    assert found.hint == "write ~sum after `m(…)` unless a reader of `top` wants it"
    for meant in ("top() @max(s) := m(_) ~sum @sum(s);", "top() @sum(s) := m(_) @sum(s);"):
        assert check(parse(groups + meant), OPEN).warnings == ()


def _said(warning: Diagnostic) -> tuple[str, str, int]:
    return warning.code, warning.message, warning.column


def test_c3_the_examples_of_s104_are_programs() -> None:
    for _, code, hint in SAID:
        if code == "S104":
            assert check(parse(hint.partition("as in: ")[2]), EVENTS).warnings == ()


def _absent(text: str, asked: str, *facts: str, letters: tuple[str, ...] = ()) -> str:
    inputs: dict[str, list[Presence]] = {}
    for record in map(parse_record, facts):
        inputs.setdefault(record.predicate, []).append(Presence(record, record.time or 0, 100))
    late: list[Record] = [parse_record(letter) for letter in letters]
    program, record = check(parse(text), EVENTS), parse_record(asked, blanks=True)
    found = why_not(program, inputs, record, 50, upper=60, letters=late)
    return "\n".join(reason.render() for reason in found)


def test_c3_why_not_names_an_atom_by_its_text_and_the_next_question() -> None:
    text = "big(x, v) := e(x, v) if v > 100; worst(x) := big(x, _); loud(x) := big(x, 7);"
    fact = 'e("a", 200) @time(5)'
    assert _absent(text, 'worst("z")', fact) == (
        """rule 2: no fact agrees with big("z", _); ask why-not 'big("z", _)'"""
    )
    assert _absent(text, 'big("z", _)', fact) == 'rule 1: no fact agrees with e("z", _)'
    assert _absent(text, 'big("a", _)', fact) == "it is present"
    assert _absent(text, 'loud("z")') == (
        """rule 3: nothing is known of big("z", 7); ask why-not 'big("z", 7)'"""
    )
    with pytest.raises(UsageError, match="`_` is no value here"):
        parse_record("big(_, 1)")
    with pytest.raises(UsageError, match="`_` is no value here"):
        parse_record("big({_}, 1)", blanks=True)


def test_c3_why_not_shows_the_parafact_that_blocked() -> None:
    text = "n(k) @count(v) := e(k, v); few(k) := e(k, _) ^ not n(k) @count(2);"
    facts = 'e("a", 1) @time(5)', 'e("a", 2) @time(5)'
    assert _absent(text, 'few("a")', *facts) == 'rule 2: blocked by n("a") @time(5) @count(2)'


def test_w12_a_letter_of_the_asked_time_came_late_whatever_others_there_are() -> None:
    text = "high(k) := level(k, v) if v > 5;"
    letters = ('level("tank1", 9) @time(15)',)
    others = 'level("tank1", 9) @time(20)', 'level("tank1", 1) @time(21)'
    says = 'rule 1: level("tank1", 9) @time(15) came late and was refused'
    assert _absent(text, 'high("tank1") @time(15)', letters=letters) == says
    assert _absent(text, 'high("tank1") @time(15)', *others, letters=letters) == says
    assert "late" not in _absent(text, 'high("tank1") @time(16)', *others, letters=letters)
