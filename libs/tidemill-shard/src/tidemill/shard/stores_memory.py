"""Consensus and Blob in the memory of one process: for tests and for what need not last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidemill.shard.ports import BlobEntry, Version


class MemoryConsensus:
    """Guarantees of Consensus as long as the process lives; closing loses nothing."""

    def __init__(self) -> None:
        self._logs: dict[str, list[Version]] = {}

    async def head(self, key: str) -> Version | None:
        log = self._logs.get(key)
        return log[-1] if log else None

    async def scan(self, key: str, start: int) -> Sequence[Version]:
        return [version for version in self._logs.get(key, []) if version.number >= start]

    async def compare_and_set(self, key: str, expected: int | None, version: Version) -> bool:
        log = self._logs.get(key)
        newest = log[-1].number if log else None
        if newest != expected:
            return False
        self._logs.setdefault(key, []).append(version)
        return True

    async def truncate(self, key: str, before: int) -> None:
        log = self._logs.get(key)
        if log:
            self._logs[key] = [v for v in log[:-1] if v.number >= before] + log[-1:]

    async def keys(self) -> Sequence[str]:
        return sorted(self._logs)

    async def close(self) -> None:
        return


class MemoryBlob:
    """Guarantees of Blob as long as the process lives; `now_ms` stamps objects."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._now_ms = now_ms

    async def put(self, key: str, data: bytes) -> None:
        self._objects[key] = (data, self._now_ms())

    async def get(self, key: str) -> bytes | None:
        found = self._objects.get(key)
        return found[0] if found else None

    async def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        found = self._objects.get(key)
        return found[0][start:stop] if found else None

    async def delete(self, key: str) -> None:
        self._objects.pop(key, None)

    async def list(self, prefix: str) -> Sequence[BlobEntry]:
        return [
            BlobEntry(key, len(data), modified)
            for key, (data, modified) in sorted(self._objects.items())
            if key.startswith(prefix)
        ]

    async def close(self) -> None:
        return
