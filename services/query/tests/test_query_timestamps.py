"""Which instant a question gets, told with what decides it."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from tidemill.catalog.directory import Readable, SourceOf, ViewOf
from tidemill.errors import UnknownCollection
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.time import frontier
from tidemill_query.driver import QueryDriver
from tidemill_query.settings import QuerySettings

SCHEMA = pa.schema([("h", pa.string())])


class Names:
    """A directory of collections alone, each under its own name."""

    def find(self, name: str) -> Readable:
        return Readable(name, name, (("h", "text"),), 1, lambda table: [])

    def view(self, name: str) -> ViewOf:
        raise UnknownCollection(f"there is no view {name}", name=name)

    def view_of(self, predicate: str) -> ViewOf:
        return self.view(predicate)

    def source(self, name: str) -> SourceOf:
        raise UnknownCollection(f"there is no source {name}", name=name)

    def views(self) -> list[ViewOf]:
        return []


async def open_driver() -> tuple[Collections, QueryDriver]:
    """Two collections of the system up to 200 and 100, and one of another timeline."""
    clock, ids = ManualClock(0), map(str, itertools.count())
    collections = Collections(MemoryConsensus(), MemoryBlob(), clock, ids.__next__)
    for name, timeline, upper in (("a", "system", 200), ("b", "system", 100), ("t", "air", 50)):
        held, _ = await collections.create(name, Description(SCHEMA, timeline=timeline))
        await collections.retain(name, None)
        await collections.drop(held)
        await collections.compare_and_append(name, frontier(0), frontier(upper), None, writer="w")
    return collections, QueryDriver(collections, Names(), clock, QuerySettings())


@pytest.mark.rule("F11", "F12", "F13")
async def test_v7_which_instant_a_question_gets_and_what_decides_it_is_told() -> None:
    collections, query = await open_driver()
    answers = await query.tables(["a", "b"], None, None)
    assert {answer.as_of for answer in answers.values()} == {99}
    held = await collections.read_hold("b", at=frontier(40), owner="keeps it", lease_ms=None)
    await collections.retain("b", 1)
    for as_of, asked, said in (
        (None, 99, "the last before the upper of b, [100]"),
        (60, 60, "60 was asked for"),
        (150, None, "150 is not before the upper of b"),
        (39, None, "39 is before the since of b, [40], where it came by"),
    ):
        found = await query.explain_timestamp(["a", "b"], as_of)
        assert (found.chosen, said in found.reason) == (asked, True), found.reason
    (info,) = (info for _, info in found.inputs if info.id == "b")
    assert [(h.owner, h.frontier) for h in info.holders] == [("keeps it", held.frontier)]


async def test_v7_no_instant_is_chosen_over_two_timelines() -> None:
    _, query = await open_driver()
    for as_of in (None, 50):
        found = await query.explain_timestamp(["a", "t"], as_of)
        assert found.chosen is None
        assert "several timelines, air, system" in found.reason
