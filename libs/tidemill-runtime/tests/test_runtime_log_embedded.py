"""Promises of the embedded log beyond the port: crashes, damage, other processes, full disks."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import Corrupt, Fenced, Indeterminate, NotYet, Unavailable, UsageError
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.log import Entry, LogRecord
from tidemill.runtime.log_check import LogCheck
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.runtime.log_frames import decode_frame, encode_frame, header_at, intact
from tidemill.runtime.log_segments import partition_directory, read_range
from tidemill.runtime.log_writer import TOLD

KEEPS_APPENDING = """
import asyncio, sys
from tidemill.runtime.log import Entry
from tidemill.runtime.log_embedded import EmbeddedLog

async def append_for_ever():
    log = EmbeddedLog(sys.argv[1])
    await log.create_topic("t", 2)
    number = 0
    while True:
        await log.append("t", [Entry(None, b"%d" % (number + i), 0) for i in range(7)])
        number += 7
        print(number, flush=True)

asyncio.run(append_for_ever())
"""

HOLDS_THE_LOCK = """
import sys
from tidemill.runtime.log_embedded import EmbeddedLog
log = EmbeddedLog(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def opened(directory: Path, **settings: int) -> AsyncIterator[EmbeddedLog]:
    log = EmbeddedLog(directory, **settings)
    try:
        yield log
    finally:
        await log.close()


def numbered(start: int, stop: int) -> list[Entry]:
    return [Entry(None, b"%d" % number, 0) for number in range(start, stop)]


def values_in(directory: Path, start: int, stop: int, topic: str = "t") -> list[bytes]:
    batches = read_range(directory, topic, 0, start, stop, columns=["value"])
    return [value for batch in batches for value in batch.column(0).to_pylist()]


async def fill(directory: Path, appends: int = 5, segment_bytes_max: int = 64 << 20) -> Path:
    """A log with ten records for each append; its only partition's directory."""
    async with opened(directory, segment_bytes_max=segment_bytes_max) as log:
        await log.create_topic("t", 1)
        for number in range(appends):
            await log.append("t", numbered(10 * number, 10 * number + 10))
    return partition_directory(directory, "t", 0)


entries = st.lists(
    st.builds(
        Entry,
        st.none() | st.binary(max_size=12),
        st.none() | st.binary(max_size=12),
        st.just(0),
        st.none() | st.integers(-(2**40), 2**60),
    ),
    min_size=1,
    max_size=20,
)


@given(entries, st.integers(0, 2**40))
@settings(max_examples=100, deadline=None)
def test_a_frame_gives_back_what_was_put_in(written: list[Entry], base: int) -> None:
    data = b"before-8" + encode_frame(written, base, 0, 7)
    header = header_at(memoryview(data), 8)
    assert header is not None
    assert header.size == len(data) - 8
    assert header.size % 8 == 0
    assert intact(memoryview(data), 8, header)
    frame = decode_frame(pa.py_buffer(data), 8, header)
    expected = [
        LogRecord(3, base + i, e.key, e.value, 7 if e.timestamp_ms is None else e.timestamp_ms)
        for i, e in enumerate(written)
    ]
    assert frame.to_records(3) == expected
    start = base + len(written) // 2
    batch = frame.to_batch(3, start, base + 1_000)
    batch.validate(full=True)
    rows = [
        LogRecord(*row.values())
        for row in batch.select(["partition", "offset", "key", "value", "timestamp_ms"]).to_pylist()
    ]
    assert rows == expected[len(written) // 2 :]


@given(entries, st.data())
@settings(max_examples=100, deadline=None)
def test_a_frame_with_any_flipped_bit_is_not_intact(
    written: list[Entry], data: st.DataObject
) -> None:
    frame = bytearray(encode_frame(written, 5, 0, 7))
    at = data.draw(st.integers(0, len(frame) * 8 - 1))
    frame[at // 8] ^= 1 << at % 8
    header = header_at(memoryview(frame), 0)
    assert header is None or not intact(memoryview(frame), 0, header)


def kill_a_writer(directory: Path) -> int:
    """Run a writer, SIGKILL it in the middle; how many records it knew to be durable."""
    program = [sys.executable, "-c", KEEPS_APPENDING, str(directory)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acknowledged = 0
        while acknowledged < 200:
            acknowledged = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
    assert writer.returncode == -signal.SIGKILL
    return acknowledged


async def test_a_killed_writer_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    acknowledged = kill_a_writer(tmp_path)
    async with opened(tmp_path) as log:
        high = (await log.bounds("t"))[0][1]
        assert high >= acknowledged
        assert values_in(tmp_path, 0, high) == [b"%d" % number for number in range(high)]
        assert await log.append("t", numbered(high, high + 1)) == [(0, high)]


async def test_a_write_that_was_cut_off_anywhere_is_taken_back(tmp_path: Path) -> None:
    segment = await fill(tmp_path, appends=4) / f"{0:020d}.log"
    told = segment.with_name(TOLD)
    before = told.read_bytes()
    async with opened(tmp_path) as log:
        await log.append("t", numbered(40, 50))
    told.write_bytes(before)  # the last write was never acknowledged
    whole = segment.read_bytes()
    frame = len(whole) // 5
    for cut in range(len(whole) - frame, len(whole)):
        segment.write_bytes(whole[:cut])
        async with opened(tmp_path) as log:
            assert await log.bounds("t") == {0: (0, 40)}
    async with opened(tmp_path) as log:
        assert await log.append("t", numbered(40, 43)) == [(0, 40), (0, 41), (0, 42)]
    assert values_in(tmp_path, 38, 43) == [b"38", b"39", b"40", b"41", b"42"]


async def test_damage_in_front_of_what_was_durable_is_not_taken_for_a_cut(tmp_path: Path) -> None:
    segment = await fill(tmp_path) / f"{0:020d}.log"
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    segment.write_bytes(damaged)
    async with opened(tmp_path) as log:
        with pytest.raises(Corrupt, match="is damaged at byte"):
            await log.bounds("t")
    with pytest.raises(Corrupt, match="frame of offset 20 is damaged"):
        values_in(tmp_path, 0, 50)


async def test_v5_one_damaged_topic_leaves_the_others_going(tmp_path: Path) -> None:
    segment = await fill(tmp_path) / f"{0:020d}.log"
    async with opened(tmp_path) as log:
        await log.create_topic("u", 2)
        await log.append("u", numbered(0, 3))
        await log.create_topic("nothing", 1)
    (tmp_path / "topics" / "nothing" / "topic.json").write_bytes(b"{")
    damaged = bytearray(segment.read_bytes())
    damaged[0] ^= 1
    segment.write_bytes(damaged)
    async with opened(tmp_path) as log:
        for call in (
            log.bounds("t"), log.append("t", numbered(0, 1)), log.reader("t", {0: 0}),
            log.identity("t"), log.create_topic("t", 1), log.commit("g", "t", {0: 1}),
        ):  # fmt: skip
            with pytest.raises(Corrupt, match="damaged at byte 0"):
                await call
        with pytest.raises(Corrupt, match="describes no topic"):
            await log.bounds("nothing")
        assert await log.topics() == {"t": 1, "u": 2, "nothing": 0}
        assert await log.append("u", numbered(3, 4)) == [(0, 3)]
    assert values_in(tmp_path, 0, 4, "u") == [b"0", b"1", b"2", b"3"]


async def test_v5_a_log_that_lost_what_it_acknowledged_takes_nothing_more(tmp_path: Path) -> None:
    segment = await fill(tmp_path) / f"{0:020d}.log"
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-64])
    for _ in range(2):
        async with opened(tmp_path) as log:
            with pytest.raises(Corrupt, match="ends at 40, but offsets up to 50 were acknowledged"):
                await log.append("t", numbered(50, 51))
    assert segment.read_bytes() == whole[:-64]
    segment.write_bytes(whole)
    async with opened(tmp_path) as log:
        assert await log.append("t", numbered(50, 51)) == [(0, 50)]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda files: None, []),
        (
            lambda files: flip(files / f"{0:020d}.log", 0),
            ["partition 0: .* damaged at byte 0: it ends at offset 0"],
        ),
        (
            lambda files: flip(files / f"{10:020d}.log", -1),
            ["ends at offset 10, the next begins at 20"],
        ),
        (lambda files: flip(files / f"{40:020d}.log", -1), ["ends at 40, but offsets up to 50"]),
        (lambda files: (files / f"{20:020d}.log").unlink(), ["the next begins at 30"]),
        (lambda files: (files.parent / "topic.json").write_text("no"), ["describes no topic"]),
        (
            lambda files: next(files.parents[2].glob("groups/*/*")).write_text('{"0": "x"}'),
            ["offsets of group a/b in t: no offsets"],
        ),
    ],
)
async def test_v5_a_check_finds_what_is_wrong_with_a_log(
    tmp_path: Path, damage: Callable[[Path], object], said: list[str]
) -> None:
    files = await fill(tmp_path, segment_bytes_max=1)
    async with opened(tmp_path) as log:
        await log.commit("a/b", "t", {0: 5})
        assert list(LogCheck(tmp_path).problems()) == []
    damage(files)
    before = everything(tmp_path)
    found = list(LogCheck(tmp_path).problems())
    assert len(found) == len(said)
    assert all(re.search(each, problem) for each, problem in zip(said, found, strict=True))
    assert everything(tmp_path) == before


