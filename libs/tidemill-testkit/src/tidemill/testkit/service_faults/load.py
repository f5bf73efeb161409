"""The load: rows into topics and a table for as long as faults last, and what was said of each."""

from __future__ import annotations

import json
from base64 import b64encode
from random import Random  # noqa: TID251  seeded
from typing import Any

from tidemill.client.rows import table_of
from tidemill.errors import Indeterminate, TidemillError, Unavailable
from tidemill.runtime.clock import Clock
from tidemill.runtime.log import Entry, Log
from tidemill.shard.parts import INLINE_BYTES_MAX
from tidemill.testkit.service_faults.cluster import (
    BOOK,
    CREW,
    FLIGHTS,
    METER,
    PARTITIONS,
    SKEW_MS,
    VIPS,
    Cluster,
)
from tidemill.testkit.service_faults.oracle import Topic
from tidemill.testkit.service_faults.outcome import Outcome

PLANES = (*VIPS, "N4", "N5", "N6")
STEP_S = 0.25
INSERT_S = 0.5
WIDE_S = 2.0
WIDE_BYTES = INLINE_BYTES_MAX + 1_024
"""Random bytes in a row that no version holds inline, however it is packed."""
ROWS_PER_STEP = 6
BAD_SHARE = 0.01
GONE_SHARE = 0.2
BROKEN_SHARE = 0.03
SEATS_MAX = 100
END_MS = 3_600_000


class Load:
    """Writes to the topics; `promised` is how far every partition of the events has come, as
    acknowledged.
    """

    def __init__(self, log: Log, random: Random, clock: Clock, outcome: Outcome) -> None:
        self.written: dict[tuple[str, int, int], bytes] = {}
        """Every acknowledged record by topic, partition and offset."""
        self._log = log
        self._random = random
        self._clock = clock
        self._outcome = outcome
        self._id = 0
        self._latest = [0] * PARTITIONS[FLIGHTS]
        self._crew: dict[int, dict[str, Any] | None] = {}
        """The rows of the crew as acknowledged; a key that is not here is new, or nobody knows its
        row.
        """
        self._broken = False
        """Whether a change was written that does not follow: the first that may be one is."""

    @property
    def promised(self) -> int:
        """The event frontier that follows from what was acknowledged."""
        return min(self._latest) - SKEW_MS

    async def run(self) -> None:
        """Write until cancelled; each partition gets something at each step."""
        while True:
            for partition in range(PARTITIONS[FLIGHTS]):
                flights = [self._flight() for _ in range(self._random.randint(1, ROWS_PER_STEP))]
                bad = [b"{not a row"] if self._random.random() < BAD_SHARE else []
                rows = [json.dumps(flight).encode() for flight in flights]
                latest = max(int(flight["at"]) for flight in flights)
                if await self._append(FLIGHTS, partition, [*bad, *rows]):
                    self._latest[partition] = max(self._latest[partition], latest)
            for partition in range(PARTITIONS[METER]):
                rows = [self._reading(self._random.randrange(5)) for _ in range(2)]
                await self._append(METER, partition, rows)
            await self._book()
            await self._change_crew()
            await self._clock.sleep(STEP_S)

    async def _book(self) -> None:
        """A plane has seats from now on, or is gone; each in a partition of its own."""
        plane = self._random.randrange(12)
        self._id += 1
        row = json.dumps({"seats": self._random.randrange(SEATS_MAX)}).encode()
        value = None if self._random.random() < GONE_SHARE else row
        entry = Entry(f"P{plane}".encode(), value, plane % PARTITIONS[BOOK])
        await self.append(BOOK, [entry])

    async def _change_crew(self) -> None:
        """A row is made, changed or removed as Debezium would say it, or stated anew where nobody
        knows it.
        """
        key = self._random.randrange(12)
        held, row = self._crew.get(key), {"id": key, "plane": self._random.choice(PLANES)}
        after: dict[str, Any] | None = row
        if key not in self._crew:
            op = "r"
        elif held is None:
            op = "c"
        elif self._random.random() < GONE_SHARE:
            op, after = "d", None
        else:
            op = "u"
        before = held if op in "ud" else None
        share = self._random.random()
        if before is not None and (share < BROKEN_SHARE or not self._broken):
            # A part of the history is missing: it is no change of what is there, and changes
            # nothing.
            before, wrong = {**before, "plane": "never"}, True
        else:
            wrong = False
        change = json.dumps({"op": op, "before": before, "after": after}).encode()
        entry = Entry(json.dumps({"id": key}).encode(), change, key % PARTITIONS[CREW])
        if not await self.append(CREW, [entry]):
            self._crew.pop(key, None)
        elif wrong:
            self._broken = True
        else:
            self._crew[key] = after

    async def mark(self, k: int) -> None:
        """Write one row that nothing else is like."""
        while not await self._append(METER, k % PARTITIONS[METER], [self._reading(k)]):
            await self._clock.sleep(0.1)

    async def end(self) -> int:
        """A last event in each partition, far past all others; everything is definite before this
        instant.
        """
        at = self._clock.now_ms() + END_MS
        for partition in range(PARTITIONS[FLIGHTS]):
            row = json.dumps({**self._flight(), "at": at, "plane": "end", "delay": 0}).encode()
            while not await self._append(FLIGHTS, partition, [row]):
                await self._clock.sleep(0.1)
        return at - SKEW_MS

    def check(self, topics: dict[str, Topic]) -> None:
        """Acknowledged records are at their places."""
        for (topic, partition, offset), row in self.written.items():
            there = topics[topic].records[partition].get(offset)
            self._outcome.expect(
                there == row,
                f"{topic}/{partition} has {there!r} at {offset}, acknowledged was {row!r}",
            )

    async def _append(self, topic: str, partition: int, rows: list[bytes]) -> bool:
        return await self.append(topic, [Entry(None, row, partition) for row in rows])

    async def append(self, topic: str, entries: list[Entry]) -> bool:
        """Write records; whether that was acknowledged."""
        try:
            places = await self._log.append(topic, entries)
        except (Unavailable, Indeterminate) as error:
            self._outcome.happened[f"felt: an append to a topic was {type(error).__name__}"] += 1
            return False
        self._outcome.happened["records written"] += len(entries)
        for place, entry in zip(places, entries, strict=True):
            self.written[topic, *place] = entry.value or b""
        return True

    def _flight(self) -> dict[str, Any]:
        self._id += 1
        return {
            "plane": self._random.choice(PLANES),
            "delay": self._random.randrange(60),
            "at": self._clock.now_ms() - self._random.randrange(3_000),
            "id": self._id,
        }

    def _reading(self, k: int) -> bytes:
        self._id += 1
        return json.dumps({"n": self._id, "k": k}).encode()


