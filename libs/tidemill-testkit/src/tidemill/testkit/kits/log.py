"""The conformance kit of the log port: every law holds for every implementation.

    @pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
    async def test_my_log(law: Law) -> None:
        await law(open_my_log, unused_topic_name)

`open_my_log()` opens the same store each time; a law closes a log before it opens the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random  # noqa: TID251  seeded, so that a failure repeats

import pytest

from tidemill.errors import Fenced, UsageError
from tidemill.runtime.log import RECORD_BYTES_MAX, Entry, Log, LogReader, LogRecord
from tidemill.runtime.log_partitioner import partition_of

OpenLog = Callable[[], Awaitable[Log]]
Law = Callable[[OpenLog, str], Awaitable[None]]

PATIENCE_S = 240.0
"""Seconds that a law waits for an expected event; with a right log nothing waits that long."""
QUIET_S = 0.2
"""Seconds that a law waits for a forbidden event."""

LAWS: list[Law] = []


def _law(law: Law) -> Law:
    LAWS.append(law)
    return law


@asynccontextmanager
async def _opened(open_log: OpenLog) -> AsyncIterator[Log]:
    log = await open_log()
    try:
        yield log
    finally:
        await log.close()


async def _take(reader: LogReader, count: int, max_records: int = 1000) -> list[LogRecord]:
    """Exactly `count` records; fails if the log does not have them in time."""
    taken: list[LogRecord] = []
    while len(taken) < count:
        more = await reader.poll(min(max_records, count - len(taken)), PATIENCE_S)
        assert more, f"only {len(taken)} of {count} records came"
        taken += more
    return taken


async def _all(log: Log, topic: str) -> dict[int, list[LogRecord]]:
    """Everything in a topic, by partition."""
    bounds = await log.bounds(topic)
    reader = await log.reader(topic, {partition: low for partition, (low, _) in bounds.items()})
    count = sum(high - low for low, high in bounds.values())
    found: dict[int, list[LogRecord]] = {partition: [] for partition in bounds}
    for record in await _take(reader, count):
        found[record.partition].append(record)
    await reader.close()
    return found


def _numbered(count: int, partition: int | None = 0) -> list[Entry]:
    return [Entry(None, str(number).encode(), partition) for number in range(count)]


def _reason(error: pytest.ExceptionInfo[UsageError]) -> object:
    return error.value.details.get("reason")


@_law
async def a_topic_has_the_partitions_it_was_created_with(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        await log.create_topic(topic, 3)
        await log.create_topic(topic, 3)
        assert (await log.topics())[topic] == 3
        assert await log.bounds(topic) == {0: (0, 0), 1: (0, 0), 2: (0, 0)}
        with pytest.raises(UsageError) as error:
            await log.create_topic(topic, 4)
        assert _reason(error) == "partitions"
        with pytest.raises(UsageError):
            await log.create_topic(f"{topic}-none", 0)


@_law
async def a_name_that_some_log_could_not_take_is_refused(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        for name in ("", ".", "..", "a/b", "a b", "é", "x" * 250):
            with pytest.raises(UsageError) as error:
                await log.create_topic(name, 1)
            assert _reason(error) == "topic-name"


@_law
async def an_unknown_topic_is_named_and_never_made(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: log.bounds(topic),
            lambda: log.identity(topic),
            lambda: log.append(topic, _numbered(1)),
            lambda: log.reader(topic, {0: 0}),
            lambda: log.commit("group", topic, {0: 0}),
            lambda: log.read_committed("group", topic),
        ]
        for call in calls:
            with pytest.raises(UsageError) as error:
                await call()
            assert _reason(error) == "unknown-topic"
            assert topic in str(error.value)
        assert topic not in await log.topics()


@_law
async def records_come_back_byte_for_byte(open_log: OpenLog, topic: str) -> None:
    entries = [
        Entry(b"key", b"value", 0, 1),
        Entry(None, b"no key", 0, 2),
        Entry(b"tombstone", None, 0, 3),
        Entry(b"", b"", 0, 4),
        Entry(None, bytes(range(256)), 0, 1_700_000_000_000),
    ]
    async with _opened(open_log) as log:
        await log.create_topic(topic, 1)
        for batch in (entries, entries[:1], entries[2:3], entries[1:2]):
            await log.append(topic, batch)
        written = entries + entries[:1] + entries[2:3] + entries[1:2]
        found = (await _all(log, topic))[0]
        assert [(r.key, r.value, r.timestamp_ms) for r in found] == [
            (e.key, e.value, e.timestamp_ms) for e in written
        ]


@_law
async def a_record_without_a_timestamp_gets_the_present(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        await log.create_topic(topic, 1)
        await log.append(topic, _numbered(2))
        await log.append(topic, _numbered(1))
        stamps = [record.timestamp_ms for record in (await _all(log, topic))[0]]
        assert stamps == sorted(stamps)
        assert stamps[0] > 0


@_law
async def append_tells_where_each_record_is(open_log: OpenLog, topic: str) -> None:
    entries = [Entry(b"k%d" % (number % 7), b"%d" % number) for number in range(100)]
    async with _opened(open_log) as log:
        await log.create_topic(topic, 3)
        places = await log.append(topic, entries[:60]) + await log.append(topic, entries[60:])
        found = await _all(log, topic)
        at = {(r.partition, r.offset): r.value for records in found.values() for r in records}
        assert [at[place] for place in places] == [entry.value for entry in entries]
        assert len(at) == len(entries)
        for partition, (low, high) in (await log.bounds(topic)).items():
            assert [record.offset for record in found[partition]] == list(range(low, high))
        assert await log.append(topic, []) == []


@_law
async def a_key_decides_the_partition_as_in_every_other_log(open_log: OpenLog, topic: str) -> None:
    keys = [b"", b"a", b"ab", b"abc", b"abcd", b"abcde", b"\xff\x80", b"N12345", b"x" * 100]
    async with _opened(open_log) as log:
        await log.create_topic(topic, 5)
        places = await log.append(topic, [Entry(key, b"") for key in keys])
        assert [partition for partition, _ in places] == [partition_of(key, 5) for key in keys]


@_law
async def records_without_a_key_reach_every_partition(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        await log.create_topic(topic, 3)
        places = await log.append(topic, _numbered(60, None))
        assert {partition for partition, _ in places} == {0, 1, 2}


@_law
async def a_named_partition_beats_the_key(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        await log.create_topic(topic, 4)
        places = await log.append(topic, [Entry(b"same", b"", number) for number in range(4)])
        assert places == [(0, 0), (1, 0), (2, 0), (3, 0)]


@_law
async def a_refused_append_appends_nothing(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        await log.create_topic(topic, 2)
        for bad, reason in (
            (Entry(None, b"", 2), "unknown-partition"),
            (Entry(None, b"", -1), "unknown-partition"),
            (Entry(None, b"x" * (RECORD_BYTES_MAX + 1), 0), "record-too-large"),
        ):
            with pytest.raises(UsageError) as error:
                await log.append(topic, [Entry(None, b"good", 0), bad])
            assert _reason(error) == reason
        await log.append(topic, [Entry(None, b"x" * RECORD_BYTES_MAX, 1)])
        assert await log.bounds(topic) == {0: (0, 0), 1: (0, 1)}
        assert len((await _all(log, topic))[1][0].value or b"") == RECORD_BYTES_MAX


@_law
async def a_reader_begins_where_it_is_told(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        await log.create_topic(topic, 2)
        for number in range(5):
            await log.append(topic, _numbered(10, number % 2))
        reader = await log.reader(topic, {0: 17, 1: 20})
        assert reader.positions() == {0: 17, 1: 20}
        offsets = [record.offset for record in await _take(reader, 13)]
        assert offsets == list(range(17, 30))
        assert reader.positions() == {0: 30, 1: 20}
        assert await reader.poll(10, QUIET_S) == []
        await reader.close()


@_law
async def a_reader_can_go_back_and_take_more_partitions(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        await log.create_topic(topic, 2)
        await log.append(topic, _numbered(8, 0) + _numbered(8, 1))
        reader = await log.reader(topic, {0: 0})
        first = await _take(reader, 8, max_records=3)
        await reader.assign(0, 5)
        assert reader.positions() == {0: 5}
        assert await _take(reader, 3) == first[5:]
        await reader.assign(1, 2)
        assert [record.offset for record in await _take(reader, 6)] == list(range(2, 8))
        assert reader.positions() == {0: 8, 1: 8}
        await reader.close()


@_law
async def a_position_outside_of_the_bounds_is_refused(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        await log.create_topic(topic, 1)
        await log.append(topic, _numbered(3))
        for starts, reason in (
            ({0: 4}, "offset-out-of-range"),
            ({0: -1}, "offset-out-of-range"),
            ({1: 0}, "unknown-partition"),
        ):
            with pytest.raises(UsageError) as error:
                await log.reader(topic, starts)
            assert _reason(error) == reason
        reader = await log.reader(topic, {0: 3})
        with pytest.raises(UsageError):
            await reader.assign(0, 9)
        await reader.close()


@_law
async def readers_do_not_know_of_each_other(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        await log.create_topic(topic, 1)
        await log.append(topic, _numbered(50))
        slow, fast = await log.reader(topic, {0: 0}), await log.reader(topic, {0: 0})
        begun = await _take(slow, 7)
        whole = await _take(fast, 50)
        assert begun + await _take(slow, 43) == whole
        await slow.close()
        await fast.close()


@_law
async def poll_gives_at_most_what_was_asked_for(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        await log.create_topic(topic, 2)
        await log.append(topic, _numbered(40, 0) + _numbered(40, 1))
        reader = await log.reader(topic, {0: 0, 1: 0})
        seen: dict[int, list[int]] = {0: [], 1: []}
        while sum(map(len, seen.values())) < 80:
            records = await reader.poll(6, PATIENCE_S)
            assert 0 < len(records) <= 6
            for record in records:
                seen[record.partition].append(record.offset)
        assert seen == {0: list(range(40)), 1: list(range(40))}
        await reader.close()


@_law
async def a_long_partition_does_not_starve_a_short_one(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        await log.create_topic(topic, 2)
        await log.append(topic, _numbered(20_000, 0) + _numbered(5, 1))
        reader = await log.reader(topic, {0: 0, 1: 0})
        early = await _take(reader, 10_000, max_records=2_000)
        assert sum(record.partition == 1 for record in early) == 5
        await reader.close()


@_law
async def a_waiting_reader_wakes_when_records_come(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        await log.create_topic(topic, 2)
        reader = await log.reader(topic, {0: 0, 1: 0})
        assert await reader.poll(10, 0) == []
        waiting = asyncio.create_task(reader.poll(10, PATIENCE_S))
        await asyncio.sleep(0)  # noqa: TID251  lets the reader begin to wait
        await log.append(topic, [Entry(None, b"late", 1)])
        assert [record.value for record in await waiting] == [b"late"]
        await reader.close()


@_law
async def concurrent_appends_keep_the_order_of_each(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        await log.create_topic(topic, 2)

        async def append(writer: int) -> None:
            for step in range(5):
                await log.append(
                    topic, [Entry(b"%d" % writer, b"%d" % (step * 4 + i)) for i in range(4)]
                )

        await asyncio.gather(*(append(writer) for writer in range(12)))
        found = await _all(log, topic)
        for writer in range(12):
            key = b"%d" % writer
            mine = [record.value for record in found[partition_of(key, 2)] if record.key == key]
            assert mine == [b"%d" % number for number in range(20)]


@_law
async def each_group_keeps_its_committed_offsets(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        await log.create_topic(topic, 3)
        await log.append(topic, _numbered(9, 0) + _numbered(9, 1))
        assert await log.read_committed("a", topic) == {}
        await log.commit("a", topic, {0: 4, 1: 2})
        await log.commit("b/with slash", topic, {0: 1})
        await log.commit("a", topic, {1: 7})
    async with _opened(open_log) as log:
        assert await log.read_committed("a", topic) == {0: 4, 1: 7}
        assert await log.read_committed("b/with slash", topic) == {0: 1}


@_law
async def a_writer_ends_those_of_its_name(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        await log.create_topic(topic, 2)
        first, other = (
            await log.open_fenced_writer(f"{topic}-w"),
            await log.open_fenced_writer(f"{topic}-v"),
        )
        await first.append(topic, _numbered(3, 0) + _numbered(2, 1))
        second = await log.open_fenced_writer(f"{topic}-w")
        with pytest.raises(Fenced):
            await first.append(topic, _numbered(5, 0))
        await second.append(topic, [Entry(b"k", b"second", 1)])
        await other.append(topic, [Entry(b"k", b"other", 1)])
        bounds = await log.bounds(topic)
        reader = await log.reader(topic, {0: 0, 1: 0})
        values: dict[int, list[bytes | None]] = {0: [], 1: []}
        while any(reader.positions()[p] < high for p, (_, high) in bounds.items()):
            for record in await reader.poll(100, PATIENCE_S):
                values[record.partition].append(record.value)
        assert values == {0: [b"0", b"1", b"2"], 1: [b"0", b"1", b"second", b"other"]}
        await reader.close()
        for writer in (first, second, other):
            await writer.close()


@_law
async def what_was_acknowledged_is_there_after_reopening(open_log: OpenLog, topic: str) -> None:
    async with _opened(open_log) as log:
        await log.create_topic(topic, 2)
        await log.append(topic, _numbered(10, 0) + _numbered(3, 1))
        before = await _all(log, topic)
    async with _opened(open_log) as log:
        assert (await log.topics())[topic] == 2
        assert await _all(log, topic) == before
        assert await log.append(topic, _numbered(1, 0)) == [(0, 10)]
        assert await log.bounds(topic) == {0: (0, 11), 1: (0, 3)}


@_law
async def what_is_closed_says_so(open_log: OpenLog, topic: str) -> None:
    log = await open_log()
    await log.create_topic(topic, 1)
    reader = await log.reader(topic, {0: 0})
    forgotten = await log.reader(topic, {0: 0})
    await reader.close()
    await reader.close()
    with pytest.raises(Fenced):
        await reader.poll(1, 0)
    await log.close()
    await log.close()
    with pytest.raises(Fenced):
        await forgotten.poll(1, 0)
    with pytest.raises(Fenced):
        await log.append(topic, _numbered(1))
    with pytest.raises(Fenced):
        await log.bounds(topic)


@_law
async def any_history_equals_a_list_for_each_partition(open_log: OpenLog, topic: str) -> None:
    rng = Random(20_260_411)
    partitions = 3
    twin: dict[int, list[bytes | None]] = {partition: [] for partition in range(partitions)}
    async with _opened(open_log) as log:
        await log.create_topic(topic, partitions)
        readers = []
        for _ in range(40):
            entries = [
                Entry(None, rng.randbytes(rng.choice((0, 3, 900))), rng.randrange(partitions))
                for _ in range(rng.randrange(30))
            ]
            for entry in entries:
                twin[entry.partition or 0].append(entry.value)
            await log.append(topic, entries)
            bounds = await log.bounds(topic)
            assert bounds == {partition: (0, len(values)) for partition, values in twin.items()}
            if rng.random() < 0.2:
                starts = {p: rng.randint(0, len(values)) for p, values in twin.items()}
                readers.append((starts, await log.reader(topic, starts)))
        for starts, reader in readers:
            count = sum(len(twin[partition]) - start for partition, start in starts.items())
            found: dict[int, list[bytes | None]] = {partition: [] for partition in twin}
            for record in await _take(reader, count, max_records=rng.randint(1, 100)):
                found[record.partition].append(record.value)
            assert found == {p: values[starts[p] :] for p, values in twin.items()}
            await reader.close()
