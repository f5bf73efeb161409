"""Partitions of a scan, and the reading of one: a range of a version that is held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidemill.arrangement.updates import DIFF, TIME, stamp
from tidemill.client.capabilities import AsyncReader
from tidemill.client.spark.columns import batches, copies
from tidemill.client.spark.filters import Pushed
from tidemill.client.spark.objects import LocatedObjects
from tidemill.client.spark.options import Options
from tidemill.errors import BeforeSince, CapabilityExpired, Corrupt, UnknownCapability
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.messages import HeldCapability, HeldVersion
from tidemill.shard.encoding import decode_rollup, encode_rollup
from tidemill.shard.part_store import PartGone, PartStore
from tidemill.shard.ranges import (
    RANGE_ROWS,
    RangeOf,
    RangeReader,
    cut,
    range_of,
    with_parts,
)
from tidemill.shard.state import State


@dataclass(frozen=True, slots=True)
class Wanted:
    """Content of a scan: rows at `at`, or, with an `upper`, changes at `at` <= time < `upper`.

    `shown` are its columns in the order of the DataFrame. With `snapshot` changes begin with the
    contents at `at`. `pushed` are the filters that are met here.
    """

    shown: tuple[str, ...]
    at: int
    upper: int | None = None
    snapshot: bool = False
    pushed: Pushed = field(default_factory=Pushed)

    @property
    def columns(self) -> tuple[str, ...]:
        """The data columns among them."""
        return tuple(name for name in self.shown if name not in (TIME, DIFF))

    @property
    def times(self) -> tuple[int, int]:
        """Updates from the first instant to before the second one are read."""
        if self.upper is None:
            return 0, self.at + 1
        return 0 if self.snapshot else self.at, self.upper


class Piece(InputPartition):  # type: ignore[misc]  # pyspark has no types
    """A range of a version, with the capability that keeps its objects; without one no rows."""

    def __init__(
        self, wanted: Wanted, held: HeldCapability | None = None, given: RangeOf | None = None
    ) -> None:
        self.wanted = wanted
        self.held = held
        self.hashes = None if given is None else given.hashes
        self.version = b"" if given is None else encode_rollup(given.version)

    def range(self) -> RangeOf:
        """The range, as it was cut."""
        assert self.hashes is not None
        return RangeOf(self.hashes, decode_rollup(self.version, "a version that is scanned"))

    def range_in(self, version: State) -> RangeOf:
        """The same range of a version that was held later."""
        assert self.hashes is not None
        return range_of(version, self.hashes, *self.wanted.times, self.wanted.pushed.where)


def version_of(held: HeldVersion) -> State:
    """The version that is held. Raises: Corrupt; UsageError for one of a newer format."""
    return decode_rollup(held.version, f"the version of {held.capability.collection}")


def pieces(held: HeldVersion, wanted: Wanted, options: Options) -> list[Piece]:
    """The partitions of a scan; none if there is nothing to read."""
    rows = options.rows or RANGE_ROWS
    ranges = cut(version_of(held), *wanted.times, wanted.pushed.where, rows)
    return [Piece(wanted, held.capability, each) for each in ranges]


def scanned(options: Options, piece: Piece) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, all of them or an error.

    The capability is renewed meanwhile. If it is over, the range is read of a version that is held
    anew: at an instant all versions have the same rows. Raises: BeforeSince where history at the
    instant is gone.
    """
    if piece.held is None:
        return
    wanted = piece.wanted
    with options.connect() as calls:
        scan = calls.drive(lambda client: _Scan.begin(client, options, piece))
        try:
            tables = calls.drive(lambda _: scan.tables())
            while tables:
                table = tables.pop()
                yield from batches(table if DIFF in wanted.shown else copies(table), wanted.shown)
        finally:
            calls.drive(lambda _: scan.end())


class _Scan:
    """The scan of one partition by one task."""

    def __init__(self, client: AsyncClient, options: Options, piece: Piece) -> None:
        self._client = client
        self._options = options
        self._piece = piece
        self._anew = False
        self._given = piece.range()
        assert piece.held is not None
        self._kept = AsyncReader(client, piece.held, options.lease_ms)

    @classmethod
    async def begin(cls, client: AsyncClient, options: Options, piece: Piece) -> _Scan:
        """A scan whose capability lives, and is renewed until it ends."""
        scan = cls(client, options, piece)
        try:
            await client.storage.renew(scan._kept.capability)
            await scan._kept.__aenter__()
        except (CapabilityExpired, UnknownCapability):
            await scan._hold_anew()
        return scan

    async def _hold_anew(self) -> None:
        options, wanted = self._options, self._piece.wanted
        try:
            held = await self._client.storage.hold_version(
                options.collection, wanted.at, owner="spark", lease_ms=options.lease_ms
            )
        except BeforeSince as error:
            raise BeforeSince(
                f"the scan of {options.collection} as of {wanted.at} has ended, for no task of it "
                f"ran for {options.lease_ms / 1000:g} s, and history there is gone: load it again, "
                f"with a longer option('lease', SECONDS) if tasks wait for so long ({error})",
                **error.details,
            ) from error
        self._kept = AsyncReader(self._client, held.capability, options.lease_ms)
        await self._kept.__aenter__()
        self._anew, self._given = True, self._piece.range_in(version_of(held))

    async def tables(self) -> list[pa.Table]:
        """The rows of the range. Raises: Corrupt for an object that is missing."""
        try:
            return await self._read()
        except (PartGone, CapabilityExpired, UnknownCapability):
            await self.end()
            await self._hold_anew()
        try:
            return await self._read()
        except PartGone as gone:
            raise Corrupt(
                f"the object {gone} of {self._options.collection} is missing", object=str(gone)
            ) from gone

    async def _read(self) -> list[pa.Table]:
        capability, wanted = self._kept.capability, self._piece.wanted
        objects = LocatedObjects(partial(self._client.storage.locate, capability))
        parts = PartStore(objects, lambda: "")
        objects.expect(self._given.version.objects())
        given = await with_parts(parts, self._given, *wanted.times, wanted.pushed.where)
        objects.expect(given.version.objects())
        return await _read(RangeReader(parts), given, wanted)

    async def end(self) -> None:
        """Renew no more; what was held for this task alone is dropped."""
        await (self._kept.drop() if self._anew else self._kept.keep())


async def _read(reader: RangeReader, given: RangeOf, wanted: Wanted) -> list[pa.Table]:
    where, filtered = wanted.pushed.where, wanted.pushed.columns
    if wanted.upper is None:
        return await reader.contents(given, wanted.at, wanted.columns, where, filtered)
    lower, tables = wanted.at, []
    if wanted.snapshot:
        lower += 1
        for table in await reader.contents(given, wanted.at, wanted.columns):
            diffs = table.column(DIFF)
            stamped = stamp(table.drop_columns([DIFF]), wanted.at)
            tables.append(stamped.set_column(stamped.num_columns - 1, DIFF, diffs))
    return [*tables, await reader.changes(given, lower, wanted.upper, wanted.columns)]
