"""A version cut into ranges of the hashes of its keys, and the rows of one range.

Ranges are dyadic, as the parts of large batches are: each of these is read by one range.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF
from tidemill.shard.listed import PartList
from tidemill.shard.part_store import PartStore
from tidemill.shard.parts import Part, decode_part
from tidemill.shard.pruning import parts_where
from tidemill.shard.reading import Query, VersionReader, selected
from tidemill.shard.state import Batch, Description, State

RANGE_ROWS = 1_000_000
"""Updates of a range, if its parts can be told apart by hash."""
RANGE_BYTES = 16 * 1024 * 1024
"""Bytes of parts, as they are stored, that count as a whole range."""
LARGEST = 8
"""Size of the largest range, in sizes that are wanted: a task has all of its rows in memory."""
BITS_MAX = 12
READ_AGAIN_SHARE = 4
"""Of so many updates at most one is read by a second range."""
INLINE_BYTES_MAX = 16 * 1024 * 1024
"""Updates of the log, summed over all ranges, each of which is given them."""

Hashes: TypeAlias = tuple[int, int]
"""The first and the last hash of a range, both included."""


@dataclass(frozen=True, slots=True)
class RangeOf:
    """A range of a version, and that version without the parts that hold nothing of it."""

    hashes: Hashes
    version: State


def bare(state: State) -> State:
    """A version without its holders and what is not readable: the batches alone."""
    return replace(State(state.description, state.since, state.upper), batches=state.batches)


def cut(
    state: State,
    lower: int,
    upper: int,
    where: pc.Expression | None = None,
    rows: int = RANGE_ROWS,
) -> list[RangeOf]:
    """The ranges of a version that may hold updates at lower <= time < upper, about `rows` each.

    Together they have each row once: a part of several ranges is given to all of them, and each
    takes what is its own. So it is with lists of parts, which are not read here. Cost:
    O(pieces * log ranges), for the parts and lists of the version.
    """
    met = _met(state, lower, upper, where)
    if not any(batch.pieces for batch in met.batches):
        return []
    bits = _bits(met, rows)
    found = [_in_range(met, _hashes(number, bits)) for number in range(1 << bits)]
    return [each for each in found if each.version.batches]


def range_of(
    state: State, hashes: Hashes, lower: int, upper: int, where: pc.Expression | None = None
) -> RangeOf:
    """The same range of another version: rows of an instant do not depend on it (P1)."""
    return _in_range(_met(state, lower, upper, where), hashes)


async def with_parts(
    parts: PartStore, given: RangeOf, lower: int, upper: int, where: pc.Expression | None = None
) -> RangeOf:
    """The range with its parts by themselves. Raises: PartGone, Corrupt.

    Cost: a read of each list that may name some of them.
    """
    whole = await parts.whole(given.version)
    return given if whole is given.version else range_of(whole, given.hashes, lower, upper, where)


def _in_range(met: State, hashes: Hashes) -> RangeOf:
    own = (_among(batch, _meeting(batch.pieces, hashes)) for batch in met.batches)
    return RangeOf(hashes, replace(met, batches=tuple(batch for batch in own if batch.pieces)))


def _among(batch: Batch, pieces: Sequence[Part | PartList]) -> Batch:
    """A batch with some of its pieces alone."""
    parts = tuple(piece for piece in pieces if isinstance(piece, Part))
    lists = tuple(piece for piece in pieces if isinstance(piece, PartList))
    return replace(batch, parts=parts, lists=lists)


def _met(state: State, lower: int, upper: int, where: pc.Expression | None) -> State:
    """The version with the pieces alone that may hold updates that are wanted."""

    def met(batch: Batch) -> Batch:
        pieces = [piece for piece in batch.pieces if piece.meets(lower, upper)]
        if where is not None:
            pieces = parts_where(pieces, state.description.schema, where)
        return _among(batch, pieces)

    return replace(bare(state), batches=tuple(met(batch) for batch in state.batches))


def _hashes(number: int, bits: int) -> Hashes:
    return number << (64 - bits), ((number + 1) << (64 - bits)) - 1


def _meeting(pieces: Sequence[Part | PartList], hashes: Hashes) -> tuple[Part | PartList, ...]:
    first, last = hashes
    return tuple(piece for piece in pieces if piece.hash_min <= last and first <= piece.hash_max)


def _bits(met: State, rows: int) -> int:
    """The bits of as many ranges as are wanted, or of as many as cost little reading again.

    They are more if ranges would have more than LARGEST times what is wanted.
    """
    pieces = [(piece, batch.runs) for batch in met.batches for piece in batch.pieces]
    weights = [max(piece.rows, piece.size * rows // RANGE_BYTES) for piece, _ in pieces]
    total, inline = sum(weights), sum(batch.inline_bytes for batch in met.batches)
    least = _bits_for(total, LARGEST * rows)
    for bits in range(_bits_for(total, rows), least, -1):
        read = sum(
            weight * _ranges_of(*piece, bits) for piece, weight in zip(pieces, weights, strict=True)
        )
        if read <= total + total // READ_AGAIN_SHARE and inline << bits <= INLINE_BYTES_MAX:
            return bits
    return least


def _bits_for(total: int, each: int) -> int:
    return min(BITS_MAX, max(0, -(-total // each) - 1).bit_length())


def _ranges_of(piece: Part | PartList, runs: int, bits: int) -> int:
    """The ranges in which a part has rows, or a part of a list on average.

    Parts of one run share the hashes of a list among them.
    """
    if isinstance(piece, Part):
        return (piece.hash_max >> (64 - bits)) - (piece.hash_min >> (64 - bits)) + 1
    each = (piece.hash_max - piece.hash_min) * runs // piece.parts
    return 1 + (min(each, piece.hash_max - piece.hash_min) >> (64 - bits))


class RangeReader:
    """Reads ranges of a version. Of a part only the columns that are needed are decoded.

    IMPORTANT: `with_parts` has read the lists of a range.
    """

    def __init__(self, parts: PartStore) -> None:
        self._parts = parts
        self._reader = VersionReader(parts)

    async def contents(
        self,
        given: RangeOf,
        as_of: int,
        columns: Sequence[str],
        where: pc.Expression | None = None,
        filtered: Collection[str] = (),
    ) -> list[pa.Table]:
        """The rows of a range at `as_of`: `columns` and `_diff`, which is never 0.

        Equal rows may be apart. `filtered` are the columns that `where` names. Raises: PartGone;
        Corrupt as `VersionReader.contents`. Cost: O(n) in the updates of the range where nothing
        was taken away; else that of `VersionReader.contents`.
        """
        query = Query(columns, where=where, hashes=given.hashes)
        added = await self._read_added(given, as_of, query, filtered)
        if added is not None:
            return added
        return [await self._reader.contents(given.version, as_of, query)]

    async def changes(
        self,
        given: RangeOf,
        lower: int,
        upper: int,
        columns: Sequence[str],
        where: pc.Expression | None = None,
    ) -> pa.Table:
        """The consolidated updates of a range at lower <= time < upper."""
        query = Query(columns, where=where, hashes=given.hashes)
        return await self._reader.changes(given.version, lower, upper, query)

    async def _read_added(
        self, given: RangeOf, as_of: int, query: Query, filtered: Collection[str]
    ) -> list[pa.Table] | None:
        """The rows, if no update up to `as_of` takes any away: then each is one, whatever is left
        out of it. None otherwise.
        """
        description = given.version.description
        key = description.key or description.schema.names
        tables = []
        for part in given.version.parts():
            crosses = query.crosses(part)
            needed = {*(query.columns or ()), *filtered, *(key if crosses else ())}
            names = [name for name in description.schema.names if name in needed]
            table = await self._decode(part, description, names)
            rows = selected(table, part, 0, as_of + 1, query, key)
            if rows.num_rows and pc.min(rows.column(DIFF)).as_py() <= 0:
                return None
            tables.append(rows.select([*(query.columns or ()), DIFF]))
        return [table for table in tables if table.num_rows]

    async def _decode(self, part: Part, description: Description, names: Sequence[str]) -> pa.Table:
        schema, arrived = description.update_schema(), description.arrived
        data = await self._parts.data(part)
        return decode_part(data, part, schema, arrived, columns=names)
