"""Limits on what comes in: each is in the settings, in the documentation, and refuses at a running
server.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tidemill.errors import Exhausted, UsageError
from tidemill.host.questions import reasons
from tidemill.host.settings import LimitSettings
from tidemill.rpc.admission import Admissions
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.messages import CollectionShape, Explanation, ResourceDocument, Right
from tidemill.rpc.server import serve
from tidemill.runtime.log import Entry
from tidemill.testkit.whole import Whole, opened
from tidemill.time import frontier
from tidemill_query.authorizing import AuthorizedCatalog, AuthorizedQueries, AuthorizedStorage
from tidemill_server.settings import ServerSettings

PAGES = Path(__file__).parents[3] / "docs" / "reference"
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def test_s9_every_limit_is_documented_with_its_default() -> None:
    row = re.compile(
        r"^\| `limits\.(\w+)` \|.*\| `?([\d.]+)`?(?: (\w+))? \|.*\|.*\|$", re.MULTILINE
    )
    written = row.findall((PAGES / "settings.md").read_text())
    settings = msgspec.structs.asdict(LimitSettings())
    assert {name: float(value) * UNITS.get(unit, 1) for name, value, unit in written} == settings


def test_fifteen_shapes_that_cost_have_a_remedy() -> None:
    _, _, *shapes = re.findall(r"^\|(.+)\|$", (PAGES / "limits.md").read_text(), re.MULTILINE)
    assert len(shapes) == 15
    for shape in shapes:
        assert shape.count(" | ") == 2
        assert all(cell.strip() for cell in shape.split(" | "))


TABLE = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: NAME}
spec: {columns: [{name: x, type: text}], retain: all}
"""
VIEW = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: copies}
spec: {retain: all, program: PROGRAM}
"""


@asynccontextmanager
async def limited(folder: Path, **limits: int) -> AsyncIterator[tuple[Whole, AsyncClient]]:
    """A running process with these limits, and a client of its port."""
    chosen = ServerSettings(directory=str(folder), limits=LimitSettings(**limits))
    async with opened(chosen) as process:
        await process.start()
        catalog = process.context.catalog
        server = await serve(
            "127.0.0.1:0", AuthorizedQueries(process.query, catalog),
            AuthorizedCatalog(process.controller, catalog),
            AuthorizedStorage(process.storage, catalog),
            admissions=Admissions(
                chosen.limits.of_calls(True), process.context.clock.monotonic_s,
                process.context.clock.sleep,
            ),
        )  # fmt: skip
        async with AsyncClient(f"127.0.0.1:{server.port}", timeout_s=60) as client:
            yield process, client
        await server.stop(0)


def documents(*texts: str) -> list[ResourceDocument]:
    return [ResourceDocument(text, "test.yaml") for text in texts]


async def apply_table(client: AsyncClient, name: str, values: list[str]) -> int:
    """When the rows were in the table."""
    await client.apply(documents(TABLE.replace("NAME", name)))
    return (await client.insert(name, pa.table({"x": pa.array(values, pa.string())}))).time


async def test_s7_documents_and_programs_that_are_too_long_are_refused(tmp_path: Path) -> None:
    async with limited(tmp_path, document_bytes=20_000, program_bytes=5_000) as (_, client):
        await apply_table(client, "words", ["a"])
        with pytest.raises(UsageError, match=r"limits\.document_bytes"):
            await client.apply(documents(TABLE, "# " + "x" * 20_000))
        facts = "c(x) := words(x); " + "d(1); " * 1_000
        with pytest.raises(UsageError, match=r"test\.yaml:5.*limits\.program_bytes"):
            await client.apply(documents(VIEW.replace("PROGRAM", f'"{facts}"')))
        with pytest.raises(UsageError, match="nests too deep"):
            await client.apply(documents("a: " + "[" * 9_000 + "]" * 9_000))
        assert [each.name for each in await client.get()] == ["words"]
        await client.apply(documents(VIEW.replace("PROGRAM", '"c(x) := words(x);"')))


async def test_s7_others_are_answered_while_a_long_document_is_read(tmp_path: Path) -> None:
    async with limited(tmp_path) as (_, client):
        items = "".join(f"  - {{a: {number}, b: [x, y, z]}}\n" for number in range(12_000))
        hostile = asyncio.ensure_future(client.apply(documents(f"hostile:\n{items}")))
        times_s = [time.monotonic()]
        while not hostile.done():
            await client.get()
            times_s.append(time.monotonic())
            await asyncio.sleep(0.01)
        with pytest.raises(UsageError):
            await hostile
        # On the event loop it would be the first of them that waits for all of it.
        assert len(times_s) > 10
        assert 2 * max(b - a for a, b in pairwise(times_s)) < times_s[-1] - times_s[0]


async def test_s9_answers_and_questions_are_bounded_and_say_how_to_ask_for_less(
    tmp_path: Path,
) -> None:
    limits = {"answer_bytes": 30_000, "question_bytes": 2_000, "record_bytes": 2_500}
    async with limited(tmp_path, **limits) as (_, client):
        await apply_table(client, "words", [f"{n:03}" + "x" * 200 for n in range(100)])
        at = await apply_table(client, "others", [f"{n:03}" + "y" * 200 for n in range(100)])
        assert (await client.snapshot("words")).table.num_rows == 100
        with pytest.raises(UsageError, match=r"limits\.answer_bytes.*ask with literals"):
            await client.tables(["words", "others"], as_of=at, wait_s=30)
        await apply_table(client, "words", [f"{n:03}" + "z" * 200 for n in range(100)])
        with pytest.raises(UsageError, match=r"limits\.answer_bytes"):
            await client.snapshot("words")
        found = await client.ask(f'words("007{"x" * 200}")')
        assert found.table.num_rows == 1
        with pytest.raises(UsageError, match=r"limits\.question_bytes"):
            await client.ask(f'words("{"x" * 3_000}")')
        for ask in (client.why, client.why_not):
            with pytest.raises(UsageError, match=r"limits\.record_bytes"):
                await ask(f'words("{"x" * 3_000}")')
            with pytest.raises(UsageError, match=r"outside of its texts.*limits\.question_bytes"):
                await ask(f"words({'1, ' * 700} 1)")
            with pytest.raises(UsageError, match=r"limits\.question_bytes"):
                await ask(f'words("{"x" * 2_300}')  # a text without an end counts


async def test_s9_reasons_are_looked_for_beside_the_event_loop(tmp_path: Path) -> None:
    async with limited(tmp_path, question_bytes=1 << 20) as (_, client):
        await apply_table(client, "words", ["a"])
        await client.apply(documents(VIEW.replace("PROGRAM", '"c(x) := words(x);"')))
        await client.snapshot("copies/c", wait_s=30)
        threads: list[str] = []
        wanted = reasons.proof

        def noted(*given: Any) -> Explanation:
            threads.append(threading.current_thread().name)
            return wanted(*given)

        reasons.proof = noted  # type: ignore[assignment]
        try:
            explained = await client.why('copies/c("a")')
        finally:
            reasons.proof = wanted
        assert explained.text
        assert all(name.startswith("asked") for name in threads)
        assert threads


SOURCE = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: pushed}
spec: {columns: [{name: x, type: text}], http: {}, format: {json: {}}, retain: all}
"""


