"""Translations over collections as they may be: compacted, ended in the middle, on a timeline of
their own.
"""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.updates import update_schema
from tidemill.catalog.directory import Readable, SourceOf, ViewOf
from tidemill.errors import BeforeSince, NotYet, UnknownCollection
from tidemill.reclock import REMAP_SCHEMA, rows_of_bindings
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.testkit.twins.reclocking import bindings_of_history
from tidemill.time import frontier, partition_frontier, partition_offsets
from tidemill_query.driver import QueryDriver
from tidemill_query.settings import QuerySettings

ROWS = pa.schema([("n", pa.int64())])
EVENT_MAP = pa.schema(
    [("partition", pa.int64()), ("frontier", pa.int64()), ("instant", pa.int64())]
)
STREAM = -1


class Names:
    """A directory of one source, with or without a timeline of its own."""

    def __init__(self, *, staged: bool) -> None:
        self._source = SourceOf("s", "s", "s/remap", 0, "s/eventmap" if staged else None)

    def find(self, name: str) -> Readable:
        return Readable(name, name, (), 0, lambda table: [])

    def source(self, name: str) -> SourceOf:
        return self._source

    def view(self, name: str) -> ViewOf:
        raise UnknownCollection(f"there is no view {name}", name=name)

    def view_of(self, predicate: str) -> ViewOf:
        return self.view(predicate)

    def views(self) -> list[ViewOf]:
        return []


async def make_source(
    offsets: list[int], moves: dict[int, int] | None = None, written: int | None = None
) -> tuple[Collections, QueryDriver]:
    """A source that is at `offsets[t]` at instant t; whose event time came where at which
    instant.
    """
    clock, ids = ManualClock(0), map(str, itertools.count())
    collections = Collections(MemoryConsensus(), MemoryBlob(), clock, ids.__next__)
    upper = len(offsets)
    held = [(t, partition_frontier({0: o} if o else {})) for t, o in enumerate(offsets)]
    reached = max([0, *(moves or {}).values()])
    mapped, before = [], (0, 0)
    for instant, time in sorted((moves or {}).items()):
        mapped += [(STREAM, time, instant, instant, 1)]
        mapped += [(STREAM, *before, instant, -1)] if before != (0, 0) else []
        before = time, instant
    tables = {
        "s": (ROWS, None, reached if moves is not None else written or upper),
        "s/remap": (REMAP_SCHEMA, rows_of_bindings(bindings_of_history(held)), upper),
        "s/eventmap": (
            EVENT_MAP,
            pa.Table.from_pylist(
                [dict(zip(update_schema(EVENT_MAP).names, row, strict=True)) for row in mapped],
                update_schema(EVENT_MAP),
            ),
            upper,
        ),
    }
    for name, (schema, rows, until) in tables.items():
        capability, _ = await collections.create(name, Description(schema))
        await collections.retain(name, None)
        await collections.drop(capability)
        await collections.compare_and_append(name, frontier(0), frontier(until), rows, writer="w")
    names = Names(staged=moves is not None)
    return collections, QueryDriver(collections, names, clock, QuerySettings())


@pytest.mark.rule("G11")
@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=7).map(sorted))
async def test_d3_there_and_back_is_the_least_instant_with_the_same_answer(
    offsets: list[int],
) -> None:
    offsets = [0, *offsets]
    _, query = await make_source(offsets)
    for at, offset in enumerate(offsets):
        there = await query.translate("s", at, None)
        assert partition_offsets(there.offsets).get(0, 0) == offset
        back = await query.translate("s", there.offsets, None)
        assert back.as_of == offsets.index(offset)
        assert back.offsets == there.offsets


@pytest.mark.rule("G11")
@settings(max_examples=6, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=3, max_size=7).map(sorted),
    st.dictionaries(st.integers(1, 6), st.integers(1, 12), min_size=1, max_size=4),
)
async def test_d3_an_instant_of_event_time_holds_offsets_exactly_from_what_covers_them_on(
    offsets: list[int], drawn: dict[int, int]
) -> None:
    """The definition: what had come by the instant of ours at which event time went past it."""
    offsets = [0, *offsets]
    times = sorted(set(drawn.values()))
    instants = sorted(i for i in drawn if i < len(offsets))
    moves = dict(zip(instants, times, strict=False)) or {1: 3}
    _, query = await make_source(offsets, moves)
    in_answer = {}
    for at in range(max(moves.values())):
        passed = min(instant for instant, time in moves.items() if time > at)
        found = await query.translate("s", at, None)
        assert found.bound_at == passed
        in_answer[at] = partition_offsets(found.offsets).get(0, 0)
        assert in_answer[at] == offsets[passed]
    for wanted in range(1, 6):
        holding = [at for at, offset in in_answer.items() if offset >= wanted]
        if holding:
            found = await query.translate("s", partition_frontier({0: wanted}), None)
            assert found.as_of == holding[0]
        else:
            with pytest.raises(NotYet):
                await query.translate("s", partition_frontier({0: wanted}), None)


async def test_d3_what_was_bound_before_since_is_before_since_and_no_guess() -> None:
    collections, query = await make_source([0, 2, 2, 5, 5, 7, 7, 8])
    for name in ("s", "s/remap"):
        await collections.retain(name, 3)  # from 5 on
    for wanted in (1, 2, 5, 7):
        with pytest.raises(BeforeSince, match=rf"p0={wanted} of s came in at 5 or before"):
            await query.translate("s", partition_frontier({0: wanted}), None)
    found = await query.translate("s", partition_frontier({0: 8}), None)
    assert (found.as_of, partition_offsets(found.offsets)) == (7, {0: 8})
    with pytest.raises(BeforeSince):
        await query.translate("s", 4, None)
    assert partition_offsets((await query.translate("s", 5, None)).offsets) == {0: 7}


async def test_d3_of_event_time_that_was_over_before_its_map_is_known_nothing_is_guessed() -> None:
    collections, query = await make_source([0, 1, 2, 3, 4], {1: 10, 2: 20, 4: 40})
    await collections.retain("s/eventmap", 2)  # from 3 on
    for at in (5, 15):
        with pytest.raises(BeforeSince, match="no longer known"):
            await query.translate("s", at, None)
    assert (await query.translate("s", 20, None)).bound_at == 4


async def test_d3_what_is_bound_and_not_written_is_in_no_answer_yet() -> None:
    _, query = await make_source([0, 1, 2, 3], written=2)
    assert (await query.translate("s", partition_frontier({0: 1}), None)).as_of == 1
    with pytest.raises(NotYet):
        await query.translate("s", partition_frontier({0: 2}), None)
    assert (await query.translate("s", None, None)).as_of == 1