class Ledger:
    """Inserts rows through whichever process answers, each tried once, and knows what was said of
    it.

    With `wide`, each row is too large for a version: the process writes an object of the bucket.
    """

    def __init__(
        self, table: str, cluster: Cluster, random: Random, outcome: Outcome, *, wide: bool = False
    ) -> None:
        self.table = table
        self._wide = wide
        self._cluster = cluster
        self._random = random
        self._outcome = outcome
        self._said: dict[int, str] = {}

    async def run(self) -> None:
        """Insert until cancelled."""
        while True:
            fronts = self._cluster.fronts()
            if fronts:
                _, client = self._random.choice(fronts)
                await self._insert(client, len(self._said))
            await self._cluster.clock.sleep(WIDE_S if self._wide else INSERT_S)

    async def _insert(self, client: Any, number: int) -> None:
        self._said[number] = "unknown"
        row: dict[str, Any] = {"id": number}
        if self._wide:
            row["note"] = b64encode(self._random.randbytes(WIDE_BYTES)).decode()
        try:
            await client.insert(self.table, table_of([row]))
            self._said[number] = "written"
        except Unavailable:
            self._said[number] = "refused"
        except TidemillError:
            pass
        size = "wide inserts" if self._wide else "inserts"
        self._outcome.happened[f"{size} {self._said[number]}"] += 1

    def check(self, found: dict[int, int]) -> None:
        """Acknowledged rows are there once, refused ones are not."""
        expected = {"written": {1}, "refused": {0}, "unknown": {0, 1}}
        strange = sorted(found.keys() - self._said.keys())
        self._outcome.expect(not strange, f"{self.table} has rows that were refused: {strange[:3]}")
        for number, said in self._said.items():
            there = found.get(number, 0)
            self._outcome.expect(
                there in expected[said],
                f"row {number} of {self.table} was {said} and is there {there} times",
            )
