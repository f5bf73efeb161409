"""The port to whoever does big merges."""

from __future__ import annotations

from typing import Protocol

from tidemill.shard.compaction import Merge


class BulkMerge(Protocol):
    """Does merges that are too big for this process."""

    async def merge(self, merge: Merge) -> bool:
        """Do it and put it in place; whether it was taken.

        A merge whose inputs have changed meanwhile is not taken, and changes nothing. Raises:
        Unavailable if it could not be done.
        """
