"""Blob in a folder: written under another name, flushed, renamed, and the folder flushed."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tidemill.errors import Corrupt, Unavailable
from tidemill.shard.ports import BlobEntry

UNFINISHED = ".unfinished"


class DirectoryBlob:
    """Guarantees of Blob on a local file system; a torn write is never seen under its key.

    `unique` names unfinished files, so that two writers never share one. An unfinished file of a
    killed writer is listed under its unfinished name, for the reaper.
    """

    def __init__(self, root: Path, unique: Callable[[], str]) -> None:
        self._root = root
        self._unique = unique
        root.mkdir(parents=True, exist_ok=True)

    def put_now(self, key: str, data: bytes) -> None:
        """`put` for callers without an event loop, such as a task of a Spark job."""
        path = self._root / key
        unfinished = path.with_name(f"{path.name}.{self._unique()}{UNFINISHED}")
        try:
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                _flush_folder(self._root)
            with unfinished.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # IMPORTANT: the name comes after the bytes are on disk, and is on disk before we
            # return.
            unfinished.rename(path)
            _flush_folder(path.parent)
        except OSError as error:
            with suppress(OSError):  # what cannot be removed either is left to the reaper
                unfinished.unlink()
            raise Unavailable(f"the object {key} could not be written: {error}") from error

    def get_now(self, key: str) -> bytes | None:
        """`get` for the same callers."""
        return _read(self._root / key, None)

    async def put(self, key: str, data: bytes) -> None:
        """Durable on return: written under another name, flushed, renamed, the folder flushed."""
        await asyncio.to_thread(self.put_now, key, data)

    async def get(self, key: str) -> bytes | None:
        """The bytes of the file, None if there is none."""
        return await asyncio.to_thread(_read, self._root / key, None)

    async def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """The bytes from `start` to before `stop`, None if there is no file."""
        return await asyncio.to_thread(_read, self._root / key, (start, stop))

    async def url(self, key: str, life_s: float) -> str:
        """The place of the file, for as long as it is there."""
        return (self._root / key).resolve().as_uri()

    async def delete(self, key: str) -> None:
        """Remove the file, if it is there. Raises: Unavailable."""

        def remove() -> None:
            try:
                (self._root / key).unlink(missing_ok=True)
            except OSError as error:
                raise Unavailable(f"the object {key} could not be deleted: {error}") from error

        await asyncio.to_thread(remove)

    async def list(self, prefix: str) -> Sequence[BlobEntry]:
        """The files whose keys begin with `prefix`, unfinished ones included."""
        return await asyncio.to_thread(self._listed, prefix)

    async def close(self) -> None:
        """No effect: no file stays open."""
        return

    def _listed(self, prefix: str) -> Sequence[BlobEntry]:
        folder, slash, _ = prefix.partition("/")
        begin = self._root / folder if slash else self._root
        try:
            return sorted(entry for entry in self._below(begin) if entry.key.startswith(prefix))
        except OSError as error:
            raise Unavailable(f"the folder {begin} could not be listed: {error}") from error

    def _below(self, folder: Path) -> Iterator[BlobEntry]:
        for place, _, names in os.walk(folder):
            for name in names:
                path = Path(place) / name
                try:
                    told = path.stat()
                except FileNotFoundError:
                    continue
                key = path.relative_to(self._root).as_posix()
                yield BlobEntry(key, told.st_size, told.st_mtime_ns // 1_000_000)


def _read(path: Path, span: tuple[int, int] | None) -> bytes | None:
    try:
        with os.fdopen(_regular(path), "rb") as file:
            if span is None:
                return file.read()
            file.seek(span[0])
            return file.read(span[1] - span[0])
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"the object {path.name} could not be read: {error}") from error


def _regular(path: Path) -> int:
    """The descriptor of a regular file. Raises: Corrupt for anything else; OSError."""
    # NB: without O_NONBLOCK the opening of a pipe waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise Corrupt(f"the object {path} is no regular file: restore it from a backup", path=path)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
