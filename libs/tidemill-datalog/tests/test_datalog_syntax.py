"""Syntax: what is refused, where and with which code; and what is accepted although it looks alike.

In the tables `«` marks the place that the error has to name.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.datalog.ast import AsyncTo, Binary, Call, Literal, NextTick, Program, Unary
from tidemill.datalog.diagnostics import Diagnostic, ProgramErrors
from tidemill.datalog.parser import DEPTH_MAX, parse
from tidemill.testkit.program_texts import format_program, same_rules

REFUSED = [
    # A rule that does not end.
    ("E001", "p(x) := q(x)«.", ";"),
    ("E001", "p(x) := q(x)«", ";"),
    ("E001", "p(1)«  // no more\n", ";"),
    ("E001", "p(x) := q(x)\n«r(x) := p(x);", ";"),
    ("E001", "p(1)\n«r(2);", ";"),
    ("E001", "p(x) := q(x) «r(x);", "^"),
    ("E001", "p(x) := q(x) «not r(x);", "^"),
    ("E001", "p(x) := q(x) «& r(x);", "^"),
    ("E001", 'p(x) := q(x) «"text";', ";"),
    ("E001", "p(x) «= q(x);", ":="),
    ("E001", "p(x) «: q(x);", ":="),
    ("E001", "p(x)«, r(x) := q(x);", "one head"),
    ("E001", "p(x) «if x > 1;", "atom before"),
    ("E001", "p(x) := q(x) if x > 1 «if x < 3;", "^"),
    ("E001", "p(x) := q(x) where a = x «where b = x;", ";"),
    ("E001", "p(a) where a = 3 «:= q(x);", ";"),
    ("E001", "p(x) := q(x) «:= r(x);", ";"),
    ("E001", "p(x) := q(x) if x > 1\n«r(x) := p(x);", ";"),
    # Parentheses.
    ("E001", "p(x) := q(x) «and r(x);", "^"),
    ("E001", "p(x) := q(x) if x > 1 «or x < 0;", "||"),
    ("E001", "p(x) := q(x) if x > 1«e308;", "1.0e5"),
    ("E004", "p(x) @«count := q(x);", "@count("),
    ("E006", "p(x) := q(x) ^ «!r(x);", "not p"),
    ("E009", "p(x) := q(«'a');", "double quotes"),
    ("E009", "p(x) @count(«*) := q(x);", "@count(1)"),
    ("E002", "p(x) := q(x«", ")"),
    ("E002", "p(«", ")"),
    ("E002", "p(x)«) := q(x);", "leave it out"),
    ("E002", "p(x) := q(x)«) ^ r(x);", "leave it out"),
    ("E002", "p(x) := q(x) if x > 3«);", "leave it out"),
    ("E002", "p(y) := q(x) where y = x«);", "leave it out"),
    ("E002", "p(x) := q(x) if (x > 1«;", ")"),
    ("E002", "p(x) := q(x«;", ")"),
    ("E002", "p(x «:= q(x);", ")"),
    ("E002", "p(x) := q(x «^ r(x);", ")"),
    ("E002", "p(x) := (q(x) «^ r(x));", ")"),
    ("E002", "p(x) := q(x) if (x > 1 «^ x < 3);", "&&"),
    ("E002", "p(x) := q(x «y);", ","),
    ("E002", "p(x) := q(1«e5);", "1.0e5"),
    ("E002", "p(x) := q(x) @time(t«;", ")"),
    ("E002", "p(x) @async(n «:= q(x, n);", ")"),
    ("E002", "p(y) := q(x) where y = (x + 1«;", ")"),
    # A misplaced `~`.
    ("E003", "p(x) := q(x) ^ «~r(x);", "not r("),
    ("E003", "p(x) := «~r(x) ^ q(x);", "not r("),
    ("E003", "«~p(x) := q(x);", "not p("),
    ("E003", "p(x) := q(x) if «~x;", "not"),
    ("E003", "p(x) := q(x) if x > 1 «~time;", "not"),
    ("E003", "p(x «~time) := q(x);", "not"),
    ("E003", "p(x) := q(x) ~«r(x);", "not r("),
    ("E003", "p(x) ~«time(t) := q(x) @time(t);", "~time"),
    ("E003", "p(x) := q(x) ~«3;", "~time"),
    ("E003", "p(x) := q(x) ~«;", "~time"),
    ("E003", "p(x) := q(x) ~«next;", "~time"),
    ("E003", "p(x) := q(x) ~«~time;", "~time"),
    ("E003", "p(x) := q(x) ~«", "~time"),
    # `@` before something else than a lattice with its value.
    ("E004", "p(x) @«t := q(x) @time(t);", "@time(t)"),
    ("E004", "p(x) := q(x) @«t1;", "@time(t1)"),
    ("E004", "p(x) := q(x) @ «5;", "@time(5)"),
    ("E004", 'p(x) := q(x) @«"a";', "@time"),
    ("E004", "p(x) := q(x) @(«t);", "@time(t)"),
    ("E004", "p(x) := q(x) @«;", "@time"),
    ("E004", "p(x) := q(x) @«@time(t);", "@time"),
    ("E004", "p(x) := q(x) @«-t;", "@time"),
    ("E004", "p(x) := q(x) @«next;", "head"),
    ("E004", "p(x) := q(x, n) @«async(n);", "head"),
    ("E004", "p(x) @«async := q(x);", "@async(n)"),
    ("E004", "p(x) @next @«next := q(x);", "one of"),
    ("E004", "p(x) @next @«async(x) := q(x);", "one of"),
    ("E004", "p(x) @«", "@time"),
    # An atom that is none.
    ("E006", "p(x) := q(x) ^ «3;", "p(x)"),
    ("E006", "p(x) := q(x) ^ «x;", "x("),
    ("E006", "«p := q(x);", "p("),
    ("E006", "p(x) := «q;", "q("),
    ("E006", "p(x) := q(x) ^ «_;", "p(x)"),
    ("E006", "p(x) := q(x) ^ «true;", "word of the language"),
    ("E006", 'p(x) := q(x) ^ «"a";', "p(x)"),
    ("E006", "p(x) := q(x) ^ not «x;", "x("),
    ("E006", "p(x) := q(x) ^ «;", "p(x)"),
    ("E006", "p(x) := «;", "p(x)"),
    ("E006", "p(x) :=« ", "p(x)"),
    ("E006", "p(x) := «if x > 1;", "before `if`"),
    ("E006", "p(x) := «^ q(x);", "p(x)"),
    ("E006", "p(x) := not «not q(x);", "once"),
    ("E006", "p(x) := («not q(x)) ^ r(x);", "not p(x)"),
    ("E006", "«not p(x) := q(x);", "derives"),
    ("E006", "p(x) := «-q(x);", "p(x)"),
    ("E006", "p(1);«;", "leave it out"),
    ("E006", "«next(x) := q(x);", "word of the language"),
    ("E006", "p(x) := («);", "p(x)"),
    # Order of `if` and `where`.
    ("E007", "p(z) := q(x, y) where z = y «if z > 1;", "where NAME"),
    ("E007", "p(z) := q(x, y) where z = y, «if z > 1;", "where NAME"),
    # `=` in a guard.
    ("E008", "p(x) := q(x, y) if y «= 3;", "=="),
    ("E008", "p(x) := q(x, y) if (y «= 3);", "=="),
    ("E008", "p(x) := q(x, y) if x > 1 ^ y «= 3;", "=="),
    ("E008", "p(x) := q(x, y) if y «=< 3;", "<="),
    ("E008", "p(a) := q(x, y) if y «= 3 where a = x;", "=="),
    # An expression that is missing.
    ("E009", "p(x) := q(x,«);", "variable"),
    ("E009", "p(«, x) := q(x);", "variable"),
    ("E009", "p(x) := q(x) if «;", "variable"),
    ("E009", "p(x) := q(x) if x > «;", "variable"),
    ("E009", "p(x) := q(x) if x > 1 ^ «;", "variable"),
    ("E009", "p(x) := q(x) if «not x;", "== false"),
    ("E009", "p(x) := q(x) if «!x;", "== false"),
    ("E009", "p(x) := q(x) if x <«> 2;", "!="),
    ("E009", "p(x) := q(x) if x * «* 2 > 1;", "variable"),
    ("E009", "p(x) := q(x) if («);", "variable"),
    ("E009", "p(x) @async(«) := q(x);", "variable"),
    ("E009", "p(x) := q(a: «);", "variable"),
    ("E009", "p(x) := q(x) where «;", "variable"),
    ("E009", "p(x) := q(x) where «3 = y;", "variable"),
    ("E009", "p(x) := q(x) where y«;", "y = "),
    ("E009", "p(y) := q(x) where y «== 3;", "y = "),
    ("E009", "p(y) := q(x) where y = «;", "variable"),
    ("E009", "p(«if) := q(x);", "word of the language"),
    ("E009", "p(x) := q(«where);", "word of the language"),
    ("E009", "p(«next) := q(x);", "word of the language"),
    ("E009", "p(y) := q(f(«a: 1));", "without column names"),
    ("E009", "p(«9223372036854775808);", "float"),
    ("E009", f"p(«{'9' * 6000});", "float"),
    ("E009", "p(x) := q(x) if x < «1.0e999;", ""),
    ("E009", f"p(«{'x + ' * DEPTH_MAX}x) := q(x);", "several rules"),
    ("E009", f"p(«{'abs(' * DEPTH_MAX}x{')' * DEPTH_MAX}) := q(x);", "several rules"),
    # Texts.
    ("E010", 'p(x) := q(x, «"open);', '"'),
    ("E010", 'p(x) := q(x, «"open);\nr("b");', '"'),
    ("E010", 'p(«"a\\x");', "\\uXXXX"),
    ("E010", 'p(«"\\ud800");', "character"),
    ("E010", "p(x) := q(x) «/* no end", "*/"),
    # Another sign between head and formula.
    ("E011", "p(x) «:- q(x);", ":="),
    ("E011", "p(x) @time(t) «:- q(x) @time(t);", ":="),
    # Infix applications as atoms and parafacts.
    ("E012", "p(x) := q(x) ^ «f(x) > 3;", "guard"),
    ("E012", "p(x) := q(x) ^ «x > 3;", "guard"),
    ("E012", "p(x) := «x == 3 ^ q(x);", "guard"),
    ("E012", "p(x) := q(x) ^ («x + 1);", "guard"),
    ("E012", "p(x) := q(x) ^ «-x < 3;", "guard"),
    ("E012", "p(x) := «q(x) && r(x);", "guard"),
    ("E012", "«p(x) < 3 := q(x);", "guard"),
    ("E012", "p(x) := q(x) @(«t > 3);", "guard"),
    ("E012", "p(x) := q(x) @«time(t) > 3;", "guard"),
    ("E012", "p(x) @(«t + 1) := q(x) @time(t);", "guard"),
    # `,` between atoms.
    ("E013", "p(x) := q(x)«, r(x);", "^"),
    ("E013", "p(x) := not q(x)«, r(x);", "^"),
    ("E013", "p(x) := q(x) @time(t)«, r(x);", "^"),
    ("E013", "p(x) := q(x) ~time«, r(x);", "^"),
    ("E013", "p(x) := q(x) if x > 1«, x < 3;", "^"),
    # Chained comparisons.
    ("E014", "p(x) := q(x, y) if 1 < y «< 3;", "^"),
    ("E014", "p(x) := q(x, y) if 1 < y + x * 2 «<= 3;", "^"),
    ("E014", "p(x) := q(x) if x == 1 «== true;", "^"),
    ("E014", "p(x) := q(x) if 1 < abs(x) «< 3;", "^"),
    ("E014", "p(x) := q(x) if 0 < x && 1 < x «< 3;", "^"),
    ("E014", "p(x) := q(x) if (1 < x «< 3);", "^"),
    ("E014", "p(a) := q(x) where a = 1 < x «< 3;", "^"),
    ("E014", "p(x) := q(x, 1 < x «< 3);", "^"),
]

ACCEPTED = [
    "",
    "// only a comment",
    "/* one */ p(1); /* two\nlines **/ // three",
    "p();",
    "p(-1, -1.5, 1.5e3, 1.0E-3, 0.5e+2);",
    'p("\\u00e9\\n\\t\\"\\\\", "//", "/* */", "«");',
    "p(-9223372036854775808, 9223372036854775807, 0000000000000000000000001);",
    "_p1(_x) := q_(_x, _);",
    "é(ß) := q(ß);",
    "iffy(nothing, nextone) := q(nothing, nextone) ^ asyncs(nothing);",
    "(p(x)) @ time(t) := ((q(x))) @ ( time(t) );",
    "p(x):=q(x)@time(t)~expires^not r(x)if x>1^t<2where a=x,b=a;",
    "p(x)\n:=\nq(x)\n;",
    "p(a:1,b:-2);",
    "p(x) := q(x) ^ not (r(x)) @time(_);",
    "p(x) := q(x) if (1 < x) == true ^ x < 3 && x > 1;",
    "p(x) @next := q(x);",
    "p(x) @ next ~time @count(1) := q(x);",
    "p(x) @async(x + 1) := q(x);",
    f"p({'(' * 500}x{')' * 500}) := q(x);",
    f"p({'x + ' * (DEPTH_MAX - 1)}x) := q(x);",
    f"p({', '.join(['x'] * 500)}) := {' ^ '.join(['q(x)'] * 500)};",
]


def marked(text: str) -> tuple[str, int, int]:
    """(the text without its mark, line, column) of a text with one mark."""
    before, _, after = text.partition("«")
    return before + after, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def first_mistake(text: str) -> Diagnostic:
    with pytest.raises(ProgramErrors) as caught:
        parse(text)
    return caught.value.diagnostics[0]


@pytest.mark.parametrize(("code", "marked_text", "hint"), REFUSED, ids=lambda each: str(each)[:50])
def test_a_mistake_has_its_code_its_place_and_a_hint(
    code: str, marked_text: str, hint: str
) -> None:
    text, line, column = marked(marked_text)
    found = first_mistake(text)
    assert (found.code, found.line, found.column) == (code, line, column), found.render(text)
    assert hint in found.hint


@pytest.mark.parametrize("text", ACCEPTED, ids=lambda text: text[:50])
def test_what_only_looks_wrong_is_accepted_and_survives_formatting(text: str) -> None:
    program = parse(text)
    assert same_rules(parse(format_program(program)), program)


def test_later_rules_are_looked_at_as_well() -> None:
    with pytest.raises(ProgramErrors) as caught:
        parse("p(x) := q(x,);\nr(x) := q(x), s(x);\nt(1);\nu(x) := q(x)\nv(x) := ~q(x);")
    found = [(each.code, each.line) for each in caught.value.diagnostics]
    assert found == [("E009", 1), ("E013", 2), ("E001", 5), ("E003", 5)]


def test_operators_bind_as_the_language_says() -> None:
    (rule,) = parse("p(a || b && c == d + e * f, -x * y, x - y - z) := q(x);").rules
    first, second, third = (argument.value for argument in rule.head.application.arguments)
    assert isinstance(first, Binary)
    assert first.operator == "||"
    assert isinstance(first.right, Binary)
    assert first.right.operator == "&&"
    assert isinstance(first.right.right, Binary)
    assert first.right.right.operator == "=="
    assert isinstance(second, Binary)
    assert isinstance(second.left, Unary)
    assert isinstance(third, Binary)
    assert isinstance(third.left, Binary)


def test_every_piece_has_its_place() -> None:
    text = 'p(x) @async(n) :=\n  q(a: x + 1) ~time ^ not r("é", n)\n  if abs(x) > 2;'
    (rule,) = parse(text).rules
    lines = text.split("\n")

    def at(line: int, column: int, end: int) -> str:
        return lines[line - 1][column - 1 : end - 1]

    atom, negated = rule.atoms
    places = [
        (rule.head.application.name_span, "p"),
        (rule.head.span, "p(x) @async(n)"),
        (atom.application.arguments[0].span, "a: x + 1"),
        (atom.application.arguments[0].value.span, "x + 1"),
        (atom.suppressed[0].span, "time"),
        (negated.span, 'not r("é", n)'),
        (negated.application.name_span, "r"),
        (rule.guards[0].span, "abs(x) > 2"),
    ]
    for span, written in places:
        assert at(span.line, span.column, span.end_column) == written
    guard = rule.guards[0]
    assert isinstance(guard, Binary)
    assert at(3, guard.place.column, guard.place.end_column) == ">"
    assert isinstance(guard.left, Call)
    assert at(3, 6, 9) == guard.left.name
    assert isinstance(rule.head.temporal, AsyncTo)
    assert (rule.span.line, rule.span.end_line) == (1, 3)


def test_a_sign_before_a_number_belongs_to_the_number() -> None:
    (rule,) = parse("p(-5, - 2.5, -(3), -x, 1 - 2) @next := q(x);").rules
    values = [argument.value for argument in rule.head.application.arguments]
    assert [value.value for value in values[:3] if isinstance(value, Literal)] == [-5, -2.5, -3]
    assert isinstance(values[3], Unary)
    assert isinstance(values[4], Binary)
    assert isinstance(rule.head.temporal, NextTick)


def test_text_is_kept_in_normal_form_c() -> None:
    (rule,) = parse('p("e\u0301", "\\u0065\\u0301", "\\ud83d\\ude00");').rules
    values = [argument.value for argument in rule.head.application.arguments]
    assert [value.value for value in values if isinstance(value, Literal)] == ["é", "é", "😀"]


def test_carriage_returns_and_tabs_are_white_space() -> None:
    assert len(parse("p(1);\r\n\tq(2);\r\n").rules) == 2
    assert first_mistake("p(1);\r\n\tq(2)\r\n").column == 6


PIECES = [
    "p", "q", "x", "y", "_", "1", "2.5", '"a"', "true", "null", "(", ")", "(", ")", ",", ";", ":=",
    "^", "@", "~", "time", "not", "if", "where", "next", "async", "=", "==", "<", "+", "-", "*",
    "&&", "||", ":", "p(x)", "q(x, y)", "@time(t)", "~expires", ":= q(x)", "p(x) := q(x);",
    "if x > 1", "where y = x", "^ not r(x)", "/* */", "#", '"',
]  # fmt: skip


def parsed_or_refused(text: str) -> Program | ProgramErrors:
    try:
        return parse(text)
    except ProgramErrors as refused:
        return refused


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(PIECES), max_size=12))
def test_every_text_is_parsed_or_refused_at_a_place_inside_it(pieces: list[str]) -> None:
    text = " ".join(pieces)
    outcome = parsed_or_refused(text)
    if isinstance(outcome, Program):
        assert same_rules(parse(format_program(outcome)), outcome)
        return
    for found in outcome.diagnostics:
        assert found.message != "this text is no rule"
        assert 1 <= found.column <= len(text) + 1
    assert outcome.render()


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_any_text_at_all_is_parsed_or_refused(text: str) -> None:
    outcome = parsed_or_refused(text)
    assert isinstance(outcome, Program) or outcome.render()


def test_a_mistake_elsewhere_makes_no_mistake_of_a_duration() -> None:
    text = "p(1h30m, -5m);\nr(x) := p(x, _) if x > 2s;\nq(x := p(x, 90s);\n"
    with pytest.raises(ProgramErrors) as refused:
        parse(text)
    found = [(each.code, each.span.line) for each in refused.value.diagnostics]
    assert found == [("E002", 3)]
