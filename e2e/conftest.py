"""Progress while tests run, timing of each and the facts of the node at the end; with a failure,
the logs of all pods.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from threading import Event, Thread

import pytest
from _pytest.capture import CaptureManager  # a line while a test goes on is not the test's

from e2e.cluster import ROOT, WAITS, Cluster

PHASES: list[tuple[str, str, float]] = []
FACTS: list[tuple[str, str]] = []
STILL_S = 30.0
"""Seconds between two lines about a test that goes on."""


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


class Progress:
    """A line when a test begins, one when it has ended, and some while it goes on."""

    def __init__(self, terminal: pytest.TerminalReporter, capturing: CaptureManager) -> None:
        self._terminal, self._capturing = terminal, capturing
        self._tests = self._begun = 0
        self._over = Event()
        self._telling: Thread | None = None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._tests = len(session.items)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begun += 1
        clock = datetime.now().strftime("%H:%M:%S")
        self._say(f"{clock}  {self._begun:2} of {self._tests}  {_name(nodeid)}")
        self._over = Event()
        self._telling = Thread(target=self._tell, args=(self._over, time.monotonic()), daemon=True)
        self._telling.start()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            PHASES.append((_name(report.nodeid), report.outcome, report.duration))
            self._say(f"{report.duration:8.1f} s  {report.outcome}")

    def pytest_runtest_logfinish(self) -> None:
        self._over.set()
        if self._telling is not None:
            self._telling.join()

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No letter for what has a line."""
        return (report.outcome, "", "") if report.when == "call" else None

    def _tell(self, over: Event, began_s: float) -> None:
        while not over.wait(STILL_S):
            waits = f", while {WAITS[-1][:100]}" if WAITS else ""
            self._say(f"{time.monotonic() - began_s:8.0f} s  goes on{waits}")

    def _say(self, line: str) -> None:
        with self._capturing.global_and_fixture_disabled():
            self._terminal.write(f"{line}\n", flush=True)


def _name(nodeid: str) -> str:
    return nodeid.split("::")[-1].removeprefix("test_").replace("_", " ")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    plugins = config.pluginmanager
    terminal = plugins.get_plugin("terminalreporter")
    capturing = plugins.get_plugin("capturemanager")
    if terminal is not None and capturing is not None:
        terminal.showfspath = False
        plugins.register(Progress(terminal, capturing), "progress")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("phases")
    for name, outcome, seconds in PHASES:
        terminalreporter.write_line(f"{seconds:7.1f} s  {outcome:7}  {name}")
    terminalreporter.write_line(f"{sum(each[2] for each in PHASES):7.1f} s  in all")
    if FACTS:
        terminalreporter.section("what was seen")
        for what, value in FACTS:
            terminalreporter.write_line(f"{what}: {value}")
