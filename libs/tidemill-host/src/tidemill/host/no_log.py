"""The log of a process that has none of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.errors import UsageError
from tidemill.runtime.log import Entry, FencedWriter, LogReader


def _refused() -> UsageError:
    return UsageError(
        "processes with roles share no log in a directory: set `log = kafka:HOST:PORT` for all of "
        "them, or name the brokers of the source in spec.kafka.bootstrap",
        reason="NoLog",
    )


class NoLog:
    """Refuses everything, and says what to set."""

    async def topics(self) -> dict[str, int]:
        raise _refused()

    async def create_topic(self, topic: str, partitions: int) -> None:
        raise _refused()

    async def append(self, topic: str, records: Sequence[Entry]) -> list[tuple[int, int]]:
        raise _refused()

    async def open_fenced_writer(self, name: str) -> FencedWriter:
        raise _refused()

    async def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        raise _refused()

    async def identity(self, topic: str) -> str | None:
        raise _refused()

    async def reader(self, topic: str, starts: Mapping[int, int]) -> LogReader:
        raise _refused()

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        raise _refused()

    async def read_committed(self, group: str, topic: str) -> dict[int, int]:
        raise _refused()

    async def close(self) -> None:
        """There is nothing to close."""
