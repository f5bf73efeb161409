"""Commits told among processes, on a topic: readers wake at once instead of at their next look.

An announcement is a hint. It may be lost, repeated, late or out of order, and nothing but the time at which
somebody looks depends on it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from tidemill.runtime.clock import Clock
from tidemill.runtime.log import Entry, Log
from tidemill.runtime.logs import get_logger
from tidemill.shard import Collections
from tidemill.time import Frontier, Indeterminate, Unavailable

TOPIC = "tidemill.commits"
TOGETHER_S = 0.01
"""Commits of so long go into one record batch: a collection that changes often is told of once."""

RECORDS_PER_POLL = 10_000
POLL_S = 5.0
AGAIN_S = 5.0
"""Pause after the log was away."""

log = get_logger("announcements")


class Announcements:
    """Tells the commits of this process on a topic, and hears those of the others."""

    def __init__(self, collections: Collections, topics: Log, clock: Clock, process: str) -> None:
        self._collections = collections
        self._topics = topics
        self._clock = clock
        self._process = process
        self._made: set[str] = set()
        self._some = asyncio.Event()
        self.heard = 0
        self.listening = asyncio.Event()
        """Set once what others tell from then on is heard."""
        collections.tell_commits(self._note)

    def _note(self, collection: str) -> None:
        self._made.add(collection)
        self._some.set()

    async def run(self, ready: Callable[[], None]) -> None:
        """Tell and hear until cancelled; while the log is away readers look at their usual intervals."""
        ready()
        while True:
            try:
                await self._topics.create_topic(TOPIC, 1)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._tell())
                    tasks.create_task(self._hear())
            except* (Unavailable, Indeterminate) as away:
                log.warning("not announced", error=str(away.exceptions[0]))
            await self._clock.sleep(AGAIN_S)

    async def _tell(self) -> None:
        while True:
            await self._some.wait()
            await self._clock.sleep(TOGETHER_S)
            self._some.clear()
            made, self._made = self._made, set()
            await self._topics.append(TOPIC, [self._entry(each) for each in sorted(made)])

    def _entry(self, collection: str) -> Entry:
        state = self._collections.known().get(collection)
        says: dict[str, object] = {"collection": collection, "process": self._process}
        if state is not None:
            says |= {"since": _shown(state.since), "upper": _shown(state.upper)}
        return Entry(collection.encode(), json.dumps(says).encode())

    async def _hear(self) -> None:
        """From now on: what was told before is in the stores already."""
        bounds = await self._topics.bounds(TOPIC)
        reader = await self._topics.reader(TOPIC, {p: high for p, (_, high) in bounds.items()})
        self.listening.set()
        try:
            while True:
                for record in await reader.poll(RECORDS_PER_POLL, POLL_S):
                    told = json.loads(record.value or b"{}")
                    if told.get("process") != self._process:
                        self.heard += 1
                        self._collections.heard(str(told["collection"]))
        finally:
            await reader.close()


def _shown(held: Frontier) -> list[int]:
    return [int(time) for time in held.elements]
