"""Numbers beyond those of the language are refused before anything is computed with them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tidemill.catalog.directory import Readable, ViewOf
from tidemill.datalog.check import check
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.errors import UsageError
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, MemoryBlob, MemoryConsensus
from tidemill_query.driver import QueryDriver
from tidemill_query.settings import QuerySettings

COLUMNS = (("k", "int"),)


class OneView:
    """A directory of one view."""

    def view_of(self, predicate: str) -> ViewOf:
        known = InputSchemas({"t": InputSchema("t", "relation", COLUMNS)})
        program = check(parse("big(k) := t(k);"), known)
        both = {each: Readable(each, each, COLUMNS, 1, lambda table: []) for each in ("t", "big")}
        return ViewOf("v", program, {"t": both["t"]}, {"big": both["big"]})


@pytest.mark.parametrize("ask", [QueryDriver.why, QueryDriver.why_not])
@pytest.mark.parametrize(
    "record", ["big(9223372036854775808)", "big(-9223372036854775809)", f"big(1) @time({1 << 70})"]
)
async def test_a_record_of_more_than_64_bits_is_refused(ask: Any, record: str) -> None:
    """The answer was that the server had failed: an OverflowError of the words of a fact."""
    ids, directory = itertools.count(), OneView()
    store = Collections(MemoryConsensus(), MemoryBlob(), ManualClock(0), lambda: f"i{next(ids)}")
    query = QueryDriver(store, directory, ManualClock(0), QuerySettings())  # type: ignore[arg-type]  # of what is asked
    with pytest.raises(UsageError, match="more than 64 bits"):
        await ask(query, record, None)
