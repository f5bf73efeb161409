"""A check of a store finds every kind of damage, and none where there is none."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from secrets import token_hex

import msgspec
import pyarrow as pa
import pytest

from tidemill.errors import Unavailable
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Collections,
    Description,
    DirectoryBlob,
    Limits,
    MemoryConsensus,
    SqliteConsensus,
    WriteCapability,
)
from tidemill.shard.claims import Claimant
from tidemill.shard.claims.checking import ClaimsCheck
from tidemill.shard.claims.tables import Owner, Owners
from tidemill.shard.framing import REGISTER, framed
from tidemill.shard.fsck import Finding, StoreCheck, part_problems, state_problems
from tidemill.shard.fsck_command import fsck
from tidemill.shard.parts import decode_part, encode_parts, placed, sorted_updates
from tidemill.shard.ports import BlobEntry, Version
from tidemill.shard.sqlite_file import in_use
from tidemill.shard.state import Batch, Hold, State
from tidemill.shard.stores import open_claims
from tidemill.time import frontier

ROWS = pa.schema([("row", pa.string()), ("f", pa.float64())])
SMALL = Limits(inline_bytes_max=600, part_bytes_max=2_000)


def updates(time: int, rows: int) -> pa.Table:
    return pa.table(
        {
            "row": [f"row {n}" for n in range(rows)],
            "f": [float("nan") if n % 7 == 0 else n / 2 for n in range(rows)],
            "_time": pa.array([time] * rows, pa.uint64()),
            "_diff": pa.array([1] * rows, pa.int64()),
        }
    )


def opened(folder: Path) -> Collections:
    return Collections(
        SqliteConsensus(folder / "consensus.sqlite"),
        DirectoryBlob(folder / "blob", lambda: token_hex(8)),
        ManualClock(),
        lambda: token_hex(16),
        limits=SMALL,
    )


async def fill(folder: Path, versions: int = 132) -> None:
    """A store with everything in it: rollup, inline and split parts, staged ones."""
    store = opened(folder)
    await store.create("ledger", Description(ROWS, key=("row",)), owner="t", lease_ms=None)
    for time in range(versions):
        await store.compare_and_append(
            "ledger",
            frontier(time),
            frontier(time + 1),
            updates(time, 300 if time % 50 == 20 else 1),
            writer="w",
        )
    await store.compact_step("ledger")
    await store.collect_garbage("ledger", grace_ms=0)
    _, write = await store.create("table", Description(ROWS, user_writable=True), lease_ms=None)
    assert write is not None
    _, other = await store.acquire("table", lease_ms=None)
    assert other is not None
    wide = pa.concat_tables([updates(time, 100) for time in range(8)])
    await store.update_and_downgrade(write, wide, frontier(8))
    await store.update_and_downgrade(WriteCapability(other.id, "table", frontier(0)), None, frontier(5))  # fmt: skip
    await store.close()


async def findings(folder: Path) -> tuple[list[Finding], dict[str, int]]:
    consensus = SqliteConsensus(folder / "consensus.sqlite")
    check = StoreCheck(consensus, DirectoryBlob(folder / "blob", lambda: "x"), ManualClock())
    found = [finding async for finding in check.findings()]
    await consensus.close()
    return found, dict(check.checked)


async def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    await fill(tmp_path)
    found, checked = await findings(tmp_path)
    assert found == []
    assert checked["collections"] == 2
    assert checked["parts"] > 10
    assert checked["rows"] > 1_000


async def test_every_kind_of_file_of_the_blob_store_is_covered(tmp_path: Path) -> None:
    await fill(tmp_path)
    files = [file for file in (tmp_path / "blob").rglob("*") if file.is_file()]
    kinds = {file.name.split("-")[0] for file in files}
    assert kinds == {"part", "rollup"}
    parts = sorted(
        (file for file in files if file.name.startswith("part")),
        key=lambda file: file.stat().st_size,
    )
    (rollup,) = set(files) - set(parts)
    for file in (rollup, parts[0], parts[-1]):
        whole = file.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 3] ^= 64
        for damaged in (bytes(flipped), whole[:-1], whole + b"x", b""):
            file.write_bytes(damaged)
            found, _ = await findings(tmp_path)
            assert [finding for finding in found if not finding.harmless], file.name
        file.unlink()
        found, _ = await findings(tmp_path)
        assert any("missing" in finding.problem for finding in found)
        file.write_bytes(whole)
    assert (await findings(tmp_path))[0] == []


async def test_a_wrong_byte_in_a_version_is_found(tmp_path: Path) -> None:
    await fill(tmp_path, versions=5)
    with closing(sqlite3.connect(tmp_path / "consensus.sqlite")) as file, file:
        (data,) = file.execute(
            "select data from versions where key = 'ledger' and number = 3"
        ).fetchone()
        damaged = bytearray(data)
        damaged[-3] ^= 1
        file.execute(
            "update versions set data = ? where key = 'ledger' and number = 3", (bytes(damaged),)
        )
    found, _ = await findings(tmp_path)
    assert [(finding.collection, "version 3" in finding.problem) for finding in found] == [
        ("ledger", True)
    ]


async def test_what_is_left_behind_is_named_and_harmless(tmp_path: Path) -> None:
    await fill(tmp_path, versions=5)
    folder = next((tmp_path / "blob").iterdir())
    (folder / "part-orphan").write_bytes(b"never linked")
    (folder / "part-x.1.unfinished").write_bytes(b"half")
    (tmp_path / "blob" / "elsewhere").mkdir()
    (tmp_path / "blob" / "elsewhere" / "part-1").write_bytes(b"whose")
    found, _ = await findings(tmp_path)
    assert sorted(finding.object.split("/")[1] for finding in found) == [
        "part-1",
        "part-orphan",
        "part-x.1.unfinished",
    ]
    assert all(finding.harmless and finding.repair for finding in found)


class ShortListings(DirectoryBlob):
    """A store whose first `odd` listings end before some objects, as at an odd page."""

    odd = 0

    async def list(self, prefix: str) -> Sequence[BlobEntry]:
        found = await super().list(prefix)
        self.odd -= 1
        return found if self.odd < 0 else []


async def test_a_store_that_lists_less_than_it_has_is_not_called_whole(tmp_path: Path) -> None:
    """Objects that were left behind were not there, and everything seemed to be named."""
    await fill(tmp_path)
    blob = ShortListings(tmp_path / "blob", lambda: token_hex(8))
    consensus = SqliteConsensus(tmp_path / "consensus.sqlite")
    for odd, refused in ((9, True), (1, False)):
        blob.odd = odd
        check = StoreCheck(consensus, blob, ManualClock())
        if refused:
            with pytest.raises(Unavailable, match="does not list it"):
                [each async for each in check.findings()]
        else:  # what is new since the first listing is no such object
            [each async for each in check.findings()]
    await consensus.close()


@pytest.mark.rule("F14", "L2c", "K1", "K2")
def test_a_state_that_contradicts_the_rules_is_found() -> None:
    hold = Hold(frontier(3), "view", None, 0, 0)
    good = State(Description(ROWS), frontier(3), frontier(9), reads={"r": hold}, writes={"w": replace(hold, frontier=frontier(9))})  # fmt: skip
    assert list(state_problems(good)) == []
    wrong = [
        replace(good, since=frontier(10), reads={}),
        replace(good, since=frontier(4)),
        replace(good, upper=frontier(10)),
        replace(good, batches=(Batch(frontier(4), 0, ()), Batch(frontier(4), 0, ()))),
        replace(good, batches=(Batch(frontier(9), 0, ()),)),
        replace(good, batches=(Batch(frontier(0), 3, ()),)),
    ]
    for state in wrong:
        assert len(list(state_problems(state))) == 1, state


def test_a_part_that_contradicts_its_statistics_is_found() -> None:
    description = Description(ROWS, key=("row",))
    table = sorted_updates(updates(4, 40), ("row",))
    ((part, data),) = encode_parts(table, ("row",), inline_bytes_max=0)
    part = placed(part, "a/b")
    schema = description.update_schema()
    assert list(part_problems(description, part, decode_part(data, part, schema))) == []
    wrong = [
        (replace(part, rows=39), table),
        (replace(part, time_min=3), table),
        (replace(part, hash_max=5), table),
        (replace(part, bounds={"row": ("row 2", "row 3", False)}), table),
        (part, table.take([*range(1, 40), 0])),
        (part, table.set_column(3, "_diff", pa.array([0, *[1] * 39]))),
    ]
    for described, rows in wrong:
        assert list(part_problems(description, described, rows)), described


async def test_the_command_says_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await fill(tmp_path, versions=25)

    await asyncio.to_thread(fsck, tmp_path)
    assert capsys.readouterr().out.splitlines()[-1].endswith("nothing wrong")
    part = next((tmp_path / "blob").rglob("part-*"))
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(SystemExit) as ended:
        await asyncio.to_thread(fsck, tmp_path)
    assert ended.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("WRONG: ")
    assert part.name in lines[0]
    with pytest.raises(SystemExit) as ended:
        await asyncio.to_thread(fsck, tmp_path / "none")
    assert ended.value.code == 2


def everything(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


KILLED = """
import asyncio, os, sys
from pathlib import Path
from tidemill.shard import SqliteConsensus
from tidemill.shard.ports import BlobEntry, Version

