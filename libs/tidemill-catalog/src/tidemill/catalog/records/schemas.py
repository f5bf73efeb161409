"""The schemas that records name, asked for once and kept: the same record has the same fate
again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from tidemill.catalog.records.decisions import Decision, Decisions
from tidemill.runtime.formats.avro import AvroReader
from tidemill.runtime.formats.registry import RegisteredSchema, SchemaRegistry
from tidemill.runtime.formats.schema_memory import (
    KnownSchemas,
    NumberedRecords,
    SchemaMemory,
    no_schema,
    spans,
)
from tidemill.runtime.log import LogRecord, columns_of


class SchemaBook:
    """Known schemas of one registry.

    A known schema is kept, so a registry that is away stops only records with schemas that were
    never seen. An unknown number is kept as such for the records that named it, and asked again for
    later ones.
    """

    def __init__(
        self, registry: SchemaRegistry, url: str, decisions: Decisions, reader: AvroReader
    ) -> None:
        self._registry = registry
        self._url = url
        self._decisions = decisions
        self._memory = SchemaMemory(reader)
        self._loaded = False

    async def prepare(
        self, records: Sequence[LogRecord], values: Sequence[bytes | None]
    ) -> dict[int, str]:
        """Learn the schemas that `values`, parts of `records`, name; why some have none, by index.

        Raises: Unavailable if the registry is away and there is a number that nobody has asked for.
        """
        await self._load()
        columns = columns_of(records)
        partitions, offsets = columns.partitions.tolist(), columns.offsets.tolist()
        refused, undecided = self._memory.sort_out(partitions, offsets, values)
        for number, indexes in undecided.items():
            if not await self._learn(number, spans(number, partitions, offsets, indexes)):
                refused |= dict.fromkeys(indexes, no_schema(number))
        return refused

    async def load_known(self) -> KnownSchemas:
        """Everything that has been decided."""
        await self._load()
        return self._memory.known

    async def learn(self, undecided: Sequence[NumberedRecords]) -> None:
        """Decide about records that somebody else has seen. Raises: Unavailable."""
        await self._load()
        numbers: dict[int, list[NumberedRecords]] = defaultdict(list)
        for records in undecided:
            numbers[records.number].append(records)
        for number, each in numbers.items():
            await self._learn(number, each)

    async def close(self) -> None:
        """Release the registry."""
        await self._registry.close()

    async def _load(self) -> None:
        if self._loaded:
            return
        for decision in await self._decisions.all():
            if decision.of != self._url:
                continue
            if decision.about == "schema":
                self._know(decision)
            elif decision.about == "unknown-schema":
                self._memory.know_unknown(
                    NumberedRecords(
                        decision.number, decision.partition, decision.first, decision.last
                    )
                )
        self._loaded = True

    async def _learn(self, number: int, records: Sequence[NumberedRecords]) -> bool:
        """Ask for a schema, and keep the answer before anything is decoded by it."""
        found = await self._registry.schema(number)
        if found is not None:
            text = msgspec.json.encode(found).decode()
            wanted = Decision("schema", self._url, number, text=text)
            await self._decisions.make([wanted])
            decided = await self._decisions.find(wanted)
            assert decided is not None
            self._know(decided)
            return True
        await self._decisions.make(
            [
                Decision("unknown-schema", self._url, number, each.partition, each.first, each.last)
                for each in records
            ]
        )
        for each in records:
            self._memory.know_unknown(each)
        return False

    def _know(self, decision: Decision) -> None:
        schema = msgspec.json.decode(decision.text, type=RegisteredSchema)
        self._memory.know(decision.number, schema)
