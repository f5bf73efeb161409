"""Language cases on Spark: by ranges in tasks of executors, together, and never skipped."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tidemill.testkit.conformance.command import conformance
from tidemill.testkit.conformance.meeting import Meeting
from tidemill.testkit.conformance.values import CaseError

PAID = {
    "id": "paid", "kind": "pointwise", "covers": "a join, not, and a group after an exchange", "upper": 40,
    "program": "paid(o) := order(o, _) ^ payment(o); load(c) @count(o) := order(o, c) ^ not paid(o);",
    "updates": {
        "order": [[[1, 7], 0, 1], [[2, 7], 0, 1], [[3, 8], 5, 1]],
        "payment": [[[1], 10, 1], [[3], 20, 1], [[3], 30, -1]],
    },
    "expect": {"load": ["[0,10) load(7) @count(2)", "[10,-) load(7) @count(1)",
                        "[5,20) load(8) @count(1)", "[30,-) load(8) @count(1)"]},
}  # fmt: skip
SAME = {
    "id": "same", "kind": "pointwise", "covers": "a recursion that keeps no argument", "upper": 9,
    "program": "path(x, y) := edge(x, y); path(x, z) := path(x, y) ^ path(y, z);",
    "updates": {"edge": [[[1, 2], 0, 1], [[2, 3], 0, 1]]},
    "expect": {"path": ["[0,-) path(1, 2)", "[0,-) path(2, 3)", "[0,-) path(1, 3)"]},
}  # fmt: skip
TICK = {
    "id": "tick", "kind": "ticks", "covers": "a fact that is kept", "program": "p(x) := a(x); p(x) @next := p(x);",
    "in": {0: {"a": [[1]]}}, "out": {0: {"p": [[1]]}, 1: {"p": [[1]]}},
}  # fmt: skip


def command(path: Path, *cases: Any) -> tuple[int, list[str]]:
    (path / "cases.yaml").write_text(json.dumps(cases).replace('"0"', "0").replace('"1"', "1"))
    app = typer.Typer()
    app.command()(conformance)
    result = CliRunner().invoke(app, [str(path), "--engine", "spark"])
    return result.exit_code, result.output.splitlines()


@pytest.mark.server
def test_cases_run_together_by_ranges_and_those_of_one_task_are_named(tmp_path: Path) -> None:
    wrong = {**PAID, "id": "wrong", "expect": {"load": PAID["expect"]["load"][1:]}}  # type: ignore[index]
    status, lines = command(tmp_path, PAID, SAME, TICK, wrong)
    assert status == 1
    assert lines == [
        "wrong: a join, not, and a group after an exchange",
        "expect.load:",
        "+ [0,10) load(7) @count(2)",
        "one task: tick: ticks of a program follow one another",
        "3 passed, 1 failed, 1 of them as one task",
    ]


def test_members_of_a_meeting_are_answered_together_and_one_that_leaves_is_not_waited_for() -> None:
    meeting = Meeting(3)
    found: dict[int, list[bytes]] = {}

    def member(number: int, times: int) -> None:
        found[number] = []
        for _ in range(times):
            found[number] += meeting.ask([(b"", bytes([number]))] * number)
        meeting.leave()

    threads = [Thread(target=member, args=(number, number)) for number in range(3)]
    for thread in threads:
        thread.start()
    asked = []

    def answers(questions: Any) -> list[bytes]:
        asked.append(len(questions))
        return [work * 2 for _, work in questions]

    meeting.serve(answers)
    for thread in threads:
        thread.join()
    assert asked == [3, 2]
    assert found == {0: [], 1: [b"\1\1"], 2: [b"\2\2"] * 4}


def test_a_job_that_fails_fails_those_that_wait_for_it() -> None:
    meeting = Meeting(1)
    told = []

    def member() -> None:
        with pytest.raises(CaseError) as error:
            meeting.ask([(b"", b"")])
        told.append(str(error.value))
        meeting.leave()

    def fail(_: object) -> list[bytes]:
        raise RuntimeError("no executor")

    thread = Thread(target=member)
    thread.start()
    meeting.serve(fail)
    thread.join()
    assert told == ["crashed: RuntimeError: no executor"]
