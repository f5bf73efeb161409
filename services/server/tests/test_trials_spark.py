"""`tidemill test --spark`: the tasks of Spark give the answers of the dataflow, or it is said."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, cast

import msgspec
import pytest

from tidemill.catalog.entry import PlannedView
from tidemill.errors import UsageError
from tidemill.shard.stores import open_blob
from tidemill.spark.workplace import Workplace
from tidemill.testkit.twins.window_tasks import evaluate_here
from tidemill_compute.views.windows.collecting import answer
from tidemill_compute.views.windows.spec import unpack_window
from tidemill_server.samples import write
from tidemill_server.trials.answers import Facts, rules_of
from tidemill_server.trials.by_spark import RANGES, SparkEvaluator, spark_evaluator
from tidemill_server.trials.cases import load_cases
from tidemill_server.trials.running import RUNS, differences, run

RESOURCES = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: t}
spec: {columns: [{name: n, type: int}, {name: s, type: text}, {name: at, type: int}]}
---
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: e}
spec:
  http: {}
  columns: [{name: n, type: int}, {name: at, type: int}]
  eventTime: {column: at, timeline: sea, expiresAfter: 3s}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: v}
spec:
"""
SECOND = """
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: w}
spec: {inputs: {g: v/p, h: t}}
"""
GIVEN = """
cases:
- name: one
  given:
    t:
    - {n: 1, s: a, at: 10}
    - {n: 2, s: a, at: 20}
    - {row: {n: 3, s: b, at: 30}, until: 40}
    e:
    - {n: 1, at: -5000}
    - {n: 2, at: 3}
    - {n: 2, at: 2000}
"""
TABLE = "inputs: {f: t}"
CASES = {
    "what outputs leaves out is not compared": (
        "inputs: {f: t}\n  outputs: [p]", "q(x) := f(x, _, _) if x > 1; p(x) := q(x);", "", "p(2)",
    ),
    "ends of facts without a time": (TABLE, "p(s) @expires(a + 5) := f(_, s, a);", "", 'p("a")'),
    "another end at the same instant": (
        TABLE, "p(s) @expires(a + 5) @count(x) := f(x, s, a); q(s) ~count := p(s) @count(_);", "",
        'q("b")',
    ),
    "a view that reads a view": (
        TABLE, "p(s) @expires(a + 5) := f(_, s, a);",
        "q(s, x) @time(3) := g(s) ^ h(x, s, _); r(s) @count(x) := g(s) ^ h(x, s, _);",
        'r("a") @count(2)',
    ),
    "aggregates": (
        TABLE, "p(s) @count(x) @max(x) := f(x, s, _); a() @average(x) @set(s) := f(x, s, _);", "",
        'p("a") @count(2) @max(2)',
    ),
    "a row from 0 on": (TABLE, "p(s) @count(x) := f(x, s, _);", "", 'p("b") @count(1)'),
    "a fact that always was, which a second view has from 0 on": (
        TABLE, 'p("a"); p(s) := f(_, s, _);',
        "q(s) @expires(5000) := g(s) ^ not h(1, s, _); r(s) := g(s);", 'r("a")',
    ),
    "events, of which one before 0 is refused": (
        "inputs: {e: e}", "p(x) := e(x, _); q(x) @count(t) := e(x, t);", "", "q(2) @count(1)",
    ),
    "a join of ranges": (
        TABLE, "p(x, y) := f(x, s, _) ^ f(y, s, _); r(y) @count(x) := p(x, y);", "", "p(1, 2)",
    ),
}  # fmt: skip
"""For each case: what the view says of itself, its rules, those of a second view, and one fact."""


def written(folder: Path, more: str, rules: str, above: str = "", expect: str = "{}") -> Path:
    head, both = RESOURCES.rstrip(), SECOND.rstrip()[:-1]
    text = f"{head}\n  {more}\n  program: '{rules}'\n"
    if above:
        text += f"{both}, program: '{above}'}}\n"
    (folder / "r.yaml").write_text(text)
    (folder / "r.test.yaml").write_text(f"{GIVEN.strip()}\n  expect: {expect}\n")
    return folder / "r.test.yaml"


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The windows that were asked for; the twin of their tasks evaluates them, in this process."""
    asked: list[bytes] = []
    unique = partial(next, map(str, count()))

    def run_here(packed: bytes, here: Workplace) -> bytes:
        asked.append(packed)
        blob = open_blob(here.blob, lambda: f"job{unique()}")
        return msgspec.msgpack.encode(asyncio.run(answer(packed, blob, None, evaluate_here)))

    monkeypatch.setattr("tidemill_server.trials.by_spark.run", run_here)
    return asked


@pytest.mark.parametrize("name", CASES)
def test_windows_give_the_answers_of_the_dataflow(
    tmp_path: Path, windows: list[bytes], name: str
) -> None:
    more, rules, above, there = CASES[name]
    expect = f"{{asOf: {{7: {{'{there}': ['{there}']}}}}}}"
    loaded = load_cases(written(tmp_path, more, rules, above, expect))
    ((_, case),) = loaded.cases
    evaluator = SparkEvaluator(cast("Any", None), tmp_path / "blob")
    assert differences(rules_of(loaded.resources), case, Random(1), evaluator.evaluate) == []
    assert len(windows) == 1 + bool(above)
    assert all(unpack_window(each).ranges >= RANGES for each in windows)


def test_a_rule_that_fails_in_a_window_fails_the_case(tmp_path: Path, windows: list[bytes]) -> None:
    loaded = load_cases(written(tmp_path, TABLE, "p(6 / (x - 2)) := f(x, _, _);"))
    ((_, case),) = loaded.cases
    evaluator = SparkEvaluator(cast("Any", None), tmp_path / "blob")
    with pytest.raises(UsageError, match="a rule fails: division by zero"):
        run(rules_of(loaded.resources), case, RUNS[0], Random(1), evaluator.evaluate)
    assert len(windows) == 1


@pytest.mark.server
def test_cases_of_samples_pass_on_spark(tmp_path: Path) -> None:
    write("orders", tmp_path)
    command = [sys.executable, "-m", "tidemill.client", "test", str(tmp_path), "--spark"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "2 passed, 0 failed\n"), done.stderr


def test_another_answer_elsewhere_is_told(tmp_path: Path) -> None:
    write("flights", tmp_path)
    loaded = load_cases(tmp_path / "flights.test.yaml")
    asked: list[Facts] = []

    def nothing(view: PlannedView, facts: Facts, upper: int) -> Facts:
        asked.append(facts)
        return {}

    ((_, case),) = loaded.cases
    head, *lines = differences(rules_of(loaded.resources), case, Random(1), nothing)
    assert head == "the answer of Spark is another:"
    assert any('late("N2", 45)' in line for line in lines)
    assert len(asked) == 1


def test_a_machine_without_java_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="install a JDK 17"), spark_evaluator():
        pass
