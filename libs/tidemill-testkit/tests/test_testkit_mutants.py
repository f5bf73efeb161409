"""Recorded mutants fit the code, and the tests that name their rules kill them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from tidemill.errors import UsageError
from tidemill.testkit.mutants.__main__ import TURNS
from tidemill.testkit.mutants.recorded import Mutant, mutated, recorded, turn
from tidemill.testkit.mutants.trying import Trial, Verdict, trial
from tidemill.testkit.rules import PROMISES, marked_tests

ROOT = Path(__file__).resolve().parents[3]
MUTANTS = recorded()


def commits() -> int:
    """Length of the history: each commit takes the next turn."""
    counted = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return int(counted.stdout)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_recorded_mutant_fits_the_code_and_names_a_test_of_its_rule(mutant: Mutant) -> None:
    mutated(mutant, (ROOT / mutant.file).read_text())
    file = mutant.test.partition("::")[0]
    assert (file, mutant.test_function) in marked_tests(ROOT)[mutant.rule]


@pytest.fixture(scope="module")
def tries() -> Iterator[Trial]:
    with trial(ROOT, os.environ) as opened:
        yield opened


@pytest.mark.parametrize("mutant", turn(MUTANTS, commits(), TURNS), ids=lambda m: m.name)
def test_the_mutants_whose_turn_it_is_are_killed(mutant: Mutant, tries: Trial) -> None:
    verdict, printed = tries.tried(mutant)
    assert verdict is Verdict.KILLED, printed


def test_every_rule_has_a_mutant() -> None:
    assert sorted(set(PROMISES) - {mutant.rule for mutant in MUTANTS}) == []


def test_no_change_is_recorded_twice() -> None:
    changes = [(mutant.file, mutant.before, mutant.after) for mutant in MUTANTS]
    assert len(set(changes)) == len(changes)


def test_in_as_many_turns_as_there_are_each_mutant_is_tried_once() -> None:
    tried_ones = [m for number in range(TURNS) for m in turn(MUTANTS, number, TURNS)]
    assert sorted(map(repr, tried_ones)) == sorted(map(repr, MUTANTS))
    assert turn(MUTANTS, TURNS + 3, TURNS) == turn(MUTANTS, 3, TURNS)


@dataclass(frozen=True)
class Checkout:
    """A workspace of one package and one test, which looks at what the package says."""

    root: Path

    def mutant(self, after: str, before: str = "answer = 42") -> Mutant:
        return Mutant(
            rule="F1", breaks="", file="libs/one/src/tidemill_one/said.py", before=before, after=after,
            test="test_one.py::test_it",
        )  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    package = tmp_path / "libs" / "one" / "src" / "tidemill_one"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "said.py").write_text("answer = 42\nunused = 1\n")
    (tmp_path / "test_one.py").write_text(
        "from tidemill_one.said import answer\n\ndef test_it():\n    assert answer == 42\n"
    )
    return Checkout(tmp_path)


def test_a_mutant_is_killed_survives_or_breaks_the_run(checkout: Checkout) -> None:
    bad, harmless, broken = (
        checkout.mutant("answer = 41"),
        checkout.mutant("unused = 2", "unused = 1"),
        checkout.mutant("answr = 42"),
    )
    with trial(checkout.root, os.environ) as tries:
        verdicts = [tries.tried(m)[0] for m in (bad, harmless, broken, bad, harmless)]
        assert tries.unchanged([bad.test])[0] is Verdict.SURVIVED
        outside = replace(checkout.mutant("pass", "assert answer == 42"), file="test_one.py")
        with pytest.raises(UsageError, match="no package"):
            tries.tried(outside)
    assert [verdict.name for verdict in verdicts] == [
        "KILLED", "SURVIVED", "BROKEN", "KILLED", "SURVIVED",
    ]  # fmt: skip
    assert (checkout.root / bad.file).read_text() == "answer = 42\nunused = 1\n"


def test_a_mutant_that_does_not_fit_the_code_any_more_is_refused(checkout: Checkout) -> None:
    text = (checkout.root / checkout.mutant("").file).read_text()
    for mutant in (checkout.mutant("x = 1", "answer = 1"), checkout.mutant("answer =")):
        with pytest.raises(UsageError, match="F1"):
            mutated(mutant, text)
