"""Contents of one collection as of an instant: which version answers, from where, within limits."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import pyarrow as pa

from tidemill.catalog.directory import Readable
from tidemill.errors import (
    BeforeSince,
    NotYet,
    UnknownCollection,
    UsageError,
)
from tidemill.host.questions.histories import holding
from tidemill.host.questions.limits import QuestionLimits
from tidemill.host.questions.working import Workers
from tidemill.shard import Collections
from tidemill.shard.pruning import Equal
from tidemill.shard.state import State
from tidemill_query.instants import definite_instant
from tidemill_query.settings import QuerySettings

VERSION_AGE_S_MAX = 0.05
"""Seconds for which a version answers questions about an instant that it says is definite."""


class Contents:
    """Reads of whole collections, and of rows with given values."""

    def __init__(
        self,
        collections: Collections,
        settings: QuerySettings,
        limits: QuestionLimits,
        workers: Workers,
    ) -> None:
        self._collections = collections
        self.reading = holding(collections, settings.session_lease_ms)
        """A hold on a collection for an owner, for the length of a body."""
        self._arranged_wait_s = settings.arranged_wait_s
        self._limits = limits
        self._workers = workers

    async def recent_version(self, collection: str) -> State:
        """A version that may answer a question, without asking the store for each question anew.

        Versions that this process writes count at once.
        """
        return await self._collections.newest(collection, VERSION_AGE_S_MAX)

    async def readable_at(self, collection: str, at: int) -> State:
        """The frontiers before the contents are read, between which the instant is. Raises:
        BeforeSince.
        """
        status = await self.recent_version(collection)
        if not status.since.less_equal(at):
            raise BeforeSince(
                f"the contents at {at} are no longer distinguishable: since is {status.since}",
                requested=at, since=status.since, holder=status.moved_by,
            )  # fmt: skip
        return status

    async def find_by(self, readable: Readable, fixed: Mapping[str, object], at: int) -> str:
        """The collection in which rows with these values are found fastest, of those that hold them
        at `at`.
        """
        keys = sorted((k for k in readable.arranged if set(k) <= fixed.keys()), key=len)
        own = (await self.recent_version(readable.collection)).description.key if keys else ()
        if own and set(own) <= fixed.keys():
            return readable.collection
        for key in reversed(keys):
            found = readable.arranged[key]
            # It follows its collection: what is definite there will be here in a moment, if it has
            # begun.
            with suppress(NotYet, UnknownCollection):
                if (await self.recent_version(found)).since.less_equal(at):
                    wait_s = self._arranged_wait_s
                    await definite_instant(self._collections, found, at, wait_s)
                    return found
        return readable.collection

    async def read(
        self, collection: str, at: int, equal: Equal | None = None, others: int | None = None
    ) -> pa.Table:
        """The rows at an instant, read without a hold: a hold costs two commits, and is taken for
        long reads.

        `others` says that the rows are a whole answer beside so many bytes: reading ends beyond the
        limit.
        """

        def settled(size: int) -> None:
            if others is not None:
                self.refuse_large(others + size)

        told = self._workers.allowance().take
        found = await self._collections.read_without_hold(
            collection, at, equal=equal, told=told, settled=settled, age_s_max=VERSION_AGE_S_MAX
        )
        if found is not None:
            return found
        told = self._workers.allowance().take
        async with self.reading(collection, "query") as held:
            return await self._collections.snapshot(
                held, at, equal=equal, told=told, settled=settled
            )

    def refuse_large(self, size: int) -> None:
        """Raises: UsageError for an answer too large to be sent."""
        most = self._limits.answer_bytes
        if size > most:
            raise UsageError(
                f"answer refused: its rows have {size:,} bytes or more, more than {most:,} "
                "(limits.answer_bytes); ask with literals, as in name(7, x), name fewer collections, "
                "or subscribe",
                reason="limits",
            )