async def main(folder):
    consensus = SqliteConsensus(folder / "consensus.sqlite")
    for number in range(9):
        await consensus.compare_and_set("c", number - 1 if number else None, Version(number, b"x"))
    print("written", flush=True)
    if sys.argv[2] == "dies":
        os._exit(9)
    sys.stdin.read()

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("damaged", [False, True])
def test_v8_a_check_leaves_every_byte_of_the_store_of_a_killed_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: bool
) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), "dies"], stdout=subprocess.PIPE)
    log = tmp_path / "consensus.sqlite-wal"
    data = bytearray(log.read_bytes())
    if damaged:
        data[32 + 2 * (4096 + 24) + 100] ^= 1
        log.write_bytes(data)
    before = everything(tmp_path)
    assert before.keys() >= {"consensus.sqlite", "consensus.sqlite-wal"}
    said = []
    for _ in range(2):
        with suppress(SystemExit):
            fsck(tmp_path)
        said.append(capsys.readouterr())
        assert everything(tmp_path) == before
    assert said[0] == said[1]
    assert (f"the state file {tmp_path}/consensus.sqlite does not have" in said[0].out) == damaged


def test_v8_a_check_beside_a_server_reads_what_it_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), "lives"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        server.stdout.readline()
        assert in_use(tmp_path / "consensus.sqlite")
        with suppress(SystemExit):
            fsck(tmp_path)
        assert "1 collections" in capsys.readouterr().out
        server.communicate()
    assert not in_use(tmp_path / "consensus.sqlite")