async def test_s9_rows_that_are_too_long_are_refused_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    async with limited(tmp_path, row_bytes=2_000) as (_, client):
        await apply_table(client, "words", ["x" * 1_900])
        await client.apply(documents(SOURCE))
        for call in (
            client.insert("words", pa.table({"x": ["a", "x" * 2_100]})),
            client.push("pushed", [b'{"x": "a"}', b'{"x": "' + b"x" * 2_000 + b'"}']),
        ):
            with pytest.raises(UsageError, match=r"row 2 .*limits\.row_bytes.*nothing was written"):
                await call
        shape = CollectionShape(pa.schema([("x", pa.string())]), user_writable=True)
        await client.storage.create("mine", shape, owner="me", lease_ms=None)
        write = await client.storage.acquire_right("mine", Right.WRITE, owner="me")
        times, diffs = pa.array([0], pa.uint64()), pa.array([1], pa.int64())
        updates = pa.table({"x": ["x" * 2_100], "_time": times, "_diff": diffs})
        with pytest.raises(UsageError, match=r"limits\.row_bytes"):
            await client.storage.update_and_downgrade(write, updates, frontier(1))
        assert (await client.snapshot("words")).table.num_rows == 1


FILE = SOURCE.replace("name: pushed", "name: lines").replace(
    "http: {}, format: {json: {}}", "file: {path: PATH, format: csv}"
)


