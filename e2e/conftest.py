"""Timing of each phase and the facts of the node at the end; with a failure, the logs of all
pods.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import ROOT, Cluster

PHASES: list[tuple[str, str, float]] = []
FACTS: list[tuple[str, str]] = []


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The node that this process runs on; what failed on it leaves its logs in .state/e2e-logs."""
    made = Cluster(FACTS)
    yield made
    folder = ROOT / ".state/e2e-logs"
    shutil.rmtree(folder, ignore_errors=True)
    if request.session.testsfailed:
        made.keep_logs(folder, Path(os.environ["KUBECONFIG"]).parent / "log")
        FACTS.append(("logs of all pods", str(folder)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        name = report.nodeid.split("::")[-1].removeprefix("test_").replace("_", " ")
        PHASES.append((name, report.outcome, report.duration))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("phases")
    for name, outcome, seconds in PHASES:
        terminalreporter.write_line(f"{seconds:7.1f} s  {outcome:7}  {name}")
    terminalreporter.write_line(f"{sum(each[2] for each in PHASES):7.1f} s  in all")
    if FACTS:
        terminalreporter.section("what was seen")
        for what, value in FACTS:
            terminalreporter.write_line(f"{what}: {value}")
