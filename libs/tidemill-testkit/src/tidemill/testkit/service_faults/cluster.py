"""The cluster of a run: processes with roles, and three brokers, Redis and a bucket behind
proxies.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from tidemill.rpc.client import AsyncClient
from tidemill.runtime.clock import Clock, SystemClock
from tidemill.runtime.log_kafka import KafkaLog
from tidemill.shard import Collections
from tidemill.shard.claims import LEASE_S, Claimant, Owned
from tidemill.shard.stores import (
    BlobPlace,
    StoredBlob,
    StoredConsensus,
    open_blob,
    open_claims,
    open_consensus,
)
from tidemill.testkit.faults.proxies import Proxies, proxies
from tidemill.testkit.fleet import Fleet, Member, fleet
from tidemill.testkit.servers import Server, kafka_server, object_server, redis_server
from tidemill.testkit.service_faults.endpoints import Endpoints, endpoints

LEASE_S_MAX = 24.0
BROKERS = 3
TICK_MS = 1_000
SKEW_MS = 15_000
ALIVE_MS = 60_000
RETAIN_MS = 20_000
LATE = 30
VIPS: Final = ("N1", "N2", "N3")
FLIGHTS, METER, ALARMS, BOOK, CREW = "flights", "meter", "alarms", "book", "crew"
LEDGER, HEAP = "ledger", "heap"
"""Tables that rows are inserted into: versions hold those of the first, objects the others."""
GRAIN, WEB, DROP, SPOIL = "grain", "web", "drop", "spoil"
"""Sources to be poisoned: records of Avro, uploads, a file, a file that is spoiled."""

PARTITIONS: Mapping[str, int] = MappingProxyType(
    {FLIGHTS: 3, METER: 2, ALARMS: 1, BOOK: 2, CREW: 2, GRAIN: 1}
)
READERS = 2
"""Processes of ingest among which a source with shared partitions divides them."""
SEATS_MIN = 50
PROCESSES: Mapping[str, str] = MappingProxyType(
    {
        f"{role}-{which}": "query,compaction" if role == "query" else role
        for role in ("query", "ingest", "remap", "reclock", "compute")
        for which in "ab"
    }
)
RESOURCES = f"""
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: {FLIGHTS}}}
spec:
  kafka: {{topic: {FLIGHTS}, readers: {READERS}}}
  columns: [{{name: plane, type: text}}, {{name: delay, type: int}}, {{name: at, type: int}}, {{name: id, type: int}}]
  timestampInterval: {TICK_MS}ms
  retain: all
  eventTime: {{column: at, timeline: air, expiresAfter: {ALIVE_MS}ms, skew: {SKEW_MS}ms}}
---
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: {METER}}}
spec:
  kafka: {{topic: {METER}}}
  columns: [{{name: n, type: int}}, {{name: k, type: int}}]
  timestampInterval: {TICK_MS}ms
  retain: {RETAIN_MS}ms
---
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: {BOOK}}}
spec:
  kafka: {{topic: {BOOK}, readers: {READERS}}}
  keyFormat: {{text: {{}}}}
  envelope: {{upsert: {{key: [plane]}}}}
  columns: [{{name: plane, type: text}}, {{name: seats, type: int}}]
  timestampInterval: {TICK_MS}ms
  retain: {RETAIN_MS}ms
---
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: {CREW}}}
spec:
  kafka: {{topic: {CREW}}}
  envelope: {{debezium: {{key: [id]}}}}
  columns: [{{name: id, type: int}}, {{name: plane, type: text}}]
  timestampInterval: {TICK_MS}ms
  retain: {RETAIN_MS}ms
