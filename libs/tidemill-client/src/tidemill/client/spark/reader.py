"""The batch reader: the contents of a collection as of an instant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidemill.client.spark.columns import chosen, lanes_of
from tidemill.client.spark.filters import Pushed, pushed
from tidemill.client.spark.options import Options
from tidemill.client.spark.scanning import Piece, Wanted, pieces, scanned, version_of
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.messages import HeldVersion


class _Pushing:
    """The method `pushFilters` of a reader.

    While its setting for pushing is off, Spark refuses a reader with such a method of its own. It
    tells so by `__func__`. It then does not call the method, and filters all rows itself.
    """

    def __init__(self, push: Callable[[list[Any]], Iterable[Any]]) -> None:
        self._push = push
        self.__func__ = getattr(DataSourceReader, "pushFilters", None)

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        return self._push(filters)


def held_version(options: Options, at: int | None) -> HeldVersion:
    """The newest version, held for a scan."""

    async def hold(client: AsyncClient) -> HeldVersion:
        return await client.storage.hold_version(
            options.collection, at, owner="spark", lease_ms=options.lease_ms, token=options.version
        )

    with options.connect() as calls:
        return calls.drive(hold)


class ContentsReader(DataSourceReader):  # type: ignore[misc]  # pyspark has no types
    """Reads a collection as of one instant, by a capability that each task renews.

    The capability ends `lease` after the last task, or when `reading` drops it.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pushed = Pushed()
        self._held: HeldVersion | None = None
        self.pushFilters = _Pushing(self._push)

    def __getstate__(self) -> dict[str, object]:
        """The state for tasks: each has its part of the version in its partition."""
        return {**self.__dict__, "_held": None, "_pushed": Pushed(), "pushFilters": None}

    def _version(self) -> HeldVersion:
        if self._held is None:
            self._held = held_version(self._options, self._options.as_of)
        return self._held

    def _push(self, filters: list[Any]) -> Iterable[Any]:
        """The filters that Spark has to apply; the others are met here."""
        schema = version_of(self._version()).description.schema
        self._pushed, left = pushed(filters, schema)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges of the version; one without rows if there are none."""
        held = self._version()
        schema = version_of(held).description.schema
        names = chosen(lanes_of(schema, diff=self._options.multiplicity), self._schema)
        wanted = Wanted(tuple(names), held.at, pushed=self._pushed)
        return pieces(held, wanted, self._options) or [Piece(wanted)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""
        assert isinstance(partition, Piece)
        return scanned(self._options, partition)
