"""Outputs of views that are written on into collections which users created."""

from __future__ import annotations

import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME, concatenate, stamp
from tidemill.catalog.written_into import owns, writer_of
from tidemill.errors import NotYet
from tidemill.runtime.clock import Clock
from tidemill.shard import Appended, Collections, WriteCapability
from tidemill.time import U64_MAX, Frontier, frontier, sole_time
from tidemill_compute.holds import Holds
from tidemill_compute.settings import ComputeSettings

LOOK_S = 0.2
"""Between two looks whether a capability has been taken over: that is done once the view is there.
"""


class WriteBack:
    """A collection that holds at each instant what an output does, from where its capability stood
    on.

    Rows and the frontier of the capability are one commit, so each change is written once, whoever
    dies when.
    """

    def __init__(
        self,
        output: str,
        into: str,
        prefix: str,
        collections: Collections,
        clock: Clock,
        settings: ComputeSettings,
    ) -> None:
        self._output = output
        self._into = into
        self._owner = writer_of(prefix)
        self._collections = collections
        self._clock = clock
        self._settings = settings
        self._holds = Holds(collections, self._owner)

    async def prepare(self) -> None:
        """Hold the output where it begins, until it is written on; again where it was held."""
        await self._holds.take(self._output)

    async def write_forever(self) -> None:
        """Write definite rows on, until cancelled or the output ends and the collection with it."""
        await self.prepare()
        writer = await self._take_over()
        begins = await self._holds.take(self._output)
        while not writer.frontier.empty:
            lower = sole_time(writer.frontier)
            try:
                upper = await self._collections.wait_for_upper(
                    self._output, max(lower, sole_time(begins)), self._settings.poll_timeout_s
                )
            except NotYet:
                continue
            rows = await self._changes(lower, sole_time(begins), upper)
            outcome = await self._collections.update_and_downgrade(writer, rows, upper)
            # NB: another process may have written on meanwhile: the same, from the same.
            writer = writer.at(outcome.upper if isinstance(outcome, Appended) else outcome.current)
            if not writer.frontier.empty:
                begins = frontier(sole_time(writer.frontier) - 1)
                await self._holds.downgrade(self._output, begins)

    async def _take_over(self) -> WriteCapability:
        """The capability, once it has been taken over."""
        while True:
            holders = (await self._collections.status(self._into)).writing
            if any(owns(each, self._owner) for each in holders):
                return await self._collections.write_hold(self._into, owner=self._owner)
            await self._clock.sleep(LOOK_S)

    async def _changes(self, lower: int, begins: int, upper: Frontier) -> pa.Table:
        """The updates to write in [lower, upper); the output's first contents are at `begins`."""
        until = U64_MAX if upper.empty else sole_time(upper)
        if lower > begins:
            rows = await self._holds.changes(self._output, lower, until)
        else:
            content = await self._holds.snapshot(self._output, begins)
            rows = stamp(content.drop_columns([DIFF]), begins)
            if begins + 1 < until:
                later = await self._holds.changes(self._output, begins + 1, until)
                rows = concatenate([rows, later])
        schema = (await self._collections.description(self._into)).schema
        return rows.rename_columns([*schema.names, TIME, DIFF])
