"""Data survives faults; beside each test a proof that the fault happened."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex

import pyarrow as pa
import pytest

from tidemill.errors import Corrupt, Indeterminate, Unavailable
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Appended,
    Collections,
    Description,
    DirectoryBlob,
    MemoryBlob,
    MemoryConsensus,
    SqliteConsensus,
    UpperMismatch,
)
from tidemill.testkit.faults.forgetful_disk import ForgetfulDisk
from tidemill.testkit.faults.stores import Faults, FaultyBlob, FaultyConsensus
from tidemill.time import frontier, sole_time

ROWS = pa.schema([("account", pa.string()), ("amount", pa.int64())])
BIG_ROWS = 3_000


def transfer(time: int, rows: int = 1) -> pa.Table:
    """Money moves from one account to another: every readable time sums to zero."""
    accounts, amounts = [], []
    for number in range(rows):
        accounts += [f"a{time % 5}-{number}", f"b{time % 3}-{number}"]
        amounts += [time + number, -(time + number)]
    return pa.table(
        {
            "account": accounts,
            "amount": amounts,
            "_time": pa.array([time] * len(accounts), pa.uint64()),
            "_diff": pa.array([1] * len(accounts), pa.int64()),
        }
    )


def balance(table: pa.Table) -> int:
    return sum(row["amount"] * row["_diff"] for row in table.to_pylist())


@pytest.mark.rule("P1", "P2", "P4", "P5", "UP6")
@pytest.mark.parametrize("seed", range(6))
async def test_an_unreliable_store_loses_and_doubles_nothing(seed: int) -> None:
    consensus, blob = MemoryConsensus(), MemoryBlob()
    faults = Faults(seed)
    clock = ManualClock()
    collections = Collections(
        FaultyConsensus(consensus, faults), FaultyBlob(blob, faults), clock, lambda: token_hex(16)
    )
    honest = Collections(consensus, blob, clock, lambda: token_hex(16))
    await honest.create("ledger", Description(ROWS), lease_ms=None)
    before = (await honest.status("ledger")).upper
    for step in range(40):
        rows = BIG_ROWS if step % 10 == 9 else 1
        token = f"step {step}"
        while True:
            try:
                outcome = await collections.compare_and_append(
                    "ledger", frontier(step), frontier(step + 1), transfer(step, rows),
                    writer="w", token=token,
                )  # fmt: skip
            except (Unavailable, Indeterminate):
                continue
            assert outcome == Appended(frontier(step + 1))
            break
        upper = (await honest.status("ledger")).upper
        assert before.precedes(upper)
        before = upper
        if step % 7 == 3:
            try:
                await collections.compact("ledger")
            except (Unavailable, Indeterminate):
                continue
    read = await honest.read_hold("ledger", owner="audit")
    assert balance(await honest.snapshot(read, 39)) == 0
    assert (await honest.read_updates("ledger")).num_rows == 2 * (36 + 4 * BIG_ROWS)
    assert faults.happened["answer lost"]
    assert faults.happened["request lost"]
    assert faults.happened["refused"]


WRITER = """
    import asyncio, sys
    from pathlib import Path
    from secrets import token_hex
    sys.path.insert(0, {tests!r})
    from test_shard_faults import ROWS, open_ledger, transfer
    from tidemill.shard import Appended, Description
    from tidemill.time import frontier, sole_time

    async def main() -> None:
        ledger = open_ledger(Path({folder!r}))
        if "ledger" not in await ledger.ids():
            await ledger.create("ledger", Description(ROWS), lease_ms=None)
        while True:
            upper = (await ledger.status("ledger")).upper
            step = sole_time(upper)
            outcome = await ledger.compare_and_append(
                "ledger", upper, frontier(step + 1), transfer(step, {rows} if step % 3 else 1), writer="w"
            )
            if isinstance(outcome, Appended):
                print(step, flush=True)
            if step % 11 == 10:
                await ledger.compact("ledger")

    asyncio.run(main())
