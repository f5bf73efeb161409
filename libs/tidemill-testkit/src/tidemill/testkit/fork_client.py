"""The client of the fork server (`tidemill.testkit.fork_server`): starts of `tidemill up`."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

PATIENCE_S = 60.0
"""Seconds in which the fork server has to end."""


class ForkServer:
    """A handle on a process that has imported the server once and forks at each start.

    Its children end with it, and it ends with the process of the tests.
    """

    def __init__(self) -> None:
        self._turn = Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidemill.testkit.fork_server"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,  # a signal to the group is for the one that ends it in order
        )  # fmt: skip
        self.pid = self._process.pid

    def start(self, arguments: Sequence[str], folder: Path, log: Path, *, first: str = "") -> int:
        """Start `tidemill up` in `folder` with the environment of this process; its pid.

        The text of a program in `first` runs before it.
        """
        said = self._asked(
            arguments=list(arguments), folder=str(folder), log=str(log), first=first,
            environment=dict(os.environ),  # noqa: TID251  as a child of this process has it
        )  # fmt: skip
        assert isinstance(said, int)
        return said

    def status(self, pid: int) -> int | None:
        """The exit status of a started process, None while it runs; negative after a signal."""
        said = self._asked(status=pid)
        assert said is None or isinstance(said, int)
        return said

    def close(self) -> None:
        """End the fork server, with all processes that it has started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()

    def _asked(self, **question: Any) -> object:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())


@cache
def fork_server() -> ForkServer:
    """The fork server of this process. Cost of the first call: two to four seconds."""
    made = ForkServer()
    atexit.register(made.close)
    return made
