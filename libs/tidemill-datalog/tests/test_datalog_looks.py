"""Reasons over many facts look now and then, so that calls of other users go first."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tidemill.arrangement.looks import LOOK, THINGS_A_LOOK
from tidemill.datalog.check import check
from tidemill.datalog.dataflow import DataflowEngine
from tidemill.datalog.dataflow.schema import rows_of_presences
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.datalog.why import why
from tidemill.datalog.why_not import why_not

COUNT = 20 * THINGS_A_LOOK
PROGRAM = check(
    parse("sum(g, n) := t(n) where g = 1;"),
    InputSchemas({"t": InputSchema("t", "relation", (("n", "int"),))}),
)
FACTS = [Presence(Record("t", (number,), None, None, ()), 0, math.inf) for number in range(COUNT)]
INPUTS = {"t": FACTS}

WORK: dict[str, Callable[[], object]] = {
    "why": lambda: why(PROGRAM, INPUTS, Record("sum", (1, 7), None, None, ()), 5),
    "why-not": lambda: why_not(
        PROGRAM, INPUTS, Record("sum", (1, -7), None, None, ()), 5, upper=10
    ),
}


def looks_of(work: Callable[[], object]) -> int:
    """The looks of some work."""
    looks: list[int] = []
    token = LOOK.set(lambda: looks.append(1))
    try:
        work()
    finally:
        LOOK.reset(token)
    return len(looks)


@pytest.mark.parametrize("work", WORK.values(), ids=WORK.keys())
def test_a3_reasons_over_many_facts_look_as_often_as_they_are_many(
    work: Callable[[], object],
) -> None:
    assert looks_of(work) >= COUNT // THINGS_A_LOOK


def test_a3_many_rows_are_the_same_change_made_in_parts() -> None:
    engine = DataflowEngine(PROGRAM)
    schema = engine.schema_of("t")
    assert schema is not None
    whole = rows_of_presences(schema, FACTS, engine.texts)
    alone = [rows_of_presences(schema, [each], engine.texts) for each in FACTS[:: COUNT // 50]]
    assert whole.shape == (COUNT, schema.columns + 3)
    assert (whole[:: COUNT // 50] == np.concatenate(alone)).all()
    assert rows_of_presences(schema, [], engine.texts).shape == (0, schema.columns + 3)
