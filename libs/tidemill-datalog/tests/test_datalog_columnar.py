"""Evaluation on columns: the answers, errors and states of the row engine, and it is really columns that run."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tidemill.arrangement.kernels import I64Array
from tidemill.arrangement.relational import (
    FEW_ROWS,
    Buckets,
    Groups,
    Sums,
    range_buckets,
    stacked_sums,
)
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columnar import Column, Columns, ColumnTable, Texts
from tidemill.datalog.columnar.bulk import Bulk
from tidemill.datalog.columnar.columns import instants_of
from tidemill.datalog.columnar.joining import Matching
from tidemill.datalog.inputs import ColumnType, InputSchema, InputSchemas
from tidemill.datalog.lattices import LATTICES
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.logical.forms import Type
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import BEGINNING, END, Presence
from tidemill.datalog.records import Record, format_presence
from tidemill.datalog.scratch import Engine, Evaluation
from tidemill.datalog.scratch.changing import ColumnChanges
from tidemill.datalog.scratch.engine import presences_of
from tidemill.datalog.state import EngineState
from tidemill.errors import UsageError
from tidemill.testkit import tidelog, tidelog_columns
from tidemill.testkit.column_windows import ColumnWindows, RecordChanges, compared_columns
from tidemill.testkit.seeded_backend import seeded_backend
from tidemill.testkit.tidelog import Example

LAW = settings(
    max_examples=int(os.environ.get("LAW_EXAMPLES", "60")),
    backend=seeded_backend(int(os.environ.get("LAW_SEED", "1"))),
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


@contextmanager
def few_rows(most: int) -> Iterator[None]:
    """Up to how many rows are numbered and drawn together in one call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidemill.arrangement.relational.grouping.FEW_ROWS", most)
        patch.setattr("tidemill.datalog.columnar.deriving.FEW_ROWS", most)
        yield


def compare(checked: CheckedProgram, given_: Inputs, borders: Sequence[int]) -> tuple[int, int]:
    """Go through windows on rows and on columns; how many predicates columns took and refused.

    Half of the examples are taken as if their rows were many.
    """
    with few_rows(-1 if sum(map(len, given_.values())) % 2 else FEW_ROWS):
        bulk = compared(checked, given_, borders)
        return bulk.taken, bulk.refused


def compared(checked: CheckedProgram, given_: Inputs, borders: Sequence[int]) -> Bulk:
    """Go through windows on rows and on columns; what the latter counted."""
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
    return columns.column_bulk()


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


@pytest.mark.parametrize("worth", [0, 2])
def test_solutions_drawn_together_piece_by_piece_aggregate_as_rows(
    monkeypatch: pytest.MonkeyPatch, worth: int
) -> None:
    drawn: list[int] = []
    ranged: list[int] = []

    def ranges(values: I64Array, parts: int) -> Buckets:
        ranged.append(parts)
        return range_buckets(values, parts)

    def counted(parts: Sequence[Sums]) -> Sums | None:
        drawn.append(len(parts))
        return stacked_sums(parts)

    monkeypatch.setattr("tidemill.datalog.columnar.bulk._PIECE_ROWS", 3)
    monkeypatch.setattr("tidemill.datalog.columnar.contributing._WORTH", worth)
    monkeypatch.setattr("tidemill.datalog.columnar.bulk.range_buckets", ranges)
    monkeypatch.setattr("tidemill.datalog.columnar.contributing.stacked_sums", counted)

    @LAW
    @given(
        tidelog_columns.bulk_programs(),
        tidelog_columns.bulk_inputs(),
        st.lists(st.integers(1, tidelog_columns.UPPER - 1), max_size=1),
    )
    def law(example: Example, given_: Inputs, cuts: list[int]) -> None:
        compare(example.checked, given_, [0, *cuts, tidelog_columns.UPPER])

    law()
    drawn.clear()
    rows = [(at % 2, value) for at, value in enumerate([0.1, 1e16, 0.1, 1.0, 0.1, -1e16, -0.0] * 5)]
    text = "p(k) @sum(v) @average(v) @min(v) @max(v) @count(1) := f(k, v) @time(t)"
    for cut in (";", " ^ clock(0, 9) @time(c) if t < c;"):
        assert compare(program(text + cut), {"f": events(rows, "f")}, [0, 40])[0] == 1
    assert bool(drawn) == (worth == 0)
    assert bool(ranged) == (worth > 0)


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


