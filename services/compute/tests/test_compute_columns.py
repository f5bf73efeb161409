"""Facts derived on columns are written as the same updates as those derived on rows."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from tidemill.arrangement.updates import consolidate
from tidemill.catalog.record_rows import row_of, shape_of_output
from tidemill.datalog.check import check
from tidemill.datalog.incremental import FactBlock, IncrementalEngine
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.scratch import Engine
from tidemill.datalog.state import EngineState
from tidemill_compute.views.column_rows import column_updates
from tidemill_compute.views.view_updates import block_table, differences, update_table

PROGRAM = """
seen(h, n) := ping(h, n) ^ host(h);
silent(h) := host(h) ^ not ping(h, _);
alarm(h) @expires(t + 9) := ping(h, n) @time(t) if n > 1;
load(h) @count(n) @average(n) @max(n) := ping(h, n);
mean(h) @average(n) @time(c) @expires(c + 9) := ping(h, n) @time(t) ^ clock(0, 5) @time(c) if t < c ^ t >= c - 5;
known(h) := host(h);
some(h) @max(n) @count(n) := ping(h, n) ^ host(h);
some(h) := ping(h, _) ^ not host(h);
"""


@pytest.mark.parametrize("seed", range(5))
def test_updates_from_columns_are_those_from_rows(seed: int) -> None:
    random = Random(seed)
    checked = check(
        parse(PROGRAM),
        InputSchemas(
            {
                "host": InputSchema("host", "relation", (("name", "text"),)),
                "ping": InputSchema("ping", "events", (("h", "text"), ("n", "int"))),
            }
        ),
    )
    given = {
        "host": [Presence(Record("host", (name,)), random.randrange(20)) for name in "ab"],
        "ping": [
            Presence(Record("ping", (random.choice(("a", "b", None)), n % 4), at, end), at, END if end is None else end)
            for n in range(30)
            for at in [random.randrange(30)]
            for end in [random.choice((None, at + 1 + random.randrange(12)))]
        ],
    }  # fmt: skip
    engine = Engine(checked, columns_from=0)
    state: EngineState | None = None
    written = on_columns = 0
    for lower, upper in pairwise((0, 7, 20, 40)):
        seen = lower - 1 if lower else 0
        evaluation = engine.evaluate(given, lower=seen if lower else None, upper=upper, state=state)
        state = evaluation.state
        for name in checked.derived:
            table, shape = evaluation.tables[name], shape_of_output(checked, name)
            if not table.on_columns:
                continue  # an atom has no facts yet
            on_columns += 1
            row = row_of(shape)
            stretches = [(row(p.record), p.start, p.end) for p in evaluation.presences[name]]
            expected = update_table(differences(stretches, seen, lower, upper), shape.schema)
            found = column_updates(table.columns, shape, seen, lower, upper)  # type: ignore[attr-defined]  # on columns
            assert found.schema == expected.schema
            assert consolidate(found) == consolidate(expected), (name, lower)
            written += found.num_rows
    assert on_columns > 10
    assert written > 20


def test_updates_from_blocks_are_those_from_their_facts() -> None:
    columns = (("a", "text"), ("b", "float"))
    checked = check(
        parse("path(x, y) := edge(x, y); path(x, z) := path(x, y) ^ twin(y, w) ^ edge(w, z);"),
        InputSchemas(
            {
                "edge": InputSchema("edge", "relation", columns),
                "twin": InputSchema("twin", "relation", (("b", "float"), ("a", "text"))),
            }
        ),
    )
    shape = shape_of_output(checked, "path")
    engine, row = IncrementalEngine(checked), row_of(shape)
    for at, diff in ((3, 1), (8, -1)):
        for edge in (("a", 1.5), ("é", None), (None, -2.0)):
            engine.update("edge", Record("edge", edge), at, diff)
        for twin in ((1.5, "é"), (None, None)):
            engine.update("twin", Record("twin", twin), at, diff)
    changes = engine.advance(9).facts
    expected = [(row(change.record), int(change.at), change.diff) for change in changes]
    blocks = [part for part in changes.parts if isinstance(part, FactBlock)]
    assert sum(map(len, blocks)) == len(expected) > 8
    for block in blocks:
        found = block_table(block, shape.schema)
        wanted = [change for change in expected if change[1] == block.at]
        known = update_table(
            [c for c in wanted if (c[2] > 0) == (block.diffs[0] > 0)], shape.schema
        )
        assert consolidate(found) == consolidate(known)
