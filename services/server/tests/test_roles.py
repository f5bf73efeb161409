"""Roles as processes: whichever dies or stops under load, the answers are those of an oracle."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from secrets import token_hex
from typing import Any

import grpc
import pytest

from tidemill.client import Client
from tidemill.runtime.log import Entry
from tidemill.runtime.log_kafka import KafkaLog
from tidemill.testkit.fleet import Fleet, Member, fleet, until
from tidemill.time import sole_time

HOUR = 3_600_000
SKEW = 10_000
VIPS = ("N1", "N2", "N3")
RESOURCES = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: flights}
spec:
  file: {path: rows.jsonl, format: jsonl}
  columns: [{name: plane, type: text}, {name: delay, type: int}, {name: at, type: int}]
  timestampInterval: 100ms
  retain: all
  eventTime: {column: at, timeline: air, expiresAfter: 2m, skew: 10s}
---
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: vip}
spec: {timeline: air, retain: all, columns: [{name: plane, type: text}]}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: delays}
spec:
  retain: all
  program: |
    late(p, d) := flight(p, d, _) if d > 30;
    alarm(p, d) := late(p, d) ^ vip(p);
  inputs: {flight: flights}
---
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {name: tell}
spec: {view: delays, goal: "alarm(p, d)", fireFrom: beginning, sink: {file: {path: alarms.jsonl}}}
"""
PUSHED = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: NAME}
spec: {http: {}, format: {json: {}}, columns: [{name: n, type: int}], timestampInterval: 100ms, retain: all}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: view-NAME}
spec: {retain: all, program: "doubled(m) := s(n) where m = n + n;", inputs: {s: NAME}}
"""
ROLES = ("ingest", "remap", "reclock", "compute")
PARTS = dict.fromkeys(ROLES, "Source/flights") | {"compute": "Action/tell"}
"""An item of each role that the test looks at."""


@dataclass(slots=True)
class Load:
    """Rows that are written while processes come and go, and what has to come of them."""

    folder: Path
    random: Random
    sent: list[tuple[str, int, int]]
    now: int = SKEW

    def write(self, count: int = 20) -> None:
        """Append rows to the file, out of order by less than the skew."""
        rows = []
        for _ in range(count):
            self.now += 1_000
            at = self.now + self.random.randrange(-SKEW // 2, SKEW // 2)
            rows.append((f"N{self.random.randrange(6)}", self.random.randrange(60), at))
        self.sent += rows
        with (self.folder / "rows.jsonl").open("a") as file:
            file.writelines(
                json.dumps({"plane": p, "delay": d, "at": at}) + "\n" for p, d, at in rows
            )

    def end(self) -> int:
        """Write a last row, past everything; the instant up to which all is definite then."""
        self.now += HOUR
        with (self.folder / "rows.jsonl").open("a") as file:
            file.write(json.dumps({"plane": "end", "delay": 0, "at": self.now}) + "\n")
        return self.now - SKEW

    def alarms(self) -> Counter[tuple[str, int, int]]:
        """Events that fire: each distinct one once."""
        return Counter({row for row in self.sent if row[0] in VIPS and row[1] > 30})

    def late_at(self, at: int) -> list[tuple[str, int]]:
        """Facts that hold at an instant."""
        return sorted({(p, d) for p, d, t in self.sent if d > 30 and t <= at < t + 120_000})


def started(system: Fleet) -> Load:
    """Two processes of each role, everything applied, rows on their way."""
    load = Load(system.folder, Random(3), [])
    load.write()
    (system.folder / "resources.yaml").write_text(RESOURCES)
    for which in "ab":
        system.start(f"query-{which}", "query,compaction")
        for role in ROLES:
            system.start(f"{role}-{which}", role)
    system.asked("query-a", lambda client: client.apply(system.folder / "resources.yaml") or None)
    rows = [{"plane": vip} for vip in VIPS]
    system.asked("query-b", lambda client: client.insert("vip", rows))
    return load


def victim(system: Fleet, role: str) -> tuple[Member, int]:
    """The process that has the role's item, and by which epoch."""
    owned = system.owned(role, PARTS[role])
    return system.members[owned.name], owned.epoch


