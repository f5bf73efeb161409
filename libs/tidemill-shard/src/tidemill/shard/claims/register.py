"""One value under compare-and-set: the newest version of a key in Consensus."""

from __future__ import annotations

from contextlib import suppress
from typing import Generic, TypeVar

import msgspec

from tidemill.errors import Indeterminate, Unavailable
from tidemill.shard.framing import REGISTER, decoding, framed, unframed
from tidemill.shard.ports import Consensus, Version

Value = TypeVar("Value", bound=msgspec.Struct)

TRUNCATE_EVERY = 64
"""So many versions may lie behind the newest: they are of no use, and forgetting them costs a
flush.
"""


def value_of(version: Version, key: str, kind: type[Value]) -> Value:
    """The value that a version holds. Raises: Corrupt."""
    where = f"version {version.number} of {key}"
    payload = unframed(REGISTER, version.data, where)
    with decoding(f"{where} cannot be read", where):
        return msgspec.msgpack.decode(payload, type=kind)


class Register(Generic[Value]):
    """The value of `key`, `initial` until somebody writes.

    Raises as Consensus does, and Corrupt.
    """

    def __init__(self, consensus: Consensus, key: str, initial: Value) -> None:
        self._consensus = consensus
        self._key = key
        self._initial = initial
        self._seen: tuple[int, Value] | None = None

    async def read(self) -> tuple[int | None, Value]:
        """The newest number, None if there is none, and the value."""
        head = await self._consensus.head(self._key)
        if head is None:
            return None, self._initial
        if self._seen is None or self._seen[0] != head.number:
            self._seen = head.number, value_of(head, self._key, type(self._initial))
        return self._seen

    async def replace(self, expected: int | None, value: Value) -> bool:
        """Make `value` the newest iff the newest number is `expected`; durable when it is True."""
        number = 0 if expected is None else expected + 1
        data = framed(REGISTER, msgspec.msgpack.encode(value))
        if not await self._consensus.compare_and_set(self._key, expected, Version(number, data)):
            return False
        self._seen = number, value
        if number and number % TRUNCATE_EVERY == 0:
            with suppress(Unavailable, Indeterminate):
                await self._consensus.truncate(self._key, number)
        return True
