"""Reads one source from where it has to resume, decodes it, and delivers it in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import pyarrow as pa

from tidemill.arrangement.looks import let_go
from tidemill.catalog.origins.origin import Origin
from tidemill.catalog.records.decisions import Decision, Decisions
from tidemill.errors import UsageError
from tidemill.host.readers import Deliver
from tidemill.rpc.messages import Delivered
from tidemill.runtime.clock import Clock
from tidemill.runtime.log import LogReader, LogRecord
from tidemill.shard.offloading import OBJECT_ROWS, ROWS_INLINE_MAX, compute_beside
from tidemill_ingest.settings import IngestSettings


class Decode(Protocol):
    """Turns records into rows with `_partition` and `_offset`, and letters for the bad ones."""

    def __call__(self, records: Sequence[LogRecord]) -> Awaitable[tuple[pa.Table, pa.Table]]: ...


@dataclass(frozen=True, slots=True)
class Share:
    """Part `number` of `among` of the partitions of a source: those whose number leaves it."""

    number: int = 0
    among: int = 1

    def has(self, partition: int) -> bool:
        """Whether a partition is of this part."""
        return partition % self.among == self.number


WHOLE = Share()


class SourceBroken(UsageError):
    """The source is not what it was: no retry helps, someone has to look."""


class SourceReader:
    """Delivers every record of a source at least once, in partition order, with its FromTime.

    New partitions are read from their oldest record on. SourceBroken ends the deliveries of a
    source that lost unread records, or that another one has replaced. With `decisions` it also does
    for a loss or a replacement while no process ran. A `share` below the whole delivers its
    partitions only; probes and checks are of all.
    """

    def __init__(
        self,
        name: str,
        origin: Origin,
        topic: str,
        decode: Decode,
        clock: Clock,
        settings: IngestSettings,
        decisions: Decisions | None = None,
        share: Share = WHOLE,
    ) -> None:
        self._name = name
        self._origin = origin
        self._topic = topic
        self._decode = decode
        self._clock = clock
        self._settings = settings
        self._decisions = decisions
        self._share = share
        self._known: dict[int, int] = {}
        self._first: dict[int, int] = {}
        """The offset at which reading of each partition began, or will begin."""

    async def probe(self) -> dict[int, int]:
        """The offset that the next record of each partition will get.

        Raises: SourceBroken if a partition is gone or has fewer records than before.
        """
        return {p: high for p, (_, high) in (await self._bounds()).items()}

    def expect(self, bound: Mapping[int, int]) -> None:
        """Note the offsets of earlier bindings: the source may only have grown since."""
        for partition, offset in bound.items():
            self._known[partition] = max(offset, self._known.get(partition, 0))

    async def deliver_from(self, starts: Mapping[int, int], deliver: Deliver) -> None:
        """Read from `starts` on, for ever."""
        bounds = await self._bounds()
        positions = {
            p: self._start(p, starts.get(p, 0), low)
            for p, (low, _) in bounds.items()
            if self._share.has(p)
        }
        reader = await self._origin.reader(self._topic, positions)
        try:
            reached = reader.positions()
            await deliver(await self._delivery([], reached))
            wait_s = self._settings.poll_timeout_s
            while True:
                records = await self._poll(reader, wait_s)
                longer_s = min(2 * wait_s, self._settings.idle_poll_timeout_s)
                wait_s = self._settings.poll_timeout_s if records else longer_s
                ours = {p for p in self._known if self._share.has(p)}
                for partition in ours - reader.positions().keys():
                    low, _ = (await self._bounds())[partition]
                    await reader.assign(partition, self._start(partition, 0, low))
                if not records and reader.positions() == reached:
                    continue
                reached = reader.positions()
                await deliver(await self._check_delivery(records, reached))
                await _free(records)
        finally:
            await reader.close()

    async def _poll(self, reader: LogReader, wait_s: float) -> Sequence[LogRecord]:
        """The next records. Raises: SourceBroken if those at a position are gone."""
        try:
            return await reader.poll(self._settings.records_per_poll, wait_s)
        except UsageError as error:
            if error.details.get("reason") != "offset-out-of-range":
                raise
            bounds = await self._bounds()
            for partition, position in reader.positions().items():
                self._start(partition, position, bounds[partition][0])
            raise

    def _start(self, partition: int, wanted: int, low: int) -> int:
        """The first offset to read; what a retention took before it was first seen is not
        missed.
        """
        wanted = wanted or self._first.get(partition, low)
        if wanted < low:
            raise SourceBroken(
                f"source {self._name}: records {wanted} to {low - 1} of partition {partition} are gone"
                " and were not read",
                reason="RecordsLost",
            )
        return wanted

    async def _check_delivery(
        self, records: Sequence[LogRecord], positions: Mapping[int, int]
    ) -> Delivered:
        """The rows of records that are surely of the topic that was read first.

        The broker is asked after they were read, and while they are decoded: from then on nobody
        else's records can be among them.
        """
        checking = asyncio.create_task(self._check_identity())
        try:
            delivery = await self._delivery(records, positions)
            await checking
            return delivery
        finally:
            checking.cancel()
            await asyncio.gather(checking, return_exceptions=True)

    async def _delivery(
        self, records: Sequence[LogRecord], positions: Mapping[int, int]
    ) -> Delivered:
        rows, letters = await self._decode(records)
        return Delivered(rows, letters, positions)

    async def _check_identity(self) -> None:
        """Raise SourceBroken if the topic is not the one that was read first."""
        if self._decisions is None:
            return
        identity = await self._origin.identity(self._topic)
        if identity is None:
            return
        wanted = Decision("topic", self._topic, text=identity)
        decided = await self._decisions.find(wanted)
        if decided is None:
            await self._decisions.make([wanted])
            decided = await self._decisions.find(wanted)
        if decided is not None and decided.text != identity:
            raise SourceBroken(
                f"source {self._name}: {self._topic} is another topic ({identity}) than the one that "
                f"was read ({decided.text}): it was recreated",
                reason="TopicRecreated",
            )

    async def _remember_first(self, bounds: Mapping[int, tuple[int, int]]) -> None:
        """Keep where each partition began when it was first seen, before anything of it is
        bound.
        """
        fresh = {p: low for p, (low, _) in bounds.items() if p not in self._first}
        if not fresh:
            return
        if self._decisions is not None:
            wanted = [
                Decision("first-offset", self._topic, partition=p, first=low)
                for p, low in fresh.items()
            ]
            await self._decisions.make(wanted)
            for each in wanted:
                decided = await self._decisions.find(each)
                assert decided is not None
                fresh[each.partition] = decided.first
        self._first |= fresh

    async def _bounds(self) -> dict[int, tuple[int, int]]:
        # IMPORTANT: a copy of the offsets known at the question. An earlier question may be
        # answered later, and says less.
        earlier = dict(self._known)
        bounds = await self._origin.bounds(self._topic)
        await self._check_identity()
        for partition, known in earlier.items():
            if partition not in bounds:
                raise SourceBroken(
                    f"source {self._name}: topic {self._topic} has {len(bounds)} partitions, "
                    f"it had {len(earlier)}",
                    reason="PartitionsLost",
                )
            if bounds[partition][1] < known:
                raise SourceBroken(
                    f"source {self._name}: partition {partition} of {self._topic} ends at "
                    f"{bounds[partition][1]}, it ended at {known}: the topic was recreated",
                    reason="TopicRecreated",
                )
        await self._remember_first(bounds)
        self.expect({partition: high for partition, (_, high) in bounds.items()})
        return bounds


async def _free(records: Sequence[LogRecord]) -> None:
    """Free records that nobody needs any more, many of them beside the event loop."""
    size = OBJECT_ROWS * len(records)
    if isinstance(records, list) and size > ROWS_INLINE_MAX:
        await compute_beside(size, partial(let_go, records))