def reached(client: Client, upper: int) -> bool | None:
    (status,) = client.get("Action", "tell")
    assert status.reason != "Stalled", status.message
    held = status.upper
    return True if held is not None and not held.empty and sole_time(held) >= upper else None


def released(member: Member, before: int) -> bool | None:
    return True if member.log.count("let go") > before else None


def check(system: Fleet, load: Load, query: str) -> None:
    """Every answer is the oracle's, every effect happened once."""
    upper = load.end()
    system.asked(query, lambda client: reached(client, upper))
    with Client(system.address(query)) as client:
        for at in (SKEW + 15_000, load.now - HOUR - SKEW, upper - 1):
            table = client.query("late(p, d)", as_of=at, timeout_s=120).table
            pairs = zip(table["p"].to_pylist(), table["d"].to_pylist(), strict=True)
            assert sorted(set(pairs)) == load.late_at(at)

    def fired() -> Counter[tuple[str, int, int]] | None:
        lines = (system.folder / "alarms.jsonl").read_text().splitlines()
        found = Counter(
            (
                *json.loads(
                    x["arguments"]
                    if isinstance(x["arguments"], str)
                    else json.dumps(x["arguments"])
                ),
                x["time"],
            )
            for x in map(json.loads, lines)
        )
        return found if sum(found.values()) >= sum(load.alarms().values()) else None

    assert until(fired, system.logs) == load.alarms()


@pytest.mark.server
def test_any_role_may_be_killed_or_paused_under_load(tmp_path: Path, redis_url: str) -> None:
    with fleet(tmp_path) as system:
        # A process that is paused in a transaction of SQLite would hold all others up.
        consensus = f"{redis_url}?prefix=roles-{tmp_path.name}"
        system.options = {"store": {"consensus": consensus, "blob": f"file:{tmp_path / 'blob'}"}}
        load = started(system)
        for role in ROLES:
            load.write()
            killed, epoch = victim(system, role)
            killed.killed()
            load.write()
            after = system.owned(role, PARTS[role], than=epoch)
            # The fault happened: the process is gone, and another one has its work.
            assert not killed.running
            assert after.name != killed.name
            system.start(killed.name, role)
        paused = {role: victim(system, role) for role in ROLES}
        for member, _ in paused.values():
            member.signalled(signal.SIGSTOP)
        load.write()
        for role, (member, epoch) in paused.items():
            assert system.owned(role, PARTS[role], than=epoch).name != member.name
        load.write()
        for member, _ in paused.values():
            lines = member.log.count("let go")
            member.signalled(signal.SIGCONT)
            # It was paused past its claim: it lets its work go when it wakes, and nothing else ends
            # it.
            until(partial(released, member, lines), system.logs)
            assert member.running
        slot = system.owned("compaction", "7")
        system.members[slot.name].killed()
        survivor = system.owned("compaction", "7", than=slot.epoch).name
        assert survivor != slot.name
        check(system, load, survivor)
        (status,) = system.asked(survivor, lambda client: client.get("Source", "flights"))
        assert status.reason == "Running", status.message


