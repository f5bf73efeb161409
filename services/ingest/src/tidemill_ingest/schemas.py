"""The schemas that records name, asked for once and kept: the same record has the same fate again."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from tidemill.runtime.formats import BadRow
from tidemill.runtime.formats.avro import AvroReader, schema_number
from tidemill.runtime.formats.registry import RegisteredSchema, SchemaRegistry
from tidemill.runtime.log import LogRecord
from tidemill_ingest.decisions import Decision, Decisions


class SchemaBook:
    """What is known of the schemas of one registry.

    A schema that was found is kept, so a registry that is away stops only records with schemas that
    were never seen. That a number was not known is kept for the records that named it, and asked again
    for later ones.
    """

    def __init__(
        self, registry: SchemaRegistry, url: str, decisions: Decisions, reader: AvroReader
    ) -> None:
        self._registry = registry
        self._url = url
        self._decisions = decisions
        self._reader = reader
        self._unknown: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self._loaded = False

    async def prepare(
        self, records: Sequence[LogRecord], values: Sequence[bytes | None]
    ) -> dict[int, str]:
        """Learn the schemas that `values`, parts of `records`, name; why some have none, by index.

        Raises: Unavailable if the registry is away and there is a number that nobody has asked for.
        """
        if not self._loaded:
            await self._load()
        refused: dict[int, str] = {}
        open_numbers: dict[int, list[int]] = defaultdict(list)
        for index, (record, value) in enumerate(zip(records, values, strict=True)):
            try:
                number = schema_number(value)
            except BadRow:
                continue  # it becomes a letter where it is decoded
            if self._was_unknown(number, record.partition, record.offset):
                refused[index] = self._reason(number)
            elif not self._reader.knows(number):
                open_numbers[number].append(index)
        for number, indexes in open_numbers.items():
            if not await self._learn(number, [records[index] for index in indexes]):
                refused |= dict.fromkeys(indexes, self._reason(number))
        return refused

    def _reason(self, number: int) -> str:
        return f"the schema registry has no schema {number}"

    async def close(self) -> None:
        """Release the registry."""
        await self._registry.close()

    async def _load(self) -> None:
        for decision in await self._decisions.all():
            if decision.of != self._url:
                continue
            if decision.about == "schema":
                self._know(decision)
            elif decision.about == "unknown-schema":
                place = decision.number, decision.partition
                insort(self._unknown[place], (decision.first, decision.last))
        self._loaded = True

    def _was_unknown(self, number: int, partition: int, offset: int) -> bool:
        ranges = self._unknown.get((number, partition))
        if not ranges:
            return False
        at = bisect_right(ranges, offset, key=lambda each: each[0])
        return at > 0 and offset <= ranges[at - 1][1]

    async def _learn(self, number: int, records: Sequence[LogRecord]) -> bool:
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
        offsets: dict[int, list[int]] = defaultdict(list)
        for record in records:
            offsets[record.partition].append(record.offset)
        unknown = [
            Decision("unknown-schema", self._url, number, partition, min(each), max(each))
            for partition, each in offsets.items()
        ]
        await self._decisions.make(unknown)
        for decision in unknown:
            place = number, decision.partition
            insort(self._unknown[place], (decision.first, decision.last))
        return False

    def _know(self, decision: Decision) -> None:
        schema = msgspec.json.decode(decision.text, type=RegisteredSchema)
        if schema.kind == "AVRO":
            self._reader.know(decision.number, schema.text, schema.references)
        else:
            self._reader.refuse(decision.number, f"its schema is one of {schema.kind}, not of Avro")