"""


def open_ledger(folder: Path, clock: ManualClock | None = None) -> Collections:
    """The ledger as one process sees it."""
    return Collections(
        SqliteConsensus(folder / "consensus.sqlite"),
        DirectoryBlob(folder / "blob", lambda: token_hex(8)),
        clock or ManualClock(),
        lambda: token_hex(16),
    )


def writer_of(folder: Path, rows: int) -> str:
    """The program of a writer whose larger appends are of so many transfers."""
    return textwrap.dedent(WRITER).format(
        tests=str(Path(__file__).parent), folder=str(folder), rows=rows
    )


def killed_writer(
    program: str, stop_after: int, pause_s: float, environment: Mapping[str, str] | None = None
) -> int:
    """Run a writer, kill it some time after it was told of `stop_after`; the last step it was
    told.
    """
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        acknowledged = -1
        for line in process.stdout:
            acknowledged = int(line)
            if acknowledged >= stop_after:
                break
        time.sleep(pause_s)
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split("\n")
    assert process.returncode == -signal.SIGKILL
    whole = [line for line in rest[:-1] if line]
    return int(whole[-1]) if whole else acknowledged


@pytest.mark.rule("P4", "P7", "S3", "S4", "D1")
async def test_what_a_killed_writer_was_told_is_there_once(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    await ledger.create("ledger", Description(ROWS), lease_ms=None)
    program = writer_of(tmp_path, 400)
    for number in range(3):
        acknowledged = await asyncio.to_thread(
            killed_writer, program, 12 * (number + 1), 0.003 * number
        )
        upper = sole_time((await ledger.status("ledger")).upper)
        assert upper in (acknowledged + 1, acknowledged + 2)
        read = await ledger.read_hold("ledger", owner="audit")
        for at in (0, upper // 2, upper - 1):
            assert balance(await ledger.snapshot(read, at)) == 0
        expected = sum(2 * (400 if step % 3 else 1) for step in range(upper))
        assert sum((await ledger.read_updates("ledger"))["_diff"].to_pylist()) == expected
    await ledger.close()


@pytest.mark.rule("S3", "S4", "D1", "P4")
@pytest.mark.parametrize("stop_after", [3, 14])
async def test_what_a_writer_was_told_is_there_after_the_power_failed(
    tmp_path: Path, stop_after: int
) -> None:
    disk = ForgetfulDisk.made(tmp_path)
    environment = disk.environment(os.environ)
    acknowledged = await asyncio.to_thread(
        killed_writer, writer_of(disk.root, BIG_ROWS), stop_after, 0.0, environment
    )
    disk.after_power_failed(tmp_path / "after")
    after = open_ledger(tmp_path / "after")
    upper = sole_time((await after.status("ledger")).upper)
    assert upper in (acknowledged + 1, acknowledged + 2)
    rows = await after.read_updates("ledger")
    expected = sum(2 * (BIG_ROWS if step % 3 else 1) for step in range(upper))
    assert sum(rows["_diff"].to_pylist()) == expected
    assert list((tmp_path / "after" / "blob").rglob("part-*")) != []
    await after.close()


def test_a_disk_without_power_forgets_what_was_not_flushed(tmp_path: Path) -> None:
    disk = ForgetfulDisk.made(tmp_path)
    program = """
import os, sys
os.chdir(sys.argv[1])
def write(name, text, flush):
    with open(name, "a") as file:
        file.write(text)
        file.flush()
        if flush:
            os.fsync(file.fileno())