async def wait_for_rows(client: AsyncClient, collection: str, rows: int) -> pa.Table:
    """The contents of a collection once it has so many rows."""
    async with asyncio.timeout(120):
        while (found := (await client.snapshot(collection, wait_s=60)).table).num_rows < rows:
            await asyncio.sleep(0.05)
    return found


async def test_a3_a_record_whose_row_is_too_long_is_a_letter_and_the_others_are_rows(
    tmp_path: Path,
) -> None:
    """A3: of a log that others write to and of a file: each goes on, and the letter is counted."""
    records = [b'{"x": "a"}', b'{"x": "' + b"x" * 3_000 + b'"}', b'{"x": "b"}']
    path = tmp_path / "lines.csv"
    path.write_bytes(b"x\na\n" + b"x" * 3_000 + b"\nb\n")
    async with limited(tmp_path / "state", row_bytes=2_000) as (process, client):
        await client.apply(documents(SOURCE, FILE.replace("PATH", str(path))))
        await process.context.log.append("http.pushed", [Entry(None, each) for each in records])
        for source in ("pushed", "lines"):
            found = await wait_for_rows(client, source, 2)
            assert sorted(found["x"].to_pylist()) == ["a", "b"]
            letters = await wait_for_rows(client, f"{source}/deadletters", 1)
            assert letters["reason"].to_pylist() == [
                "its row has 3,000 bytes, more than 2,000 (limits.row_bytes)"
            ]
            assert letters["offset"].to_pylist() == [1]
            text = process.context.metrics.expose()[0].decode()
            assert f'decode_errors_total{{source="{source}"}} 1.0' in text


async def test_a3_a_view_of_a_rule_of_many_atoms_is_kept_and_proved_and_of_more_refused(
    tmp_path: Path,
) -> None:
    def view(atoms: int) -> str:
        return VIEW.replace("PROGRAM", f'"c(x) := {" ^ ".join(["words(x)"] * atoms)};"')

    async with limited(tmp_path) as (_, client):
        await apply_table(client, "words", ["a"])
        with pytest.raises(UsageError, match=r"S128 .* more than the 64"):
            await client.apply(documents(view(1_500)))
        await client.apply(documents(view(64)))
        assert (await client.snapshot("copies/c", wait_s=60)).table.num_rows == 1
        assert (await client.why('copies/c("a")')).text.count('words("a")') == 64
        assert "rule 1" in (await client.why_not('copies/c("b")')).text


def long_program() -> str:
    """A program whose plan takes seconds: a long chain of rules."""
    rules = [f"p{number + 1}(x) := p{number}(x) ^ words(x);" for number in range(250)]
    return f'"p0(x) := words(x); {" ".join(rules)}"'


async def test_s7_the_loop_turns_while_a_long_program_is_checked_and_explained(
    tmp_path: Path,
) -> None:
    """The longest time between two turns of the loop is a small part of what the work takes:
    nothing stands still.
    """
    async with limited(tmp_path) as (_, client):
        await apply_table(client, "words", [])
        view = VIEW.replace("PROGRAM", long_program().replace("words(x);", "words(x, x);", 1))
        told: list[str] = []
        for work in (
            lambda: client.apply(documents(view)),
            lambda: client.apply(documents(VIEW.replace("PROGRAM", long_program()))),
            lambda: client.explain("copies", "plan"),
            lambda: client.explain("copies", "svg"),
        ):
            try:
                taken, longest = await stalls(work)
            except UsageError as error:
                told.append(str(error))
                continue
            if taken > 2:  # what is short tells nothing
                assert longest < taken / 2, f"the loop stood for {longest} s of {taken} s"
        assert len(told) == 1


