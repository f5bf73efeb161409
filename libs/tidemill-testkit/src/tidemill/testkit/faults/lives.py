"""Lives of processes: one process that has everything imported forks the others, which takes
milliseconds.
"""

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
"""What is imported at the first use by others, and would be by every life anew."""


class Lives:
    """Begins lives of `module`, each in a process of its own; all of them end when this is left."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._pids: list[int] = []

    def __enter__(self) -> Self:
        self._mother = subprocess.Popen(
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
        self._mother.communicate()

    def begin(self, told: bytes) -> int:
        """A new life, which is told one line; its pid."""
        assert self._mother.stdin is not None
        assert self._mother.stdout is not None
        self._mother.stdin.write(told + b"\n")
        self._mother.stdin.flush()
        pid = int(self._mother.stdout.readline())
        self._pids.append(pid)
        return pid

    def alive(self, pid: int) -> bool:
        """Whether it has not ended yet."""
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            return True
        if pid in self._pids:
            self._pids.remove(pid)
        return False

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a life, if it has not ended."""
        if self.alive(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def bear(live: Callable[[bytes], None], lines: IO[bytes]) -> None:
    """What the module does as a program: fork a life for each line, and print its pid."""
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
