"""`tidemill up` as a process of its own, for tests that kill it and start it again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.request import urlopen

import pytest

from tidemill.client import Client
from tidemill.errors import Indeterminate, NotYet, TidemillError, Unavailable, UnknownCollection
from tidemill.testkit.fork_client import fork_server, starts_alike

T = TypeVar("T")

START_S_MAX = 240.0
"""Patience only: a start takes two seconds, or many on a machine that is busy."""


class UpProcess:
    """One server on `folder/state`; relative paths in resources are relative to `folder`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        self._arguments = arguments
        self._pid = 0
        self._process: subprocess.Popen[bytes] | None = None
        """A process of its own, if its interpreter imports more than the fork server has."""

    def start(self) -> None:
        """Start the process; returns before it answers."""
        assert not self._pid
        for server in ("grpc", "http"):
            (self.folder / "state" / f"{server}.address").unlink(missing_ok=True)
        self.log.touch()
        words = ["--dir", "state", "--grpc", "127.0.0.1:0", "--http-port", "0", *self._arguments]
        if starts_alike():
            self._pid = fork_server().start(words, self.folder, self.log)
            return
        command = [sys.executable, "-m", "tidemill.client", "up", *words]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        self._pid = self._process.pid

    def stop(self, how: signal.Signals) -> int:
        """End the process with a signal; its exit status."""
        assert self._pid
        if self._status() is None:
            os.kill(self._pid, how)
        return self.ended()

    def ended(self) -> int:
        """The exit status of a process that ends by itself."""
        assert self._pid
        deadline = time.monotonic() + START_S_MAX
        while (status := self._status()) is None:
            if time.monotonic() > deadline:
                pytest.fail(f"tidemill up does not end:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.01)
        self._pid, self._process = 0, None
        return status

    def fetched(self, path: str) -> str:
        """The answer of the server over HTTP."""
        address = self.address("http")
        with urlopen(f"{address}{path}", timeout=START_S_MAX) as answer:
            return str(answer.read().decode())

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._pid != 0 and self._status() is None

    def _status(self) -> int | None:
        if self._process is not None:
            return self._process.poll()
        return fork_server().status(self._pid)

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A client of the server that runs now, once it listens."""
        with Client(self.address("grpc")) as client:
            yield client

    def address(self, server: str) -> str:
        """The address of a server of the process, once it listens."""
        address = self.folder / "state" / f"{server}.address"
        deadline = time.monotonic() + START_S_MAX
        while not address.exists() or not address.read_text().endswith("\n"):
            if not self.running or time.monotonic() > deadline:
                pytest.fail(f"tidemill up does not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.05)
        return address.read_text().strip()

    def until(self, ask: Callable[[Client], T | None], timeout_s: float = START_S_MAX) -> T:
        """The first answer of `ask` that is not None; the server may be starting."""
        deadline = time.monotonic() + timeout_s
        said: object = None
        while time.monotonic() < deadline:
            with self.client() as client:
                try:
                    answer = ask(client)
                except (Unavailable, Indeterminate, NotYet, UnknownCollection) as error:
                    said = error
                except TidemillError as error:
                    pytest.fail(f"{error}\n{self.log.read_text()[-4000:]}")
                else:
                    if answer is not None:
                        return answer
            time.sleep(0.1)
        pytest.fail(f"no answer in {timeout_s} s; last: {said}\n{self.log.read_text()[-4000:]}")


@contextmanager
def up_process(folder: Path, *arguments: str) -> Iterator[UpProcess]:
    """A started server that is gone at the end, whatever happens."""
    process = UpProcess(folder, *arguments)
    process.start()
    try:
        yield process
    finally:
        if process.running:
            process.stop(signal.SIGKILL)