async def stalls(work: Callable[[], Coroutine[Any, Any, object]]) -> tuple[float, float]:
    """Seconds that work took, and the longest time between two turns of the loop meanwhile."""
    now = asyncio.get_running_loop().time
    begun = last = now()
    longest = 0.0
    task = asyncio.ensure_future(work())
    while not task.done():
        await asyncio.sleep(0.001)
        longest, last = max(longest, now() - last), now()
    await task
    return now() - begun, longest


NUMBERS = TABLE.replace("type: text", "type: int")
CROSS = VIEW.replace("name: copies", "name: crossed")
MIB = 1 << 20


async def test_s7_a_view_beyond_its_memory_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    """A cross join of two tables of 100,000 rows has 10¹⁰ rows; beside it a view and its answers
    stay right.
    """
    limits = {"view_bytes": 200 * MIB, "question_memory_bytes": 20 * MIB}
    async with limited(tmp_path, **limits) as (_, client):
        for name in ("one", "two"):
            await client.apply(documents(NUMBERS.replace("NAME", name)))
            rows = pa.table({"x": pa.array(range(100_000), pa.int64())})
            at = (await client.insert(name, rows)).time
        good = VIEW.replace("PROGRAM", '"c(x) := one(x) ^ two(x);"')
        bad = CROSS.replace("PROGRAM", '"k(x, y) := one(x) ^ two(y);"')
        await client.apply(documents(good, bad))
        answer = await client.snapshot("copies/c", at, 240)
        assert answer.table.num_rows == 100_000
        told = await until_exhausted(client, "crossed")
        assert "limits.view_bytes" in told
        assert "209,715,200" in told
        more = (await client.insert("one", pa.table({"x": [200_000]}))).time
        more = (await client.insert("two", pa.table({"x": [200_000]}))).time
        assert (await client.ask("copies/c(200000)", more, 240)).table.num_rows == 1
        with pytest.raises(Exhausted, match=r"limits\.question_memory_bytes"):
            await client.explain("copies", "analyze")
        with pytest.raises(Exhausted, match=r"limits\.question_memory_bytes"):
            await client.why_not("copies/c(-1)")
        assert "one(7)" in (await client.why("copies/c(7)")).text


async def until_exhausted(client: AsyncClient, view: str) -> str:
    """The status of a view that has been given up."""
    async with asyncio.timeout(240):
        while True:
            status = await client.describe("View", view)
            if status.reason == "Exhausted":
                assert not status.ready
                return status.message
            await asyncio.sleep(0.05)


async def test_s9_a_capability_without_a_lease_has_the_longest_one(tmp_path: Path) -> None:
    async with limited(tmp_path, lease_ms=60_000) as (process, client):
        shape = CollectionShape(pa.schema([("x", pa.int64())]))
        await client.storage.create("mine", shape, owner="me", lease_ms=None)
        await client.storage.acquire("mine", owner="me", lease_ms=10_000_000)
        held = (await process.context.collections.status("mine")).holders
        now_ms = process.context.clock.now_ms()
        assert len(held) >= 2
        for each in held:
            assert each.lease_end_ms is not None
            assert each.lease_end_ms <= now_ms + 60_000


@pytest.mark.parametrize(("size", "again"), [(0, 50_000), (1 << 28, 0)])
async def test_decoded_rows_stay_in_memory_up_to_a_limit(
    tmp_path: Path, size: int, again: int
) -> None:
    """`again`: rows of the part that a read decodes anew; they are too long for the log."""
    async with limited(tmp_path, cache_bytes=size) as (process, client):
        at = await apply_table(client, "many", [f"{n:030d}" for n in range(50_000)])
        collections = process.context.collections
        reader, _ = await collections.acquire("many", owner="test")
        before = collections.stages.rows["read"]
        assert (await collections.snapshot(reader, at)).num_rows == 50_000
        assert collections.stages.rows["read"] - before == again