---
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {{name: vip}}
spec: {{timeline: air, retain: all, columns: [{{name: plane, type: text}}]}}
---
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {{name: {LEDGER}}}
spec: {{retain: {RETAIN_MS}ms, columns: [{{name: id, type: int}}]}}
---
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {{name: {HEAP}}}
spec: {{retain: {RETAIN_MS}ms, columns: [{{name: id, type: int}}, {{name: note, type: text}}]}}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {{name: delays}}
spec:
  retain: all
  outputs: [late, alarm, busy]
  program: |
    late(plane: p, delay: d, id: i) := flight(p, d, _, i) if d > {LATE};
    alarm(plane: p, id: i) := late(plane: p, id: i) ^ vip(p);
    busy(plane: p) @count(i) @max(d) := flight(p, d, _, i);
  inputs: {{flight: {FLIGHTS}}}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {{name: totals}}
spec:
  retain: {RETAIN_MS}ms
  program: "total(part: k) @sum(n) @count(n) := s(n, k);"
  inputs: {{s: {METER}}}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {{name: seated}}
spec:
  retain: {RETAIN_MS}ms
  program: "big(plane: p, seats: n) := b(p, n) if n > {SEATS_MIN};"
  inputs: {{b: {BOOK}}}
---
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {{name: tell-file}}
spec: {{view: delays, goal: "alarm(p, i)", fireFrom: beginning, sink: {{file: {{path: alarms.jsonl}}}}}}
---
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {{name: tell-topic}}
spec: {{view: delays, goal: "alarm(p, i)", fireFrom: beginning, sink: {{log: {{topic: {ALARMS}}}}}}}
---
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {{name: tell-redis}}
spec: {{view: delays, goal: "alarm(p, i)", fireFrom: beginning, sink: {{redis: {{url: "REDIS", stream: alarms}}}}}}
"""

_TICKS = f"timestampInterval: {TICK_MS}ms"
POISONED = f"""
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: {GRAIN}}}
spec:
  kafka: {{topic: {GRAIN}}}
  format: {{avro: {{registry: {{url: "ENDPOINTS"}}}}}}
  columns: [{{name: n, type: int}}, {{name: d, type: text}}]
  {_TICKS}
---
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: {WEB}}}
spec: {{http: {{}}, columns: [{{name: id, type: int}}], {_TICKS}}}
---
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: {DROP}}}
spec: {{file: {{path: {DROP}.csv, format: csv}}, columns: [{{name: n, type: int}}], {_TICKS}}}
---
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: {SPOIL}}}
spec: {{file: {{path: {SPOIL}.csv, format: csv}}, columns: [{{name: n, type: int}}], {_TICKS}}}
"""
"""Resources that nothing else reads, each of which poison comes in by."""

TOLD = """
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {name: tell-http}
spec: {view: delays, goal: "alarm(p, i)", fireFrom: beginning, sink: {http: {url: "ENDPOINTS/alarms"}}}
"""
"""An action whose target answers poison."""


@dataclass(slots=True)
class Cluster:
    """The servers, the proxies before them, the processes, and direct addresses for the checks."""

    folder: Path
    clock: Clock
    lease_s: float
    fleet: Fleet
    kafka: Server
    redis: Server
    proxies: Proxies
    endpoints: Endpoints
    consensus: str
    """The versions, past the proxy."""
    blob: BlobPlace
    """The objects, past the proxy."""
    _begun: dict[str, int] = field(default_factory=dict)
    _clients: dict[str, AsyncClient] = field(default_factory=dict)

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts in the command lines of the servers, which are no children of this process."""
        state = Path(self.kafka.environment["STATE"]).parent
        # NB: Redis writes its own command line, with the port that it listens on.
        return (str(self.folder), str(state), f":{_port(self.redis.address)}")

    def begin(self, name: str) -> Member:
        """Start a process, which may have been there before."""
        log = self.folder / name / "output.log"
        self._begun[name] = log.stat().st_size if log.exists() else 0
        return self.fleet.start(name, PROCESSES[name])

    def said(self, name: str) -> str:
        """The log of a process since its start."""
        return (self.folder / name / "output.log").read_bytes()[self._begun[name] :].decode()

    def member(self, name: str) -> Member:
        """A process, running or not."""
        return self.fleet.members[name]

    def fronts(self) -> list[tuple[str, AsyncClient]]:
        """Processes that answer users, as far as they have said where, with connections to them."""
        found = []
        for name, member in self.fleet.members.items():
            file = member.folder / "grpc.address"
            address = file.read_text().strip() if file.exists() else ""
            if "query" in member.roles and address:
                if address not in self._clients:
                    self._clients[address] = AsyncClient(address, timeout_s=5.0)
                found.append((name, self._clients[address]))
        return found

    def stores(self) -> tuple[StoredConsensus, StoredBlob]:
        """Versions and objects, past the proxies."""
        return open_consensus(self.consensus), open_blob(self.blob, partial(token_hex, 8))

    def collections(self) -> Collections:
        """The collections, past the proxies."""
        return Collections(*self.stores(), self.clock, partial(token_hex, 16))

    def log(self) -> KafkaLog:
        """The brokers; a connection of one's own."""
        return KafkaLog(self.kafka.address, deadline_s=15.0, client_id="whoever-checks")

    async def owners(self, role: str) -> dict[str, Owned]:
        """Claims of a role with their owners, read past the proxies."""
        claims = open_claims(self.consensus)
        try:
            claimant = Claimant(
                claims, role, self.clock, partial(token_hex, 8), name="whoever-checks"
            )
            return {owned.item: owned for owned in await claimant.owners()}
        finally:
            await claims.close()

    async def control_broker(self, verb: str, number: int) -> None:
        """Kill or start a broker."""
        await asyncio.to_thread(self.kafka.control, verb, str(number))

    async def close(self) -> None:
        """End all connections."""
        for client in self._clients.values():
            await client.close()


