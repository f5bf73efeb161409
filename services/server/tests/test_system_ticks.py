"""Programs with `@next` and `@async`, applied as views: they run, outlive restarts, and say what
does not fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.errors import UsageError
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.whole import Whole, opened
from tidemill_query.settings import QuerySettings
from tidemill_server.settings import ServerSettings

TABLE = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: puts}
spec: {columns: [{name: node, type: int}, {name: key, type: text}, {name: value, type: int}], retain: all}
---
"""
LAST = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: last}
spec:
  retain: all
  tick: {period: 20ms}
  inputs: {put: puts}
  program: |
    value(k, v) := put(_, k, v);
    kept(k, v) @next := value(k, v);
    value(k, v) := kept(k, v) ^ not put(_, k, _);
  outputs: [value]
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: asked}
spec:
  retain: all
  tick: {on: change}
  nodes: 2
  place: {put: node}
  inputs: {put: puts}
  program: |
    copied(k) @async(1) := put(0, k, _);
    known(k) := copied(k);
    known(k) @next := known(k);
  outputs: [known]
"""


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    async with opened(ServerSettings(directory=str(folder / "state"))) as process:
        await process.start()
        yield process


async def apply(process: Whole, text: str) -> None:
    await process.controller.apply([ResourceDocument(text, "test.yaml")])


async def put(process: Whole, node: int, key: str, value: int, diff: int = 1) -> int:
    rows = pa.table({"node": [node], "key": [key], "value": [value], "_diff": [diff]})
    return (await process.controller.insert("puts", rows)).time


async def answer(process: Whole, goal: str, at: int) -> set[tuple[object, ...]]:
    table = (await process.query.ask(goal, at, 120.0)).table.drop_columns(["_diff"])
    return set(zip(*(column.to_pylist() for column in table.columns), strict=True))


async def test_what_a_tick_keeps_is_there_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, TABLE + LAST)
        await put(process, 0, "a", 1)
        both = await put(process, 1, "b", 2)
        # A tick has to see the row before it goes.
        assert await answer(process, "last/value(k, v)", both + 40) == {("a", 1), ("b", 2)}
        gone = await put(process, 0, "a", 1, -1)
        assert await answer(process, "last/value(k, v)", gone + 40) == {("a", 1), ("b", 2)}
        assert await answer(process, "asked/known(n, k)", gone + 2) == {(1, "a")}
    async with running(tmp_path) as process:
        new = await put(process, 0, "b", 3)
        assert await answer(process, "last/value(k, v)", gone + 40) == {("a", 1), ("b", 2)}
        assert await answer(process, "last/value(k, v)", new + 40) == {("a", 1), ("b", 2), ("b", 3)}
        assert await answer(process, "asked/known(n, k)", new + 2) == {(1, "a"), (1, "b")}
        last = await process.controller.describe("view", "last")
        assert last.ready
        await assert_reasons(process, gone, new)
        plan = await process.query.explain("last", "plan")
        assert "@next" in plan
        assert "strategy strata, tick every 20 ms" in plan
        assert "tick on change, 2 nodes" in await process.query.explain("asked", "plan")
        await process.controller.delete("view", "last")
        await asyncio.sleep(0)


async def assert_reasons(process: Whole, gone: int, new: int) -> None:
    """Proofs go back over ticks and nodes to the rows that were put, also before the restart."""
    kept = await process.query.why('last/value("a", 1)', new + 40)
    assert 'put(0, "a", 1)  [input, at ' in kept.text
    assert "rule 2: kept(k, v) @next := value(k, v);" in kept.text
    assert 'not put(_, "a", _)  [at ' in kept.text
    sent = await process.query.why('asked/known(1, "b")', new + 1)
    assert sent.text.splitlines() == [
        f'known("b")  [node 1 at {new + 1}, rule 2: known(k) := copied(k);]',
        f'└─ copied("b")  [node 1 at {new + 1}, rule 1: copied(k) @async(1) := put(0, k, _);]',
        f'   └─ put(0, "b", 3)  [input, node 0 at {new}]',
    ]
    absent = await process.query.why_not('asked/known(1, "b")', gone + 2)
    assert absent.text.splitlines()[0] == (
        'rule 2: no fact agrees with copied("b"); ask why-not \'copied("b")\''
    )
    with pytest.raises(UsageError, match="names the node, 0 to 1"):
        await process.query.why('asked/known(7, "b")', new + 2)


async def test_a_program_reads_the_number_of_its_tick_also_after_a_restart(
    tmp_path: Path,
) -> None:
    view = (
        f"{VIEW}  retain: all\n  tick: {{on: change, number: now}}\n"
        "  program: |\n    first(k, n) @next := puts(_, k, _) ^ now(n) ^ not first(k, _);\n"
        "    first(k, n) @next := first(k, n);\n"
    )
    async with running(tmp_path) as process:
        await apply(process, TABLE + view)
        a = await put(process, 0, "a", 1)
        assert await answer(process, "v/first(k, n)", a + 1) == {("a", 0)}
    async with running(tmp_path) as process:
        b = await put(process, 0, "b", 1)
        found = dict(await answer(process, "v/first(k, n)", b + 1))  # type: ignore[call-overload]  # pairs
        assert found["a"] == 0
        assert found["b"] >= 2
        assert "now(0)" in (await process.query.why('v/first("a", 0)', b + 1)).text


LATE = """---
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: late}
spec: {columns: [{name: key, type: text}], retain: all}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: NAME}
spec:
  retain: all
  tick: {period: 3s}
  inputs: {put: puts}
  admission: {late: {policy: POLICY}}
  program: |
    kept(k) := put(_, k, _);
    kept(k) @next := kept(k);
    met(k) := kept(k) ^ late(k);
    before(k) @next := met(k);
