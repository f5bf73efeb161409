"""Long calls of users are done on threads, and no cost grows faster than the sent bytes."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from tidemill.arrangement.looks import LOOK, let_go
from tidemill.catalog.apply import documents
from tidemill.catalog.apply.turns import TURN
from tidemill.catalog.catalog import Catalog
from tidemill.catalog.entry import CatalogEntry
from tidemill.catalog.programs import CHARS_KEPT, Programs
from tidemill.catalog.store import Stored
from tidemill.datalog import parser, records
from tidemill.datalog.dataflow import missing_in
from tidemill.datalog.proofs import Proof
from tidemill.errors import TidemillError
from tidemill.host.observing import expect_refusals, watch_loop
from tidemill.host.questions import histories
from tidemill.reclock import LiveReclock, prepare_mapping
from tidemill.rpc import turns
from tidemill.rpc.identity import PROCESS, Principal, caller
from tidemill.rpc.messages import ResourceDocument
from tidemill.rpc.turns import THREADS, THREADS_OF_USER, in_turn
from tidemill.runtime import log_embedded, log_groups
from tidemill.runtime.clock import SystemClock
from tidemill.runtime.documents import parse_yaml
from tidemill.runtime.metrics import Metrics
from tidemill.runtime.resources import load_resources
from tidemill.shard.offloading import (
    OBJECT_ROWS,
    ROWS_INLINE_MAX,
    compute_beside,
    while_others_wait,
)
from tidemill.testkit.runs import hold_again
from tidemill.testkit.whole import Whole, opened
from tidemill_ingest import driver as ingest
from tidemill_ingest import part
from tidemill_query import driver, pushed_entries
from tidemill_query.pushing import rows_of
from tidemill_reclock import driver as reclocking
from tidemill_server.settings import ServerSettings

HEAD = "apiVersion: tidemill.dev/v1alpha1\n"
NUMBERS = f"""{HEAD}kind: Table
metadata: {{name: numbers}}
spec: {{columns: [{{name: n, type: int}}]}}
"""
READINGS = f"""{HEAD}kind: Source
metadata: {{name: readings}}
spec: {{http: {{}}, columns: [{{name: n, type: int}}], timestampInterval: 50ms}}
"""
LONG = "p(n) := numbers(n);" + " " * CHARS_KEPT
EVEN = f"""{HEAD}kind: View
metadata: {{name: even}}
spec: {{program: "two(n) := numbers(n) if n % 2 == 0;"}}
"""


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    async with opened(ServerSettings(directory=str(folder))) as process:
        await process.start()
        yield process


def noting(threads: list[str], work: Callable[..., Any]) -> Callable[..., Any]:
    """The work, which says on which thread it is done."""

    def noted(*given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return work(*given)

    return noted


@pytest.mark.parametrize("ends", ["well", "given up", "refused"])
async def test_a3_others_have_turns_while_many_documents_are_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """An apply that is given up meanwhile, or refused, leaves no name behind."""
    planned: Counter[int] = Counter()
    forgotten: Counter[int] = Counter()
    turns, many = 0, 3 * TURN
    plan, forget = Catalog.plan, Catalog.forget

    def counting(catalog: Catalog, stored: Stored) -> object:
        planned[turns] += 1
        if ends == "given up" and planned.total() == TURN + 1:
            applying.cancel()
        return plan(catalog, stored)

    def forgetting(catalog: Catalog, name: str) -> None:
        forgotten[turns] += 1
        forget(catalog, name)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    texts = [NUMBERS.replace("numbers", f"numbers{number}") for number in range(many)]
    texts += [EVEN] if ends == "refused" else []
    documents = [ResourceDocument("---\n".join(texts), "many.yaml")]
    async with running(tmp_path) as process:
        monkeypatch.setattr(Catalog, "plan", counting)
        monkeypatch.setattr(Catalog, "forget", forgetting)
        beside = asyncio.create_task(others())
        applying = asyncio.ensure_future(process.controller.apply(documents))
        (ended,) = await asyncio.gather(applying, return_exceptions=True)
        beside.cancel()
        kinds = {"well": list, "given up": asyncio.CancelledError, "refused": TidemillError}
        assert isinstance(ended, kinds[ends])
        assert planned.total() > TURN
        assert max(planned.values()) <= TURN
        assert max(forgotten.values(), default=0) <= TURN
        assert process.context.catalog.knows("numbers0") is (ends == "well")


async def test_a3_many_resources_are_freed_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else holds those that are refused, or there already: no frame of an error either."""
    threads: list[str] = []
    holders: list[int] = []

    def held(things: list[Any]) -> int:
        # The catalog holds what was there already, until it has read its own rows again.
        known = [each for each in gc.get_referrers(*things) if isinstance(each, Stored)]
        kept = Counter(id(each.resource) for each in known)
        del known
        return sum(sys.getrefcount(each) - 3 - kept[id(each)] for each in things)

    def letting_go(things: list[Any], count: int) -> None:
        # A thread that only passes may look at one of them: it does so for a moment.
        for _ in range(200):
            if not held(things):
                break
            time.sleep(0.01)
        holders.extend((held(things),) * len(things))
        let_go(things, count)

    monkeypatch.setattr(documents, "let_go", noting(threads, letting_go))
    texts = [NUMBERS.replace("numbers", f"numbers{number}") for number in range(30)]
    many = ResourceDocument("---\n".join(texts), "many.yaml")
    async with running(tmp_path) as process:
        await process.controller.apply([many])
        holders.clear()
        await process.controller.apply([many])
        for wrong in (EVEN, EVEN.replace("View", "Vein")):
            with pytest.raises(TidemillError):
                await process.controller.apply([many, ResourceDocument(wrong, "wrong.yaml")])
        with pytest.raises(TidemillError):
            await process.controller.check([many, ResourceDocument(EVEN, "wrong.yaml")], PROCESS)
    assert {name.partition("_")[0] for name in threads} == {"asked"}
    assert len(holders) == 30 + 31 + 30 + 31
    assert not any(holders)


