"""Blob in a folder: written under another name, flushed, renamed, and the folder flushed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tidemill.shard.ports import BlobEntry
from tidemill.time import Unavailable

_UNFINISHED = ".unfinished"


class DirectoryBlob:
    """Guarantees of Blob on a local file system; a torn write is never seen under its key.

    `unique` names unfinished files, so that two writers never share one.
    """

    def __init__(self, root: Path, unique: Callable[[], str]) -> None:
        self._root = root
        self._unique = unique
        root.mkdir(parents=True, exist_ok=True)

    def put_now(self, key: str, data: bytes) -> None:
        """`put` for callers without an event loop, such as a task of a Spark job."""
        path = self._root / key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(f"{path.name}.{self._unique()}{_UNFINISHED}")
            with unfinished.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(path)
            _flush_folder(path.parent)
        except OSError as error:
            raise Unavailable(f"the object {key} could not be written: {error}") from error

    async def put(self, key: str, data: bytes) -> None:
        await asyncio.to_thread(self.put_now, key, data)

    async def get(self, key: str) -> bytes | None:
        def read() -> bytes | None:
            try:
                return (self._root / key).read_bytes()
            except FileNotFoundError:
                return None
            except OSError as error:
                raise Unavailable(f"the object {key} could not be read: {error}") from error

        return await asyncio.to_thread(read)

    async def delete(self, key: str) -> None:
        def remove() -> None:
            try:
                (self._root / key).unlink(missing_ok=True)
            except OSError as error:
                raise Unavailable(f"the object {key} could not be deleted: {error}") from error

        await asyncio.to_thread(remove)

    async def list(self, prefix: str) -> Sequence[BlobEntry]:
        def listed() -> Sequence[BlobEntry]:
            found = []
            for folder, _, names in os.walk(self._root):
                for name in names:
                    path = Path(folder) / name
                    key = path.relative_to(self._root).as_posix()
                    if key.startswith(prefix):
                        try:
                            stat = path.stat()
                        except FileNotFoundError:
                            continue
                        found.append(BlobEntry(key, stat.st_size, int(stat.st_mtime * 1000)))
            return sorted(found)

        return await asyncio.to_thread(listed)

    async def close(self) -> None:
        return


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