@pytest.mark.parametrize("group", ["..", ".", "g" * 300, "ü" * 249, "a/../b"])
async def test_a1_a_group_called_as_no_file_is_has_its_offsets_in_its_folder(
    tmp_path: Path, group: str
) -> None:
    """A1: long names were an error outside of the tree, and two dots led out of the folder."""
    async with opened(tmp_path) as log:
        await log.create_topic("t", 1)
        await log.commit(group, "t", {0: 5})
        await log.commit(f"{group}.", "t", {0: 7})
        assert await log.read_committed(group, "t") == {0: 5}
        assert list(LogCheck(tmp_path).problems()) == []
    assert {file.parents[1].name for file in everything(tmp_path) if file.name == "t.json"} == {
        "groups"
    }


def everything(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def flip(file: Path, at: int) -> None:
    damaged = bytearray(file.read_bytes())
    damaged[at] ^= 1
    file.write_bytes(damaged)


async def test_v5_a_topic_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.create_topic("t", 1)
        first = await log.identity("t")
    async with opened(tmp_path) as log:
        assert await log.identity("t") == first is not None
    shutil.rmtree(tmp_path / "topics" / "t")
    async with opened(tmp_path) as log:
        await log.create_topic("t", 1)
        assert await log.identity("t") not in (first, None)


async def test_v14_thousands_of_partitions_need_few_open_files(tmp_path: Path) -> None:
    partitions = 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 240, hard))
    try:
        async with opened(tmp_path) as log:
            await log.create_topic("t", partitions)
            await log.append("t", [Entry(None, b"%d" % n, n) for n in range(300)])
        async with opened(tmp_path) as log:
            bounds = await log.bounds("t")
            assert bounds == {n: (0, int(n < 300)) for n in range(partitions)}
            reader = await log.reader("t", dict.fromkeys(range(partitions), 0))
            found: list[bytes | None] = []
            while records := await reader.poll(100, 0):
                found += [record.value for record in records]
            assert sorted(found) == sorted(b"%d" % n for n in range(300))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_damage_in_a_full_segment_is_found_by_its_reader(tmp_path: Path) -> None:
    first = await fill(tmp_path, segment_bytes_max=1) / f"{0:020d}.log"
    damaged = bytearray(first.read_bytes())
    damaged[-1] ^= 1
    first.write_bytes(damaged)
    async with opened(tmp_path) as log:
        reader = await log.reader("t", {0: 0})
        with pytest.raises(Corrupt):
            await reader.poll(10, 0)