async def test_a3_rows_of_reasons_and_long_questions_are_read_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as process:
        documents = [ResourceDocument(f"{NUMBERS}---\n{EVEN}", "even.yaml")]
        await process.controller.apply(documents)
        await process.controller.insert("numbers", pa.table({"n": list(range(100))}))
        await process.query.snapshot("even/two", None, 30)
        rows: list[str] = []
        goals: list[str] = []
        monkeypatch.setattr(histories, "_stretched", noting(rows, histories._stretched))
        monkeypatch.setattr(histories, "let_go", noting(rows, let_go))
        monkeypatch.setattr(driver, "row_goal", noting(goals, driver.row_goal))
        assert (await process.query.why_not("even/two(7)", None)).text
        assert len(rows) == 8
        assert {name.partition("_")[0] for name in rows} == {"asked"}
        short = await process.query.ask("numbers(8)", None, None)
        long = await process.query.ask(f"numbers({'(' * 150}8{')' * 150})", None, None)
        assert short.table.num_rows == long.table.num_rows == 1
        assert [name.partition("_")[0] for name in goals] == ["MainThread", "asked"]


async def test_a3_a_proof_is_walked_beside_the_loop_whatever_other_views_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop went through all parts of a proof, and through all views for each one."""
    walks: list[str] = []
    made: list[str] = []
    others = [EVEN.replace("even", f"even-{n}").replace("two", f"two{n}") for n in range(8)]
    async with running(tmp_path) as process:
        documents = "---\n".join([NUMBERS, EVEN, *others])
        await process.controller.apply([ResourceDocument(documents, "even.yaml")])
        await process.controller.insert("numbers", pa.table({"n": [7, 8]}))
        await process.query.snapshot("even/two", None, 30)
        monkeypatch.setattr(Proof, "every_part", noting(walks, Proof.every_part))
        monkeypatch.setattr(CatalogEntry, "readable", noting(made, CatalogEntry.readable))
        counts = []
        for _ in range(2):
            made.clear()
            assert "numbers(8)" in (await process.query.why("even/two(8)", None)).text
            counts.append(len(made))
    assert {name.partition("_")[0] for name in walks} == {"asked"}
    assert len(walks) == 2
    assert counts[0] > len(others)  # the companion: the first proof looks at all views
    assert counts[1] <= 2


async def test_a3_a_user_has_one_thing_done_at_a_time_and_others_need_not_wait() -> None:
    release, begun = threading.Event(), threading.Semaphore(0)

    def work() -> str:
        begun.release()
        release.wait(60)
        return threading.current_thread().name

    def asked(user: str, what: Callable[[], str]) -> asyncio.Task[str]:
        async def ask() -> str:
            caller.set(Principal(user, ()))
            return await in_turn(what)

        return asyncio.create_task(ask())

    first = [asked("eve", work) for _ in range(10)]
    assert await asyncio.to_thread(begun.acquire, timeout=60)
    first[0].cancel()  # who goes away keeps the turn until its thread is free
    assert await asked("ann", lambda: "ann") == "ann"
    assert not begun.acquire(blocking=False)
    release.set()
    told = await asyncio.gather(*first, return_exceptions=True)
    assert isinstance(told[0], asyncio.CancelledError)
    assert all(isinstance(each, str) for each in told[1:])


async def test_a3_work_on_columns_of_one_user_leaves_threads_to_others(tmp_path: Path) -> None:
    """Also that which is given up, and goes on where it is."""
    release, begun = threading.Event(), threading.Semaphore(0)

    def work() -> str:
        begun.release()
        release.wait(60)
        return "done"

    def asked(user: str, what: Callable[[], str]) -> asyncio.Task[str]:
        async def ask() -> str:
            caller.set(Principal(user, ()))
            return await compute_beside(ROWS_INLINE_MAX + 1, what)

        return asyncio.create_task(ask())

    async with running(tmp_path):
        many = [asked("eve", work) for _ in range(2 * THREADS)]
        for _ in range(THREADS_OF_USER):
            assert await asyncio.to_thread(begun.acquire, timeout=60)
        for given_up in many[:THREADS_OF_USER]:
            given_up.cancel()
        assert await asked("ann", lambda: "ann") == "ann"
        assert await asyncio.to_thread(lambda: "a file") == "a file"
        assert not begun.acquire(blocking=False)
        release.set()
        told = await asyncio.gather(*many, return_exceptions=True)
    assert told[THREADS_OF_USER:] == ["done"] * (len(many) - THREADS_OF_USER)


async def test_a3_work_that_others_wait_for_is_not_behind_that_of_one_user(
    tmp_path: Path,
) -> None:
    """The work of a user who has no room left waits, but for that under a lock of several."""
    release, lock = threading.Event(), asyncio.Lock()

    def keep() -> str:
        release.wait(60)
        return "kept"

    async def ask(what: Callable[[], str]) -> str:
        caller.set(Principal("eve", ()))
        return await compute_beside(ROWS_INLINE_MAX + 1, what)

    async def ask_for_others() -> str:
        caller.set(Principal("eve", ()))
        async with while_others_wait(lock):
            return await compute_beside(ROWS_INLINE_MAX + 1, lambda: "shared")

    async with running(tmp_path):
        many = [asyncio.create_task(ask(keep)) for _ in range(THREADS_OF_USER)]
        await asyncio.sleep(0)
        behind = asyncio.create_task(ask(lambda: "behind"))
        assert await asyncio.create_task(ask_for_others()) == "shared"
        assert not behind.done()
        release.set()
        assert await asyncio.gather(*many, behind) == ["kept"] * THREADS_OF_USER + ["behind"]


async def test_a3_a_first_question_loads_nothing_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    for module in (parser, records):
        monkeypatch.setattr(module, "_grammar", cache(noting(loaded, module._grammar.__wrapped__)))
    monkeypatch.setattr(driver, "_load_explaining", noting(loaded, driver._load_explaining))
    async with running(tmp_path) as process:
        await process.answers.begin([])
        await process.apply(f"{NUMBERS}---\n{EVEN}")
        await process.insert("numbers", {"n": 2})
        assert await process.answer("even/two(n)")
        assert (await process.query.why("even/two(2)", None)).text
        assert await process.query.explain("even", "plan")
    assert len(loaded) == 3
    assert "MainThread" not in loaded


async def test_a3_a_long_body_is_cut_into_lines_beside_the_loop() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    assert await rows_of(b"1\n \n2\n", 10) == [b"1", b"2"]
    assert turns == 0
    assert len(await rows_of(b"1\n" * 500_000, 500_000)) == 500_000
    turning.cancel()
    assert turns > 0


async def test_a3_many_rows_at_once_are_written_and_bound_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    bound: list[str] = []
    for module, name in (
        (pushed_entries, "_plain_entries"), (log_groups, "_runs"), (log_groups, "_answers"),
        (log_embedded, "check_entries"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, noting(written, getattr(module, name)))
    freed: list[str] = []
    monkeypatch.setattr(turns, "let_go", noting(freed, let_go))
    prepared: list[str] = []
    monkeypatch.setattr(reclocking, "prepare_mapping", noting(prepared, prepare_mapping))
    inline: list[int] = []
    plain = LiveReclock.step

    def step(operator: LiveReclock, rows: pa.Table | None, *rest: Any) -> Any:
        """Bind them, and note how many are bound on the loop at once."""
        if threading.current_thread() is threading.main_thread():
            inline.append(0 if rows is None else rows.num_rows)
        return plain(operator, rows, *rest)

    monkeypatch.setattr(LiveReclock, "step", noting(bound, step))
    read: list[int] = []
    for module, name in ((part, "_bytes_of"), (ingest, "let_go")):
        monkeypatch.setattr(module, name, counting_inline(read, getattr(module, name)))
    async with running(tmp_path) as process:
        await process.controller.apply([ResourceDocument(READINGS, "readings.yaml")])
        await process.controller.push("readings", [b'{"n": 1}'])
        assert await wait_for_rows(process, 1)
        assert [*written, *bound] == ["MainThread"] * len([*written, *bound])  # a row takes no hop
        written.clear()
        freed.clear()
        await process.controller.push("readings", [b'{"n": 1}'] * (6 * ROWS_INLINE_MAX))
        assert await wait_for_rows(process, 6 * ROWS_INLINE_MAX + 1)
    assert len(written) == 4
    assert "MainThread" not in written
    assert freed == ["freeing_0"] * 2  # one thread frees for all
    # Rows that come to be bound in small parts are bound where they come.
    assert max(inline) <= ROWS_INLINE_MAX
    assert max(read) * OBJECT_ROWS <= ROWS_INLINE_MAX
    assert len(prepared) == 1
    assert prepared != ["MainThread"]


def counting_inline(
    counts: list[int], work: Callable[[list[Any]], Any]
) -> Callable[[list[Any]], Any]:
    """The work on some things, which notes how many it is given on the event loop at once."""

    def counted(things: list[Any]) -> Any:
        if threading.current_thread() is threading.main_thread():
            counts.append(len(things))
        return work(things)

    return counted


async def wait_for_rows(process: Whole, count: int) -> bool:
    """Whether the readings come to be so many."""
    async with asyncio.timeout(60):
        while True:
            answer = await process.query.snapshot("readings", None, 30)
            if sum(answer.table["_diff"].to_pylist()) == count:
                return True


class Text(str):
    """A text that counts how often it is cut into lines."""

    cuts = 0

    def splitlines(self, keepends: bool = False) -> list[str]:
        Text.cuts += 1
        return super().splitlines(keepends)


def test_a3_a_text_of_many_documents_is_cut_into_lines_once() -> None:
    documents, problems = parse_yaml(Text("a: |\n  1\n---\n" * 50), "many.yaml")
    assert (len(documents), problems) == (50, [])
    assert Text.cuts == 1


def test_a3_the_outputs_of_a_long_program_take_a_look_at_each_rule_not_at_all_of_them() -> None:
    """Four times as many rules take about four times as many calls, where it was sixteen times."""
    assert calls(planned(80)) < 6 * calls(planned(20))


def test_a3_the_names_in_a_long_program_are_gathered_once() -> None:
    """Its rights are judged on the event loop: whatever it reads has been found beside it."""

    def cost(rules: int) -> int:
        catalog, stored = checked(rules)
        return calls(lambda: catalog.reads_of(stored))

    assert cost(80) == cost(20)


@pytest.mark.parametrize("what", ["plan", "program"])
def test_a3_what_a_long_program_leaves_is_freed_in_parts(what: str) -> None:
    """To free a plan of a thousand rules at once holds the interpreter for 10 ms."""
    gc.freeze()  # what other tests have left is not counted at each look
    catalog, stored = checked(400)
    program = catalog.plan_view(stored).program
    programs = Programs()
    programs.read(program.program.text, "again")
    work = partial(missing_in, program) if what == "plan" else partial(programs.read, LONG, "long")
    objects: list[int] = []
    token = LOOK.set(lambda: objects.append(len(gc.get_objects())))
    gc.disable()
    try:
        work()
        objects.append(len(gc.get_objects()))
    finally:
        hold_again()
        gc.enable()
        LOOK.reset(token)
    freed = [before - after for before, after in pairwise(objects) if after < before]
    assert sum(freed) > 1_000
    assert max(freed) < sum(freed) / 4


def planned(rules: int) -> Callable[[], object]:
    """A second plan of a view of so many rules: the program has been checked."""
    catalog, stored = checked(rules)
    return lambda: catalog.plan_view(stored)


def checked(rules: int) -> tuple[Catalog, Stored]:
    """A view of so many rules, and the catalog that has planned it."""
    catalog = Catalog()
    program = " ".join(f"p{number}(n) := numbers(n) if n > {number};" for number in range(rules))
    view = f"{HEAD}kind: View\nmetadata: {{name: long}}\nspec: {{program: '{program}'}}\n"
    table, long = load_resources(f"{NUMBERS}---\n{view}", "long.yaml")
    catalog.plan(Stored(table, 1))
    stored = Stored(long, 2)
    assert len(catalog.plan_view(stored).outputs) == rules
    return catalog, stored


def calls(work: Callable[[], object]) -> int:
    """Number of entered functions of Python, generators again and again."""
    count = 0

    def entered(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(entered)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


async def test_a3_the_lag_of_the_loop_is_measured_and_refusals_are_expected() -> None:
    clock = SystemClock()
    metrics = Metrics(clock)
    expect_refusals(metrics, ("calls",))
    watching = asyncio.create_task(watch_loop(metrics, clock))
    while "tidemill_loop_lag_seconds_count 2.0" not in shown(metrics):
        await asyncio.sleep(0.01)
    before = late(metrics)
    stand_for_a_second()
    await asyncio.sleep(0.2)
    watching.cancel()
    assert late(metrics) == before + 1
    assert 'tidemill_refusals_total{limit="limits.calls"} 0.0' in shown(metrics)


def stand_for_a_second() -> None:
    """Keep the loop from turning, as nothing of the product does."""
    time.sleep(1.0)


def shown(metrics: Metrics) -> str:
    return metrics.expose()[0].decode()


def late(metrics: Metrics) -> float:
    """Number of looks that came more than half a second late."""
    found = re.findall(
        r'tidemill_loop_lag_seconds_bucket{le="(0.5|.Inf)"} ([0-9.]+)', shown(metrics)
    )
    counts = {bound: float(count) for bound, count in found}
    return counts["+Inf"] - counts["0.5"]
