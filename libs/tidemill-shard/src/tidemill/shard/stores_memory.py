"""Consensus and Blob in the memory of one process: for tests and for what need not last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidemill.errors import UsageError
from tidemill.shard.ports import BlobEntry, Expected, Version, is_expected


class MemoryConsensus:
    """Guarantees of Consensus as long as the process lives; closing loses nothing."""

    def __init__(self) -> None:
        self._logs: dict[str, list[Version]] = {}

    async def head(self, key: str) -> Version | None:
        """The newest version, None if there is none."""
        log = self._logs.get(key)
        return log[-1] if log else None

    async def scan(self, key: str, start: int) -> Sequence[Version]:
        """The versions from number `start` on, in order."""
        return [version for version in self._logs.get(key, []) if version.number >= start]

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        """Append `version` iff the newest one is `expected`."""
        log = self._logs.get(key)
        if not is_expected(log[-1] if log else None, expected):
            return False
        self._logs.setdefault(key, []).append(version)
        return True

    async def truncate(self, key: str, before: int) -> None:
        """Delete the versions before number `before`; the newest one stays."""
        log = self._logs.get(key)
        if log:
            self._logs[key] = [v for v in log[:-1] if v.number >= before] + log[-1:]

    async def keys(self) -> Sequence[str]:
        """The keys that have a version, in order."""
        return sorted(self._logs)

    async def close(self) -> None:
        """No effect."""
        return


class MemoryBlob:
    """Guarantees of Blob as long as the process lives; `now_ms` stamps objects."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._now_ms = now_ms

    async def put(self, key: str, data: bytes) -> None:
        """Keep the bytes, with the time of now."""
        self._objects[key] = (data, self._now_ms())

    async def get(self, key: str) -> bytes | None:
        """The bytes of the object, None if there is none."""
        found = self._objects.get(key)
        return found[0] if found else None

    async def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """The bytes from `start` to before `stop`, None if there is no object."""
        found = self._objects.get(key)
        return found[0][start:stop] if found else None

    async def url(self, key: str, life_s: float) -> str:
        """Raises: UsageError: nobody else reads this memory."""
        raise UsageError("objects in memory have no address", reason="memory")

    async def delete(self, key: str) -> None:
        """Remove the object, if it is there."""
        self._objects.pop(key, None)

    async def list(self, prefix: str) -> Sequence[BlobEntry]:
        """The objects whose keys begin with `prefix`, in the order of keys."""
        return [
            BlobEntry(key, len(data), modified)
            for key, (data, modified) in sorted(self._objects.items())
            if key.startswith(prefix)
        ]

    async def close(self) -> None:
        """No effect."""
        return