write("kept", "one", True)
write("kept", "two", False)
write("empty", "one", False)
os.fsync(os.open(".", os.O_RDONLY))
write("nameless", "one", True)
"""
    command = [sys.executable, "-c", program, str(disk.root)]
    subprocess.run(command, env=disk.environment(os.environ), check=True)
    assert (disk.root / "kept").read_text() == "onetwo"
    assert (disk.root / "nameless").read_text() == "one"
    disk.after_power_failed(tmp_path / "after")
    left = {file.name: file.read_text() for file in (tmp_path / "after").iterdir()}
    assert left == {"kept": "one", "empty": ""}


@pytest.mark.rule("P8")
async def test_one_wrong_byte_in_a_part_is_detected(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    await ledger.create("ledger", Description(ROWS), lease_ms=None)
    await ledger.compare_and_append(
        "ledger", frontier(0), frontier(1), transfer(0, BIG_ROWS), writer="w"
    )
    await ledger.close()
    (part,) = list((tmp_path / "blob").rglob("part-*"))
    data = bytearray(part.read_bytes())
    for place in (0, len(data) // 2, len(data) - 1):
        damaged = bytearray(data)
        damaged[place] ^= 1
        part.write_bytes(bytes(damaged))
        fresh = open_ledger(tmp_path)
        read = await fresh.read_hold("ledger", owner="audit")
        with pytest.raises(Corrupt, match="part"):
            await fresh.snapshot(read, 0)
        await fresh.close()
    part.write_bytes(bytes(data))
    fresh = open_ledger(tmp_path)
    read = await fresh.read_hold("ledger", owner="audit")
    assert balance(await fresh.snapshot(read, 0)) == 0
    await fresh.close()


async def test_two_processes_that_race_keep_one_order(tmp_path: Path) -> None:
    one, two = open_ledger(tmp_path), open_ledger(tmp_path)
    await one.create("ledger", Description(ROWS), lease_ms=None)
    lost = 0
    for step in range(30):
        for ledger in (one, two) if step % 2 else (two, one):
            outcome = await ledger.compare_and_append(
                "ledger", frontier(step), frontier(step + 1), transfer(step), writer="w"
            )
            lost += isinstance(outcome, UpperMismatch)
    assert lost == 30
    for ledger in (one, two):
        read = await ledger.read_hold("ledger", owner="audit")
        assert sum((await ledger.snapshot(read, 29))["_diff"].to_pylist()) == 60
        await ledger.close()


async def test_a_long_log_is_rolled_up_truncated_and_read_from_the_rollup(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    await ledger.create("ledger", Description(ROWS), lease_ms=None)
    for step in range(300):
        await ledger.compare_and_append(
            "ledger", frontier(step), frontier(step + 1), transfer(step), writer="w"
        )
    consensus = SqliteConsensus(tmp_path / "consensus.sqlite")
    assert 0 < len(await consensus.scan("ledger", 0)) < 128
    await consensus.close()
    fresh = open_ledger(tmp_path)
    assert await fresh.status("ledger") == await ledger.status("ledger")
    await fresh.compact("ledger")
    assert (await fresh.status("ledger")).batches == 1
    read = await ledger.read_hold("ledger", owner="audit")
    assert balance(await ledger.snapshot(read, 150)) == 0
    await ledger.close()
    await fresh.close()


async def test_garbage_and_orphans_go_and_nothing_else(tmp_path: Path) -> None:
    clock = ManualClock()
    ledger = open_ledger(tmp_path, clock)
    await ledger.create("ledger", Description(ROWS), lease_ms=None)
    for step in range(3):
        await ledger.compare_and_append(
            "ledger", frontier(step), frontier(step + 1), transfer(step, BIG_ROWS), writer="w"
        )
    await ledger.compact("ledger")
    assert len(list((tmp_path / "blob").rglob("part-*"))) == 4
    assert await ledger.collect_garbage("ledger", grace_ms=1_000) == 0
    clock.move(2)
    assert await ledger.collect_garbage("ledger", grace_ms=1_000) == 3
    (kept,) = list((tmp_path / "blob").rglob("part-*"))
    orphan = kept.with_name("part-orphan")
    orphan.write_bytes(b"never linked")
    modified_ms = int(orphan.stat().st_mtime * 1000)
    clock.move((modified_ms + 500 - clock.now_ms()) / 1000)
    assert await ledger.reap_orphans("ledger", age_ms=1_000) == 0
    clock.move(4.5)
    assert await ledger.reap_orphans("ledger", age_ms=1_000) == 1
    read = await ledger.read_hold("ledger", owner="audit")
    assert balance(await ledger.snapshot(read, 2)) == 0
    await ledger.close()
