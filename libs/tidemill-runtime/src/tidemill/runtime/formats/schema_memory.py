"""Memory of numbered schemas: it decides the fate of a record, wherever it is decoded."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from tidemill.runtime.formats.avro import AvroReader, schema_number
from tidemill.runtime.formats.columns import BadRow
from tidemill.runtime.formats.registry import RegisteredSchema


class NumberedRecords(msgspec.Struct, frozen=True):
    """The records of a partition from `first` to `last` that name the schema `number`."""

    number: int
    partition: int
    first: int
    last: int


class KnownSchemas(msgspec.Struct, frozen=True):
    """Schemas that were found, and records whose schema the registry did not know when they
    came.
    """

    found: dict[int, RegisteredSchema] = {}
    unknown: list[NumberedRecords] = []


class SchemaMemory:
    """Teaches a reader what is known, and sorts out the records that it cannot read. Pure."""

    def __init__(self, reader: AvroReader, known: KnownSchemas | None = None) -> None:
        self._reader = reader
        self._found: dict[int, RegisteredSchema] = {}
        self._unknown: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        if known is not None:
            for number, schema in known.found.items():
                self.know(number, schema)
            for records in known.unknown:
                self.know_unknown(records)

    @property
    def known(self) -> KnownSchemas:
        """Everything, so that another process can know it."""
        unknown = [
            NumberedRecords(number, partition, first, last)
            for (number, partition), ranges in self._unknown.items()
            for first, last in ranges
        ]
        return KnownSchemas(dict(self._found), unknown)

    def know(self, number: int, schema: RegisteredSchema) -> None:
        """The schema of a number is this one."""
        self._found[number] = schema
        if schema.kind == "AVRO":
            self._reader.know(number, schema.text, schema.references)
        else:
            self._reader.refuse(number, f"its schema is one of {schema.kind}, not of Avro")

    def know_unknown(self, records: NumberedRecords) -> None:
        """These records have no schema, whatever the registry says later."""
        insort(self._unknown[records.number, records.partition], (records.first, records.last))

    def sort_out(
        self, partitions: Sequence[int], offsets: Sequence[int], values: Sequence[bytes | None]
    ) -> tuple[dict[int, str], dict[int, list[int]]]:
        """(why a record has no schema, by index; the indexes of records by numbers not decided
        yet).
        """
        refused: dict[int, str] = {}
        undecided: dict[int, list[int]] = defaultdict(list)
        for index, value in enumerate(values):
            try:
                number = schema_number(value)
            except BadRow:
                continue  # it becomes a letter where it is decoded
            if self._was_unknown(number, partitions[index], offsets[index]):
                refused[index] = no_schema(number)
            elif not self._reader.knows(number):
                undecided[number].append(index)
        return refused, undecided

    def _was_unknown(self, number: int, partition: int, offset: int) -> bool:
        ranges = self._unknown.get((number, partition))
        if not ranges:
            return False
        at = bisect_right(ranges, offset, key=lambda each: each[0])
        return at > 0 and offset <= ranges[at - 1][1]


def no_schema(number: int) -> str:
    """Why a record becomes a letter whose schema nobody knows."""
    return f"the schema registry has no schema {number}"


def spans(
    number: int, partitions: Sequence[int], offsets: Sequence[int], indexes: Sequence[int]
) -> list[NumberedRecords]:
    """The records at `indexes`, which all name one schema, as one range for each partition."""
    found: dict[int, list[int]] = defaultdict(list)
    for index in indexes:
        found[partitions[index]].append(offsets[index])
    return [
        NumberedRecords(number, partition, min(each), max(each))
        for partition, each in found.items()
    ]