@settings(LAW, max_examples=25)
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

    monkeypatch.setattr("tidemill.testkit.column_windows.compared_columns", counted)

    @settings(LAW, max_examples=25)
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


def test_a_window_leaves_no_columns_to_the_garbage_collector() -> None:
    checked = program("p(k, w) := e(k, v) ^ e(v, w) ^ clock(0, 2) @time(t) if v < t;")
    windows = ColumnWindows(checked)
    gc.collect()
    gc.disable()
    try:
        for upper in (5, 9):
            rows = events([(at, at + 1) for at in range(upper)])
            windows.feed("e", columns_of(checked, "e", rows, windows.texts))
            assert len(windows.step(upper).facts["p"])
            assert not [each for each in gc.get_objects() if isinstance(each, Matching)]
        left = []
        for upper in range(20, 50, 5):
            rows = [Presence(Record("e", (k, k), upper - 1), upper - 1, upper) for k in range(6)]
            windows.feed("e", columns_of(checked, "e", rows, windows.texts))
            assert windows.step(upper).facts["p"]
            left.append(sum(isinstance(each, Columns) for each in gc.get_objects()))
        assert max(left[2:]) <= max(left[:2])
    finally:
        gc.enable()


def test_changes_may_be_asked_for_when_later_windows_are_done() -> None:
    checked = program("p(k) := e(k, v) if v > 1; q(v) := e(_, v);")
    windows, others = ColumnWindows(checked), ColumnWindows(checked)
    later = []
    for upper in (3, 6, 9):
        rows = [Presence(Record("e", (at % 4, at), at), at, upper) for at in range(upper)]
        for each in (windows, others):
            each.feed("e", columns_of(checked, "e", rows, each.texts))
        later.append(windows.step(upper).facts)
        found = others.step(upper).facts
        assert dict(found) == {name: found[name] for name in ("p", "q")}
        assert changes_of(found["p"], "p"), upper
        with pytest.raises(KeyError):
            found["e"]
    again = ColumnWindows(checked)
    for upper, known in zip((3, 6, 9), later, strict=True):
        rows = [Presence(Record("e", (at % 4, at), at), at, upper) for at in range(upper)]
        again.feed("e", columns_of(checked, "e", rows, again.texts))
        expected = again.step(upper).facts
        for name in ("q", "p"):
            assert changes_of(known[name], name) == changes_of(expected[name], name)


def test_rows_that_stay_are_put_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    numbered: list[int] = []
    of = Groups.of

    def counted(columns: Sequence[Any], rows: int) -> Groups:
        numbered.append(rows)
        return of(columns, rows)

    monkeypatch.setattr(Groups, "of", counted)
    checked = program("p(k, v, w) := e(k, v) ^ f(k, w);")
    windows = ColumnWindows(checked)
    staying = [Presence(Record("f", (k, 0.5), 0), 0, END) for k in range(7)]
    windows.feed("f", columns_of(checked, "f", staying, windows.texts))
    for upper in (2, 4, 6):
        rows = [Presence(Record("e", (k, upper), upper - 1), upper - 1, upper) for k in range(3)]
        windows.feed("e", columns_of(checked, "e", rows, windows.texts))
        numbered.clear()
        found = windows.step(upper).facts["p"]
        assert sum(diff for _, _, diff in changes_of(found, "p")) == (3 if upper == 2 else 0)
        assert (7 in numbered) == (upper == 2)


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
    return check(parse(text), InputSchemas(schemas))


