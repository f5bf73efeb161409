"""Processes that one process with all imports forks: a start costs milliseconds, not seconds."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import IO, Self

SLOW_IMPORTS = ("pandas",)
"""Modules that a library imports at its first use: the parent does it once for all children."""


class ForkedProcesses:
    """Forks of the program `module`; all of them end with the context."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._pids: list[int] = []

    def __enter__(self) -> Self:
        self._parent = subprocess.Popen(
            [sys.executable, "-m", self._module], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for pid in self._pids:
            self.signal(pid, signal.SIGKILL)
        self._parent.communicate()

    def begin(self, told: bytes) -> int:
        """Fork a process and give it one line of bytes; its pid."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(told + b"\n")
        self._parent.stdin.flush()
        pid = int(self._parent.stdout.readline())
        self._pids.append(pid)
        return pid

    def alive(self, pid: int) -> bool:
        """Whether this process still runs."""
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            return True
        if pid in self._pids:
            self._pids.remove(pid)
        return False

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a process, if it still runs."""
        if self.alive(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def serve_forks(live: Callable[[bytes], None], lines: IO[bytes]) -> None:
    """Fork a process for each line of `lines`, call `live` with the line there, and print the pid.

    The main loop of a module whose name `ForkedProcesses` is given. Ended children are reaped by
    the system.
    """
    for name in SLOW_IMPORTS:
        with suppress(ImportError):
            importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are gone at once
    for line in lines:
        pid = os.fork()
        if pid == 0:
            _live(live, line)
        print(pid, flush=True)


def _live(live: Callable[[bytes], None], line: bytes) -> None:
    code = 1
    try:
        live(line)
        code = 0
    finally:
        os._exit(code)
