"""`tidemill up` as a process of its own, for tests that kill it and start it again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar
from urllib.request import urlopen

import pytest

from tidemill.client import Client
from tidemill.errors import Indeterminate, NotYet, TidemillError, Unavailable, UnknownCollection
from tidemill.testkit.fork_client import fork_server

T = TypeVar("T")

START_S_MAX = 240.0
"""Patience only: a start takes two seconds, or many on a machine that is busy."""


class UpProcess:
    """One server on `folder/state`; relative paths in resources are relative to `folder`.

    `first` is a program that runs in each of its processes before the server begins.
    """

    def __init__(self, folder: Path, *arguments: str, first: str = "") -> None:
        self.folder = folder
        self.log = folder / "server.log"
        self._arguments = arguments
        self._first = first
        self._pid = 0

    def start(self) -> None:
        """Start the process; returns before it answers."""
        assert not self._pid
        for server in ("grpc", "http"):
            (self.folder / "state" / f"{server}.address").unlink(missing_ok=True)
        self.log.touch()
        words = ["--dir", "state", "--grpc", "127.0.0.1:0", "--http-port", "0", *self._arguments]
        self._pid = fork_server().start(words, self.folder, self.log, first=self._first)

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
        self._pid = 0
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
        said: _Answer[T] | Exception | None = None
        while time.monotonic() < deadline:
            with self.client() as client:
                said = self._asked(client, ask, deadline)
            if isinstance(said, _Answer):
                return said.given
        pytest.fail(f"no answer in {timeout_s} s; last: {said}\n{self.log.read_text()[-4000:]}")

    def _asked(
        self, client: Client, ask: Callable[[Client], T | None], deadline: float
    ) -> _Answer[T] | Exception | None:
        """The answer of one connection, asked until the deadline; an error that ends it."""
        said: Exception | None = None
        while time.monotonic() < deadline:
            try:
                answer = ask(client)
            except (Unavailable, Indeterminate) as error:
                time.sleep(0.1)
                return error  # the server may have begun again, at another address
            except (NotYet, UnknownCollection) as error:
                said = error
            except TidemillError as error:
                pytest.fail(f"{error}\n{self.log.read_text()[-4000:]}")
            else:
                if answer is not None:
                    return _Answer(answer)
            time.sleep(0.1)
        return said


@dataclass(frozen=True, slots=True)
class _Answer(Generic[T]):
    given: T


@contextmanager
def up_process(folder: Path, *arguments: str, first: str = "") -> Iterator[UpProcess]:
    """A started server that is gone at the end, whatever happens."""
    process = UpProcess(folder, *arguments, first=first)
    process.start()
    try:
        yield process
    finally:
        if process.running:
            process.stop(signal.SIGKILL)