def lease_on(busy: float) -> float:
    """Seconds of silence that end a session, if so many processes wait for each processor.

    With dozens of them a question to Redis takes a second, and no heartbeat comes for some seconds.
    """
    return min(LEASE_S_MAX, LEASE_S * max(1.0, busy / 2))


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    """Start servers and proxies in an existing folder, no process yet; all of them end with it."""
    (folder / "secret").write_text("test-secret\n")
    own, clock = f"chaos-{token_hex(4)}", SystemClock()
    async with AsyncExitStack() as waiting:
        stack = waiting.enter_context(ExitStack())
        kafka = stack.enter_context(kafka_server("chaos-kafka", brokers=BROKERS))
        redis = stack.enter_context(redis_server("chaos-redis"))
        objects = stack.enter_context(object_server("chaos-objects"))
        lease_s = lease_on(os.getloadavg()[0] / (os.cpu_count() or 1))
        system = stack.enter_context(fleet(folder, lease_s))
        blob = f"s3://tidemill/{own}?endpoint={objects.address}"
        ends = {"redis": _port(redis.address), "s3": _port(objects.address)}
        served = await waiting.enter_async_context(endpoints())
        between = await waiting.enter_async_context(proxies(ends))
        through = {name: (f":{ends[name]}", f":{port}") for name, port in between.ports.items()}
        url = redis.address.replace(*through["redis"])
        system.options = {
            "store": {
                "consensus": f"{url}?prefix={own}",
                "blob": blob.replace(*through["s3"]),
                "access_key": "test",
                "secret_key_file": str(folder / "secret"),
            },
            "log": f"kafka:{kafka.address}",
            "retry_s_max": 2.0,
        }
        text = "---".join([RESOURCES.replace("REDIS", url), POISONED, TOLD])
        (folder / "resources.yaml").write_text(text.replace("ENDPOINTS", served.url))
        made = Cluster(
            folder, clock, lease_s, system, kafka, redis, between, served, f"{redis.address}?prefix={own}",
            BlobPlace(blob, "test", "test-secret"),
        )  # fmt: skip
        try:
            yield made
        finally:
            await made.close()


def _port(address: str) -> int:
    port = urlsplit(address).port
    assert port is not None
    return port