def events(rows: Sequence[tuple[int, float]], name: str = "e") -> list[Presence]:
    return [Presence(Record(name, row, at), at, END) for at, row in enumerate(rows)]


FAILING = {
    "in the head": "p(k, 6 / v) := e(k, v);",
    "in a guard": "p(k) := e(k, v) if 12 / (v - 3) != 5;",
    "in guards that others decide before": "p(k) := e(k, v) if v != 3 ^ 12 / (v - 3) > 1 ^ k > 1;",
    "behind what decides": "p(k) := e(k, v) if v == 3 || 12 / (v - 3) > 1;",
    "in a join": "p(k, w / v) := e(k, v) ^ f(k, w);",
    "of both sides of a join": "p(k) := f(k, w) ^ e(k, v) if w / float(v - k) > 1.5 ^ v != 2;",
    "of a fact with itself": "p(k, v / w) := e(k, v) ^ e(v, w);",
    "beside another rule": "p(k, 6 / v) := e(k, v); p(v, k) := e(k, v); q(k) := p(k, _) ^ not e(k, 0);",
    "in what is absent": "p(k) := e(k, v) ^ not e(_, 6 / v);",
    "in a group": "p(k) @sum(6 / v) @count(1) := e(k, v);",
    "in a group, for some of the matches of a fact": "p(k) @sum(w / float(v)) := f(k, w) ^ e(k, v);",
    "in a time": "p(k) @time(t + 6 / v) := e(k, v) @time(t);",
    "in an expiry": "p(k) @expires(t + 6 / v) := e(k, v) @time(t);",
    "in a clock": "p(k, t) := e(k, v) ^ clock(0, 9 / v) @time(t) if t < 30;",
    "overflows": "p(k, v * 1100000000000000000) := e(k, v) if v + 9223372036854775799 != k;",
    "feeds a recursion": "p(k, 6 / v) := e(k, v); r(a, b) := p(a, b); r(a, c) := r(a, b) ^ p(b, c);",
}  # fmt: skip


NEVER_FAILING = ("in guards that others decide before", "behind what decides")
LEFT_AS_A_WHOLE = (
    "in an expiry", "in a clock", "in a group, for some of the matches of a fact",
)  # fmt: skip
"""Solutions that live on, clocks of fallible periods, and facts of which something belongs into a group with others."""


