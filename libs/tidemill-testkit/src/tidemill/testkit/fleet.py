"""Processes with roles over shared stores, for tests that kill and pause them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tidemill.client import Client
from tidemill.errors import Indeterminate, NotYet, TidemillError, Unavailable, UnknownCollection
from tidemill.runtime.clock import SystemClock
from tidemill.runtime.ids import random_id
from tidemill.shard.claims import Claimant, Owned
from tidemill.shard.stores import open_claims
from tidemill.testkit.fork_client import fork_server

T = TypeVar("T")
WAIT_S_MAX = 240.0
CALL_S = 20.0


@dataclass(slots=True)
class Member:
    """One process: what it is called, and the roles it has."""

    name: str
    roles: str
    folder: Path
    pid: int

    @property
    def log(self) -> str:
        """Text of its log."""
        return (self.folder / "output.log").read_text()

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return Path("/proc", str(self.pid)).exists()

    def signalled(self, how: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, how)

    def killed(self) -> None:
        """Kill it; it is gone when this returns."""
        self.signalled(signal.SIGKILL)
        until(lambda: not self.running or None)


@dataclass(slots=True)
class Fleet:
    """A system of processes; without other `options`, with SQLite and a directory as stores."""

    folder: Path
    lease_s: float
    options: Mapping[str, Any] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    """Of the command line of each process, beside those that it needs."""
    members: dict[str, Member] = field(default_factory=dict)

    @property
    def consensus(self) -> str:
        """Address of the versions."""
        stores: Mapping[str, str] = self.options.get("store", {})
        return stores.get("consensus", f"sqlite:{self.folder / 'consensus.sqlite'}")

    def start(self, name: str, roles: str) -> Member:
        """A process with some roles; returns before it answers."""
        folder = self.folder / name
        folder.mkdir(mode=0o700, exist_ok=True)
        for address in folder.glob("*.address"):
            address.unlink()
        settings = {
            "name": name,
            "role": roles.split(","),
            "store": {"consensus": self.consensus, "blob": f"file:{self.folder / 'blob'}"},
            "services": {"address": "127.0.0.1:0", "lease_s": self.lease_s},
            "grpc": "127.0.0.1:0",
            "http_port": 0,
            "places": {
                "files": {"read": [str(self.folder)], "write": [str(self.folder)]},
                "egress": ["127.0.0.0/8", "localhost"],
                "topics": {"read": ["*"], "write": ["*"]},
            },
            **self.options,
        }
        (folder / "settings.yaml").write_text(json.dumps(settings))
        arguments = ["--dir", str(folder), "--config", str(folder / "settings.yaml")]
        pid = fork_server().start([*arguments, *self.arguments], self.folder, folder / "output.log")
        self.members[name] = Member(name, roles, folder, pid)
        return self.members[name]

    def address(self, name: str, server: str = "grpc") -> str:
        """Address of a process, once it answers."""
        member = self.members[name]
        file = member.folder / f"{server}.address"

        def written() -> str | None:
            if not member.running:
                pytest.fail(f"{name} has ended:\n{member.log[-4000:]}")
            text = file.read_text() if file.exists() else ""
            return text.strip() if text.endswith("\n") else None

        return until(written)

    def asked(self, name: str, ask: Callable[[Client], T | None]) -> T:
        """Answer of a process, asked again until it is something."""
        said: object = None
        deadline = time.monotonic() + WAIT_S_MAX
        with Client(self.address(name), timeout_s=CALL_S) as client:
            while time.monotonic() < deadline:
                try:
                    answer = ask(client)
                except (Unavailable, Indeterminate, NotYet, UnknownCollection) as error:
                    said = error
                except TidemillError as error:
                    # The wire's own error is of a library that the tests of others need not have.
                    if type(error).__name__ != "DeadlinePassed":
                        pytest.fail(f"{error}\n{self.logs()}")
                    said = error
                else:
                    if answer is not None:
                        return answer
                time.sleep(0.05)
        pytest.fail(f"no answer of {name}; last: {said}\n{self.logs()}")

    def owner(self, role: str, item: str) -> Owned | None:
        """Owner of an item of a role, by the stores."""

        async def look_up() -> Owned | None:
            consensus = open_claims(self.consensus)
            try:
                claimant = Claimant(consensus, role, SystemClock(), random_id, name="a test")
                return next((o for o in await claimant.owners() if o.item == item), None)
            finally:
                await consensus.close()

        with suppress(Unavailable):
            return asyncio.run(look_up())
        return None

    def owned(self, role: str, item: str, than: int = -1) -> Owned:
        """Owner of an item by an epoch greater than `than`, once there is one."""

        def found() -> Owned | None:
            owned = self.owner(role, item)
            return owned if owned is not None and owned.epoch > than else None

        return until(found, self.logs)

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"== {m.name}\n{m.log[-1500:]}" for m in self.members.values())


def until(ask: Callable[[], T | None], said: Callable[[], str] = lambda: "") -> T:
    """Answer of `ask`, asked again until it is something."""
    deadline = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < deadline:
        answer = ask()
        if answer is not None:
            return answer
        time.sleep(0.02)
    pytest.fail(f"nothing came in {WAIT_S_MAX:g} s\n{said()}")


@contextmanager
def fleet(folder: Path, lease_s: float = 2.0) -> Iterator[Fleet]:
    """A system without processes yet; all that were started are gone at the end."""
    made = Fleet(folder, lease_s)
    try:
        yield made
    finally:
        for member in made.members.values():
            with suppress(ProcessLookupError):
                member.signalled(signal.SIGKILL)
        until(lambda: all(not member.running for member in made.members.values()) or None)
