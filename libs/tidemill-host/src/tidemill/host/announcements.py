"""Commits told among processes, on a topic: readers wake at once instead of at their next look.

An announcement is a hint. It may be lost, repeated, late or out of order, and nothing but the time
at which somebody looks depends on it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Annotated

import msgspec

from tidemill.runtime.breaking import told, unforeseen
from tidemill.runtime.clock import Clock
from tidemill.runtime.log import Entry, Log
from tidemill.runtime.logs import get_logger
from tidemill.runtime.metrics import ANNOUNCEMENTS_PASSED_OVER, BROKEN, Metrics
from tidemill.shard import Collections
from tidemill.time import Frontier

TOPIC = "tidemill.commits"
TOGETHER_S = 0.01
"""Commits of so long go into one record batch: a collection that changes often is told of once."""

RECORDS_PER_POLL = 10_000
POLL_S = 5.0
AGAIN_S = 5.0
"""Pause after the log was away, doubled each time."""

AGAIN_S_MAX = 60.0
"""The longest such pause."""

COLLECTION_CHARS_MAX = 1_000
"""No collection has a longer name."""

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
        self.passed_over = 0
        """Records of the topic that were no announcements: whoever may write to the brokers may
        write there.
        """
        self.broken = 0
        """Tellings and hearings that ended with an error that nobody foresaw."""
        self.listening = asyncio.Event()
        """Set once what others tell from then on is heard."""
        collections.on_commit(self._note)

    def watch(self, metrics: Metrics) -> None:
        """Register the counts of passed over records and of unforeseen errors, read at each
        scrape.
        """
        of_this = {"kind": "Service", "name": "announcements"}
        metrics.watch(BROKEN, lambda: [(of_this, self.broken)])
        metrics.watch(ANNOUNCEMENTS_PASSED_OVER, lambda: [({}, self.passed_over)])

    def _note(self, collection: str) -> None:
        self._made.add(collection)
        self._some.set()

    async def run(self, ready: Callable[[], None]) -> None:
        """Tell and hear until cancelled; while the log is away readers look at their usual
        intervals.
        """
        ready()
        pause_s = AGAIN_S
        while True:
            begun_s = self._clock.monotonic_s()
            try:
                await self._topics.create_topic(TOPIC, 1)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._tell())
                    tasks.create_task(self._hear())
            except (
                Exception
            ) as error:  # a hint that is not told or heard takes nothing else with it
                foreign = unforeseen(error)
                self.broken += foreign is not None
                says = told(foreign) if foreign else str(_first(error))
                log.warning("not announced", error=says, pause_s=pause_s)
            if self._clock.monotonic_s() - begun_s > AGAIN_S_MAX:
                pause_s = AGAIN_S
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_S_MAX)

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
                    announced = announced_in(record.value)
                    if announced is None:
                        self.passed_over += 1
                    elif announced.process != self._process:
                        self.heard += 1
                        self._collections.on_remote_commit(announced.collection)
        finally:
            await reader.close()


class Announced(msgspec.Struct):
    """The fields that are read of a record of the topic."""

    collection: Annotated[str, msgspec.Meta(min_length=1, max_length=COLLECTION_CHARS_MAX)]
    process: str = ""


_DECODER = msgspec.json.Decoder(Announced)


def announced_in(record: bytes | None) -> Announced | None:
    """The announcement of a record; None if it is none, whatever it is."""
    try:
        return _DECODER.decode(record or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _first(error: BaseException) -> BaseException:
    """The error, or the first one in a group."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _shown(held: Frontier) -> list[int]:
    return [int(time) for time in held.elements]
