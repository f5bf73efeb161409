"""Rows that are taken away although they are not there: refused before they are written."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, TIME, concatenate, overdrawn, shown_record, stamp
from tidemill.errors import UsageError
from tidemill.shard.conforming import adding_up
from tidemill.shard.lookup import searchable
from tidemill.shard.reading import Query, VersionReader
from tidemill.shard.state import Batch, State
from tidemill.time import sole_time


def takes_away(updates: pa.Table) -> bool:
    """Whether some update has a negative diff; False where none has one, and all are refused."""
    at = updates.schema.get_field_index(DIFF)
    if at < 0 or not pa.types.is_integer(updates.schema.field(at).type):
        return False
    least = pc.min(updates.column(at)).as_py()
    return least is not None and least < 0


async def refuse_absent(
    reader: VersionReader, collection: str, state: State, updates: pa.Table
) -> None:
    """Refuse updates after which a record would be there less often than not at all, at any time.

    Everything written counts: all before upper, and the updates of writers that are ahead of it.
    Raises: UsageError (NotThere) naming a record; Corrupt where one is missing already; PartGone.
    Cost: a read of all parts that may hold one of the records.
    """
    gone = updates.filter(pc.less(updates.column(DIFF), 0))
    query = Query(where=_like(gone))
    pieces = [_matching(updates, query)]
    if state.batches:
        present = await reader.contents(state, sole_time(state.upper) - 1, query)
        held = stamp(present.drop_columns([DIFF]), 0).select(updates.column_names)
        place = held.schema.get_field_index(DIFF)
        pieces.append(held.set_column(place, DIFF, present.column(DIFF)))
    ahead = replace(state, batches=(Batch(state.upper, 0, state.staged_parts()),))
    pieces += await reader.pieces(ahead, 0, None, query)
    ordered = [piece.select(updates.column_names).cast(updates.schema) for piece in pieces]
    with adding_up():
        wrong = overdrawn(concatenate(ordered))
    if wrong.num_rows:
        row, at = shown_record(wrong.drop_columns([TIME, DIFF])), wrong.column(TIME)[0].as_py()
        raise UsageError(
            f"rows for {collection}: {row} would be taken away more often than it is there, at {at}; "
            "nothing was written",
            reason="NotThere",
        )


def _like(rows: pa.Table) -> pc.Expression | None:
    """A test that each of the rows passes, and few others; None for rows that nothing tells
    apart.
    """
    test: pc.Expression | None = None
    for field in rows.schema:
        if field.name not in (TIME, DIFF) and searchable(field.type):
            one = pc.field(field.name).isin(pc.unique(rows.column(field.name)))
            test = one if test is None else test & one
    return test


def _matching(updates: pa.Table, query: Query) -> pa.Table:
    return updates if query.where is None else updates.filter(query.where)
