"""The tables of the grammar read a text as lark's own parser does."""

from __future__ import annotations

from importlib.resources import files

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from tidemill.arrangement.looks import LOOK
from tidemill.datalog.lalr import END, Refused, TableParser

GRAMMAR = Lark(
    files("tidemill.datalog").joinpath("grammar.lark").read_text(), parser="lalr", lexer="basic"
)
TABLES = TableParser(GRAMMAR)
PIECES = [
    "p", "q", "x", "y", "_", "1", "2.5", "3h", '"a"', "true", "null", "(", ")", "(", ")", ",", ";",
    ":=", "^", "@", "~", "time", "not", "if", "where", "next", "async", "=", "==", "<", "+", "-",
    "*", "&&", "||", ":", "p(x)", "q(x, y)", "@time(t)", "~expires", ":= q(x)", "p(x) := q(x);",
    "if x > 1", "where y = x", "^ not r(x)", "/* \n */", "// a\n", "\n\n", "#", '"',
]  # fmt: skip


def plain(made: object) -> object:
    """A tree as tuples, with the characters and the place of each token."""
    if isinstance(made, Tree):
        return (str(made.data), *map(plain, made.children))
    if isinstance(made, Token):
        return (str(made), (made.line, made.column, made.end_line, made.end_column))
    return made


def by_lark(text: str) -> object:
    try:
        return plain(GRAMMAR.parse(text))
    except UnexpectedToken as refused:
        last = refused.token
        if last.type == END:  # which lark places where the last token is
            return last.end_line, last.end_column
        return refused.line, refused.column
    except UnexpectedCharacters as refused:
        return refused.line, refused.column


def by_tables(text: str) -> object:
    try:
        return plain(TABLES.parse(text))
    except Refused as refused:
        return refused.line, refused.column


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map(" ".join))
@example("")
@example("p(x) := q(x)\n\n  ^ r(x, y + 2 * -z) if (x > 1 || y == 2) && true where z = f(x, y);")
@example("((p(a: 1, b: _)) @(min(x)) ~ time) := ((q(x))) ^ not (r(x)) @time(t);\np() @next;")
def test_a_text_is_the_same_tree_or_refused_at_the_same_place(text: str) -> None:
    assert by_tables(text) == by_lark(text)


def test_a_long_text_looks_while_it_is_read() -> None:
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1

    held = LOOK.set(look)
    try:
        TABLES.parse("p(1, 2);\n" * 1_000)
    finally:
        LOOK.reset(held)
    assert looks >= 50


def test_a_rule_that_never_ends_is_refused_at_its_end() -> None:
    with pytest.raises(Refused) as refused:
        TABLES.parse("p(1) :=\n  q(2)")
    assert (refused.value.line, refused.value.column) == (2, 7)


def test_a3_a_place_that_is_no_token_ends_the_text_at_once() -> None:
    """A search beyond it would look at the rest once for each of its quotes: hours."""
    assert by_tables('p(x) := q("' + '\\"' * 300_000) == (1, 11)
