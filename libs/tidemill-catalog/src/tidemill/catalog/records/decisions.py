"""Decisions about a source, made once and for all, as a durable collection.

A record that is decoded again has to have its first fate, whatever a registry or a broker answers
by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import pyarrow as pa

from tidemill.errors import BeforeSince
from tidemill.shard import Collections, UpperMismatch
from tidemill.time import frontier, sole_time

About: TypeAlias = Literal["schema", "unknown-schema", "topic", "first-offset"]

_FIELDS: list[pa.Field[Any]] = [
    pa.field("about", pa.string()),
    pa.field("of", pa.string()),
    pa.field("number", pa.int64()),
    pa.field("partition", pa.int64()),
    pa.field("first", pa.int64()),
    pa.field("last", pa.int64()),
    pa.field("text", pa.string()),
]
DECISIONS_SCHEMA = pa.schema(_FIELDS)


class Decision(NamedTuple):
    """One decision; of several about the same subject the first one counts.

    * schema: `text` is the schema `number` of the registry `of`.
    * unknown-schema: that registry knew no schema `number` at decoding of [first, last] of
      `partition`.
    * topic: `text` is the identity of the topic `of`.
    * first-offset: reading of `partition` began at `first`.
    """

    about: About
    of: str = ""
    number: int = 0
    partition: int = 0
    first: int = 0
    last: int = 0
    text: str = ""

    @property
    def subject(self) -> tuple[str, str, int, int, int]:
        """Subject of the decision: equal for decisions of which the first one counts."""
        first = self.first if self.about == "unknown-schema" else 0
        return (self.about, self.of, self.number, self.partition, first)


class Decisions:
    """Keeps decisions; whoever decides first has decided for all."""

    def __init__(self, collections: Collections, collection: str) -> None:
        self._collections = collections
        self._collection = collection
        self._made: dict[tuple[str, str, int, int, int], Decision] | None = None

    async def all(self) -> Sequence[Decision]:
        """Everything decided so far."""
        return list((await self._load_once()).values())

    async def find(self, subject: Decision) -> Decision | None:
        """The decision with the subject of another one; None if there is none."""
        return (await self._load_once()).get(subject.subject)

    async def make(self, decisions: Sequence[Decision]) -> None:
        """Decide, durably, whatever of it has not been decided otherwise by then."""
        while True:
            upper = await self._load()
            assert self._made is not None
            fresh = [each for each in decisions if each.subject not in self._made]
            if not fresh:
                return
            columns = list(zip(*fresh, strict=True))
            rows = pa.table(
                {
                    **dict(zip(DECISIONS_SCHEMA.names, map(list, columns), strict=True)),
                    "_time": pa.array([upper] * len(fresh), pa.uint64()),
                    "_diff": pa.array([1] * len(fresh), pa.int64()),
                }
            )
            outcome = await self._collections.compare_and_append(
                self._collection, frontier(upper), frontier(upper + 1), rows, writer="decisions"
            )
            if not isinstance(outcome, UpperMismatch):
                self._made |= {each.subject: each for each in fresh}
                return

    async def _load_once(self) -> Mapping[tuple[str, str, int, int, int], Decision]:
        if self._made is None:
            await self._load()
        assert self._made is not None
        return self._made

    async def _load(self) -> int:
        """Read what was decided, as far as the collection had come: its upper then."""
        while True:
            upper = sole_time((await self._collections.status(self._collection)).upper)
            if upper == 0:
                self._made = {}
                return 0
            reader = await self._collections.read_hold(self._collection, owner="decisions")
            try:
                rows = await self._collections.snapshot(reader, upper - 1)
            except BeforeSince:  # somebody has decided more meanwhile
                continue
            finally:
                await self._collections.drop(reader)
            names = DECISIONS_SCHEMA.names
            made = [Decision(**{name: row[name] for name in names}) for row in rows.to_pylist()]
            self._made = {each.subject: each for each in made}
            return upper
