"""A real process that uses real stores and writes down what it asked and was told, until it is
killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random  # noqa: TID251  seeded
from secrets import token_hex
from time import monotonic_ns
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pyarrow as pa

from tidemill.errors import (
    BeforeSince,
    Fenced,
    Indeterminate,
    NotYet,
    Unavailable,
    UnknownCapability,
)
from tidemill.runtime.clock import SystemClock
from tidemill.shard import (
    Appended,
    Blob,
    Collections,
    Consensus,
    Limits,
    ReadCapability,
    Subscription,
    WriteCapability,
)
from tidemill.shard.blob_objects import Bucket, bucket_blob
from tidemill.shard.consensus_redis import RedisConsensus
from tidemill.shard.stores import BlobPlace, open_blob, open_consensus
from tidemill.testkit.faults.forked_processes import serve_forks
from tidemill.testkit.faults.histories import Recorder
from tidemill.time import frontier, sole_time

LISTS, TABLE = "lists", "table"
LIST_ROWS = pa.schema([("list", pa.string()), ("at", pa.int64()), ("place", pa.int64()), ("element", pa.int64())])  # fmt: skip
TABLE_ROWS = pa.schema([("writer", pa.string()), ("number", pa.int64())])
KEYS = ("a", "b", "c")
LEASE_MS = 1_500
REAP_AGE_MS = 1_000
"""Shorter than a stop, so that the reaper meets what is under way."""
TIMEOUT_S = 1.0
LIMITS = Limits(inline_bytes_max=400, part_bytes_max=8_000)

Row = tuple[str, int, int, int]


class Life(msgspec.Struct, frozen=True):
    """The task of a process. It ends when the file `stop` is there."""

    name: str
    part: str
    seed: int
    consensus: str
    blob: str
    history: str
    stop: str


def open_stores(consensus: str, blob: str, timeout_s: float = TIMEOUT_S) -> tuple[Consensus, Blob]:
    """The stores at these addresses, impatient by default: nobody here waits long for an answer."""
    log: Consensus = open_consensus(consensus)
    url = urlsplit(consensus)
    if url.scheme == "redis":
        prefix = dict(parse_qsl(url.query))["prefix"]
        log = RedisConsensus(url._replace(query="").geturl(), timeout_s=timeout_s, prefix=prefix)
    if not blob.startswith("s3:"):
        return log, open_blob(BlobPlace(blob), partial(token_hex, 8))
    place = urlsplit(blob)
    endpoint = dict(parse_qsl(place.query))["endpoint"]
    bucket = Bucket(
        place.netloc, endpoint, "us-east-1", "test", "test-secret", place.path.strip("/")
    )
    return log, bucket_blob(bucket, timeout_s=2 * timeout_s)


def open_collections(consensus: str, blob: str, timeout_s: float = TIMEOUT_S) -> Collections:
    """The collections at these addresses."""
    log, objects = open_stores(consensus, blob, timeout_s)
    return Collections(log, objects, SystemClock(), partial(token_hex, 16), limits=LIMITS)


class Client:
    """The equipment of every process: its stores, its history, its chance."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self._parent = os.getppid()
        self.random = Random(life.seed)
        self.store = open_collections(life.consensus, life.blob)
        self.recorder = Recorder(Path(life.history), life.name, monotonic_ns)

    @property
    def stopped(self) -> bool:
        """Whether everybody is to end, or nobody is there to say so."""
        return Path(self.life.stop).exists() or os.getppid() != self._parent

    def note(self, what: str, detail: str = "") -> None:
        """Something happened that has no duration."""
        self.recorder.began("note", [what, detail])

    async def pause(self, seconds: float) -> None:
        """Real time passes."""
        await asyncio.sleep(seconds)  # noqa: TID251  real processes live in real time

    async def repeat_until_told(self, ask: Callable[[], Awaitable[object]]) -> object:
        """Repeat what may be repeated until the answer is known."""
        while True:
            try:
                return await ask()
            except (Unavailable, Indeterminate) as error:
                self.note(type(error).__name__)
                if self.stopped:
                    raise
                await self.pause(0.02)

    async def repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        """Take steps until it is time to end."""
        while not self.stopped:
            try:
                await step()
            except (Unavailable, Indeterminate) as error:
                self.note(type(error).__name__)
                await self.pause(0.05)


