"""Numbers of what failed in a resource: dead letters of a source, failed solutions of a view."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tidemill.catalog.store import Stored
from tidemill.errors import Unavailable
from tidemill.rpc.messages import Json
from tidemill.runtime.resources import SourceSpec, ViewSpec
from tidemill.shard import Collections, CollectionStatus
from tidemill.shard.state import Batch
from tidemill.time import sole_time

NO_FAILURES: tuple[tuple[Batch, ...], int] = ((), 0)


class FailureCounts:
    """Counts that pages of the console ask for every few seconds, each of which costs no commit.

    Dead letters are never taken back: their updates are counted, of which nothing is read. Failed
    solutions come and go. They are read once for each change of their collection.
    """

    def __init__(self, collections: Collections) -> None:
        self._collections = collections
        self._counted: dict[str, tuple[tuple[Batch, ...], int]] = {}

    async def of(self, stored: Stored, looked: Mapping[str, CollectionStatus]) -> dict[str, Json]:
        """The detail of a resource that counts its failures, if it is of a kind that has any.

        `looked` has statuses of collections that were just asked for. Raises: UnknownCollection,
        Unavailable, Corrupt.
        """
        spec = stored.resource.spec
        if isinstance(spec, SourceSpec):
            letters = await self._status(f"{stored.prefix}/deadletters", looked)
            return {"deadletters": letters.updates}
        if isinstance(spec, ViewSpec):
            return {"errors": await self._present(f"{stored.prefix}/errors", looked)}
        return {}

    def keep(self, prefixes: Collection[str]) -> None:
        """Forget what was counted of resources with other prefixes than these."""
        known = {f"{prefix}/errors" for prefix in prefixes}
        self._counted = {name: found for name, found in self._counted.items() if name in known}

    async def _status(
        self, collection: str, looked: Mapping[str, CollectionStatus]
    ) -> CollectionStatus:
        return looked.get(collection) or await self._collections.status(collection)

    async def _present(self, collection: str, looked: Mapping[str, CollectionStatus]) -> int:
        """The number of rows just before upper."""
        status = await self._status(collection, looked)
        batches = tuple(batch for batch in status.state.batches if batch.rows)
        counted, found = self._counted.get(collection, NO_FAILURES)
        if batches == counted:
            return found
        if status.upper.empty or not status.since.less_equal(sole_time(status.upper) - 1):
            return 0
        last = sole_time(status.upper) - 1
        rows = await self._collections.read_without_hold(collection, last)
        if rows is None:
            raise Unavailable(f"objects of {collection} were collected meanwhile: ask again")
        self._counted[collection] = batches, (number := int(rows.num_rows))
        return number
