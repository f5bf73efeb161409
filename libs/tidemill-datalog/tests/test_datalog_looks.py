"""Reasons over many facts look now and then, so that calls of other users go first."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from weakref import ref

import numpy as np
import pytest

from tidemill.arrangement.looks import LOOK, THINGS_A_LOOK
from tidemill.datalog.check import check
from tidemill.datalog.dataflow import DataflowEngine
from tidemill.datalog.dataflow.evaluating import presences_of
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


REACH = check(
    parse("path(x, y) := edge(x, y); path(x, z) := edge(x, y) ^ path(y, z);"),
    InputSchemas({"edge": InputSchema("edge", "relation", (("a", "int"), ("b", "int")))}),
)
EDGES = {
    "edge": [Presence(Record("edge", (n, n + 1), None, None, ()), 0, math.inf) for n in range(60)]
}
QUESTIONS: dict[str, Callable[[], object]] = {
    **WORK,
    "why of a recursion": lambda: why(REACH, EDGES, Record("path", (0, 60), None, None, ()), 5),
    "why-not of a recursion": lambda: why_not(
        REACH, EDGES, Record("path", (60, 0), None, None, ()), 5, upper=10
    ),
}
LEFT_MAX = 20
"""Objects in cycles that a question may leave, whatever it has read: of its text and its plan."""


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


def test_a3_presences_become_rows_between_looks() -> None:
    """Without a list of them all, which is made before the first look."""
    touched = 0

    class Counted(list[Presence]):
        def __iter__(self) -> Iterator[Presence]:
            nonlocal touched
            for each in super().__iter__():
                touched += 1
                yield each

    engine = DataflowEngine(PROGRAM)
    schema = engine.schema_of("t")
    assert schema is not None
    looks = [0]
    token = LOOK.set(lambda: looks.append(touched))
    try:
        rows_of_presences(schema, Counted(FACTS), engine.texts)
    finally:
        LOOK.reset(token)
    assert touched == COUNT
    assert max(after - before for before, after in pairwise(looks)) <= THINGS_A_LOOK


def test_a3_many_rows_are_the_same_change_made_in_parts() -> None:
    engine = DataflowEngine(PROGRAM)
    schema = engine.schema_of("t")
    assert schema is not None
    whole = rows_of_presences(schema, FACTS, engine.texts)
    alone = [rows_of_presences(schema, [each], engine.texts) for each in FACTS[:: COUNT // 50]]
    assert whole.shape == (COUNT, schema.columns + 3)
    assert (whole[:: COUNT // 50] == np.concatenate(alone)).all()
    assert rows_of_presences(schema, [], engine.texts).shape == (0, schema.columns + 3)


@pytest.mark.parametrize("end", [9, math.inf])
def test_a3_stretches_are_drawn_in_no_large_container_that_is_young(end: float) -> None:
    """The garbage collector goes through a young one at once, twice: 5 ms for 200,000 records."""
    changes = [(0, each.record, 1) for each in FACTS]
    changes += [] if end == math.inf else [(9, each.record, -1) for each in FACTS]
    sizes: list[int] = []

    def look() -> None:
        for generation in (0, 1):
            young = gc.get_objects(generation)
            sizes.extend(len(each) for each in young if type(each) in (dict, list, set))
            del young

    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1_000, 2, 7_000)  # of a server
    token = LOOK.set(look)
    try:
        found = presences_of(changes)
    finally:
        LOOK.reset(token)
        gc.set_threshold(*thresholds)
    assert found == [Presence(each.record, 0, end) for each in FACTS]
    assert max(sizes) < COUNT / 2


def left_by(work: Callable[[], object]) -> int:
    """The objects that some work leaves to the garbage collector, its answer not among them."""
    gc.collect()
    gc.disable()
    try:
        work()
        return gc.collect()
    finally:
        gc.enable()


@pytest.mark.parametrize("work", QUESTIONS.values(), ids=QUESTIONS.keys())
def test_a3_a_question_leaves_no_facts_to_the_garbage_collector(work: Callable[[], object]) -> None:
    """A collection of many objects holds the interpreter, and with it everybody's calls."""
    assert left_by(work) <= LEFT_MAX


def test_a3_objects_that_hold_each_other_are_left_to_the_garbage_collector() -> None:
    def hold(facts: list[object]) -> None:
        facts.append(facts)

    assert left_by(lambda: hold([[number] for number in range(COUNT)])) > COUNT


def test_an_engine_of_a_recursion_is_gone_with_its_last_user() -> None:
    engine = DataflowEngine(REACH)
    engine.feed_presences("edge", EDGES["edge"])
    engine.step(9)
    gone = ref(engine)
    gc.disable()
    try:
        del engine
        assert gone() is None
    finally:
        gc.enable()