class Transactor:
    """Transactions on lists: read at upper−1, append at upper by compare-and-append, even if only
    reading.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._held: ReadCapability | None = None
        self._least = 0
        self._followed: Subscription | None = None
        self._total: Counter[Row] = Counter()
        self._compared = False
        self._count = 0

    async def step(self) -> None:
        """One transaction."""
        client, random = self._client, self._client.random
        keys = [key for key in KEYS if random.random() < 0.5]
        base = int(client.life.name.rpartition(".")[2]) * 1_000_000
        appends = []
        for key in random.sample(KEYS, random.choice((0, 1, 1, 2))):
            for _ in range(random.choice((1, 1, 25))):
                self._count += 1
                appends.append((key, base + self._count))
        number = client.recorder.began("transaction", [keys, appends])
        while True:
            outcome = await self._attempt(keys, appends)
            if outcome is not None:
                client.recorder.ended(number, outcome)
                return
            if client.stopped:
                client.recorder.ended(number, "failed")
                return

    async def _attempt(
        self, keys: Sequence[str], appends: Sequence[tuple[str, int]]
    ) -> dict[str, list[int]] | None:
        """The lists read if the transaction happened; None if it surely did not."""
        client = self._client
        try:
            upper, rows = await self._read()
        except (Fenced, UnknownCapability):
            client.note("expired reader")
            self._held = self._followed = None
            return None
        except (Unavailable, Indeterminate) as error:
            client.note(type(error).__name__)
            await client.pause(0.02)
            return None
        lists = {key: [row[3] for row in sorted(rows) if row[0] == key] for key in keys}
        table = pa.table(
            {
                "list": [key for key, _ in appends],
                "at": pa.array([upper] * len(appends), pa.int64()),
                "place": pa.array(range(len(appends)), pa.int64()),
                "element": pa.array([element for _, element in appends], pa.int64()),
                "_time": pa.array([upper] * len(appends), pa.uint64()),
                "_diff": pa.array([1] * len(appends), pa.int64()),
            }
        ).cast(
            LIST_ROWS.append(pa.field("_time", pa.uint64())).append(pa.field("_diff", pa.int64()))
        )
        ask = partial(
            client.store.compare_and_append, LISTS, frontier(upper), frontier(upper + 1), table,
            writer=client.life.name, token=token_hex(8),
        )  # fmt: skip
        number = client.recorder.began("append", [upper, upper + 1])
        outcome = await client.repeat_until_told(ask)
        appended = isinstance(outcome, Appended)
        current = sole_time(outcome.upper if isinstance(outcome, Appended) else outcome.current)  # type: ignore[attr-defined]  # an AppendOutcome
        client.recorder.ended(number, ["appended" if appended else "mismatch", current])
        return lists if appended else None

    async def _read(self) -> tuple[int, list[Row]]:
        """Upper, and what is there just before it, in one of the ways to know it."""
        client, store = self._client, self._client.store
        if self._held is None:
            self._held = await store.read_hold(LISTS, owner=client.life.name, lease_ms=LEASE_MS)
            self._least = sole_time(self._held.frontier)
        held = self._held
        number = client.recorder.began("read", None)
        upper = sole_time((await store.status(LISTS)).upper)
        client.recorder.ended(number, upper)
        if upper == 0:
            return 0, []
        last = upper - 1
        try:
            if client.random.random() < 0.5:
                rows = _rows(await store.snapshot(held, last))
            else:
                as_of = client.random.randrange(min(self._least, last), upper)
                rows = _rows(await store.snapshot(held, as_of))
                rows.update(_rows(await store.changes(held, as_of + 1, upper)))
            await self._follow(held, last)
        except (BeforeSince, NotYet) as error:
            client.note("violation", f"held from {self._least}, upper {upper}: {error}")
            raise
        await self._move_on(held, last)
        return upper, sorted(rows.elements())

    async def _follow(self, held: ReadCapability, last: int) -> None:
        """The updates of a long subscription add up to the snapshot; both are compared now and
        then.
        """
        client = self._client
        if self._followed is None:
            at = min(self._least, last)
            self._followed, self._total = client.store.subscription(held, at), Counter()
        table, upper = await self._followed.poll()
        self._total.update(_rows(table))
        due = not self._compared or client.random.random() < 0.2
        if due and sole_time(upper) > self._least:
            self._compared = True
            present = _rows(await client.store.snapshot(held, sole_time(upper) - 1))
            same = present == self._total
            client.note("compared" if same else "violation", f"followed to {upper}")

    async def _move_on(self, held: ReadCapability, last: int) -> None:
        """Downgrade the hold, so that since moves and the lease is renewed."""
        to = max(self._least, last - 10)
        self._least = to
        self._held = await self._client.store.downgrade(held, frontier(to))
        if self._client.random.random() < 0.1:
            await self._client.store.renew(self._held)


class Writer:
    """Writes rows of its own with a capability that it loses whenever it stands still for too
    long.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._held: WriteCapability | None = None
        self._count = 0

    async def step(self) -> None:
        """One write."""
        client = self._client
        if self._held is None:
            read, self._held = await client.store.acquire(
                TABLE, owner=client.life.name, lease_ms=LEASE_MS
            )
            with suppress(Fenced):
                await client.store.drop(read)
        assert self._held is not None
        self._count += 1
        written = self._count
        lower = sole_time(self._held.frontier)
        copies = client.random.choice((1, 1, 30))
        table = pa.table(
            {
                "writer": [client.life.name] * copies,
                "number": pa.array([written * 100 + n for n in range(copies)], pa.int64()),
                "_time": pa.array([lower] * copies, pa.uint64()),
                "_diff": pa.array([1] * copies, pa.int64()),
            }
        )
        number = client.recorder.began("write", [client.life.name, written, copies])
        tries = 0

        async def ask() -> object:
            nonlocal tries
            tries += 1
            held = self._held
            assert held is not None
            return await client.store.update_and_downgrade(
                held, table, frontier(lower + 1), token=str(written)
            )

        try:
            outcome = await client.repeat_until_told(ask)
        except (Fenced, UnknownCapability):
            client.note("expired writer")
            self._held = None
            if tries == 1:
                client.recorder.ended(number, "refused")
            return
        appended = isinstance(outcome, Appended)
        client.recorder.ended(number, "written" if appended else "violation")
        self._held = self._held.at(frontier(lower + 1))