async def _claim(folder: Path) -> dict[str, bytes]:
    """Claims that went from hand to hand beside a store; the newest version of each of their
    logs.
    """
    file = folder / "consensus.sqlite"
    await fill(folder, versions=3)
    claims = open_claims(f"sqlite:{file}")
    clock, names = ManualClock(), count()
    one, other = (
        Claimant(claims, "compute", clock, lambda: f"{next(names)}", name=name) for name in "ab"
    )
    for _ in range(3):
        await one.renew(["x", "y"])
        await other.renew(["x", "y"])
        await one.leave()
        await other.renew(["x", "y"])
        await other.leave()
    newest = {key: await claims.head(key) for key in await claims.keys()}
    await claims.close()
    return {key: version.data for key, version in newest.items() if version is not None}


async def test_claims_are_checked_beside_the_collections(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = await _claim(tmp_path)
    assert set(logs) == {"compute/members", "compute/owners"}
    await asyncio.to_thread(fsck, tmp_path)
    assert capsys.readouterr().out.endswith("claims of 1 groups: nothing wrong\n")
    for key, data in logs.items():
        wrong = bytearray(data)
        wrong[-1] ^= 1
        claims = open_claims(f"sqlite:{tmp_path / 'consensus.sqlite'}")
        head = await claims.head(key)
        assert head is not None
        await claims.compare_and_set(key, head.number, Version(head.number + 1, bytes(wrong)))
        await claims.close()
        with pytest.raises(SystemExit) as ended:
            await asyncio.to_thread(fsck, tmp_path)
        assert ended.value.code == 1
        assert f"WRONG: {key}: version {head.number + 1} of {key}" in capsys.readouterr().out


async def test_claims_that_contradict_each_other_are_found() -> None:
    given = Owners(5, {"x": Owner("s1", 4), "y": Owner("s2", 5)})
    wrong = {
        "goes back": [given, Owners(4, {"x": Owner("s1", 4)})],
        "the last that was given": [Owners(3, {"x": Owner("s1", 4)})],
        "was given for y and for x": [given, Owners(5, {"x": Owner("s2", 5)})],
    }
    for problem, values in {"": [given, given, Owners(6, {"x": Owner("s3", 6)})], **wrong}.items():
        consensus = MemoryConsensus()
        for number, value in enumerate(values):
            version = Version(number, framed(REGISTER, msgspec.msgpack.encode(value)))
            await consensus.compare_and_set("g/owners", number - 1 if number else None, version)
        found = [finding.problem async for finding in ClaimsCheck(consensus).findings()]
        assert [problem in each for each in found] == [True] * bool(problem), found
    consensus = MemoryConsensus()
    await consensus.compare_and_set("odd", None, Version(0, b"x"))
    assert len([finding async for finding in ClaimsCheck(consensus).findings()]) == 1
