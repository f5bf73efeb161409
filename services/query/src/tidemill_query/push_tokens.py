"""Pushes that may be repeated: which of their rows are in the log already, by the keys that they
have there.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from msgspec import structs

from tidemill.errors import UsageError
from tidemill.runtime.log import Entry, Log
from tidemill.runtime.resources import Resource, SourceSpec
from tidemill.shard.offloading import while_others_wait

TOPICS_MAX = 64
"""Topics whose keys are kept in memory; those of another one are read again."""

POLL_S = 0.5
TOKEN_CHARACTERS_MIN = 16
_MARK = b"\x00tidemill-push\x00"


@dataclass(slots=True)
class _Known:
    """The keys among the last rows of a topic with what they stand for, and up to where it has been
    read for them.
    """

    keys: OrderedDict[bytes, bytes] = field(default_factory=OrderedDict)
    positions: dict[int, int] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class PushTokens:
    """Appends each row of a push once for its token, among the last `rows_known` rows of a
    partition.

    A row has its token and its place in the push as key, written with it in one piece. So the log
    tells the missing rows: after a crash within a push, after a restart, and when an answer was
    lost. Two pushes of one token at once are one after the other in a process, not over two.
    """

    def __init__(self, log: Log, rows_known: int) -> None:
        self._log = log
        self._rows_known = rows_known
        self._topics: OrderedDict[str, _Known] = OrderedDict()

    async def append(
        self, topic: str, token: str, rows: Sequence[Entry], *, first_counts: bool = False
    ) -> None:
        """Append the rows that are not there; they have no keys yet.

        With `first_counts` a repetition may differ, and its rows are those that came first.

        Raises: UsageError for a token or push that cannot be kept, (TokenUsed) for a token that
        came with other rows.

        Cost: the first time a read of the last rows of the topic, then of what others have
        appended.
        """
        if len(token) < TOKEN_CHARACTERS_MIN:
            raise UsageError(
                f"a token of {len(token)} characters may be that of somebody else: use "
                f"{TOKEN_CHARACTERS_MIN} or more",
                reason="ShortToken",
            )
        if len(rows) > self._rows_known:
            raise UsageError(
                f"push refused: {len(rows):,} rows with one token are more than {self._rows_known:,} "
                "(limits.push_rows_known); push fewer at a time",
                reason="limits",
            )
        known = self._of(topic)
        async with while_others_wait(known.turn):
            await self._read_on(topic, known)
            digest = blake2b(token.encode(), digest_size=16).digest()
            keys = [_MARK + digest + n.to_bytes(4, "big") for n in range(len(rows))]
            for number, (key, row) in enumerate(zip(keys, rows, strict=True), 1):
                if known.keys.get(key, told := _told(row.value)) != told and not first_counts:
                    raise UsageError(
                        f"push refused: its token came with another row {number} before; a token is for one "
                        "push, and for its repetitions as it was",
                        reason="TokenUsed",
                    )
            missing = [
                structs.replace(row, key=key)
                for key, row in zip(keys, rows, strict=True)
                if key not in known.keys
            ]
            if missing:
                await self._log.append(topic, missing)

    def _of(self, topic: str) -> _Known:
        known = self._topics.setdefault(topic, _Known())
        self._topics.move_to_end(topic)
        for name in list(self._topics)[: max(0, len(self._topics) - TOPICS_MAX)]:
            if not self._topics[name].turn.locked():
                del self._topics[name]
        return known

    async def _read_on(self, topic: str, known: _Known) -> None:
        """Learn the keys up to where the topic ends now."""
        bounds = await self._log.bounds(topic)
        starts = {
            p: max(low, high - self._rows_known, known.positions.get(p, 0))
            for p, (low, high) in bounds.items()
        }
        ends = {p: high for p, (_, high) in bounds.items()}
        if any(starts[p] < ends[p] for p in ends):
            reader = await self._log.reader(topic, starts)
            try:
                while any(at < ends.get(p, 0) for p, at in reader.positions().items()):
                    for record in await reader.poll(self._rows_known, POLL_S):
                        if record.key is not None and record.key.startswith(_MARK):
                            known.keys[record.key] = _told(record.value)
            finally:
                await reader.close()
        known.positions = ends
        while len(known.keys) > self._rows_known * len(ends):
            known.keys.popitem(last=False)


def _told(value: bytes | None) -> bytes:
    """The part of a row that tells it from another one."""
    return blake2b(value or b"", digest_size=8).digest()


def refuse_many_rows(rows: int, rows_max: int) -> None:
    """Raises: UsageError for a push of more rows than it may have."""
    if rows > rows_max:
        raise UsageError(
            f"push refused: it has {rows:,} rows, more than {rows_max:,} (limits.push_rows); push fewer at a time",
            reason="limits",
        )


def refuse_keyed(resource: Resource) -> None:
    """Raises: UsageError for a source that reads keys: there is no place for a token."""
    spec = resource.spec
    if isinstance(spec, SourceSpec) and spec.key_format is not None:
        raise UsageError(
            f"{resource} reads the keys of its records, which is where a token would be: push without one",
            reason="Keyed",
        )
