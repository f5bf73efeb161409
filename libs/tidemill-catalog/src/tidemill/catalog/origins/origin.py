"""The part of the log port that a source needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tidemill.runtime.log import LogReader


class Origin(Protocol):
    """The part of the log port that a source needs."""

    async def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """Partition → (oldest offset, offset of the next record)."""

    async def identity(self, topic: str) -> str | None:
        """Identity of the topic; None if the log has none."""

    async def reader(self, topic: str, starts: Mapping[int, int]) -> LogReader:
        """A reader of the partitions of `starts`, each from its offset on."""
