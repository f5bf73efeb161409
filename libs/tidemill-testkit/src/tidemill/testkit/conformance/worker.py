"""Run cases in a process of their own, so that a hang or a crash fails one case and no more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

from tidemill.testkit.conformance.registry import Case, Options, Outcome, run_case

STDERR = 2
PATIENCE_S = 20.0
"""Seconds that the child may take to end by itself after the last case."""


class CaseWorker:
    """Runs one case after the other in a child process, which is replaced when a case breaks it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop(PATIENCE_S)

    def run(self, case: Case, options: Options, limit_s: float) -> list[str]:
        """Differences of this case; no answer within the limit, and a dead child, are
        differences.
        """
        ((found, _),) = self._ask([case], options, limit_s)
        return found

    def run_together(
        self, cases: Sequence[Case], options: Options, limit_s: float
    ) -> list[Outcome]:
        """The outcomes of cases that share one session of Spark; what breaks it fails all."""
        return self._ask(cases, options, limit_s)

    def _ask(self, cases: Sequence[Case], options: Options, limit_s: float) -> list[Outcome]:
        pipe = self._pipe if self._pipe is not None else self._start()
        try:
            pipe.send((cases, options))
            if not pipe.poll(limit_s):
                self._stop(0)
                return [([f"no end within {limit_s:g} s"], "") for _ in cases]
            found: list[Outcome] = pipe.recv()
        except (EOFError, OSError):
            status = self._stop(1)
            told = f"crashed: the process of the case ended with status {status}"
            return [([told], "") for _ in cases]
        return found

    def _start(self) -> Connection:
        here, there = Pipe()
        self._pipe = here
        # Its own session: whatever the child starts can be ended with it. Its output is no report.
        self._child = subprocess.Popen(
            [sys.executable, "-m", __name__, str(there.fileno())],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=STDERR,
            start_new_session=True,
        )
        there.close()
        return here

    def _stop(self, patience_s: float) -> int | None:
        """End the child and everything it started; its exit status."""
        child, pipe = self._child, self._pipe
        self._child = self._pipe = None
        if child is None or pipe is None:
            return None
        pipe.close()
        try:
            return child.wait(patience_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return child.wait()


def answer_cases(pipe: Connection) -> None:
    """Run what comes through `pipe` and send back the differences, until it closes."""
    while True:
        try:
            cases, options = pipe.recv()
        except EOFError:
            return
        pipe.send(_outcomes(cases, options))


def _outcomes(cases: Sequence[Case], options: Options) -> list[Outcome]:
    if options.engine == "spark":
        from tidemill.testkit.conformance.spark_cases import run_together  # loads Spark

        return run_together(cases, options)
    return [(run_case(case, options), "") for case in cases]


if __name__ == "__main__":
    answer_cases(Connection(int(sys.argv[1])))
