"""`tidemill test --spark`: the tasks of Spark give the answers of the dataflow, or it is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tidemill.catalog.entry import PlannedView
from tidemill.errors import UsageError
from tidemill_server.samples import write
from tidemill_server.trials.answers import Facts, rules_of
from tidemill_server.trials.by_spark import spark_evaluator
from tidemill_server.trials.cases import load_cases
from tidemill_server.trials.running import differences


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
