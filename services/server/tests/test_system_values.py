"""Values that come in through tables and go on through views mean what the language says, at every
border.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.catalog import record_rows
from tidemill.errors import UsageError
from tidemill.rpc.messages import Changes, CollectionShape, Right
from tidemill.testkit.whole import Whole, running
from tidemill.time import frontier

HEAD = "apiVersion: tidemill.dev/v1alpha1\n"
EVENTS = f"""{HEAD}kind: Source
metadata: {{name: e}}
spec:
  http: {{}}
  columns: [{{name: k, type: text}}, {{name: at, type: int}}]
  eventTime: {{column: at, timeline: et}}
  timestampInterval: 50ms
"""


def table(name: str, *columns: str) -> str:
    """A table; each column is its name and type, with `?` behind it if a row may leave it out."""
    told = ([*each.rstrip("?").split(), str(each.endswith("?")).lower()] for each in columns)
    listed = ", ".join(f"{{name: {n}, type: {t}, nullable: {null}}}" for n, t, null in told)
    return f"{HEAD}kind: Table\nmetadata: {{name: {name}}}\nspec: {{columns: [{listed}], retain: all}}\n"


def view(name: str, program: str, more: str = "") -> str:
    return f"{HEAD}kind: View\nmetadata: {{name: {name}}}\nspec:\n{more}  retain: all\n  program: |\n    {program}\n"


@pytest.mark.parametrize(
    ("program", "name"),
    [("late(plane: x, time: t) := e(k: x) @time(t);", "time"), ("errors(x) := e(k: x);", "errors")],
)
async def test_w1_w10_a_view_whose_names_are_taken_is_refused_and_not_there(
    tmp_path: Path, program: str, name: str
) -> None:
    async with running(tmp_path, EVENTS) as process:
        for _ in range(2):
            with pytest.raises(UsageError, match=rf"S126 .*`{name}`(?s:.*)another name"):
                await process.apply(view("v", program))
        assert await process.controller.get("View", None) == []
    async with running(tmp_path) as process:
        assert [status.name for status in await process.controller.get(None, None)] == ["e"]


async def test_w6_s4_texts_of_an_insert_are_put_in_normal_form(tmp_path: Path) -> None:
    program = "joined(k, n) := a(k, n) ^ b(k); missing(k, n) := a(k, n) ^ not b(k); groups(k) @count(n) := a(k, n);"
    tables = table("a", "k text", "n int"), table("b", "k text")
    async with running(tmp_path, *tables, view("v", program)) as process:
        await process.insert("b", {"k": "\u00e9"})
        at = await process.insert("a", {"k": "e\u0301", "n": 1}, {"k": "\u00e9", "n": 2})
        assert await process.answer('a("\u00e9", n)', at) == [(1,), (2,)]
        assert await process.answer("joined(k, n)", at) == [("\u00e9", 1), ("\u00e9", 2)]
        assert await process.answer("missing(k, n)", at) == []
        assert await process.answer("groups(k) @count(n)", at) == [("\u00e9", 2)]
        at = await process.insert("a", {"k": "e\u0301", "n": 2, "_diff": -1})
        assert await process.answer("a(k, n)", at) == [("\u00e9", 1)]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
async def test_w3_a_float_that_is_not_finite_does_not_get_into_a_table(
    tmp_path: Path, number: float
) -> None:
    async with running(tmp_path, table("a", "k text", "f float")) as process:
        with pytest.raises(UsageError, match="the column f is not a finite number in row 2"):
            await process.insert("a", {"k": "x", "f": -0.0}, {"k": "y", "f": number})
        at = await process.insert("a", {"k": "x", "f": -0.0})
        assert [str(f) for _, f in await process.answer("a(k, f)", at)] == ["0.0"]


async def test_s4_a_value_of_another_type_is_refused_and_not_cast(tmp_path: Path) -> None:
    one = table("a", "k text", "n int", "f float", "b bool")
    right: dict[str, object] = {"k": "x", "n": 1, "f": 1, "b": True}
    wrong = {
        "k": [True, 1, 1.5],
        "n": [True, "1", 1.5, 2.0**63],
        "f": [False, "1.5"],
        "b": [1, "true"],
    }
    async with running(tmp_path, one) as process:
        for name, values in wrong.items():
            for value in values:
                with pytest.raises(UsageError, match=f"the column {name} is .*not"):
                    await process.insert("a", right | {name: value})
        at = await process.insert("a", right | {"n": 2.0})
        assert await process.answer("a(k, n, f, b)", at) == [("x", 2, 1.0, True)]


async def test_w12_a_row_may_leave_out_what_may_be_null_and_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path, table("a", "k text", "f float?")) as process:
        at = await process.insert("a", {"k": "x"})
        assert await process.answer("a(k, f)", at) == [("x", None)]
        with pytest.raises(UsageError, match="lack the columns k"):
            await process.insert("a", {"f": 1.0})
        with pytest.raises(UsageError, match="the column k is null in row 1"):
            await process.insert("a", {"k": None, "f": 1.0})


async def test_w12_v14_s4_a_row_that_is_not_there_cannot_be_taken_away(tmp_path: Path) -> None:
    async with running(
        tmp_path, table("a", "k text?", "n int"), view("v", "p(k, n) := a(k, n);")
    ) as process:
        for rows in (
            [{"k": "x", "n": 7, "_diff": -1}],
            [{"k": "y", "n": 1}, {"k": None, "n": 2, "_diff": -1}],
        ):
            with pytest.raises(UsageError, match="taken away more often than it is there"):
                await process.insert("a", *rows)
        at = await process.insert("a", {"k": None, "n": 2}, {"k": "z", "n": 3, "_diff": 2})
        at = await process.insert("a", {"k": None, "n": 2, "_diff": -1}, {"k": "z", "n": 3})
        assert await process.answer("p(k, n)", at) == [("z", 3)]
        with pytest.raises(UsageError, match="more often"):
            await process.insert("a", {"k": "z", "n": 3, "_diff": -4})
        at = await process.insert(
            "a", {"k": "z", "n": 3, "_diff": -2}, {"k": "z", "n": 3, "_diff": -1}
        )
        assert await process.answer("p(k, n)", at) == []
        for diff in (2**31 + 1, -(2**31) - 1):
            with pytest.raises(UsageError, match="_diff is beyond"):
                await process.insert("a", {"k": "z", "n": 3, "_diff": diff})


async def pairs(process: Whole, goal: str, at: int) -> list[tuple[object, ...]]:
    """The same as `answer`, without the values that ride beside facts of two columns."""
    return [row[:2] for row in await process.answer(goal, at)]


async def test_w5_a_null_aggregate_is_a_value_in_the_next_view_too(
    tmp_path: Path,
) -> None:
    program = "m(k) @max(v) @count(v) @sum(v) := e(k, v); x1(k, a) := m(k) @max(a);"
    second = (
        "x2(k, a) := m(k) @max(a); none2(k) ~max ~count ~sum := m(k) @max(a) if is_null(a); "
        "sums(k, a) := m(k) @sum(a);"
    )
    texts = table("e", "k text", "v int?"), view("n1", program), view("n2", second)
    async with running(tmp_path, *texts) as process:
        at = await process.insert("e", {"k": "p", "v": 1}, {"k": "q", "v": None})
        both = [("p", 1), ("q", None)]
        assert await pairs(process, "x1(k, a)", at) == both
        assert await pairs(process, "x2(k, a)", at) == both
        assert await pairs(process, "sums(k, a)", at) == both
        assert await process.answer("none2(k)", at) == [("q",)]
        at = await process.insert("e", {"k": "q", "v": 3}, {"k": "p", "v": 1, "_diff": -1})
        assert await pairs(process, "x2(k, a)", at) == [("q", 3)]
        assert await process.answer("none2(k)", at) == []


async def test_w5_a_fact_without_a_lattice_has_none_in_the_next_view(
    tmp_path: Path,
) -> None:
    program = 'm(k) @max(v) @count(v) := e(k, v); m("r") := e(_, _); x1(k, a) := m(k) @max(a);'
    second = (
        "x2(k, a) := m(k) @max(a); null2(k) ~max ~count := m(k) @max(a) if is_null(a); "
        "on(k) := m(k); lack(k) ~max ~count := on(k) ^ not x2(k, _); n2(k, n) := m(k) @count(n);"
    )
    texts = table("e", "k text", "v int?"), view("n1", program), view("n2", second)
    async with running(tmp_path, *texts) as process:
        at = await process.insert("e", {"k": "p", "v": 1}, {"k": "q", "v": None})
        both = [("p", 1), ("q", None)]
        for goal in ("x1(k, a)", "x2(k, a)", "n1/m(k) @max(a)"):
            assert await pairs(process, goal, at) == both, goal
        assert await process.answer("null2(k)", at) == [("q",)]
        assert await process.answer("lack(k)", at) == [("r",)]
        for goal in ("n2(k, n)", "n1/m(k) @count(n)"):
            assert await pairs(process, goal, at) == [("p", 1), ("q", 0)], goal
        found = (await process.query.ask("n1/m(k)", at, 60.0)).table.drop_columns(["_diff"])
        assert found.column_names == ["k", "count", "max", "has_max"]
        assert sorted(found.to_pylist(), key=repr)[0] == {
            "k": "p", "count": 1, "max": 1, "has_max": True,
        }  # fmt: skip
        again = (await process.query.why('n2/null2("q")', at)).text
        assert 'm("q") @count(0) @max(null)' in again
        more_rows = {"k": "r", "v": None}, {"k": "q", "v": 3}
        at = await process.insert("e", *more_rows)
        assert await pairs(process, "x2(k, a)", at) == [("p", 1), ("q", 3), ("r", None)]
        assert await process.answer("lack(k)", at) == []
    async with running(tmp_path) as process:
        at = await process.insert("e", {"k": "r", "v": None, "_diff": -1})
        assert await pairs(process, "x2(k, a)", at) == [("p", 1), ("q", 3)]
        assert await process.answer("lack(k)", at) == [("r",)]


async def test_w5_a_view_that_was_stored_without_marks_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = view("n1", 'm(k) @max(v) := e(k, v); m("r") := e(_, _);')
    with monkeypatch.context() as before:
        before.setattr(record_rows, "NEVER_NULL", frozenset({"max"}))
        async with running(tmp_path, table("e", "k text", "v int?"), made) as process:
            at = await process.insert("e", {"k": "p", "v": None})
            assert await process.answer("m(k)", at) == [("p", None), ("r", None)]
    async with running(tmp_path) as process:
        async with asyncio.timeout(240):
            while (status := await process.controller.describe("View", "n1")).reason != "Stalled":
                await asyncio.sleep(0.02)
        told = "columns c0, max, and its rows would have c0, max, has_max: delete the view"
        assert told in status.message
        await process.controller.delete("View", "n1")
        await process.apply(made)
        at = await process.insert("e", {"k": "q", "v": 2})
        rows = [("p", None, True), ("q", 2, True), ("r", None, False)]
        assert await process.answer("m(k)", at) == rows


async def test_w5_a_column_called_as_the_mark_of_a_lattice_is_refused(tmp_path: Path) -> None:
    program = 'm(has_max: k) @max(v) := e(k, v); m("r") := e(_, _);'
    async with running(tmp_path, table("e", "k text", "v int")) as process:
        with pytest.raises(UsageError, match=r"S126 .*has_max.*whether a fact carries @max"):
            await process.apply(view("n1", program))


async def push(process: Whole, source: str, *rows: bytes) -> None:
    await process.controller.push(source, rows)


ENDING = EVENTS.replace("name: e}", "name: e}").replace(
    "{name: at, type: int}]", "{name: at, type: int}, {name: until, type: int, nullable: true}]"
).replace("column: at,", "column: at, expiresColumn: until,")  # fmt: skip


async def test_w2_infinity_at_the_border_of_a_collection_is_an_error_record(
    tmp_path: Path,
) -> None:
    program = "q(k, w) := e(k: k) @expires(w); top() @max(w) := e(k: _) @expires(w); far(k, float(w)) := e(k: k) @expires(w); l(k, least(w, 50)) := e(k: k) @expires(w);"
    texts = ENDING, view("v", program)
    async with running(tmp_path, *texts) as process:
        await push(process, "e", b'{"k": "a", "at": 1, "until": 40}', b'{"k": "b", "at": 2}')
        await push(process, "e", b'{"k": "c", "at": 90, "until": 95}')
        assert [row[:2] for row in await process.answer("q(k, w)", 10)] == [("a", 40)]
        assert [row[:2] for row in await process.answer("far(k, w)", 10)] == [("a", 40.0)]
        assert [r[:2] for r in await process.answer("l(k, w)", 10)] == [("a", 40), ("b", 50)]
        assert [row[0] for row in await process.answer("v/errors", 10)] == [
            'overflow: far("b", inf) @time(2)', 'overflow: q("b", inf) @time(2)',
            "overflow: top() @time(2)",
        ]  # fmt: skip
    async with running(tmp_path) as process:
        assert [row[:2] for row in await process.answer("q(k, w)", 10)] == [("a", 40)]


@pytest.mark.parametrize(
    "program",
    [
        "q(x, w) := t(x) @expires(w);",
        "q() @max(w) := t(_) @expires(w);",
        "q(w) := e(k: _) @expires(w);",
    ],
)
async def test_w2_a_column_that_is_always_infinite_is_refused(tmp_path: Path, program: str) -> None:
    async with running(tmp_path, EVENTS, table("t", "x text")) as process:
        with pytest.raises(UsageError, match="S127 `w` is always infinite"):
            await process.apply(view("v", program))


async def test_w12_reasons_say_that_other_values_ride_beside_the_fact(tmp_path: Path) -> None:
    texts = table("e", "k text", "v int"), view("n", "avg(k) @average(v) @count(v) := e(k, v);")
    async with running(tmp_path, *texts) as process:
        at = await process.insert("e", {"k": "t", "v": 1}, {"k": "t", "v": 2})
        await process.answer("avg(k)", at)
        said = f'is not present at {at}: present is avg("t") @average(1.5) @count(2)'
        for wrong in ('avg("t") @average(1)', 'avg("t") @count(1)', 'avg("t") @max(2)'):
            assert said in (await process.query.why(f"n/{wrong}", at)).text
            assert said in (await process.query.why_not(f"n/{wrong}", at)).text
        right = (await process.query.why('n/avg("t") @average(1.5)', at)).text
        assert "is not present" not in right
        assert 'e("t", 1)' in right


def widened(row: tuple[object, ...]) -> tuple[float | None, ...]:
    return tuple(each if each is None else float(str(each)) for each in row)


def updates(at: int, *rows: dict[str, object]) -> pa.Table:
    return pa.Table.from_pylist([{**row, "_diff": 1} for row in rows]).append_column(
        "_time", pa.array([at] * len(rows), pa.uint64())
    )


async def test_w3_w6_what_a_capability_writes_is_what_an_insert_would_write(tmp_path: Path) -> None:
    """W3, W6: rows that come by UpdateAndDowngrade met no check, and a NaN or another form of a
    text got in.
    """
    shape = CollectionShape(
        pa.schema([("k", pa.string()), ("f", pa.float64())]), timeline="scale", user_writable=True
    )
    program = "joined(k) := made(k, _) ^ made(k, 1.5); zeros(f) := made(_, f) if f < 1.0;"
    async with running(tmp_path, table("a", "k text", "f float")) as process:
        storage = process.storage
        made = (await storage.create("made", shape, frontier(0), "me", None)).write
        assert made is not None
        taken = await storage.acquire_right("a", Right.WRITE, "me", None)
        for held, at in ((made, 3), (taken, max(taken.frontier))):
            for number in (float("nan"), float("inf"), float("-inf")):
                rows = updates(at, {"k": "x", "f": 1.0}, {"k": "y", "f": number})
                with pytest.raises(UsageError, match="column f is not a finite number in row 2"):
                    await storage.update_and_downgrade(held, rows, frontier(at + 1), None)
            marks = updates(at, {"k": "a" + "\u0301" * 31, "f": 1.0})
            with pytest.raises(UsageError, match="more than 30 combining marks"):
                await storage.update_and_downgrade(held, marks, frontier(at + 1), None)
        rows = updates(3, {"k": "e\u0301", "f": 1.5}, {"k": "\u00e9", "f": -0.0})
        await storage.update_and_downgrade(made, rows, frontier(10), None)
        await process.apply(view("v", program))
        assert await process.answer('made("\u00e9", f)', 9) == [(0.0,), (1.5,)]
        assert await process.answer("v/joined(k)", 9) == [("\u00e9",)]
        ((zero,),) = await process.answer("v/zeros(f)", 9)
        assert str(zero) == "0.0"


async def test_s2_a_program_over_columns_that_the_language_lacks_is_refused(tmp_path: Path) -> None:
    """S2: a view over a created collection of other types ended in a KeyError."""
    shape = CollectionShape(pa.schema([("n", pa.int32())]), user_writable=True)
    async with running(tmp_path) as process:
        await process.storage.create("narrow", shape, frontier(0), "me", None)
        with pytest.raises(
            UsageError, match="its column n is int32, and programs know int, float, text"
        ):
            await process.apply(view("v", "p(n) := narrow(n);"))
        assert await process.controller.get("View", None) == []


async def test_w12_a_goal_over_rows_means_what_it_means_in_a_program(tmp_path: Path) -> None:
    """W12: null equals null, a whole number the float that it widens to, and types that never meet
    are told.
    """
    far = 1 << 53
    one = table("a", "x int?", "y int?", "h float?")
    program = f"same(x) := a(x, x, _); near(y) := a(_, y, _) if y == {far}.0; h(x) := a(x, _, x);"
    rows: list[dict[str, object]] = [
        {"x": None, "y": None, "h": 0.5}, {"x": 1, "y": 1, "h": None}, {"x": 1, "y": None, "h": 1.0},
        {"x": far + 1, "y": far, "h": float(far)}, {"x": 2, "y": far + 1, "h": 2.5},
        {"x": None, "y": 7, "h": None},
    ]  # fmt: skip
    async with running(tmp_path, one, view("v", program)) as process:
        at = await process.insert("a", *rows)
        for asked, derived in (
            ("a(x, x, _)", "v/same(x)"),
            (f"a(x, {far}.0, _)", None),
            ("a(x, _, x)", "v/h(x)"),
        ):
            found = await process.answer(asked, at)
            if derived is None:
                assert len(found) == len(await process.answer("v/near(y)", at)) == 2
            else:
                said = await process.answer(derived, at)
                assert set(map(widened, found)) == set(map(widened, said))
            changes = [
                event.table.num_rows
                async for event in process.query.subscribe(asked, at, True, at + 1)
                if isinstance(event, Changes)
            ]
            assert sum(changes) == len(found)
        assert await process.answer(f"a(x, _, {far + 1})", at) == [(far + 1,)]
        assert await process.answer("a(_, 1.5, _)", at) == []
        for goal, says in (
            ("a(true, _, _)", "a column of a whole number never equals a boolean"),
            ('a(_, _, "1")', "a column of a float never equals text"),
        ):
            with pytest.raises(UsageError, match=says):
                await process.answer(goal, at)
            with pytest.raises(UsageError, match=says):
                await anext(process.query.subscribe(goal, at, True, at + 1))