async def test_a_directory_has_one_writer(tmp_path: Path) -> None:
    async with opened(tmp_path):
        with pytest.raises(UsageError, match=f"in use by the process with pid {os.getpid()}"):
            EmbeddedLog(tmp_path)


def test_the_lock_goes_with_the_process_that_held_it(tmp_path: Path) -> None:
    program = [sys.executable, "-c", HOLDS_THE_LOCK, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(UsageError, match=f"pid {holder.pid}") as error:
            EmbeddedLog(tmp_path)
        assert error.value.details["reason"] == "locked"
        holder.kill()
    asyncio.run(EmbeddedLog(tmp_path).close())


def read_elsewhere(directory: Path, partition: int, start: int, stop: int) -> object:
    """The result of `read_range` in another process."""
    program = (
        "import sys; from tidemill.runtime.log_segments import read_range\n"
        f"for batch in read_range(sys.argv[1], 't', {partition}, {start}, {stop}):\n"
        "    print(batch.to_pylist())"
    )
    command = [sys.executable, "-c", program, str(directory)]
    return ast.literal_eval(
        subprocess.run(command, capture_output=True, check=True).stdout.decode()
    )


async def test_a_range_is_read_from_another_process_while_the_log_is_open(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path, ManualClock(1_000))
    await log.create_topic("t", 2)
    await log.append("t", [Entry(b"k", b"%d" % number, 1) for number in range(12)])
    assert read_elsewhere(tmp_path, 1, 3, 9) == [
        {"partition": 1, "offset": n, "key": b"k", "value": b"%d" % n, "timestamp_ms": 1_000}
        for n in range(3, 9)
    ]
    await log.close()


async def test_a_range_crosses_segments_and_joins_small_frames(tmp_path: Path) -> None:
    files = await fill(tmp_path, appends=40, segment_bytes_max=2_000)
    assert len(list(files.glob("*.log"))) > 3
    for start, stop in ((0, 400), (0, 1), (399, 400), (57, 203), (200, 200)):
        batches = list(read_range(tmp_path, "t", 0, start, stop))
        assert [n for b in batches for n in b["offset"].to_pylist()] == list(range(start, stop))
        assert len(batches) <= 1


async def test_a_range_that_is_not_written_yet_is_not_yet(tmp_path: Path) -> None:
    await fill(tmp_path)
    with pytest.raises(NotYet, match="offset 51 of t/0 is not written: the log ends at 50"):
        values_in(tmp_path, 0, 51)
    for topic, start, stop, reason in (
        ("none", 0, 1, "unknown-topic"),
        ("t", -1, 1, "offset-out-of-range"),
        ("t", 5, 4, "offset-out-of-range"),
    ):
        with pytest.raises(UsageError) as error:
            values_in(tmp_path, start, stop, topic)
        assert error.value.details["reason"] == reason


@pytest.mark.parametrize("index", [b"", b"x" * 100, (45).to_bytes(8, "little") + bytes(8)])
async def test_the_index_is_only_a_hint(tmp_path: Path, index: bytes) -> None:
    files = await fill(tmp_path)
    (files / f"{0:020d}.index").write_bytes(index)
    assert values_in(tmp_path, 45, 47) == [b"45", b"46"]
    (files / f"{0:020d}.index").unlink()
    assert values_in(tmp_path, 45, 47) == [b"45", b"46"]


async def test_an_index_entry_leads_to_the_middle_of_a_segment(tmp_path: Path) -> None:
    large = b"x" * 30_000
    async with opened(tmp_path) as log:
        await log.create_topic("t", 1)
        for number in range(20):
            await log.append("t", [Entry(None, large, 0), Entry(None, b"%d" % number, 0)])
    files = partition_directory(tmp_path, "t", 0)
    assert len((files / f"{0:020d}.index").read_bytes()) // 16 > 3
    assert values_in(tmp_path, 37, 38) == [b"18"]


async def test_a_full_disk_refuses_and_leaves_no_trace(tmp_path: Path) -> None:
    files = await fill(tmp_path)
    size = (files / f"{0:020d}.log").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with opened(tmp_path) as log:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
        try:
            with pytest.raises(Unavailable, match="nothing was written"):
                await log.append("t", numbered(0, 100))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (files / f"{0:020d}.log").stat().st_size == size
        assert await log.append("t", numbered(50, 51)) == [(0, 50)]
    assert values_in(tmp_path, 49, 51) == [b"49", b"50"]


async def test_after_a_failed_sync_nothing_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError("input/output error")

    async with opened(tmp_path) as log:
        await log.create_topic("t", 1)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", fail)
            with pytest.raises(Indeterminate):
                await log.append("t", numbered(0, 1))
        assert await log.bounds("t") == {0: (0, 0)}
        with pytest.raises(Fenced, match="failed fsync"):
            await log.append("t", numbered(0, 1))


async def test_a_poll_waits_in_virtual_time(tmp_path: Path) -> None:
    clock = ManualClock(5_000)
    log = EmbeddedLog(tmp_path, clock)
    await log.create_topic("t", 1)
    reader = await log.reader("t", {0: 0})

    polling = asyncio.create_task(reader.poll(10, 60))
    await clock.advance(59)
    assert not polling.done()
    await clock.advance(1)
    assert await polling == []
    await log.append("t", [Entry(None, b"")])
    assert [record.timestamp_ms for record in await reader.poll(10, 60)] == [65_000]
    await log.close()


async def test_a_topic_that_was_half_made_is_made_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.create_topic("t", 3)
    (tmp_path / "topics" / "t" / "topic.json").unlink()
    async with opened(tmp_path) as log:
        assert await log.topics() == {}
        await log.create_topic("t", 2)
        assert await log.bounds("t") == {0: (0, 0), 1: (0, 0)}