@pytest.mark.rule("C1")
@pytest.mark.parametrize("name", FAILING)
def test_a_few_facts_that_fail_are_left_to_rows_and_the_rest_stays_on_columns(name: str) -> None:
    checked, counts = program(FAILING[name]), [0, 0, 0]

    @settings(LAW, max_examples=12)
    @given(
        st.lists(st.tuples(st.integers(0, 4), st.sampled_from((0, 3, 9)), st.integers(0, 30))),
        st.lists(st.integers(1, 39), max_size=2, unique=True),
        st.sampled_from((3, 1 << 17)),
    )
    def law(odd: list[tuple[int, int, int]], cuts: list[int], piece: int) -> None:
        rows = [Presence(Record("e", (at % 5, 1 + at % 2), at), at, END) for at in range(24)]
        for at, (k, v, ends) in enumerate(odd[:5]):
            rows.append(Presence(Record("e", (k, v), at), at, at + 1 + ends))
        others = [Presence(Record("f", (at, at / 2), at), at, END) for at in range(24)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tidemill.datalog.columnar.bulk._PIECE_ROWS", piece)
            bulk = compared(checked, {"e": rows, "f": others}, [0, *sorted(cuts), 40])
        for at, count in enumerate((bulk.taken, bulk.refused, bulk.spared)):
            counts[at] += count

    law()
    taken, refused, spared = counts
    if name in NEVER_FAILING:
        assert (refused, spared) == (0, 0)
    elif name in LEFT_AS_A_WHOLE:
        assert refused > 0
        assert spared == 0
    else:
        assert spared > 0
        assert taken > (0 if name == "of both sides of a join" else refused)


def test_most_facts_that_fail_are_left_to_rows_together() -> None:
    rows = [(at, 0 if at % 2 else 5) for at in range(20)]
    bulk = compared(program("p(6 / v) := e(_, v);"), {"e": events(rows)}, [0, 30])
    assert (bulk.taken, bulk.refused, bulk.spared) == (0, 1, 0)


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
def test_what_fails_is_left_to_rows(text: str, rows: list[tuple[int, float]]) -> None:
    assert compare(program(text), {"e": events(rows)}, [0, 9])[0] == 0


@pytest.mark.parametrize(
    "guard",
    ["v >= 3", "3 < v", "v <= 3", "3 > v", "v == 3", "3 == v", "v != 3", "v > 2 ^ v < 5 ^ v != 4", "v > 9 ^ v < 2"],
)  # fmt: skip
def test_a_range_of_numbers_decides_what_lies_in_it(guard: str) -> None:
    rows = [Record("e", (at % 3, None if at % 7 == 0 else at % 6), at) for at in range(40)]
    presences = [Presence(row, row.time or 0, END) for row in rows]
    for text in (f"p(k, v) := e(k, v) if {guard};", f"p(v, w) := e(0, w) ^ e(w, v) if {guard};"):
        assert compare(program(text), {"e": presences}, [0, 20, 41])[1] == 0


@pytest.mark.parametrize(
    ("guard", "on_columns"),
    [
        ("u < v + w", True), ("2 * u <= 3 * v - w", True), ("u > 4 * (w - v)", True),
        ("u < abs(v)", False), ("u >= v / 2", False), ("u == v % 3 - 1", False), ("u <= bucket(v, 4)", False),
        ("u > greatest(v, w)", False), ("u < coalesce(v, 3)", False), ("u > round(1.5) + v", False),
    ],
)  # fmt: skip
def test_a_range_that_other_atoms_leave_decides_what_lies_in_it(
    guard: str, on_columns: bool
) -> None:
    """One that takes a function is looked up row by row."""
    catalog = InputSchemas(
        {
            "e": InputSchema("e", "events", (("k", "int"), ("v", "int"), ("w", "int"))),
            "f": InputSchema("f", "events", (("k", "int"), ("u", "int"))),
        }
    )
    given_ = {
        "e": [Presence(Record("e", (at % 3, at % 7 - 3, at % 5), at), at, END) for at in range(40)],
        "f": [Presence(Record("f", (at % 3, at % 11 - 5), at), at, END) for at in range(40)],
    }
    checked = check(parse(f"p(k, v, u) := e(k, v, w) ^ f(k, u) if {guard};"), catalog)
    columns, rows = compare(checked, given_, [0, 20, 41])
    assert (columns > 0, rows > 0) == (on_columns, not on_columns)


WORDS: tuple[tuple[str | None, int, float], ...] = (
    ("Straße", 7, 2.5), ("é", -7, -2.5), ("", 0, -0.0), ("ﬁn", 1 << 40, 1e16), (None, 3, 0.5),
    ("a\u0301b", -(1 << 40), -0.5), ("😀x", 2, 1.5e-5), ("oslo", 9, 1e300),
)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "p(lower(m), upper(m), length(m)) := g(m, _, _);",
        'p(concat(m, "\u0301"), concat("<", m, text(n))) := g(m, n, _);',
        "p(substring(m, 1, 2), substring(m, n * n, 1)) := g(m, n, _) if n < 9 ^ n > -9;",
        'p(m, starts_with(m, "o"), ends_with(m, "x"), contains(m, "\u0301")) := g(m, _, _);',
        "p(m, o) := g(m, _, _) ^ g(o, _, _) if starts_with(m, o) || contains(o, m);",
        "p(m, o) := g(m, _, _) ^ g(o, _, _) if m < o && o >= \"S\";",
        'p(m) := g(m, _, _) if m > "a" ^ length(m) < 3;',
        "p(text(n), text(h), text(n > 2)) := g(_, n, h);",
        "p(least(m, \"n\"), greatest(n, 3), least(n, h, 1)) := g(m, n, h);",
        'p(coalesce(m, "none"), coalesce(length(m), n), coalesce(n, h)) := g(m, n, h);',
        "p(floor(h), ceil(h), round(h), int(h)) := g(_, _, h) if abs(h) < 1.0e17;",
        "p(float(n) * h, -h, abs(h), n / -2, n % 3, h / 4.0) := g(_, n, h) if h < 1.0e200;",
        "p(n * n) := g(_, n, _) if n < 10000 ^ n > -10000 ^ n * 9000000 != 8;",
        "p(n) := g(_, n, _) if n != 0 && 10 / n > 1 || n == 0;",
        "p(n) := g(_, n, _) if n == 0 || n * 4194304 > 5;",
        "p(bucket(n, 5), bucket(h, 0.25), bucket(n, 2.5)) := g(_, n, h);",
        'p(int(concat("1", text(abs(n)))), float(concat(text(n), ".5"))) := g(_, n, _) if n < 99;',
        "p(n + n * 1024 - 1) := g(_, n, _);",
        "p(m) @time(t + n % 5) := g(m, n, _) @time(t);",
        "p(n) @expires(t + z) := g(m, n, _) @time(t) if z > 0 where z = coalesce(length(m), 2);",
        'p(m) := g(m, n, _) if n > 9000000000000 ^ contains(m, "a") ^ length(m) > 1;',
        'p(m) := g(m, n, _) ^ not g(lower(m), n + 2, _) ^ not g("x", n + 4096, _) if n < 4096;',
    ],
)  # fmt: skip
def test_functions_answer_on_columns_as_by_rows(text: str) -> None:
    catalog = InputSchemas(
        {"g": InputSchema("g", "events", (("m", "text"), ("n", "int"), ("h", "float")))}
    )
    given_ = {"g": [Presence(Record("g", row, at), at, at + 9) for at, row in enumerate(WORDS)]}
    assert compare(check(parse(text), catalog), given_, [0, 6, 20])[0] > 0


