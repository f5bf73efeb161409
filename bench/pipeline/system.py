"""Tidemill as users run it: `tidemill up` alone in its folder, or processes with roles."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from threading import RLock
from typing import Any
from urllib.request import urlopen

from tidemill.testkit.servers import object_server, redis_server

START_S_MAX = 240.0
STOP_S_MAX = 60.0
ROLES = ("ingest", "remap,reclock", "compute", "compaction,query")
ALONE = "up"
"""The name of a process with all roles."""
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass
class Member:
    """One process: its folder holds addresses and a log."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]

    def start_again(self) -> None:
        """Kill the process, and start another one like it."""
        self.process.kill()
        self.process.wait()
        for told in self.folder.glob("*.address"):
            told.unlink()
        self.process = launched(self.folder)

    def address(self, server: str) -> str:
        """The address of a server of the process, once it listens."""
        told = self.folder / f"{server}.address"
        end_s = time.monotonic() + START_S_MAX
        while not told.exists() or not told.read_text().endswith("\n"):
            if self.process.poll() is not None or time.monotonic() > end_s:
                log = (self.folder / "log").read_text()[-4000:]
                raise SystemExit(f"{self.name} does not start:\n{log}")
            time.sleep(0.05)
        return told.read_text().strip()


@dataclass
class System:
    """Running processes of one system; the last one answers clients."""

    members: list[Member] = field(default_factory=list)
    looking: RLock = field(default_factory=RLock)
    """Held by whoever asks processes for metrics, or kills one."""

    @property
    def pids(self) -> list[int]:
        return [member.process.pid for member in self.members]

    def grpc(self) -> str:
        """The address for clients."""
        return self.members[-1].address("grpc")

    def metrics(self, *roles: str) -> Metrics:
        """The samples that all processes export now, or those with one of these roles."""
        found = Metrics()
        with self.looking:
            for member in self.members:
                if not roles or member.name == ALONE or any(role in member.name for role in roles):
                    self.read(member, found)
        return found

    def read(self, member: Member, found: Metrics) -> None:
        """Add the samples of one process."""
        with urlopen(f"{member.address('http')}/metrics", timeout=60) as answer:
            found.read(answer.read().decode())

    def kill(self, member: Member) -> None:
        """Kill a process, and start another one like it."""
        with self.looking:
            member.start_again()


@dataclass
class Metrics:
    """Samples of metrics, by name."""

    samples: dict[str, list[tuple[dict[str, str], float]]] = field(default_factory=dict)

    def read(self, text: str) -> None:
        """Add the samples of one process."""
        for name, labels, value in SAMPLE.findall(text):
            place = self.samples.setdefault(name, [])
            place.append((dict(LABEL.findall(labels)), float(value)))

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels."""
        return sum(self._of(name, labels))

    def most(self, name: str, **labels: str) -> float:
        """The greatest of them; 0 without any."""
        return max(self._of(name, labels), default=0.0)

    def _of(self, name: str, labels: Mapping[str, str]) -> Iterator[float]:
        for found, value in self.samples.get(name, ()):
            if labels.items() <= found.items():
                yield value


def started(folder: Path, name: str, settings: Mapping[str, Any]) -> Member:
    """A process of these settings, in a folder of its own, working in `folder`."""
    own = folder / name
    own.mkdir()
    (own / "settings.yaml").write_text(json.dumps(settings))
    return Member(name, own, launched(own))


def launched(own: Path) -> subprocess.Popen[bytes]:
    """A process of the settings in its folder, working in the folder above."""
    options = ["--dir", str(own), "--config", str(own / "settings.yaml")]
    command = [str(Path(sys.executable).with_name("tidemill")), "up", *options]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TIDEMILL_")}
    with (own / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=own.parent, env=environment, stdout=log, stderr=log)


@contextmanager
def running(folder: Path, bootstrap: str, roles: Sequence[str] = ()) -> Iterator[System]:
    """A new system over the broker, gone at the end: one process, or one for each of `roles`."""
    settings: dict[str, Any] = {
        "log": f"kafka:{bootstrap}", "grpc": "127.0.0.1:0", "http_port": 0,
        "places": {
            "files": {"read": [str(folder)], "write": [str(folder)]},
            "egress": ["127.0.0.0/8", "localhost"], "topics": {"read": ["*"], "write": ["*"]},
        },
    }  # fmt: skip
    with ExitStack() as stack:
        parts: list[dict[str, Any]] = [{}]
        if roles:
            redis = stack.enter_context(redis_server("bench-redis"))
            bucket = stack.enter_context(object_server("bench-objects"))
            (folder / "secret").write_text("test-secret\n")
            own = f"bench-{token_hex(4)}"
            settings["store"] = {
                "consensus": f"{redis.address}?prefix={own}",
                "blob": f"s3://tidemill/{own}?endpoint={bucket.address}",
                "access_key": "test", "secret_key_file": str(folder / "secret"),
            }  # fmt: skip
            services = {"address": "127.0.0.1:0"}
            names = [f"{r}-{n}" if roles.count(r) > 1 else r for n, r in enumerate(roles)]
            parts = [
                {"name": name, "role": role.split(","), "services": services}
                for name, role in zip(names, roles, strict=True)
            ]
        system = System()
        try:
            for part in parts:
                name = part.get("name", ALONE).replace(",", "-")
                system.members.append(started(folder, name, {**settings, **part}))
            for member in system.members:
                member.address("http")
            yield system
        finally:
            for member in system.members:
                stop(member.process)


def stop(process: subprocess.Popen[Any]) -> None:
    """End a process, by force if it does not end by itself."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
