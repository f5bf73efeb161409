"""Reading parts: only those that can matter, each decoded once while it is in use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, TIME, accumulate, consolidate
from tidemill.shard.parts import decode_part, may_match
from tidemill.shard.ports import Blob
from tidemill.shard.state import Part, State
from tidemill.time import Corrupt

CACHE_BYTES_MAX = 256 * 1024 * 1024


class PartGone(Exception):
    """An object was collected after the state that names it was read: read the state again."""


class PartCache:
    """Decoded parts, the least recently used ones forgotten beyond `bytes_max`."""

    def __init__(self, blob: Blob, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._blob = blob
        self._bytes_max = bytes_max
        self._held: OrderedDict[str, pa.Table] = OrderedDict()
        self._bytes = 0

    async def table(self, part: Part, schema: pa.Schema) -> pa.Table:
        """The updates of a part. Raises: PartGone, Corrupt."""
        name = part.key or part.checksum
        held = self._held.get(name)
        if held is not None and held.schema.equals(schema):
            self._held.move_to_end(name)
            return held
        data = part.inline
        if data is None:
            assert part.key is not None
            data = await self._blob.get(part.key)
            if data is None:
                raise PartGone(part.key)
        table = decode_part(data, part, schema, name)
        self._remember(name, table)
        return table

    def _remember(self, name: str, table: pa.Table) -> None:
        replaced = self._held.pop(name, None)
        self._bytes += table.nbytes - (replaced.nbytes if replaced is not None else 0)
        self._held[name] = table
        while self._bytes > self._bytes_max and len(self._held) > 1:
            _, dropped = self._held.popitem(last=False)
            self._bytes -= dropped.nbytes


async def updates_where(state: State, cache: PartCache, wanted: Callable[[Part], bool]) -> pa.Table:
    """The updates of all wanted parts, one after the other."""
    schema = state.description.update_schema()
    tables = [await cache.table(part, schema) for part in state.parts() if wanted(part)]
    return pa.concat_tables(tables) if tables else schema.empty_table()


async def contents_at(
    state: State,
    cache: PartCache,
    as_of: int,
    *,
    columns: Sequence[str] | None = None,
    equal: Mapping[str, object] | None = None,
    where: pc.Expression | None = None,
) -> pa.Table:
    """The rows present at `as_of` with their multiplicity in `_diff`.

    Parts whose statistics exclude the time or the values of `equal` are not read. Raises: Corrupt if a
    multiplicity is negative and the collection does not allow it.
    """
    fixed = equal or {}

    def wanted(part: Part) -> bool:
        return part.time_min <= as_of and may_match(part, fixed)

    updates = await updates_where(state, cache, wanted)
    for name, value in fixed.items():
        updates = updates.filter(_equals(name, value))
    if where is not None:
        updates = updates.filter(where)
    present = accumulate(updates, as_of)
    if not state.description.allow_negative and present.num_rows:
        _refuse_negative(present)
    if columns is not None:
        present = present.select([*columns, DIFF])
    return present


def _equals(name: str, value: Any) -> pc.Expression:
    column = pc.field(name)
    matches: pc.Expression = column.is_null() if value is None else column == value
    return matches


def _refuse_negative(present: pa.Table) -> None:
    least = pc.min(present[DIFF]).as_py()
    if least >= 0:
        return
    row = present.filter(pc.field(DIFF) < 0).slice(0, 1).to_pylist()[0]
    multiplicity = row.pop(DIFF)
    raise Corrupt(f"the row {row} has the multiplicity {multiplicity}", row=row)


async def changes_between(
    state: State, cache: PartCache, lower: int, upper: int | None
) -> pa.Table:
    """All updates with lower <= time < upper (None: no bound), consolidated."""

    def wanted(part: Part) -> bool:
        return part.time_max >= lower and (upper is None or part.time_min < upper)

    updates = await updates_where(state, cache, wanted)
    keep = pc.field(TIME) >= pa.scalar(lower, pa.uint64())
    if upper is not None:
        keep = keep & (pc.field(TIME) < pa.scalar(upper, pa.uint64()))
    return consolidate(updates.filter(keep))