@pytest.mark.server
def test_processes_over_redis_kafka_and_a_bucket_go_on_when_one_is_killed(
    tmp_path: Path, redis_url: str, kafka_bootstrap: str, object_store: str
) -> None:
    (tmp_path / "secret").write_text("test-secret\n")
    own = f"rows-{token_hex(4)}"
    options = {
        "store": {
            "consensus": f"{redis_url}?prefix={own}",
            "blob": f"s3://tidemill/{own}?endpoint={object_store}",
            "access_key": "test",
            "secret_key_file": str(tmp_path / "secret"),
        },
        "log": f"kafka:{kafka_bootstrap}",
    }
    with fleet(tmp_path, lease_s=5.0) as system:
        system.options = options
        (tmp_path / "resources.yaml").write_text(PUSHED.replace("NAME", own))
        for name in ("a", "b"):
            system.start(name, "ingest,remap,reclock,compute,compaction,query")
        system.asked("a", lambda client: client.apply(tmp_path / "resources.yaml") or None)
        system.asked("b", lambda client: client.push(own, [b'{"n": 1}', b'{"n": 2}']))
        holder = system.owned("reclock", f"Source/{own}")
        other = "b" if holder.name == "a" else "a"
        assert system.asked(other, lambda client: numbers(client, own, 2)) == [1, 2]
        system.members[holder.name].killed()
        system.asked(other, lambda client: client.push(own, [b'{"n": 3}']))
        assert system.asked(other, lambda client: numbers(client, own, 3)) == [1, 2, 3]
        assert system.owned("reclock", f"Source/{own}", than=holder.epoch).name == other
        assert "test-secret" not in system.logs()


SHARED = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: NAME}
spec: {kafka: {topic: NAME, readers: 2}, columns: [{name: n, type: int}], timestampInterval: 100ms, retain: all}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: view-NAME}
spec: {retain: all, program: "doubled(m) := s(n) where m = n + n;", inputs: {s: NAME}}
"""


async def append(bootstrap: str, topic: str, rows: Sequence[int]) -> None:
    """Numbers into a topic of four partitions, each by what it leaves."""
    log = KafkaLog(bootstrap)
    await log.create_topic(topic, 4)
    await log.append(topic, [Entry(None, json.dumps({"n": n}).encode(), n % 4) for n in rows])
    await log.close()


@pytest.mark.server
def test_processes_share_the_partitions_of_a_source_and_take_over_those_of_one_that_is_gone(
    tmp_path: Path, redis_url: str, kafka_bootstrap: str
) -> None:
    own = f"shared-{token_hex(4)}"
    with fleet(tmp_path) as system:
        consensus = f"{redis_url}?prefix={own}"
        system.options = {
            "store": {"consensus": consensus, "blob": f"file:{tmp_path / 'blob'}"},
            "log": f"kafka:{kafka_bootstrap}",
        }
        (tmp_path / "resources.yaml").write_text(SHARED.replace("NAME", own))
        asyncio.run(append(kafka_bootstrap, own, range(20)))
        system.start("a", "ingest")
        system.start("b", "ingest")
        system.start("c", "remap,reclock,compute,compaction,query")
        system.asked("c", lambda client: client.apply(tmp_path / "resources.yaml") or None)
        assert system.asked("c", lambda client: numbers(client, own, 20)) == list(range(20))
        shares = [system.owned("ingest", f"Source/{own}#{number}") for number in (0, 1)]
        assert {share.name for share in shares} == {"a", "b"}
        gone = system.members[shares[0].name]
        gone.killed()
        with stranger_at(shares[0].details) as asked:
            asyncio.run(append(kafka_bootstrap, own, range(20, 40)))
            assert system.asked("c", lambda client: numbers(client, own, 40)) == list(range(40))
        assert asked  # and its answers did not count
        moved = system.owned("ingest", f"Source/{own}#0", than=shares[0].epoch)
        assert moved.name == shares[1].name
        (status,) = system.asked("c", lambda client: client.get("Source", own))
        assert status.reason == "Running", status.message


@contextmanager
def stranger_at(address: str) -> Iterator[list[str]]:
    """A server of another program where a process was; the calls that it was asked for."""
    asked: list[str] = []

    class Asked(grpc.ServerInterceptor):
        def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
            asked.append(handler_call_details.method)
            return continuation(handler_call_details)

    server = grpc.server(ThreadPoolExecutor(1), interceptors=(Asked(),))
    server.add_insecure_port(address.partition("#")[0])
    server.start()
    try:
        yield asked
    finally:
        server.stop(0)


def numbers(client: Client, source: str, count: int) -> list[int] | None:
    found = sorted(client.query(f"view-{source}/doubled").table["c0"].to_pylist())
    return [each // 2 for each in found] if len(found) == count else None
