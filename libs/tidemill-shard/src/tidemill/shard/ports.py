"""Ports of the library: a clock, a log of versions, a store of immutable objects."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

TIMEOUT_S = 10.0
"""A store at the other end of a connection is given up after so long a silence."""
PREFIX = "tidemill"
"""In a store that many systems share, the names of one begin with it."""


class Clock(Protocol):
    """Time of this machine; leases and polling depend on it, answers never do."""

    def now_ms(self) -> int:
        """Wall time in milliseconds; may step backwards."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never steps backwards."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of this clock."""
        ...


class Version(NamedTuple):
    """One entry of a log: its number, from 0, and what it holds."""

    number: int
    data: bytes


class Seen(NamedTuple):
    """A version that somebody has seen, by its number and the digest of its bytes.

    Another history, as of a restored store, may have other bytes at the same number.
    """

    number: int
    digest: str

    @classmethod
    def of(cls, version: Version) -> Seen:
        """The name of a version. Cost: O(bytes), some 1 µs for each 1,000."""
        return cls(version.number, digest_of(version.data))


Expected: TypeAlias = "int | Seen | None"
"""The newest version that a writer expects: none, one of a number, or the one it has seen."""


def digest_of(data: bytes) -> str:
    """The digest of a version, as a script in Redis can compute it too."""
    return sha1(data, usedforsecurity=False).hexdigest()


def is_expected(newest: Version | None, expected: Expected) -> bool:
    """Whether the newest version of a log is the one that a writer expects."""
    if newest is None or expected is None:
        return newest is None and expected is None
    return expected in (newest.number, Seen.of(newest))


class Consensus(Protocol):
    """One linearizable log of versions for each key.

    Raises everywhere: Unavailable if it did not happen, Indeterminate if it may have.
    """

    async def head(self, key: str) -> Version | None:
        """The newest version; None if the key has none."""
        ...

    async def scan(self, key: str, start: int) -> Sequence[Version]:
        """All versions with number >= start that were not truncated, ascending."""
        ...

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        """Append `version` iff the newest one is `expected` (None: no version yet).

        `version.number` is greater than the expected one. Durable when it returns True; nothing
        has happened when it returns False.
        """
        ...

    async def truncate(self, key: str, before: int) -> None:
        """Forget the versions with number < before; the newest one always stays."""
        ...

    async def keys(self) -> Sequence[str]:
        """All keys that have a version, ascending."""
        ...

    async def close(self) -> None:
        """Release what the store holds on this machine; again is fine."""
        ...


class Attempt(NamedTuple):
    """A compare-and-set: `version` follows `expected` in the log of `key`."""

    key: str
    expected: Expected
    version: Version


@runtime_checkable
class GroupConsensus(Protocol):
    """A Consensus with transactions over several keys."""

    async def compare_and_set_all(self, attempts: Sequence[Attempt]) -> bool:
        """All of the attempts, each of another key, in one transaction, or none of them.

        The outcomes are those of one compare-and-set: durable when it returns True, nothing has
        happened when it returns False. Raises: Unavailable, Indeterminate, for all of them.
        """
        ...


@runtime_checkable
class ManyHeads(Protocol):
    """A Consensus that tells the newest versions of many keys at the cost of one look."""

    async def heads(self, keys: Sequence[str]) -> Sequence[Version | None]:
        """The newest version of each key, in that order; None where `head` has none, or an error.

        Each was the newest at some moment of the call. Raises: Unavailable.
        """
        ...


class BlobEntry(NamedTuple):
    """One object as a listing shows it."""

    key: str
    size: int
    modified_ms: int


class Blob(Protocol):
    """Immutable objects under keys that their writer never uses twice.

    A key is `folder/name`, two parts of letters, digits, `-`, `.` and `_`. Raises as Consensus
    does.
    """

    async def put(self, key: str, data: bytes) -> None:
        """Store an object; durable on return. The same key with the same data again is fine."""
        ...

    async def get(self, key: str) -> bytes | None:
        """The object, None if there is none."""
        ...

    async def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """Bytes start … stop−1 of an object, fewer if it ends before; None if there is none."""
        ...

    async def url(self, key: str, life_s: float) -> str:
        """A URL at which whoever has it reads the object for `life_s`; `file:` in a folder.

        Raises: UsageError of a store that others cannot read.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove an object; nothing if there is none."""
        ...

    async def list(self, prefix: str) -> Sequence[BlobEntry]:
        """The objects whose key begins with `prefix`, ascending by key."""
        ...

    async def close(self) -> None:
        """Release what the store holds on this machine; again is fine."""
        ...
