"""The generated pages of docs/reference say what the code says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tidemill.datalog.lattices import LATTICES
from tidemill.testkit.reference.__main__ import PAGES
from tidemill.testkit.reference.codes import CODES
from tidemill.testkit.reference.grammar import signature
from tidemill.testkit.reference.pages import said_of_names, sentence, table
from tidemill.testkit.reference.settings import unit_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_code_says_now(name: str) -> None:
    assert (ROOT / name).read_text() == PAGES[name](ROOT), "run: make reference"


def test_every_code_that_a_program_may_get_has_a_meaning_and_no_other_has() -> None:
    given = {
        code
        for file in [*ROOT.glob("libs/*/src/**/*.py"), *ROOT.glob("services/*/src/**/*.py")]
        if file.name != "codes.py" and "/testkit/" not in str(file)
        for code in re.findall(r'"([ESW][0-9]{3})"', file.read_text())
    }
    assert given == set(CODES)


def test_every_lattice_of_the_language_has_a_meaning() -> None:
    assert [name for name, each in LATTICES.items() if not each.meaning] == []


def test_the_end_of_a_name_is_its_unit() -> None:
    units = {
        name: unit_of(name) for name in ("lease_s", "retry_s_max", "view_bytes", "calls_per_s")
    }
    assert list(units.values()) == ["seconds", "seconds", "bytes", "per second"]
    assert unit_of("cores") == ""


def test_a_cell_is_one_line_and_a_sentence_begins_with_a_word() -> None:
    assert table(("a",), [("x\n| y",)]) == ["| a |", "|---|", "| x \\| y |"]
    assert sentence("host:port of one") == "host:port of one."
    assert sentence("the topic") == "The topic."


def test_a_name_has_the_string_behind_it_and_a_function_its_arguments() -> None:
    body = ast.parse('A = 1\n"""One."""\nB = 2\nC: int = 3\n"""Three."""\n').body
    assert said_of_names(body) == {"A": "One.", "C": "Three."}

    def best(x: int, *values: int) -> int:
        return max(x, *values)

    assert signature("best", best) == "best(x, value, …)"
