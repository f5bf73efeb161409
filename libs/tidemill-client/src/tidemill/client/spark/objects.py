"""Objects of a version, read where they are: in a folder, or by signed addresses of a bucket."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidemill.errors import Unavailable, UsageError
from tidemill.shard import BlobEntry

ATTEMPTS = 4
"""Requests for one object before the task fails."""
TIMEOUT_S = 60.0


class LocatedObjects:
    """Guarantees of Blob for reading; `locate` says where objects are. An object is read once."""

    def __init__(self, locate: Callable[[Sequence[str]], Awaitable[Sequence[str]]]) -> None:
        self._locate = locate
        self._wanted: set[str] = set()
        self._urls: dict[str, str] = {}
        self._read: dict[str, bytes] = {}

    def expect(self, keys: Iterable[str]) -> None:
        """Some objects will be read, which are to be located together."""
        self._wanted.update(keys)

    async def get(self, key: str) -> bytes | None:
        """The bytes of an object, None if it is not there any more.

        Raises: Unavailable; UsageError where its folder is not on this machine.
        """
        if key not in self._read:
            if key not in self._urls:
                keys = sorted({key, *self._wanted} - self._urls.keys())
                self._urls.update(zip(keys, await self._locate(keys), strict=True))
            data = await asyncio.to_thread(fetched, self._urls[key])
            if data is None:
                return None
            self._read[key] = data
        return self._read[key]

    async def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """The bytes from `start` to before `stop`, as `get` has them."""
        data = await self.get(key)
        return None if data is None else data[start:stop]

    async def put(self, key: str, data: bytes) -> None:
        """Raises: UsageError always, as all that would change something."""
        raise _ReadOnly

    async def delete(self, key: str) -> None:
        """Raises: UsageError."""
        raise _ReadOnly

    async def list(self, prefix: str) -> Sequence[BlobEntry]:
        """Raises: UsageError."""
        raise _ReadOnly

    async def url(self, key: str, life_s: float) -> str:
        """Raises: UsageError."""
        raise _ReadOnly

    async def close(self) -> None:
        """No effect: nothing stays open."""
        return


_ReadOnly = UsageError("a version that is held is only read", reason="ReadOnly")


def fetched(url: str) -> bytes | None:
    """The bytes at a URL, None if nothing is there. Raises as `LocatedObjects.get`."""
    place = urlsplit(url)
    if place.scheme == "file":
        return _from_folder(Path(unquote(place.path)))
    for attempt in range(ATTEMPTS):
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            if error.code < 500 or attempt == ATTEMPTS - 1:
                raise Unavailable(f"{place.netloc} refused an object: {error}") from error
        except OSError as error:
            if attempt == ATTEMPTS - 1:
                raise Unavailable(f"{place.netloc} gave no object: {error}") from error
    raise AssertionError(url)


def _from_folder(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        if path.parent.is_dir():
            return None
        raise UsageError(
            f"the server keeps its objects in a folder, {path.parent.parent}, which this executor "
            "does not see: mount it there, or keep objects in a bucket",
            reason="folder",
        ) from error
    except OSError as error:
        raise Unavailable(f"the object {path.name} could not be read: {error}") from error