class Compactor:
    """Merges, collects and reaps with ages that are shorter than many a stop."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def step(self) -> None:
        """One of its duties."""
        client = self._client
        collection = client.random.choice((LISTS, TABLE))
        match client.random.randrange(5):
            case 0:
                await client.store.compact(collection)
                client.note("compaction")
            case 1 | 2:
                if (await client.store.compact_step(collection, 1)).taken:
                    client.note("merge")
            case 3:
                if await client.store.collect_garbage(collection, 0):
                    client.note("collected")
            case _:
                if await client.store.reap_orphans(collection, REAP_AGE_MS):
                    client.note("reaped")
        await client.pause(0.05)


class Part(Protocol):
    """The work of a process, step by step."""

    def __init__(self, client: Client) -> None: ...

    async def step(self) -> None:
        """Once more."""
        ...


def live(encoded: bytes) -> None:
    """One life: to its end or until it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    life = msgspec.json.decode(encoded, type=Life)

    async def main() -> None:
        client = Client(life)
        parts: dict[str, type[Part]] = {
            "transactor": Transactor,
            "writer": Writer,
            "compactor": Compactor,
        }
        try:
            with suppress(Unavailable, Indeterminate):
                await client.repeat(parts[life.part](client).step)
        except Exception as error:  # whatever a process did not expect is a finding
            client.note("violation", f"{life.part} met {type(error).__name__}: {error}")
            raise
        await client.store.close()
        client.recorder.close()

    asyncio.run(main())


def _rows(table: pa.Table) -> Counter[Row]:
    columns = [table[name].to_pylist() for name in ("list", "at", "place", "element", "_diff")]
    rows: Counter[Row] = Counter()
    for key, at, place, element, diff in zip(*columns, strict=True):
        rows[key, at, place, element] += diff
    return rows


if __name__ == "__main__":
    serve_forks(live, sys.stdin.buffer)
