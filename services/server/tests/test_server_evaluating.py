"""Programs evaluated from what they state: whole, or only what a question needs."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.errors import Exhausted, UsageError
from tidemill_server.commands.check_command import evaluate
from tidemill_server.commands.evaluating import presences_of

TEXT = """
edge(1, 2); edge(2, 3); edge(3, 1); edge(4, 5);
path(x, y) := edge(x, y);
path(x, z) := path(x, y) ^ edge(y, z);
share(6 / n) := edge(n, _);
quiet(x) := edge(x, y) ^ not path(y, x);
"""


def test_a_goal_is_answered_as_the_whole_program_answers_it() -> None:
    whole = presences_of(TEXT, predicates=["path"])
    assert presences_of(TEXT, predicates=["path(4, x)"]) == ["[-inf,-) path(4, 5)"]
    assert presences_of(TEXT, predicates=["path(x, 1)"]) == [
        line for line in whole if ", 1)" in line
    ]
    assert presences_of(TEXT, predicates=["path(x, x)", "quiet"]) == [
        *(f"[-inf,-) path({n}, {n})" for n in (1, 2, 3)), "[-inf,-) quiet(4)",
    ]  # fmt: skip
    assert presences_of(TEXT, predicates=["edge(4, _)"]) == ["[-inf,-) edge(4, 5)"]


TIMED = """
ping("a", 1) @time(5) @expires(9); ping("a", 2) @time(7); ping("b", 0) @time(2);
alarm(h) @expires(t + 4) := ping(h, n) @time(t) if n > 0;
calm(h) := ping(h, _) ^ not alarm(h);
load(h) @count(n) @max(n) := ping(h, n);
"""


def test_facts_with_times_are_told_with_the_stretches_in_which_they_hold() -> None:
    assert presences_of(TIMED) == [
        '[5,9) alarm("a") @time(5) @expires(9)',
        '[7,11) alarm("a") @time(7) @expires(11)',
        '[2,-) calm("b") @time(2)',
        '[11,-) calm("a") @time(7)',
        '[2,-) load("b") @time(2) @count(1) @max(0)',
        '[5,7) load("a") @time(5) @expires(9) @count(1) @max(1)',
        '[7,9) load("a") @time(7) @expires(9) @count(2) @max(2)',
        '[9,-) load("a") @time(7) @count(1) @max(2)',
    ]


def test_c3_facts_without_columns_are_present_or_not() -> None:
    """C3: an atom of no columns is stated, derived, negated and asked for like any other."""
    text = (
        "on(); a(1);\nlit() := on() ^ a(_);\ndark() := a(_) ^ not lit();\nsome(x) := a(x) ^ lit();"
    )
    assert presences_of(text, predicates=["lit"]) == ["[-inf,-) lit()"]
    assert presences_of(text, predicates=["lit()"]) == ["[-inf,-) lit()"]
    assert presences_of(text, predicates=["dark()"]) == []
    assert presences_of(text, predicates=["some(x)"]) == ["[-inf,-) some(1)"]


def test_c3_a_program_that_takes_all_memory_is_refused_and_the_process_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C3: whoever evaluates a program is told what to bound, whole programs and goals alike."""

    def exhausted(*given: object, **named: object) -> object:
        raise MemoryError

    with monkeypatch.context() as full:
        full.setattr("tidemill.datalog.dataflow.evaluate_plan", exhausted)
        for asked in ([], ["path"], ["path(4, x)"]):
            with pytest.raises(UsageError, match="ran out of memory: some rule goes on deriving"):
                presences_of(TEXT, predicates=asked)
    assert presences_of(TEXT, predicates=["path(4, x)"]) == ["[-inf,-) path(4, 5)"]


def test_a3_a_rule_of_many_atoms_is_evaluated_and_one_of_more_is_refused() -> None:
    def program(atoms: int) -> str:
        return f"a(1); p(x) := {' ^ '.join(['a(x)'] * atoms)};"

    for asked in ([], ["p(1)"]):
        assert presences_of(program(64), predicates=asked) == ["[-inf,-) p(1)"]
        with pytest.raises(ProgramErrors, match="S128"):
            presences_of(program(1_500), predicates=asked)


CROSS = " ".join(f"a({number});" for number in range(200)) + "p(x, y) := a(x) ^ a(y);"


@pytest.mark.parametrize("asked", [[], ["p"], ["p(x, y)"]])
def test_a3_an_evaluation_beyond_its_memory_is_given_up(asked: list[str]) -> None:
    """A3: it says what to do; with more it goes on to the end."""
    with pytest.raises(Exhausted, match=r"8,388,608 \(--memory-mb\); join by a column"):
        presences_of(CROSS, predicates=asked, memory_mb=8)
    assert len(presences_of(CROSS, predicates=asked)) == 40_000


def test_a3_the_command_says_that_an_evaluation_took_too_much_memory(tmp_path: Path) -> None:
    file = tmp_path / "cross.tidelog"
    file.write_text(CROSS)
    app = typer.Typer()
    app.command()(evaluate)
    told = CliRunner().invoke(app, [str(file), "--memory-mb", "8"])
    assert told.exit_code == 1
    assert "tidemill: the evaluation was given up" in told.output


def test_a_goal_over_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no predicate 'paths'"):
        presences_of(TEXT, predicates=["paths(1, x)"])
