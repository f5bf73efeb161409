"""Questions over collections in memory: exact at an instant, or an error that says why not."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.catalog.directory import Readable, SourceOf, ViewOf
from tidemill.datalog.check import check
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.records import Record
from tidemill.errors import BeforeSince, NotYet, UnknownCollection, UsageError
from tidemill.rpc.messages import Answer, Changes, Event, Progress
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Collections,
    Description,
    Limits,
    MemoryBlob,
    MemoryConsensus,
    ReadCapability,
)
from tidemill.shard.part_store import LIMITS
from tidemill.time import frontier, sole_time
from tidemill_query.driver import CHOICES_MAX, QueryDriver
from tidemill_query.settings import QuerySettings

PING = pa.schema(
    [("host", pa.string()), ("n", pa.int64()), ("time", pa.int64()), ("expires", pa.int64())]
)
LOUD = pa.schema([("host", pa.string()), ("time", pa.int64()), ("expires", pa.int64())])
LATE = pa.schema([("host", pa.string()), ("n", pa.int64()), ("time", pa.int64())])
PROGRAM = "loud(h) := ping(h, n) ^ not ping(h, 0) if n > 1;"
INPUT = InputSchema("ping", "events", (("host", "text"), ("n", "int")))


def event_records(predicate: str, arguments: int) -> object:
    def records(table: pa.Table) -> Sequence[Record]:
        columns = (table[name].to_pylist() for name in table.column_names[: arguments + 2])
        rows = zip(*columns, strict=True)
        return [Record(predicate, row[:arguments], *row[arguments:]) for row in rows]

    return records


def late_records(table: pa.Table) -> Sequence[Record]:
    return [Record("pings", (row["host"], row["n"]), row["time"]) for row in table.to_pylist()]


class OneView:
    """A directory of the stream `ping` and the view `v` with the output `loud`."""

    def __init__(self, stream: str = "ping") -> None:
        kinds = {"string": "text", "int64": "int"}
        self.stream = stream
        self.readables = {
            name: Readable(
                name, name.rpartition("/")[2],
                tuple((f.name, kinds[str(f.type)]) for f in schema), arguments,
                event_records(name.rpartition("/")[2], arguments),
                ("ping/deadletters", late_records) if name == "ping" else None,
            )
            for name, schema, arguments in (("ping", PING, 2), ("v/loud", LOUD, 1))
        }  # fmt: skip

    def find(self, name: str) -> Readable:
        name = "ping" if name == self.stream else name
        found = self.readables.get(name) or self.readables.get(f"v/{name}")
        if found is None:
            raise UnknownCollection(f"there is no {name}", name=name)
        return found

    def view(self, name: str) -> ViewOf:
        program = check(parse(PROGRAM), InputSchemas({"ping": INPUT}))
        inputs = {"ping": self.readables["ping"]}
        return ViewOf("v", program, inputs, {"loud": self.readables["v/loud"]})

    def source(self, name: str) -> SourceOf:
        raise UnknownCollection(f"there is no source {name}", name=name)

    def views(self) -> list[ViewOf]:
        """The view, and others over the same stream: one reads it alike, one reads less of it."""
        found, names = [self.view("v")], {"ping": InputSchema("ping", INPUT.kind, INPUT.columns)}
        for name, text in (("also", PROGRAM), ("less", "f(h) := ping(h, n) if n > 100;")):
            program = check(parse(text), InputSchemas(names))
            found.append(ViewOf(name, program, {"ping": self.readables["ping"]}, {}))
        return found

    def view_of(self, predicate: str) -> ViewOf:
        self.find(predicate)
        return self.view("v")


class World:
    def __init__(
        self, retain_ms: int | None = None, lease_ms: int = 900_000, stream: str = "ping",
        limits: Limits = LIMITS,
    ) -> None:  # fmt: skip
        self.clock = ManualClock(0)
        ids = map(str, itertools.count())
        self.consensus, self.blob = MemoryConsensus(), MemoryBlob()
        self.collections = Collections(
            self.consensus, self.blob, self.clock, ids.__next__, limits=limits
        )
        settings = QuerySettings(session_lease_ms=lease_ms)
        self.query = QueryDriver(self.collections, OneView(stream), self.clock, settings)
        self.retain_ms = retain_ms

    async def create(self) -> None:
        for name, schema in (("ping", PING), ("v/loud", LOUD)):
            held, _ = await self.collections.create(
                name, Description(schema, retain_ms=self.retain_ms)
            )
            if self.retain_ms is None:
                await self.collections.retain(name, None)
            await self.collections.drop(held)
        await self.collections.create("ping/deadletters", Description(LATE))
        await self.late()

    async def late(self, *rows: tuple[str, int, int]) -> None:
        at = (await self.collections.status("ping/deadletters")).upper
        table = pa.Table.from_pylist(
            [dict(zip(LATE.names, row, strict=True)) for row in rows], LATE
        )
        count = table.num_rows
        table = table.append_column(TIME, pa.array([sole_time(at)] * count, pa.uint64()))
        table = table.append_column(DIFF, pa.array([1] * count, pa.int64()))
        await self.collections.compare_and_append(
            "ping/deadletters", at, frontier(sole_time(at) + 1), table, writer="test"
        )

    async def write(self, name: str, upper: int, *changes: tuple[object, ...]) -> None:
        held = (await self.collections.status(name)).upper
        schema = PING if name == "ping" else LOUD
        schema = schema.append(pa.field(TIME, pa.uint64())).append(pa.field(DIFF, pa.int64()))
        columns = [pa.array([row[i] for row in changes], f.type) for i, f in enumerate(schema)]
        table = pa.Table.from_arrays(columns, schema=schema)
        await self.collections.compare_and_append(name, held, frontier(upper), table, writer="test")

    async def pings(self) -> None:
        await self.write(
            "ping", 100,
            ("a", 5, 10, 50, 10, 1), ("a", 5, 10, 50, 50, -1), ("b", 1, 20, None, 20, 1),
            ("c", 7, 30, None, 30, 1), ("c", 0, 40, 60, 40, 1), ("c", 0, 40, 60, 60, -1),
        )  # fmt: skip
        await self.write(
            "v/loud", 100,
            ("a", 10, 50, 10, 1), ("a", 10, 50, 50, -1), ("c", 30, None, 30, 1),
            ("c", 30, None, 40, -1), ("c", 30, None, 60, 1),
        )  # fmt: skip


def names(table: pa.Table, column: str = "h") -> list[object]:
    return table[column].to_pylist()


async def test_a_goal_filters_and_names_its_columns() -> None:
    world = World()
    await world.create()
    await world.pings()
    ask = world.query.ask
    assert names((await ask("ping(h, n)", 45, None)).table) == ["a", "b", "c", "c"]
    assert names((await ask("ping(h, 0)", 45, None)).table) == ["c"]
    assert names((await ask("ping(host: h, n: 5)", 45, None)).table) == ["a"]
    assert names((await ask("ping(h, n) @time(30)", 45, None)).table) == ["c"]
    assert (await ask('ping("b", n) @time(t)', 99, None)).table.select(["n", "t"]).to_pylist() == [
        {"n": 1, "t": 20}
    ]
    assert (await ask("ping(_, _)", 5, None)).table.num_rows == 0
    with pytest.raises(UsageError):
        await ask("ping(h)", 45, None)
    with pytest.raises(UnknownCollection):
        await ask("pong(h)", 45, None)


async def test_an_answer_carries_its_instant_and_both_frontiers() -> None:
    world = World(retain_ms=30)
    await world.create()
    await world.pings()
    answer = await world.query.snapshot("v/loud", None, None)
    assert (answer.as_of, answer.since, answer.upper) == (99, frontier(70), frontier(100))
    with pytest.raises(NotYet):
        await world.query.snapshot("v/loud", 100, None)
    with pytest.raises(BeforeSince):
        await world.query.snapshot("v/loud", 69, None)


class Paused:
    """The process pauses between the choice of an instant and the read: since passes it."""

    def __init__(self, world: World, times: int) -> None:
        self.times = 0
        read, history = world.collections.read_without_hold, world.collections.read_hold

        async def pause() -> None:
            if self.times < times:
                self.times += 1
                for name in ("v/loud", "ping"):
                    upper = sole_time((await world.collections.status(name)).upper)
                    await world.write(name, upper + 100)

        async def late_read(*args: Any, **named: Any) -> pa.Table | None:
            await pause()
            return await read(*args, **named)

        async def late_hold(*args: Any, **named: Any) -> ReadCapability:
            await pause()
            return await history(*args, **named)

        world.collections.read_without_hold = late_read  # type: ignore[method-assign]
        world.collections.read_hold = late_hold  # type: ignore[method-assign]


QUESTIONS: dict[str, Callable[[QueryDriver, int | None], Awaitable[object]]] = {
    "snapshot": lambda query, at: query.snapshot("v/loud", at, None),
    "goal": lambda query, at: query.ask("loud(h)", at, None),
    "tables": lambda query, at: query.tables(["v/loud", "ping"], at, None),
    "why": lambda query, at: query.why('loud("c") @time(30)', at),
    "why not": lambda query, at: query.why_not('loud("b") @time(20)', at),
}


@pytest.mark.parametrize("question", QUESTIONS)
async def test_a_question_without_an_instant_chooses_anew_when_its_process_stood_still(
    question: str,
) -> None:
    ask = QUESTIONS[question]
    for times, asked in ((2, None), (1, 99), (CHOICES_MAX + 1, None)):
        world = World(retain_ms=30)
        await world.create()
        await world.pings()
        paused = Paused(world, times)
        if times == 2:
            answer = await ask(world.query, asked)
            assert paused.times == 2
            for each in answer.values() if isinstance(answer, dict) else [answer]:
                if isinstance(each, Answer):
                    assert (each.as_of, names(each.table, each.table.column_names[0])) == (
                        299, ["c"] if each.collection == "v/loud" else ["b", "c"],
                    )  # fmt: skip
            continue
        with pytest.raises(BeforeSince):
            await ask(world.query, asked)
        assert paused.times == min(times, CHOICES_MAX)


async def test_a_subscription_from_now_begins_where_it_holds() -> None:
    world = World(retain_ms=30)
    await world.create()
    await world.pings()
    paused = Paused(world, 1)
    found: list[Event] = []
    await _all(world.query.subscribe("loud(h)", None, True, 200), found)
    assert paused.times == 1
    assert [names(e.table) for e in found if isinstance(e, Changes)] == [["c"]]


async def test_a_question_changes_nothing_unless_garbage_collection_is_faster_than_it() -> None:
    world = World(limits=Limits(inline_bytes_max=0, cache_bytes_max=0))
    await world.create()
    await world.pings()

    async def version() -> int:
        head = await world.consensus.head("ping")
        assert head is not None
        return head.number

    before = await version()
    assert names((await world.query.ask("ping(h, n)", 45, None)).table) == ["a", "b", "c", "c"]
    whole = (await world.query.snapshot("ping", 45, None)).table
    assert await version() == before
    original, overtaken = world.blob.get, 0

    async def get(key: str) -> bytes | None:
        nonlocal overtaken
        world.blob.get = original  # type: ignore[method-assign]  # a race, once
        upper = sole_time((await world.collections.status("ping")).upper)
        await world.write("ping", upper + 1, ("z", 1, upper, None, upper, 1))
        await world.collections.compact("ping")
        overtaken += await world.collections.collect_garbage("ping", 0)
        return await original(key)

    world.blob.get = get  # type: ignore[method-assign]
    again = (await world.query.snapshot("ping", 45, None)).table
    order = [(name, "ascending") for name in whole.column_names]
    assert again.sort_by(order).equals(whole.sort_by(order))
    assert overtaken > 0
    state = await world.collections.state("ping")
    assert not any(hold.owner == "query" for hold in state.reads.values())


async def test_a_question_about_the_future_waits_as_long_as_it_is_told_to() -> None:
    world = World()
    await world.create()
    await world.pings()
    asking = asyncio.create_task(world.query.ask("loud(h)", 120, 60.0))
    await world.clock.advance(1.0)
    assert not asking.done()
    await world.write("v/loud", 130, ("d", 110, None, 110, 1))
    await world.clock.advance(1.0)
    assert names((await asking).table) == ["c", "d"]
    asking = asyncio.create_task(world.query.ask("loud(h)", 500, 2.0))
    await world.clock.advance(3.0)
    with pytest.raises(NotYet):
        await asking


async def test_a1_who_asks_before_the_first_instant_is_told_what_to_do_or_waits() -> None:
    world = World()
    await world.create()
    for ask in (
        lambda wait_s: world.query.snapshot("v/loud", None, wait_s),
        lambda wait_s: world.query.ask("loud(h)", None, wait_s),
    ):
        with pytest.raises(
            NotYet, match=r"no instant of v/loud is definite yet.*ask again"
        ) as early:
            await ask(None)
        assert early.value.details["reason"] == "first"
    asking = asyncio.create_task(world.query.snapshot("v/loud", None, 60.0))
    await world.clock.advance(1.0)
    assert not asking.done()
    await world.pings()
    await world.clock.advance(1.0)
    assert (await asking).upper == frontier(100)


async def test_tables_are_read_at_one_instant() -> None:
    world = World()
    await world.create()
    await world.pings()
    await world.write("ping", 200)
    answers = await world.query.tables(["ping", "loud"], None, None)
    assert {answer.as_of for answer in answers.values()} == {99}


class Moved(Collections):
    """History is let go of after each read: since comes to the upper before the answer."""

    moves = 0

    async def read_without_hold(self, collection: str, as_of: int, **how: Any) -> pa.Table | None:
        table = await super().read_without_hold(collection, as_of, **how)
        upper = sole_time((await self.status(collection)).upper)
        await self.compare_and_append(
            collection, frontier(upper), frontier(upper + 50), None, writer="w"
        )
        self.moves += 1
        return table


@pytest.mark.rule("F11")
async def test_v14_2_an_answer_says_frontiers_that_its_instant_is_between() -> None:
    world = World(retain_ms=1)
    await world.create()
    ids = map("m{}".format, itertools.count())
    moved = Moved(world.consensus, world.blob, world.clock, ids.__next__)
    query = QueryDriver(moved, OneView(), world.clock, QuerySettings())
    await world.write("v/loud", 50, ("a", 0, None, 10, 1))
    answers = [await query.ask(goal, None, 0.0) for goal in ("loud(h)", "v/loud")]
    answers += (await query.tables(["loud"], None, None)).values()
    answers.append(await query.snapshot("v/loud", None, None))
    for number, answer in enumerate(answers):
        assert answer.as_of == 49 + 50 * number, "nothing moved while the answer was made"
        assert answer.since.less_equal(answer.as_of)
        assert not answer.upper.less_equal(answer.as_of)
    assert moved.moves == len(answers)
    status = await moved.status("v/loud")
    assert not status.since.less_equal(answers[-1].as_of)


async def test_v7_tables_of_two_timelines_are_refused_by_name() -> None:
    world = World()
    await world.create()
    await world.pings()
    await world.collections.create("t", Description(LOUD, timeline="air"), lease_ms=None)
    directory = OneView()
    directory.readables["t"] = replace(directory.readables["v/loud"], collection="t")
    query = QueryDriver(world.collections, directory, world.clock, QuerySettings())
    for as_of in (None, 50):
        with pytest.raises(UsageError, match="ping is on the timeline system, t on air"):
            await query.tables(["ping", "loud", "t"], as_of, None)
    assert (await query.tables(["ping", "loud"], 50, None)).keys() == {"ping", "loud"}


async def collect(world: World, goal: str, start: int | None, until: int) -> list[Event]:
    events = world.query.subscribe(goal, start, True, until)
    found: list[Event] = []
    async with asyncio.timeout(240):
        reading = asyncio.ensure_future(_all(events, found))
        while not reading.done():
            await world.clock.advance(0.6)
        await reading
    return found


async def _all(events: object, found: list[Event]) -> None:
    async for event in events:  # type: ignore[attr-defined]
        found.append(event)  # noqa: PERF401  # somebody looks while it grows


async def test_a_subscription_adds_up_to_the_collection_at_each_instant() -> None:
    world = World()
    await world.create()
    await world.pings()
    found = await collect(world, "ping(h, n)", 15, 100)
    sums: dict[tuple[object, ...], int] = {}
    for event in found:
        if isinstance(event, Changes):
            for row in event.table.to_pylist():
                if row[TIME] <= 45:
                    key = (row["h"], row["n"], row["time"])
                    sums[key] = sums.get(key, 0) + row[DIFF]
    asked = (await world.query.ask("ping(h, n)", 45, None)).table.to_pylist()
    assert {key for key, n in sums.items() if n} == {(r["h"], r["n"], r["time"]) for r in asked}
    assert isinstance(found[-1], Progress)
    assert found[-1].upper == frontier(100)


async def test_a_subscription_outlives_its_lease_and_lets_history_go() -> None:
    world = World(retain_ms=10, lease_ms=4_000)
    await world.create()
    await world.pings()
    found: list[Event] = []
    reading = asyncio.ensure_future(_all(world.query.subscribe("loud(h)", 99, True, None), found))
    for upper in (200, 300):
        for _ in range(20):
            await world.clock.advance(0.5)
        assert not reading.done()
        await world.write("v/loud", upper, ("d", upper - 50, None, upper - 50, 1))
    await world.clock.advance(1.0)
    rows = [names(event.table) for event in found if isinstance(event, Changes)]
    assert rows == [["c"], ["d"], ["d"]]
    assert sole_time((await world.collections.status("v/loud")).since) == 290
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await world.write("v/loud", 400)
    assert sole_time((await world.collections.status("v/loud")).since) == 390
    assert (await world.collections.status("v/loud")).holders == ()


async def test_why_proves_and_why_not_gives_a_reason_for_each_rule() -> None:
    world = World()
    await world.create()
    await world.pings()
    proof = await world.query.why('loud("a") @time(10)', 20)
    assert 'ping("a", 5) @time(10)' in proof.text
    blocked = await world.query.why_not('loud("c") @time(30)', 45)
    assert 'ping("c", 0)' in blocked.text
    assert isinstance(blocked.tree, dict)
    assert "loud(h) := ping(h, n)" in str(blocked.tree["children"])
    low = await world.query.why_not('loud("b") @time(20)', 45)
    assert "guard" in low.text
    absent = await world.query.why('loud("c") @time(30)', 45)
    assert "not present" in absent.text


async def test_why_not_knows_what_came_after_the_instant() -> None:
    world = World()
    await world.create()
    await world.pings()
    early = await world.query.why_not('loud("a") @time(10)', 5)
    assert 'not present together: [10,50) ping("a", 5) @time(10)' in early.text


async def test_w12_reasons_say_that_a_fact_ends_at_another_instant_than_asked() -> None:
    """W12: a record with another end was proved without a word, and said to be present."""
    world = World()
    await world.create()
    await world.pings()
    for ask in (world.query.why, world.query.why_not):
        said = (await ask('loud("a") @time(10) @expires(77)', 20)).text
        assert said.startswith('loud("a") @time(10) @expires(77) is not present at 20: present is')
    assert (await ask(said.rpartition("present is ")[2], 20)).text == "it is present"


async def test_w12_an_event_at_the_first_instant_was_not_always_there() -> None:
    world = World()
    await world.create()
    await world.write("ping", 100, ("y", 5, 0, 10, 0, 1), ("y", 5, 0, 10, 10, -1))
    await world.write("v/loud", 100)
    said = (await world.query.why_not('loud("y") @time(0)', 20)).text
    assert said.endswith(': [0,10) ping("y", 5) @time(0)')


async def test_why_not_says_what_came_late_and_what_is_not_definite_yet() -> None:
    world = World()
    await world.create()
    await world.pings()
    await world.late(("z", 4, 15))
    late = await world.query.why_not('loud("z") @time(15)', 45)
    assert 'ping("z", 4) @time(15) came late and was refused' in late.text
    for at in (100, 5_000):
        early = await world.query.why_not('loud("z") @time(15)', at)
        assert early.text == "not yet definite: upper is 100"
    with pytest.raises(NotYet):
        await world.query.why('loud("a") @time(10)', 100)


async def test_a_source_is_explained_under_its_own_name() -> None:
    world = World(stream="pings")
    await world.create()
    await world.pings()
    proof = await world.query.why('pings("a", 5) @time(10)', 20)
    assert 'ping("a", 5) @time(10)' in proof.text
    absent = await world.query.why_not('pings("a", 6) @time(10)', 20)
    assert "no such input fact" in absent.text
    before = await world.query.why_not('pings("a", 5) @time(10)', 5)
    assert 'present only [10,50) ping("a", 5) @time(10)' in before.text


async def test_explain_names_strata_inputs_and_frontiers() -> None:
    world = World()
    await world.create()
    await world.pings()
    text = await world.query.explain("v", "plan")
    assert "stratum 1: loud (" in text
    assert "ping = ping  since [0]  upper [100]" in text
    assert [line.strip() for line in text.splitlines() if "shared" in line] == ["shared with also"]


async def test_explain_analyze_counts_rows_and_time_of_every_rule() -> None:
    world = World()
    await world.create()
    await world.pings()
    text = await world.query.explain("v", "analyze")
    table = text.partition("derived once from what the inputs hold at 99")[2].partition("inputs")[0]
    (line,) = (line for line in table.splitlines() if line.split()[2:3] == ["ping"])
    assert "  rule 1 " in table
    told = json.loads(await world.query.explain("v", "analyze-json"))["collections"]
    assert {e["name"]: e["figures"]["rows_in"] for e in told}["ping"] == int(line.split()[3]) > 0
    planned = json.loads(await world.query.explain("v", "json"))["collections"]
    assert [each["name"] for each in planned] == [each["name"] for each in told]


async def test_explain_draws_the_strata() -> None:
    world = World()
    await world.create()
    assert '"ping" -> "rule 1"' in await world.query.explain("v", "dot")
    assert (await world.query.explain("v", "svg")).startswith("<svg ")
    with pytest.raises(UsageError):
        await world.query.explain("v", "poem")


async def test_every_collection_is_listed_with_who_holds_it() -> None:
    world = World()
    await world.create()
    await world.collections.read_hold("ping", owner="view:v", lease_ms=None)
    listed = {info.id: info for info in await world.query.collections()}
    assert [holder.owner for holder in listed["ping"].holders] == ["view:v"]
    assert [column.name for column in listed["v/loud"].columns] == LOUD.names


async def test_a_proof_reads_only_the_rows_on_which_the_record_can_depend() -> None:
    world = World()
    await world.create()
    await world.pings()
    read: list[int] = []
    for name in ("snapshot", "changes"):
        whole = getattr(world.collections, name)

        async def count_rows(*rest: object, whole: Any = whole, **asked: object) -> pa.Table:
            table = await whole(*rest, **asked)
            read.append(table.num_rows)
            return table

        setattr(world.collections, name, count_rows)
    proof = await world.query.why('loud("c") @time(30)', 70)
    assert 'ping("c", 7) @time(30)' in proof.text
    mine, read[:] = sum(read), []
    assert "no_match" not in (await world.query.why_not('loud("z") @time(30)', 70)).text
    assert 0 < mine < sum(read)  # why not has to know what else there is


async def test_a_subscription_to_one_value_is_told_of_no_other() -> None:
    world = World()
    await world.create()
    await world.pings()
    everything = await collect(world, "ping(h, n) @expires(_)", 15, 100)
    one = await collect(world, 'ping("c", n) @expires(_)', 15, 100)
    rows = [table.to_pylist() for table in tables_of(one)]
    wanted = [
        [row for row in table.to_pylist() if row["h"] == "c"] for table in tables_of(everything)
    ]
    for row in itertools.chain(*wanted):
        del row["h"]
    assert [r for r in rows if r] == [w for w in wanted if w] != []


def tables_of(events: Sequence[Event]) -> list[pa.Table]:
    return [event.table for event in events if isinstance(event, Changes)]