"""


async def test_a_row_joins_the_tick_that_has_run_also_after_a_restart(tmp_path: Path) -> None:
    """Before its next tick a view with `stratum` has the row, and one with `tick` has not."""
    table, view = LATE.split("---\n")[1:]
    views = [
        view.replace("NAME", policy).replace("POLICY", policy) for policy in ("stratum", "tick")
    ]
    async with running(tmp_path) as process:
        await apply(process, "---\n".join((TABLE, table, *views)))
        await put(process, 0, "a", 1)
        both = await put(process, 0, "b", 1)
        assert await answer(process, "stratum/kept(k)", both + 3_000) == {("a",), ("b",)}
        await assert_joins(process, "a", set())
    async with running(tmp_path) as process:
        await assert_joins(process, "b", {("a",)})


async def assert_joins(process: Whole, key: str, known: set[tuple[object, ...]]) -> None:
    """A row of `late` meets at its instant what the tick has; once in a while that is a tick."""
    at = (await process.controller.insert("late", pa.table({"key": [key]}))).time
    assert await answer(process, "stratum/met(k)", at) == {*known, (key,)}
    assert "late(" in (await process.query.why(f'stratum/met("{key}")', at)).text
    after = at - at % -3_000
    before = {(key,)} if at == after else set()
    assert await answer(process, "tick/met(k)", at) <= known | before
    assert await answer(process, "stratum/before(k)", after + 3_000) >= {*known, (key,)}
    assert await answer(process, "tick/met(k)", after + 3_000) == {*known, (key,)}


async def test_reasons_go_back_as_far_as_history_is_looked_at(tmp_path: Path) -> None:
    settings = ServerSettings(
        directory=str(tmp_path / "state"), query=QuerySettings(proof_history_ms=0)
    )
    async with opened(settings) as process:
        await process.start()
        await apply(process, TABLE + LAST)
        come = await put(process, 0, "a", 1)
        assert await answer(process, "last/value(k, v)", come + 40) == {("a", 1)}
        gone = await put(process, 0, "a", 1, -1)
        assert await answer(process, "last/value(k, v)", gone + 40) == {("a", 1)}
        short = (await process.query.why('last/value("a", 1)', gone + 40)).text
        assert "no tick ran between" in short or "[handed on before the known history, at " in short


VIEW = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: v}
spec:
"""


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("{inputs: {put: puts}, program: 'p(k) @next := put(_, k, _);'}", "say when its ticks run"),
        (
            "{inputs: {put: puts}, program: 'p(k) := put(_, k, _);', tick: {period: 1s}}",
            "spec.tick is for programs with @next or @async",
        ),
        (
            "{inputs: {put: puts}, program: 'p(k) @next := put(_, k, _);', tick: {on: change}, "
            "nodes: 2, place: {put: key}}",
            "spec.place.put: key is text, and a node int",
        ),
        (
            "{inputs: {put: puts}, program: 'p(k) @next := put(_, k, _);', tick: {on: change}, "
            "admission: {putt: {policy: eager}}}",
            "putt is no input of the program; it reads put",
        ),
        (
            "{inputs: {put: puts}, program: 'p(k) @next := put(_, k, _);', "
            "tick: {on: change, number: p}}",
            "spec.tick.number: p is derived, or an input",
        ),
        (
            "{inputs: {put: puts}, program: 'p(k) := put(_, k, _);', engine: scratch}",
            'spec.engine: "scratch" is not allowed; allowed: auto, local, spark',
        ),
    ],
)
async def test_what_does_not_fit_is_refused(spec: str, says: str, tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, TABLE)
        with pytest.raises(UsageError, match=r"test\.yaml:") as refused:
            await apply(process, VIEW.replace("spec:", f"spec: {spec}"))
        assert says in str(refused.value)


@pytest.mark.parametrize(
    "program",
    [
        "s3(x) @next := a(x); s3(x) @next := s3(x) ^ not b(x); b(0) := a(0);",
        "s3(x) := a(x); k(x) @next := s3(x); s3(x) := k(x) ^ not b(x); b(0) := a(0);",
    ],
)
async def test_w9_why_of_the_first_step_goes_down_to_the_rows_that_were_there(
    program: str, tmp_path: Path
) -> None:
    table = (
        "apiVersion: tidemill.dev/v1alpha1\nkind: Table\nmetadata: {name: a}\n"
        "spec: {columns: [{name: x, type: int}], retain: all}\n"
    )
    view = (
        f"apiVersion: tidemill.dev/v1alpha1\nkind: View\nmetadata: {{name: v}}\n"
        f'spec: {{retain: all, tick: {{"on": change}}, program: "{program}"}}\n'
    )
    async with opened(ServerSettings(directory=str(tmp_path / "state"))) as process:
        await process.start()
        await process.controller.apply([ResourceDocument(table, "t.yaml")])
        await process.controller.insert("a", pa.table({"x": [1, 2]}))
        await process.controller.apply([ResourceDocument(view, "v.yaml")])
        gone = {"x": [2], "_diff": [-1]}
        await process.query.ask(
            "s3(x)", (await process.controller.insert("a", pa.table(gone))).time + 1, 60.0
        )
        for x in range(3, 23):
            at = (await process.controller.insert("a", pa.table({"x": [x]}))).time
        await process.query.ask("s3(x)", at, 60.0)
        text = (await process.query.why("v/s3(2)", at)).text
    lines = [line for line in text.splitlines() if "s3(2)" in line]
    assert any("a(2)" in line and "input" in line for line in text.splitlines()), text
    assert 1 < len(lines) <= 3, text
