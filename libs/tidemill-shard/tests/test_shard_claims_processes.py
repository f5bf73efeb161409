"""Real replicas on real stores: one is killed, one stands still past its lease and goes on."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tidemill.testkit.faults.claims_client import FencedSink, Replica
from tidemill.testkit.faults.forked_processes import ForkedProcesses

ITEMS = ("a", "b", "c", "d", "e")
LEASE_S = 0.8
WAIT_S_MAX = 240.0
STOP_S_MAX = 8.0
"""Seconds of a stop. A process that is stopped within a transaction of SQLite blocks all others: it
is continued, and stopped again.
"""


@pytest.fixture(scope="module")
def processes() -> Iterator[ForkedProcesses]:
    with ForkedProcesses("tidemill.testkit.faults.claims_client") as begun:
        yield begun


@pytest.fixture
def sink() -> Iterator[FencedSink]:
    sink = FencedSink()
    yield sink
    sink.close()


class Role:
    """Three replicas of a role, and what their sink says."""

    def __init__(self, consensus: str, sink: FencedSink, processes: ForkedProcesses) -> None:
        self._consensus, self._sink, self._processes = consensus, sink, processes
        self._pids: dict[str, int] = {}
        for name in ("one", "two", "three"):
            self.begin(name)

    def begin(self, name: str) -> None:
        replica = Replica(name, self._consensus, self._sink.port, ITEMS, LEASE_S)
        self._pids[name] = self._processes.begin(msgspec.json.encode(replica))

    def signal(self, name: str, number: signal.Signals) -> None:
        self._processes.signal(self._pids[name], number)

    def doing(self) -> dict[str, str]:
        """The process of the last effect of each item."""
        return {effect.item: effect.name for effect in list(self._sink.effects)}

    def refused(self, name: str) -> bool:
        return any(effect.name == name for effect in list(self._sink.refused))

    def until(self, holds: Callable[[], bool], wait_s_max: float = WAIT_S_MAX) -> bool:
        """Wait for it to come about; whether it did."""
        end_s = time.monotonic() + wait_s_max
        while not holds():
            if time.monotonic() >= end_s:
                assert wait_s_max < WAIT_S_MAX, self.doing()
                return False
            time.sleep(0.02)
        return True

    def end(self) -> None:
        self._sink.ended = True
        self.until(lambda: not any(self._processes.alive(pid) for pid in self._pids.values()))


def lived_through_it(role: Role) -> None:
    role.until(lambda: set(role.doing()) == set(ITEMS) and len(set(role.doing().values())) == 3)
    # One stands still in the middle of an effect; others take over; it goes on, and what it does is
    # refused.
    while not role.refused("one"):
        role.until(lambda: "one" in role.doing().values())
        role.signal("one", signal.SIGSTOP)
        role.until(lambda: "one" not in role.doing().values(), STOP_S_MAX)
        role.signal("one", signal.SIGCONT)
        role.until(lambda: role.refused("one"), 1.0)
    # It comes back by greater epochs. Another one is killed; its work moves, and comes back with
    # it.
    role.until(lambda: "one" in role.doing().values())
    role.signal("two", signal.SIGKILL)
    role.until(lambda: "two" not in role.doing().values())
    role.begin("two")
    role.until(lambda: "two" in role.doing().values())
    role.end()


def happened_once(sink: FencedSink) -> None:
    for item in ITEMS:
        effects = [effect for effect in sink.effects if effect.item == item]
        assert [effect.number for effect in effects] == list(range(1, len(effects) + 1))
        assert [e.epoch for e in effects] == sorted(effect.epoch for effect in effects)


def test_what_replicas_on_sqlite_do_happens_once(
    tmp_path: Path, processes: ForkedProcesses, sink: FencedSink
) -> None:
    lived_through_it(Role(f"sqlite:{tmp_path}/state", sink, processes))
    happened_once(sink)


@pytest.mark.server
def test_what_replicas_on_redis_do_happens_once(
    tmp_path: Path, processes: ForkedProcesses, sink: FencedSink, redis_url: str
) -> None:
    lived_through_it(Role(f"{redis_url}?prefix={tmp_path.name}", sink, processes))
    happened_once(sink)