@pytest.mark.parametrize(
    ("text", "failing"),
    [
        ("p(n + 1) := e(_, n);", (1 << 63) - 1), ("p(n - 2) := e(_, n);", 1 - (1 << 63)),
        ("p(n * n) := e(_, n);", 3037000500), ("p(-n) := e(_, n);", -(1 << 63)),
        ("p(abs(n)) := e(_, n);", -(1 << 63)), ("p(n / k) := e(k, n);", -(1 << 63)),
        ("p(7 / n) := e(_, n);", 0), ("p(7 % n) := e(_, n);", 0),
        ("p(bucket(5, n)) := e(_, n);", 0), ("p(bucket(n, 10)) := e(_, n);", -(1 << 63)),
        ("p(substring(text(k), n, 1)) := e(k, n);", -1),
        ("p(k) := e(k, n) if 1.0e308 * float(n) > 3.0;", 2),
        ("p(int(float(n) * 1024.0)) := e(_, n);", 1 << 53),
        ('p(int(concat(text(n), "0"))) := e(_, n);', 1 << 60),
        ("p(k) := e(k, n) if k > 5 || 1 / n == 3;", 0),
        ("p(k) := e(k, _) ^ not e(n + 1, _) ^ e(_, n);", (1 << 63) - 1),
    ],
)  # fmt: skip
def test_one_row_that_fails_is_left_to_rows_and_its_rule_where_it_is_one_of_few(
    text: str, failing: int
) -> None:
    rows: list[tuple[int, float]] = [(-1, 1), (2, 1), (3, 1)]
    for given_, spared in ((rows, 0), ([*rows, (-1, failing)], 1), ([*rows[:2], (-1, failing)], 0)):
        bulk = compared(program(text), {"e": events(given_)}, [0, 9])
        some = given_ is rows or (
            spared and " ^ " not in text
        )  # else each fact meets the one that fails
        assert (bulk.taken, bulk.spared) == ((1, spared) if some else (0, 0))


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
