"""Blob in an S3-compatible object store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from obstore import sign_async
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import S3Store

from tidemill.errors import Indeterminate, Unavailable
from tidemill.shard.ports import BlobEntry

TIMEOUT_S = 30.0
OBJECT_BYTES_MAX = 1 << 30
"""A store that says that an object has more is not believed."""
LISTING_S_MAX = 600.0
"""A listing without end is given up."""
ABSENT = "absent"
"""No object has this name."""
_STATUS = re.compile(r"status code: \d+")


@dataclass(frozen=True, slots=True)
class Bucket:
    """Address of a bucket, and the credentials for it.

    `endpoint` None is the provider's own for the region. Any other None is looked up as every AWS
    client does: variables AWS_…, then the identity of the machine.
    """

    name: str
    endpoint: str | None
    region: str | None
    access_key: str | None
    secret_key: str | None
    prefix: str = ""

    def __repr__(self) -> str:
        return f"Bucket({self.name}, {self.endpoint})"


def bucket_blob(bucket: Bucket, *, timeout_s: float = TIMEOUT_S) -> ObjectBlob:
    """The Blob in a bucket of an S3-compatible store."""
    plain = bucket.endpoint is not None and bucket.endpoint.startswith("http://")
    options: Mapping[str, Any] = {
        "endpoint": bucket.endpoint,
        "region": bucket.region,
        "access_key_id": bucket.access_key,
        "secret_access_key": bucket.secret_key,
    }
    store = S3Store(
        bucket.name,
        prefix=bucket.prefix or None,
        client_options={"allow_http": plain, "timeout": timedelta(seconds=timeout_s)},
        retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=timeout_s)},
        **{name: value for name, value in options.items() if value is not None},
    )
    return ObjectBlob(store, str(bucket))


def _said(error: Exception) -> str:
    """The failure of a request, up to the status of its answer: the rest may repeat the request."""
    line = str(error).partition("\n")[0]
    status = _STATUS.search(line)
    return line if status is None else line[: status.end()]


class ObjectBlob:
    """Guarantees of Blob on an object store; an object is whole or not there.

    A put or delete whose answer was lost may have happened; both are safe to repeat.
    """

    def __init__(self, store: Any, name: str) -> None:  # Any: obstore has no common type of stores
        self._store = store
        self._name = name

    def put_now(self, key: str, data: bytes) -> None:
        """`put` for callers without an event loop, such as a task of a Spark job."""
        try:
            self._store.put(key, data)
        except (BaseError, OSError) as error:
            raise Indeterminate(
                f"the object {key} may not be in {self._name}: {_said(error)}"
            ) from error

    def get_now(self, key: str) -> bytes | None:
        """`get` for the same callers."""
        try:
            found = self._store.get(key)
            self._check_size(key, found)
            return bytes(found.bytes())
        except (FileNotFoundError, NotFoundError):
            return None
        except (BaseError, OSError) as error:
            raise Unavailable(f"the object {key} could not be read: {_said(error)}") from error

    async def put(self, key: str, data: bytes) -> None:
        """Durable on return. Raises: Indeterminate."""
        try:
            await self._store.put_async(key, data)
        except (BaseError, OSError) as error:
            raise Indeterminate(
                f"the object {key} may not be in {self._name}: {_said(error)}"
            ) from error

    async def get(self, key: str) -> bytes | None:
        """The bytes of the object, None if there is none. Raises: Unavailable."""
        try:
            found = await self._store.get_async(key)
            self._check_size(key, found)
            return bytes(await found.bytes_async())
        except (FileNotFoundError, NotFoundError):
            return None
        except (BaseError, OSError) as error:
            raise Unavailable(f"the object {key} could not be read: {_said(error)}") from error

    def _check_size(self, key: str, found: Any) -> None:  # Any: as of the stores
        """Raises: Unavailable before the bytes of an answer that is no object of ours are read."""
        if found.meta["size"] > OBJECT_BYTES_MAX:
            raise Unavailable(f"{self._name} says that {key} has {found.meta['size']} bytes")

    async def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """The bytes from `start` to before `stop`, None without an object. Raises: Unavailable."""
        try:
            return bytes(await self._store.get_range_async(key, start=start, end=stop))
        except (FileNotFoundError, NotFoundError):
            return None
        except (BaseError, OSError) as error:
            raise Unavailable(f"the object {key} could not be read: {_said(error)}") from error

    async def url(self, key: str, life_s: float) -> str:
        """An address that is signed for so long. Raises: Unavailable."""
        try:
            return str(await sign_async(self._store, "GET", key, timedelta(seconds=life_s)))
        except (BaseError, OSError) as error:
            raise Unavailable(f"the address of {key} is not signed: {_said(error)}") from error

    async def delete(self, key: str) -> None:
        """Delete the object, if it is there. Raises: Indeterminate."""
        try:
            await self._store.delete_async(key)
        except (FileNotFoundError, NotFoundError):
            return
        except (BaseError, OSError) as error:
            raise Indeterminate(f"the object {key} may not be deleted: {_said(error)}") from error

    async def list(self, prefix: str) -> Sequence[BlobEntry]:
        """The objects whose keys begin with `prefix`, in the order of keys. Raises: Unavailable."""
        # Stores list by whole names of folders; the rest of the prefix is for us to compare.
        folder = prefix.rpartition("/")[0]
        found: dict[str, BlobEntry] = {}
        try:
            async with asyncio.timeout(LISTING_S_MAX):
                async for page in self._store.list(folder or None):
                    for entry in page:
                        key, modified = entry["path"], entry["last_modified"]
                        if key in found:
                            raise Unavailable(f"{self._name} lists {key} again and again")
                        found[key] = BlobEntry(key, entry["size"], int(modified.timestamp() * 1000))
        except (BaseError, OSError, TimeoutError) as error:
            raise Unavailable(f"{self._name} could not be listed: {_said(error)}") from error
        except ValueError as error:  # instants that Python has not
            raise Unavailable(f"{self._name} lists what no object can be: {error}") from error
        if not found:
            await self._refuse_anything(folder or ABSENT)
        return sorted(entry for entry in found.values() if entry.key.startswith(prefix))

    async def _refuse_anything(self, folder: str) -> None:
        """Raises: Unavailable for a server that has what was never put: it is no store.

        NB: the client takes every document that has no object in it for an empty listing, such as
        a page that asks for a login. A store says of an object that there is none.
        """
        if await self.get_range(f"{folder}/{ABSENT}", 0, 1) is not None:
            raise Unavailable(f"{self._name} has {folder}/{ABSENT}, which nobody has put there")

    async def close(self) -> None:
        """No effect: the client holds nothing that needs an end."""
        return
