"""The conformance command: what it reads, what it reports, and that nothing is ever skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tidemill.errors import BeforeSince, CapabilityExpired, UsageError
from tidemill.testkit.conformance.command import conformance
from tidemill.testkit.conformance.expectations import differences, run_steps
from tidemill.testkit.conformance.registry import KINDS, Options, run_case, runner_of
from tidemill.testkit.conformance.values import (
    CaseError,
    canonical,
    domain_named,
    read_frontier,
    read_time,
)
from tidemill.testkit.conformance.worker import CaseWorker
from tidemill.time import PARTITIONED, U64_MAX, Antichain, partition_frontier
from tidemill_compute.events.fold import EventFold
from tidemill_compute.events.stage import EventStage

ADVANCE = {"kind": "advance", "time": "u64", "since": [3], "times": [1], "expect": {"times": [3]}}
ENDLESS = {
    "kind": "law", "time": "u64", "law": "join-associative", "times": list(range(3000)),
    "expect": {"value": True},
}  # fmt: skip


def command(*arguments: object) -> tuple[int, list[str]]:
    app = typer.Typer()
    app.command()(conformance)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output.splitlines()


def write(path: Path, *cases: Any) -> Path:
    path.write_text(json.dumps({"suite": "s", "cases": list(cases)}))
    return path


def test_passing_cases_say_only_how_many_they_are(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    write(tmp_path / "a.json", {"id": "a", **ADVANCE})
    write(tmp_path / "below" / "b.json", {"id": "b", **ADVANCE}, {"id": "c", **ADVANCE})
    (tmp_path / "notes.txt").write_text("no cases")
    assert command(tmp_path) == (0, ["3 passed, 0 failed"])
    assert command(tmp_path / "a.json", tmp_path / "below") == (0, ["3 passed, 0 failed"])


def test_each_failing_case_has_one_line_with_its_id_and_first_difference(tmp_path: Path) -> None:
    wrong = {**ADVANCE, "id": "wrong\nby far", "expect": {"times": [4], "x": 1}}
    status, lines = command(write(tmp_path / "a.json", wrong, {"id": "right", **ADVANCE}))
    assert status == 1
    assert lines == ["wrong by far: times: expected [4], got [3]", "1 passed, 1 failed"]


LATE = {
    "id": "late", "kind": "events", "program": "seen(x) := ping(x);", "upper": 50, "skew": 5,
    "inputs": ["ping(1) @time(30)", "ping(2) @time(24)", "ping(3) @time(25)"],
    "derived": ["[30,-) seen(1) @time(30)", "[25,-) seen(3) @time(25)"],
    "late": ["ping(2) @time(24)"], "frontiers": [25, 25, 25],
}  # fmt: skip


def test_cases_of_events_go_through_the_event_stage_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run_case(LATE, Options()) == []
    monkeypatch.setattr(EventFold, "_not_late", lambda self, instant, events: events)
    assert "late:" in run_case(LATE, Options())
    monkeypatch.undo()

    async def fail(*_: object) -> bool:
        raise RuntimeError("the stage has died")

    monkeypatch.setattr(EventStage, "_advance", fail)
    (told,) = run_case(LATE, Options())
    assert "stands still at 0" in told


def test_a_wall_clock_that_stands_still_leaves_each_arrival_its_own_instant() -> None:
    ahead = {**LATE, "wall": 30, "max_ahead": 0, "inputs": [*LATE["inputs"], "ping(4) @time(31)"]}
    ahead |= {"late": [*LATE["late"], "ping(4) @time(31)"], "frontiers": [25, 25, 25, 25]}
    assert run_case(ahead, Options()) == []
    (told,) = run_case({**ahead, "wall": [30, 29, 30, 30]}, Options())
    assert "never goes back" in told


def test_what_cannot_be_read_or_run_fails_and_is_never_skipped(tmp_path: Path) -> None:
    write(
        tmp_path / "a.json",
        {"id": "kindless", "expect": {}},
        {"id": "unknown", "kind": "no such kind", "expect": {}},
        {"id": "partial", "kind": "advance"},
        {"id": "verb", "kind": "antichain", "time": "u64", "ops": [{"op": "explode"}]},
        "not a case",
    )
    (tmp_path / "b.json").write_text('{"cases": [')
    (tmp_path / "c.json").write_text("[]")
    (tmp_path / "d.yaml").write_text("a: [")
    (tmp_path / "e.yaml").write_text("a: 1")
    (tmp_path / "f.json").write_bytes(b"\xff\xfe")
    status, lines = command(tmp_path, tmp_path / "missing.json")
    assert status == 1
    assert lines[-1] == "0 passed, 11 failed"
    assert len(lines) >= 12
    assert lines[1] == "unknown: unknown kind 'no such kind'"
    assert "unknown op 'explode'" in lines[3]


def test_language_cases_are_reported_under_what_they_cover(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text('- {id: L1, kind: "none", covers: "all of it"}\n')
    assert command(tmp_path) == (
        1,
        ["L1: all of it", "unknown kind 'none'", "0 passed, 1 failed"],
    )


def test_a_case_that_hangs_fails_alone() -> None:
    with CaseWorker() as worker:
        assert worker.run(ADVANCE, Options(), 60) == []
        assert worker.run(ENDLESS, Options(), 0.3) == ["no end within 0.3 s"]
        assert worker.run(ADVANCE, Options(), 60) == []


def test_a_crash_is_a_difference() -> None:
    assert run_case({**ADVANCE, "times": None}, Options()) == [
        "crashed: TypeError: 'NoneType' object is not iterable"
    ]


def test_every_kind_of_the_formats_has_a_runner_by_name() -> None:
    core = """order antichain frontier mutable-antichain change-batch advance law consolidate versions
        read batcher batch-merge chain reclock reclock-map reclock-at reclock-compaction mint
        mint-timestamp resume feedback shard capability spine-property spine-golden share import
        join reduce interesting-times tiles"""
    language = "events pointwise ticks reject explain"
    assert set(KINDS) == set(core.split()) | set(language.split())
    with pytest.raises(CaseError):
        runner_of("vanished")


@pytest.mark.parametrize(
    ("field", "wanted", "same", "other"),
    [
        ("frontier", [[1, 0], [0, 1]], [[0, 1], [1, 0]], [[0, 1]]),
        ("frontier", [], [], None),
        ("updates", [["a", [0, 1], 2]], [["a", [0, 1], 1], ["a", [0, 1], 1]], []),
        ("updates", [["a", [0, 1], 0]], [], [["a", [0, 1], 1]]),
        ("consolidated", [["a", [0, 1], 2]], [["a", [0, 1], 2]], [["a", [0, 1], 1]] * 2),
        ("consolidated", [], [], [["a", [0, 1], 0]]),
        ("messages", [["a", [0, 1], 1]] * 2, [["a", [0, 1], 1]] * 2, [["a", [0, 1], 2]]),
        ("contents", [["a", 1], ["b", 2]], [["b", 2], ["a", 1]], [["a", 1], ["b", 2], ["c", 0]]),
        ("changes", [[[0, 1], 1]], [[[0, 1], 2], [[0, 1], -1]], [[[0, 1], 2]]),
        ("times", [[0, 1], None], [[0, 1], None], [None, [0, 1]]),
        ("outputs", {"A": [[0, 1]], "B": None}, {"B": None, "A": [[0, 1]]}, {"A": [], "B": None}),
        ("elements", [[1, 0], [0, 1]], [[0, 1], [1, 0]], [[1, 0]]),
        ("value", 1, 1, True),
        ("value", {"a": 1, "b": [1]}, {"b": [1], "a": 1}, {"a": "1", "b": [1]}),
    ],
)
def test_fields_are_compared_as_the_format_says(
    field: str, wanted: Any, same: Any, other: Any
) -> None:
    domain = domain_named("product:2")
    assert differences({field: wanted}, {field: same}, domain) == []
    assert differences({field: wanted}, {field: other}, domain) != []
    assert differences({field: wanted}, {}, domain) == [
        f"{field}: expected {canonical(wanted)}, not answered"
    ]


def test_errors_are_compared_by_their_class_or_one_above_it() -> None:
    def perform(step: Any) -> dict[str, Any]:
        raise step["raises"]

    def outcome(error: Exception, expect: dict[str, Any]) -> list[str]:
        return run_steps([{"op": "x", "raises": error, "expect": expect}], perform)

    expired = CapabilityExpired("the lease ran out")
    assert outcome(expired, {"error": "CapabilityExpired"}) == []
    assert outcome(expired, {"error": "Fenced"}) == []
    assert outcome(expired, {"error": "UsageError"}) != []
    assert outcome(expired, {}) != []
    bounds = UsageError("no", reason="InvalidBounds")
    assert outcome(bounds, {"error": "UsageError", "reason": "InvalidBounds"}) == []
    assert outcome(bounds, {"error": "UsageError", "reason": "UpdateBeyondUpper"}) != []
    assert outcome(BeforeSince("no"), {"error": "BeforeSince", "contents": []}) != []
    assert run_steps([{"op": "x", "expect": {"error": "NotYet"}}], lambda step: {}) != []
    with pytest.raises(ZeroDivisionError):
        outcome(ZeroDivisionError(), {"error": "ZeroDivisionError"})


def test_values_are_read_exactly_or_not_at_all() -> None:
    u64, pairs = domain_named("u64"), domain_named("product:2")
    assert read_time(u64, U64_MAX) == U64_MAX
    assert read_frontier(PARTITIONED, {}) == Antichain.minimum(PARTITIONED)
    assert read_frontier(PARTITIONED, []) == Antichain(PARTITIONED)
    assert read_frontier(PARTITIONED, {"1": 10}) == partition_frontier({1: 10})
    assert read_time(PARTITIONED, [2, "max", 0]).hi == U64_MAX
    for domain, value in (
        (u64, True),
        (u64, 1.0),
        (u64, -1),
        (u64, 2**64),
        (pairs, [1]),
        (pairs, 3),
    ):
        with pytest.raises(CaseError):
            read_time(domain, value)
    with pytest.raises(CaseError):
        read_frontier(u64, {})
    with pytest.raises(CaseError):
        domain_named("product:x")
    assert len({canonical(value) for value in (1, "1", [1], True, None, "null", {"a": 1})}) == 7
