"""Evaluation on columns: the answers, errors and states of the row engine, and it is really columns that run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tidemill.datalog.catalog import Catalog, ColumnType, InputSchema
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columnar import (
    Column,
    ColumnChanges,
    Columns,
    ColumnTable,
    ColumnWindows,
    RecordChanges,
    Texts,
)
from tidemill.datalog.columnar.columns import instants_of
from tidemill.datalog.columnar.windows import compared_columns
from tidemill.datalog.evaluation import Engine, EngineState, Evaluation, LimitPassed, Limits
from tidemill.datalog.evaluation.engine import presences_of
from tidemill.datalog.evaluation.forms import Type
from tidemill.datalog.lattices import LATTICES
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import BEGINNING, END, Presence
from tidemill.datalog.records import Record, format_presence
from tidemill.testkit import tidelog, tidelog_columns
from tidemill.testkit.steady import steady
from tidemill.testkit.tidelog import Example
from tidemill.time import UsageError

LAW = settings(
    max_examples=int(os.environ.get("LAW_EXAMPLES", "60")),
    backend=steady(int(os.environ.get("LAW_SEED", "1"))),
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
Inputs = Mapping[str, Sequence[Presence]]
Seen = tuple[dict[str, list[str]], list[tuple[str, float, float]], list[tuple[int, str, str]]]


def seen(checked: CheckedProgram, evaluation: Evaluation) -> Seen:
    presences = {
        name: sorted(format_presence(p.record, p.start, p.end) for p in evaluation.presences[name])
        for name in checked.derived
    }
    errors = sorted((e.text, e.start, e.end) for e in evaluation.errors)
    return presences, errors, sorted(evaluation.state.to_rows())


def compare(checked: CheckedProgram, given_: Inputs, borders: Sequence[int]) -> tuple[int, int]:
    """Go through windows on rows and on columns; how many predicates columns took and refused."""
    rows, columns = Engine(checked, columns_from=None), Engine(checked, columns_from=0)
    states: list[EngineState | None] = [None, None]
    for lower, upper in pairwise(borders):
        start = lower - 1 if lower else lower
        living = {
            name: [p for p in presences if p.start < upper and p.end > start]
            for name, presences in given_.items()
        }
        try:
            expected, found = (
                engine.evaluate(living, lower=start if lower else None, upper=upper, state=state)
                for engine, state in zip((rows, columns), states, strict=True)
            )
        except LimitPassed:
            assume(False)
        assert seen(checked, found) == seen(checked, expected), (start, upper)
        states = [expected.state, found.state]
    bulk = columns.bulk
    return (bulk.taken, bulk.refused) if bulk is not None else (0, 0)


def test_columns_answer_as_rows_on_any_program() -> None:
    counts = [0, 0]

    @LAW
    @given(
        tidelog.programs(),
        tidelog.inputs(),
        st.lists(st.integers(1, tidelog.UPPER - 1), max_size=3, unique=True),
    )
    def law(example: Example, given_: Inputs, cuts: list[int]) -> None:
        borders = [0, *sorted(cuts), tidelog.UPPER]
        taken, refused = compare(example.checked, given_, borders)
        counts[0] += taken
        counts[1] += refused

    law()
    assert counts[0] > 30  # of about 165
    assert counts[1] > 15  # of about 100


def test_columns_answer_as_rows_on_programs_made_for_them() -> None:
    counts = [0, 0]

    @LAW
    @given(
        tidelog_columns.bulk_programs(),
        tidelog_columns.bulk_inputs(),
        st.lists(st.integers(1, tidelog_columns.UPPER - 1), max_size=3, unique=True),
    )
    def law(example: Example, given_: Inputs, cuts: list[int]) -> None:
        borders = [0, *sorted(cuts), tidelog_columns.UPPER]
        taken, refused = compare(example.checked, given_, borders)
        counts[0] += taken
        counts[1] += refused

    law()
    assert counts[0] > 75  # of about 390
    assert counts[1] > 15  # of about 100


def columns_of(
    checked: CheckedProgram, name: str, rows: Sequence[Presence], texts: Texts
) -> Columns:
    kinds = [Type(kind) for _, kind in checked.columns[name]]
    arguments = zip(*(p.record.arguments for p in rows), strict=True)
    return Columns(
        instants_of([p.start for p in rows]), instants_of([p.end for p in rows]),
        instants_of([END if p.record.expires is None else p.record.expires for p in rows]),
        Column.of_values(Type.INT, [p.record.time for p in rows], texts),
        tuple(Column.of_values(k, v, texts) for k, v in zip(kinds, arguments, strict=True)), texts,
    )  # fmt: skip


def changes_of(found: ColumnChanges | RecordChanges, name: str) -> list[tuple[str, int, int]]:
    """(record, instant, diff) as texts."""
    if isinstance(found, RecordChanges):
        return [(str(record), at, diff) for record, at, diff in found.changes]
    table = ColumnTable(found.facts)
    rows = [(BEGINNING, END, *row[2:]) for row in table.rows]
    records = [presences_of(name, [row], LATTICES)[0].record for row in rows]
    return [
        (str(record), at, diff)
        for record, at, diff in zip(
            records, found.times.tolist(), found.diffs.tolist(), strict=True
        )
    ]


def at_instants(
    checked: CheckedProgram, given_: Inputs, borders: Sequence[int]
) -> Iterator[tuple[str, int, set[str], set[str]]]:
    """By windows of columns, and by rows over the whole: (predicate, instant, found, expected)."""
    windows = ColumnWindows(checked)
    names = [name for name in checked.inputs if given_[name]]
    changes: dict[str, list[tuple[str, int, int]]] = {name: [] for name in checked.derived}
    for lower, upper in pairwise(borders):
        for name in names:
            rows = [p for p in given_[name] if lower <= p.start < upper]
            if rows:
                windows.feed(name, columns_of(checked, name, rows, windows.texts))
        for name, found in windows.step(upper).facts.items():
            changes[name] += changes_of(found, name)
    whole = Engine(checked, columns_from=None).evaluate(given_, upper=borders[-1])
    for name in checked.derived:
        assert all(0 <= at < borders[-1] for _, at, _ in changes[name])
        for at in range(borders[-1]):
            sums: dict[str, int] = {}
            for record, when, diff in changes[name]:
                if when <= at:
                    sums[record] = sums.get(record, 0) + diff
            assert set(sums.values()) <= {0, 1}
            expected = {str(p.record) for p in whole.presences[name] if p.start <= at < p.end}
            yield name, at, {record for record, copies in sums.items() if copies}, expected


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    tidelog_columns.bulk_programs(),
    tidelog_columns.bulk_inputs(),
    st.lists(st.integers(1, tidelog_columns.UPPER - 1), max_size=3, unique=True),
)
def test_changes_by_windows_of_columns_add_up_to_the_whole(
    example: Example, given_: Inputs, cuts: list[int]
) -> None:
    borders = [0, *sorted(cuts), tidelog_columns.UPPER]
    for name, at, found, expected in at_instants(example.checked, given_, borders):
        assert found == expected, (name, at)


def test_windows_in_which_all_turns_over_are_compared_where_they_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = [0, 0]

    def counted(*given_: Any) -> ColumnChanges:
        found = compared_columns(*given_)
        compared[0] += 1
        compared[1] += len(found) < len(given_[0]) + len(given_[1])
        return found

    monkeypatch.setattr("tidemill.datalog.columnar.windows.compared_columns", counted)

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        tidelog_columns.bulk_programs(),
        tidelog_columns.bulk_inputs(),
        st.integers(1, tidelog_columns.UPPER // 2),
    )
    def law(example: Example, given_: Inputs, length: int) -> None:
        borders = [*range(0, tidelog_columns.UPPER, length), tidelog_columns.UPPER]
        turned = {name: list(turning_over(rows, borders)) for name, rows in given_.items()}
        for name, at, found, expected in at_instants(example.checked, turned, borders):
            assert found == expected, (name, at)

    law()
    assert compared[0] > 20
    assert compared[1] > 0  # and some of what held went on


def turning_over(rows: Sequence[Presence], borders: Sequence[int]) -> Iterator[Presence]:
    """The same facts, each of them present in one or two windows and never longer than that."""
    for at, row in enumerate(rows):
        later = [border for border in borders if border > row.start]
        end = later[min(at % 7 == 0, len(later) - 1)]
        expires = None if row.record.expires is None else end
        yield Presence(replace(row.record, expires=expires), row.start, end)


def test_columns_of_another_type_are_refused() -> None:
    windows = ColumnWindows(program("p(k) := e(k, _);"))
    other = program("p(k) := f(k, _);")
    windows.feed("e", columns_of(other, "f", events([(1, 0.5)], "f"), windows.texts))
    with pytest.raises(UsageError, match="columns of e refused"):
        windows.step(5)


NUMBERS: tuple[tuple[str, ColumnType], ...] = (("k", "int"), ("v", "int"))


def program(text: str) -> CheckedProgram:
    schemas = {
        "e": InputSchema("e", "events", NUMBERS),
        "f": InputSchema("f", "events", (("k", "int"), ("v", "float"))),
    }
    return check(parse(text), Catalog(schemas))


def events(rows: Sequence[tuple[int, float]], name: str = "e") -> list[Presence]:
    return [Presence(Record(name, row, at), at, END) for at, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("p(k, v + k) := e(k, v);", [(1, (1 << 63) - 1), (0, 3)]),
        ("p(v / k) := e(k, v);", [(0, 1), (2, 9)]),
        ("p(k) @sum(v) := e(k, v);", [(1, (1 << 63) - 1), (1, 5), (2, 8)]),
        ("p(k) @expires(v) := e(k, v);", [(1, (1 << 63) - 1), (2, 7)]),
    ],
    ids=["overflow", "division", "sum", "expires"],
)
def test_what_may_fail_is_left_to_rows(text: str, rows: list[tuple[int, float]]) -> None:
    assert compare(program(text), {"e": events(rows)}, [0, 9])[0] == 0


def test_sums_on_columns_are_exact() -> None:
    rows = [(1, 0.1)] * 3 + [(2, 1e16), (2, 1.0), (2, -1e16), (3, -0.0), (3, 0.0)]
    text = "p(k) @sum(v) @average(v) @min(v) @max(v) := f(k, v) @time(t);"
    assert compare(program(text), {"f": events(rows, "f")}, [0, 20])[0] == 1
    tiny = [(1, 1e300), (1, 1e-300), (1, -1e300)]
    assert compare(program(text), {"f": events(tiny, "f")}, [0, 20]) == (0, 1)


def test_tallies_that_may_meet_are_left_to_rows() -> None:
    text = "p(k) @sum(v) := e(k, v); q(1) := p(k);"
    given_ = {"e": events([(1, 2), (2, 3), (2, 4)])}
    taken, _ = compare(program(text), given_, [0, 4, 9])
    assert taken == 0


def test_a_limit_is_passed_on_columns_too() -> None:
    engine = Engine(program("p(k, v) := e(k, v);"), columns_from=0, limits=Limits(rows=2))
    with pytest.raises(LimitPassed):
        engine.evaluate({"e": events([(1, 1), (1, 2), (1, 3)])}, upper=9)


def test_few_rows_are_not_worth_columns() -> None:
    engine = Engine(program("p(k, v) := e(k, v);"))
    engine.evaluate({"e": events([(1, 1)])}, upper=9)
    assert engine.bulk is None
