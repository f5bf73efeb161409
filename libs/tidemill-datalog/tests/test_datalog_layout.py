"""Programs laid out with their comments, and the grammar that editors colour them by."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.functions import FUNCTIONS
from tidemill.datalog.layout import format_text
from tidemill.datalog.parser import parse
from tidemill.testkit.program_texts import same_rules
from tidemill.testkit.tidelog import Example, programs

GRAMMAR = Path(__file__).parents[3] / "docs" / "editors" / "tidelog.tmLanguage.json"

WRITTEN = """\
// The first.

/* Two
   lines. */
p(x):=q(x,_)   ^ r(x) if x>3 ;   // beside
// own line
s(x) := // inside
    q(x, "a; // no comment");


t("x;y"); u(1); /* between */ u(2);
// last"""
LAID_OUT = """\
// The first.

/* Two
   lines. */
p(x) := q(x, _) ^ r(x) if x > 3;  // beside
// own line
s(x) := // inside
    q(x, "a; // no comment");

t("x;y");
u(1);  /* between */
u(2);
// last
"""
COMMENTS = ("", " ", "\n", "\n\n\n", " // c1\n", " // c2; p(x)\n", " /* c3\n c3 */", ' /* "c4; */ ')


def test_a_program_is_laid_out_with_its_comments() -> None:
    assert format_text(WRITTEN) == LAID_OUT
    assert format_text("") == ""
    assert format_text("\n// only\n\n\n") == "// only\n"
    assert format_text("p(1);\r\n\r\nq(2);\r\n") == "p(1);\n\nq(2);\n"


def test_what_is_no_program_is_not_laid_out() -> None:
    with pytest.raises(ProgramErrors):
        format_text("p(x) := q(x)")


@given(programs(), st.data())
def test_layout_keeps_rules_and_comments_and_is_settled(
    program: Example, data: st.DataObject
) -> None:
    """Comments may stand between any two tokens."""
    pieces = re.findall(r'"(?:\\.|[^"\\])*"|\d+\.\d+|\w+|\s+|:=|&&|\|\||[<>=!]=|.', program.text)
    text = "".join(
        piece + data.draw(st.sampled_from(COMMENTS if n % 3 == 0 else ("",)))
        for n, piece in enumerate(pieces)
    )
    laid_out = format_text(text)
    assert same_rules(parse(laid_out), parse(program.text))
    assert format_text(laid_out) == laid_out
    marks = re.compile(r"c[1-4]")
    assert marks.findall(laid_out) == marks.findall(text)


def patterns(node: object) -> list[str]:
    """Every regular expression of a grammar."""
    if isinstance(node, list):
        return [found for each in node for found in patterns(each)]
    if not isinstance(node, dict):
        return []
    own = [node[key] for key in ("match", "begin", "end") if key in node]
    return own + [found for each in node.values() for found in patterns(each)]


def test_the_grammar_names_every_word_of_the_language() -> None:
    grammar = json.loads(GRAMMAR.read_text())
    expressions = [re.compile(each) for each in patterns(grammar)]
    assert len(expressions) > 20
    included = {each["include"].removeprefix("#") for each in grammar["patterns"]}
    assert included == set(grammar["repository"])
    functions = grammar["repository"]["applications"]["patterns"][0]["match"]
    for name in FUNCTIONS:
        assert re.match(functions, f"{name}("), name
    names = grammar["repository"]["applications"]["patterns"][2]["match"]
    assert re.match(names, "größe (x)"), "names have letters of any script"
    words = "|".join(patterns(grammar["repository"]["words"]))
    for word in ("if", "where", "not", "true", "false", "null"):
        assert re.fullmatch(words, word), word
