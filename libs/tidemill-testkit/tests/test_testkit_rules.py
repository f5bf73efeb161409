"""Every rule of the formalism has a test that names it, and the page says which."""

from __future__ import annotations

from pathlib import Path

from tidemill.testkit.mutants.recorded import Mutant, family_of, recorded
from tidemill.testkit.rules import PAGE, PROMISES, marked_tests, page, unknown, unproved

ROOT = Path(__file__).resolve().parents[3]


def test_every_rule_has_a_test_that_names_it() -> None:
    assert unproved(marked_tests(ROOT)) == []


def test_no_test_names_a_rule_that_there_is_not() -> None:
    assert unknown(marked_tests(ROOT)) == []


def test_the_page_says_what_the_tests_say() -> None:
    expected = page(marked_tests(ROOT), recorded())
    assert (ROOT / PAGE).read_text() == expected, "run: make formalism"


def test_a_missing_and_a_wrong_rule_are_found(tmp_path: Path) -> None:
    tests = tmp_path / "libs" / "one" / "tests"
    tests.mkdir(parents=True)
    (tests / "test_one.py").write_text(
        "import pytest\nrule = pytest.mark.rule\n\n"
        '@rule("F1", "K99")\ndef test_a() -> None: ...\n\n'
        '@pytest.mark.rule("L2c", "G4")\nasync def test_b() -> None: ...\n'
    )
    found = marked_tests(tmp_path)
    assert found["F1"] == [("libs/one/tests/test_one.py", "test_a")]
    assert unknown(found) == ["K99"]
    assert "F1" not in unproved(found)
    assert "F2" in unproved(found)
    mutant = Mutant("F1", "counts no row", "libs/one/src/one.py", "a", "b", "tests/a.py::test_a[x]")
    line = next(line for line in page(found, [mutant]).splitlines() if line.startswith("| F1 | "))
    assert line.endswith(" | `a` | counts no row (`one.py`: `a`) |")
    assert page(found, []).count("counts no row") == 0
    assert {family_of(rule) for rule in PROMISES} >= {"F", "L", "SU", "P"}
