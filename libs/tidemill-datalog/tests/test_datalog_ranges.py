"""A program evaluated range by range answers as one process, if facts are where they meet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, timedelta
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tidemill.arrangement.column_types import arrow_type
from tidemill.datalog.check import check
from tidemill.datalog.dataflow.evaluating import undeclared
from tidemill.datalog.elements import element
from tidemill.datalog.inputs import ColumnType, InputSchema, InputSchemas
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.parser import parse
from tidemill.datalog.placement import Place, Placement, placement_of
from tidemill.datalog.placement.column_hashes import ranges_of_columns
from tidemill.datalog.placement.hashing import hash_of, range_of
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.datalog.strategy import Strategy
from tidemill.datalog.values import Value
from tidemill.errors import TidemillError
from tidemill.testkit.drawing import Presences, drawn
from tidemill.testkit.evaluated import Evaluation, evaluated
from tidemill.testkit.ranges.evaluating import evaluated_by_ranges
from tidemill.testkit.ranges.task import RangeSettings
from tidemill.testkit.seeded_backend import seeded_backend
from tidemill.testkit.tidelog import (
    DERIVED,
    EXTREME,
    UPPER,
    Example,
    inputs,
    programs,
    programs_alike,
)

MANY = 10
"""Examples of a small program are quick: so many times as many as laws draw elsewhere."""
LAW = drawn(15, times=MANY)
CUTS = st.lists(st.integers(0, UPPER - 1), min_size=1, max_size=3)
EXAMPLE = programs(8, rules_min=2) | programs_alike()
INPUTS = inputs(rows_min=2, rows_max=6)


def answer(evaluation: Evaluation) -> object:
    """Presences and errors, without an order."""
    found = {
        name: {(str(p.record), p.start, p.end) for p in evaluation.presences.get(name, ())}
        for name in DERIVED
    }
    return found, {(e.text, e.start, e.end) for e in evaluation.errors}


def one_process(example: Example, given_: Presences) -> object:
    """The answer to compare with; programs that never settle are no examples."""
    try:
        return answer(evaluated(example.checked, given_, upper=UPPER))
    except LimitPassed:
        assume(False)
        raise


@LAW
@given(EXAMPLE, INPUTS, st.sampled_from((3, 7)), CUTS, st.sampled_from(("strata", "retraction")))
def test_any_ranges_and_cuts_answer_as_one_process(
    example: Example, given_: Presences, ranges: int, cuts: Sequence[int], strategy: Strategy
) -> None:
    found = evaluated_by_ranges(
        example.checked,
        given_,
        upper=UPPER,
        cuts=cuts,
        ranges=ranges,
        settings=RangeSettings(strategy),
    )
    assert answer(found) == one_process(example, given_), example.text


@LAW
@given(programs(8, EXTREME, rules_min=2), inputs(rows_min=2, rows_max=6, extreme=True), CUTS)
def test_values_at_borders_meet_in_their_range(
    example: Example, given_: Presences, cuts: Sequence[int]
) -> None:
    found = evaluated_by_ranges(example.checked, given_, upper=UPPER, cuts=cuts, ranges=5)
    assert answer(found) == one_process(example, given_), example.text


def misplaced(placement: Placement) -> Placement:
    """The same fragments, where facts are dealt out by all of their columns."""

    def wrong(place: Place, columns: int) -> Place:
        return Place(tuple(range(columns + 1))) if place.positions else place

    fragments = [
        replace(
            fragment,
            reads=tuple(
                replace(
                    read, place=wrong(read.place, len(fragment.plan.checked.columns[read.name]))
                )
                for read in fragment.reads
            ),
        )
        for fragment in placement.fragments
    ]
    return replace(placement, fragments=tuple(fragments))


def test_the_law_notices_facts_in_a_wrong_range() -> None:
    """The companion: of the same examples, with facts dealt out otherwise, many answer wrongly."""
    wrong = []

    @settings(LAW, max_examples=60, derandomize=False, backend=seeded_backend(4), database=None)
    @given(programs_alike(), INPUTS)
    def law(example: Example, given_: Presences) -> None:
        placement = misplaced(placement_of(example.checked, undeclared(example.checked, given_)))
        try:
            found = evaluated_by_ranges(
                example.checked, given_, upper=UPPER, cuts=(4,), placement=placement
            )
        except TidemillError:
            wrong.append(example)
            return
        if answer(found) != one_process(example, given_):
            wrong.append(example)

    law()
    assert len(wrong) > 10


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0), (0.0, -0.0), (2**53 + 1, float(2**53)), (-(2**63), -(2.0**63)),
        (frozenset({element(1)}), frozenset({element(1.0)})), (True, element(True)),
        (frozenset({element(2**53), element(2**53 + 1)}), frozenset({element(2.0**53)})),
    ],
)  # fmt: skip
def test_values_that_a_join_calls_equal_have_one_hash(one: object, other: object) -> None:
    assert hash_of(one) == hash_of(other)


def test_other_values_have_other_hashes() -> None:
    values = [
        None,
        True,
        False,
        0,
        1,
        2,
        -1,
        0.5,
        math.inf,
        -math.inf,
        "",
        "1",
        "a",
        "é",
        frozenset(),
    ]
    assert len({hash_of(value) for value in values}) == len(values)


@given(st.lists(st.integers() | st.text() | st.none(), min_size=1), st.integers(1, 6))
def test_twice_as_many_ranges_are_the_same_cut_in_two(key: Sequence[object], bits: int) -> None:
    assert range_of(key, 1 << bits) >> 1 == range_of(key, 1 << bits - 1)


_INT = st.integers(-(2**63), 2**63 - 1)
_FLOAT = st.floats(allow_nan=False)
_COLUMNS = st.tuples(
    st.none() | _INT, st.none() | _FLOAT | st.sampled_from((0.0, -0.0, 2.0**53)),
    st.none() | st.text(st.characters(exclude_categories=("Cs",))), st.none() | st.booleans(),
    st.none() | st.datetimes(timezones=st.just(UTC)), st.none() | st.dates(),
    st.none() | st.timedeltas(timedelta(-(10**6)), timedelta(10**6)), st.none() | st.decimals(-100, 100, places=2),
    st.none() | st.binary(), st.none() | st.uuids(),
)  # fmt: skip
_KINDS = (
    pa.int64(), pa.float64(), pa.string(), pa.bool_(),
    *map(arrow_type, ("timestamp", "date", "duration", "decimal(10,2)", "bytes", "uuid")),
)  # fmt: skip


@given(st.lists(_COLUMNS, min_size=1), st.integers(1, 256))
def test_columns_are_in_the_ranges_of_their_values(
    rows: Sequence[tuple[object, ...]], ranges: int
) -> None:
    columns = [
        pa.array([v.bytes if isinstance(v, UUID) else v for v in each], kind)
        for each, kind in zip(zip(*rows, strict=True), _KINDS, strict=True)
    ]
    columns.append(pa.nulls(len(rows)))
    wanted = [range_of((*row, None), ranges) for row in rows]
    assert ranges_of_columns(columns, ranges).tolist() == wanted


def test_limits_hold_over_the_rows_of_all_ranges() -> None:
    checked = check(
        parse("p(x, y) := s(x) ^ s(y);"),
        InputSchemas({"s": InputSchema("s", "relation", (("x", "int"),))}),
    )
    given_ = {"s": [Presence(Record("s", (number,)), 0) for number in range(9)]}
    limits = RangeSettings(limits=Limits(rows=80))
    with pytest.raises(LimitPassed):
        evaluated_by_ranges(checked, given_, upper=1, settings=limits)
    fits = RangeSettings(limits=Limits(rows=81))
    found = evaluated_by_ranges(checked, given_, upper=1, settings=fits)
    assert len(found.presences["p"]) == 81


@pytest.mark.parametrize(("kind", "values"), [
    ("text", tuple("abcdefgh")), ("any", ("a", 1, 1.5, True, None, "1", 0, False)), ("int", tuple(range(8))),
    ("decimal(6,2)", tuple(Decimal(n) for n in range(8))),
])  # fmt: skip
def test_counts_of_several_ranges_meet_and_none_counts_twice(
    kind: ColumnType, values: Sequence[Value]
) -> None:
    """Engines number the same texts otherwise, so no number tells what is counted."""
    text = "many(h) @count(n) := ping(h, n); all(x) := many(h) ^ of(h, x);"
    schemas = {
        name: InputSchema(name, "relation", (("h", kind), ("n", "int"))) for name in ("ping", "of")
    }
    checked = check(parse(text), InputSchemas(schemas))
    given_ = {name: [Presence(Record(name, (each, 1)), 0) for each in values] for name in schemas}
    found = evaluated_by_ranges(checked, given_, upper=1, cuts=(0,), ranges=3)
    assert answer_of(found, "all") == {("all", (1,), (("count", 8),))}


def answer_of(evaluation: Evaluation, name: str) -> object:
    """The facts of a predicate with what they carry."""
    records = [each.record for each in evaluation.presences[name]]
    return {(each.predicate, each.arguments, each.parafacts) for each in records}
