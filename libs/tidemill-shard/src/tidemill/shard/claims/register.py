"""One value under compare-and-set: the newest version of a key in Consensus."""

from __future__ import annotations

from contextlib import suppress
from typing import Generic, TypeVar

import msgspec

from tidemill.errors import Indeterminate, Unavailable
from tidemill.shard.framing import REGISTER, decoding, framed, unframed
from tidemill.shard.ports import Consensus, Seen, Version

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

    A store that has lost the value that was seen here is Unavailable, until it has it again. Raises
    as Consensus does, and Corrupt.
    """

    def __init__(self, consensus: Consensus, key: str, initial: Value) -> None:
        self._consensus = consensus
        self._key = key
        self._initial = initial
        self._seen: tuple[Version, Value] | None = None

    async def read(self) -> tuple[int | None, Value]:
        """The newest number, None if there is none, and the value."""
        seen = self._seen
        head = await self._consensus.head(self._key)
        if seen is not None and head == seen[0]:
            return head.number, seen[1]
        # NB: what was seen before the store was asked. Another call may have seen more meanwhile.
        if seen is not None and (head is None or head.number <= seen[0].number):
            raise Unavailable(
                f"the store has lost version {seen[0].number} of {self._key}, which was seen here:"
                " connect to the store that it was in, or start again",
                reason="LostVersion",
            )
        if head is None:
            return None, self._initial
        value = value_of(head, self._key, type(self._initial))
        self._see(head, value)
        return head.number, value

    async def replace(self, expected: int | None, value: Value) -> bool:
        """Make `value` the newest iff the newest is the one that was read as number `expected`.

        Durable when it is True.
        """
        known = None if self._seen is None else self._seen[0]
        if expected != (None if known is None else known.number):
            return False  # another call has seen a newer one
        number = 0 if expected is None else expected + 1
        version = Version(number, framed(REGISTER, msgspec.msgpack.encode(value)))
        before = None if known is None else Seen.of(known)
        if not await self._consensus.compare_and_set(self._key, before, version):
            return False
        self._see(version, value)
        if number and number % TRUNCATE_EVERY == 0:
            with suppress(Unavailable, Indeterminate):
                await self._consensus.truncate(self._key, number)
        return True

    def _see(self, version: Version, value: Value) -> None:
        if self._seen is None or self._seen[0].number < version.number:
            self._seen = version, value
