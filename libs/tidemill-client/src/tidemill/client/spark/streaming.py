"""The stream reader: changes of a collection, with its upper as the offset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tidemill.client.capabilities import AsyncReader, hold
from tidemill.client.spark.columns import chosen, lanes_of
from tidemill.client.spark.options import Options
from tidemill.client.spark.scanning import Piece, Wanted, pieces, scanned, version_of
from tidemill.rpc.blocking import BlockingClient
from tidemill.rpc.client import AsyncClient
from tidemill.time import Frontier, sole_time

Offset: TypeAlias = "dict[str, Any]"
"""The `frontier` before which changes were given.

With `snapshot` none were, and the contents at the frontier come first.
"""
CLOSED = 2**62
"""Offset behind the end of a collection to which nothing comes any more."""


class ChangesReader(DataSourceStreamReader):  # type: ignore[misc]  # pyspark has no types
    """Gives the contents at a first instant, then each change once, batch by batch.

    A capability holds the collection where the last committed batch ended. So a batch that is read
    again has the rows it had. A stream that begins anew behind since hears BeforeSince.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._calls: BlockingClient | None = None
        self._held: AsyncReader | None = None
        self._versions: list[tuple[int, AsyncReader]] = []
        self._first: Offset | None = None

    def _open(self) -> BlockingClient:
        if self._calls is None:
            self._calls = self._options.connect()
        return self._calls

    def _holding(self) -> AsyncReader:
        """The capability of the stream, at since when it begins."""
        options = self._options

        async def begin(client: AsyncClient) -> AsyncReader:
            held = await hold(
                client, options.collection, owner="spark stream", lease_ms=options.lease_ms
            )
            return await held.__aenter__()

        if self._held is None:
            self._held = self._open().drive(begin)
        return self._held

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names, as below
        """The instant of the first contents: `startingAt`, by default since."""
        begin = self._holding().frontier
        at = self._options.starting_at
        self._first = {"frontier": begin if at is None else at, "snapshot": True}
        return self._first

    def latestOffset(self, start: Offset | None = None, limit: object = None) -> Offset:  # noqa: N802
        """The upper of the collection, or where the stream is if that is no further."""
        self._holding()
        said = self._open().explain_timestamp([self._options.collection])
        upper = _offset(said.inputs[0][1].upper)
        at = start or self._first or {"frontier": 0}
        return at if upper <= at["frontier"] else {"frontier": upper}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The ranges of what changed between two offsets."""
        at, upper = int(start["frontier"]), int(end["frontier"])
        if upper <= at:
            return []
        self._holding()
        options = self._options

        async def take(client: AsyncClient) -> tuple[Any, AsyncReader]:
            held = await client.storage.hold_version(
                options.collection, at, owner="spark stream", lease_ms=options.lease_ms
            )
            kept = await AsyncReader(client, held.capability, options.lease_ms).__aenter__()
            return held, kept

        held, kept = self._open().drive(take)
        self._versions.append((upper, kept))
        schema = version_of(held).description.schema
        names = chosen(lanes_of(schema, time=True, diff=True), self._schema)
        wanted = Wanted(tuple(names), at, upper, snapshot=bool(start.get("snapshot")))
        return pieces(held, wanted, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of a range."""
        assert isinstance(partition, Piece)
        return scanned(self._options, partition)

    def commit(self, end: Offset) -> None:
        """Give up what batches up to this offset have read."""
        upper = int(end["frontier"])
        done = [kept for until, kept in self._versions if until <= upper]
        self._versions = [each for each in self._versions if each[0] > upper]
        for kept in done:
            _drop(self._open(), kept)
        held = self._holding()
        if held.frontier < upper < CLOSED:
            self._open().drive(lambda _: held.downgrade(upper))

    def stop(self) -> None:
        """Drop everything that is held."""
        calls, self._calls = self._calls, None
        if calls is None:
            return
        for kept in [*(kept for _, kept in self._versions), self._held]:
            if kept is not None:
                _drop(calls, kept)
        self._versions, self._held = [], None
        calls.close()


def _drop(calls: BlockingClient, kept: AsyncReader) -> None:
    calls.drive(lambda _: kept.drop())


def _offset(upper: Frontier) -> int:
    return CLOSED if upper.empty else sole_time(upper)
