"""Wrong bytes, torn files and full disks: told of, never answered from."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from secrets import token_hex

import pyarrow as pa
import pytest
import redis

from tidemill.errors import Corrupt, TidemillError, Unavailable
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Appended,
    Blob,
    Collections,
    Consensus,
    Description,
    DirectoryBlob,
    Limits,
    MemoryBlob,
    MemoryConsensus,
    SqliteConsensus,
)
from tidemill.shard.consensus_redis import RedisConsensus
from tidemill.shard.fsck import StoreCheck
from tidemill.shard.log import ROLLUP_EVERY
from tidemill.shard.ports import Seen, Version
from tidemill.shard.sqlite_file import CHECKPOINT_BYTES
from tidemill.shard.stores import BlobPlace, open_blob
from tidemill.time import frontier, sole_time

ROWS = pa.schema([("n", pa.int64())])
LIMITS = Limits(inline_bytes_max=400)


def updates(time: int, rows: int = 1) -> pa.Table:
    return pa.table(
        {
            "n": pa.array(range(time * 1000, time * 1000 + rows), pa.int64()),
            "_time": pa.array([time] * rows, pa.uint64()),
            "_diff": pa.array([1] * rows, pa.int64()),
        }
    )


def opened(consensus: Consensus, blob: Blob) -> Collections:
    return Collections(consensus, blob, ManualClock(), lambda: token_hex(8), limits=LIMITS)


def at(folder: Path) -> Collections:
    return opened(
        SqliteConsensus(folder / "log.sqlite", busy_timeout_s=2),
        DirectoryBlob(folder / "blob", lambda: token_hex(8)),
    )


async def fill(store: Collections, steps: int, rows: int = 1) -> None:
    for name in ("ledger", "other"):
        await store.create(name, Description(ROWS), lease_ms=None)
        for step in range(steps):
            table = updates(step, rows if step % 3 == 1 else 1)
            await store.compare_and_append(
                name, frontier(step), frontier(step + 1), table, writer="w"
            )


async def contents(store: Collections) -> str:
    """Everything that is there, as text."""
    found = []
    for name in await store.ids():
        state = await store.state(name)
        found.append((name, str(state.since), str(state.upper), str((await store.read_updates(name)).to_pydict())))  # fmt: skip
    return str(found)


async def read_all(store: Collections) -> str:
    """Everything that is there, or that it is damaged."""
    try:
        return await contents(store)
    except Corrupt:
        return "corrupt"
    finally:
        await store.close()


async def read_damaged(folder: Path, name: str, data: bytes, scratch: Path) -> str:
    """The report about a copy of the store in which one file has these bytes."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(folder, scratch)
    (scratch / name).write_bytes(data)
    return await read_all(at(scratch))


async def test_a_damaged_key_refuses_its_own_writes_alone(tmp_path: Path) -> None:
    file = tmp_path / "log.sqlite"
    store = SqliteConsensus(file)
    for key in "abc":
        assert await store.compare_and_set(key, None, Version(0, b"first"))
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("update heads set number = 7 where key = 'b'")
    tried = (store.compare_and_set(key, 0, Version(1, b"second")) for key in "abc")
    first, damaged, last = await asyncio.gather(*tried, return_exceptions=True)
    assert (first, last) == (True, True)
    assert isinstance(damaged, Corrupt)
    assert [version.number for version in await store.scan("c", 0)] == [0, 1]
    # Together with a write that has lost, it is damaged as well.
    tried = (store.compare_and_set(key, 0, Version(1, b"third")) for key in "ab")
    lost, damaged = await asyncio.gather(*tried, return_exceptions=True)
    assert lost is False
    assert isinstance(damaged, Corrupt)
    await store.close()


@pytest.mark.parametrize("data", ["'first'", "7", "cast(x'ff' as text)"])
async def test_a_version_that_is_no_bytes_any_more_refuses_what_follows_it_alone(
    tmp_path: Path, data: str
) -> None:
    """Its digest failed, and with it all writes of the same transaction."""
    file = tmp_path / "log.sqlite"
    store, first = SqliteConsensus(file), Version(0, b"first")
    for key in "abc":
        assert await store.compare_and_set(key, None, first)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(f"update versions set data = {data} where key = 'b'")
    tried = (store.compare_and_set(key, Seen.of(first), Version(1, b"second")) for key in "abc")
    a, damaged, c = await asyncio.gather(*tried, return_exceptions=True)
    assert (a, c) == (True, True)
    assert isinstance(damaged, Corrupt)
    await store.close()


@pytest.mark.rule("S3", "P1", "P2")
async def test_a_wrong_byte_in_the_state_file_changes_no_answer(tmp_path: Path) -> None:
    folder, scratch, random = tmp_path / "store", tmp_path / "scratch", Random(3)
    store = at(folder)
    await fill(store, 6)
    good = await contents(store)
    await store.close()
    data = (folder / "log.sqlite").read_bytes()
    places = {*random.sample(range(len(data)), 150), *_index_cells(data, random)}
    outcomes: Counter[str] = Counter()
    for place in sorted(places):
        wrong = bytearray(data)
        wrong[place] ^= 1 << random.randrange(8)
        outcomes[await read_damaged(folder, "log.sqlite", bytes(wrong), scratch)] += 1
    assert set(outcomes) == {"corrupt", good}


def _index_cells(data: bytes, random: Random) -> list[int]:
    """Places near the names of keys, where SQLite itself would notice nothing."""
    near = [place for place in range(len(data)) if data[place : place + 5] in (b"ledge", b"other")]
    return [place + random.randrange(-3, 8) for place in near]


@pytest.mark.rule("S4", "P4")
async def test_acknowledged_versions_that_the_log_of_the_state_file_lost_are_missed(
    tmp_path: Path,
) -> None:
    folder, random = tmp_path / "store", Random(4)
    store = at(tmp_path / "living")
    await fill(store, 6)
    good = await contents(store)
    shutil.copytree(tmp_path / "living", folder)  # as a kill leaves it: the log not copied back
    await store.close()
    data = (folder / "log.sqlite-wal").read_bytes()
    used = _frames_end(data)
    assert used < len(data)
    assert data[used:].strip(b"\0") == b""  # made long before there was anything to write
    assert await read_damaged(folder, "log.sqlite-wal", data, tmp_path / "scratch") == good
    assert await read_damaged(folder, "log.sqlite-wal", data[:used], tmp_path / "a") == good
    for place in random.sample(range(used), 30):
        wrong = bytearray(data)
        wrong[place] ^= 1
        assert (
            await read_damaged(folder, "log.sqlite-wal", bytes(wrong), tmp_path / "a") == "corrupt"
        )
    for length in (0, 31, used // 2, used - 1):
        for torn in (data[:length], data[:length].ljust(len(data), b"\0")):
            assert await read_damaged(folder, "log.sqlite-wal", torn, tmp_path / "b") == "corrupt"
    witness = tmp_path / "scratch" / "log.sqlite-told"
    witness.write_bytes(witness.read_bytes()[:-1])
    assert await read_all(at(tmp_path / "scratch")) == good


def _frames_end(log: bytes) -> int:
    """The end of the frames in a log of SQLite with the salt of its header; later ones do not
    count.
    """
    salt, frame = log[16:24], 24 + int.from_bytes(log[8:12])
    end = 32
    while log[end + 8 : end + 16] == salt:
        end += frame
    return end


@pytest.mark.rule("S4", "P4")
async def test_a_log_of_the_state_file_is_made_longer_behind_what_others_wrote(
    tmp_path: Path,
) -> None:
    living, copied = tmp_path / "living", tmp_path / "copied"
    store = at(living)
    await fill(store, 3)
    await store.close()
    log = living / "log.sqlite-wal"
    with closing(sqlite3.connect(living / "log.sqlite", isolation_level=None)) as other:
        other.execute("create table theirs as select 7 as n")
        short = log.stat().st_size
        assert short > 0
        later = at(living)
        outcome = await later.compare_and_append("other", frontier(3), frontier(4), updates(3), writer="w")  # fmt: skip
        assert outcome == Appended(frontier(4))
        other.execute("insert into theirs values (8)")
        assert log.stat().st_size > CHECKPOINT_BYTES > short
        good = await contents(later)
        shutil.copytree(living, copied)  # as a kill leaves it: the log not copied back
        await later.close()
    with closing(sqlite3.connect(copied / "log.sqlite")) as file:
        assert file.execute("select n from theirs").fetchall() == [(7,), (8,)]
    assert await read_all(at(copied)) == good


async def test_a_state_file_that_was_cut_off_or_put_back_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = at(folder)
    await fill(store, 3)
    await store.close()
    early = (folder / "log.sqlite").read_bytes()
    store = at(folder)
    await store.compare_and_append("ledger", frontier(3), frontier(4), None, writer="w")
    await store.close()
    for data in (early, b"", early[:-4096], early[:100]):
        assert await read_damaged(folder, "log.sqlite", data, tmp_path / "scratch") == "corrupt"
    consensus = SqliteConsensus(tmp_path / "scratch" / "log.sqlite")
    check = StoreCheck(consensus, MemoryBlob(), ManualClock())
    found = [finding async for finding in check.findings() if not finding.harmless]
    assert len(found) == 1
    await consensus.close()


async def test_a_state_file_from_before_there_were_seals_is_read(tmp_path: Path) -> None:
    store = at(tmp_path)
    await fill(store, 4)
    good = await contents(store)
    await store.close()
    with closing(sqlite3.connect(tmp_path / "log.sqlite")) as file, file:
        file.execute("alter table versions drop column seal")
        file.execute("drop table heads")
    assert await asyncio.gather(*(read_all(at(tmp_path)) for _ in range(4))) == [good] * 4
    store = at(tmp_path)
    outcome = await store.compare_and_append("ledger", frontier(4), frontier(5), None, writer="w")
    assert outcome == Appended(frontier(5))
    await store.close()
    with closing(sqlite3.connect(tmp_path / "log.sqlite")) as file:
        assert file.execute("select count(*) from versions where seal is null").fetchone() == (10,)
        assert file.execute("select number from heads order by key").fetchall() == [(5,), (4,)]


@pytest.mark.rule("S3", "P1", "P8")
async def test_a_wrong_byte_in_an_object_or_a_version_changes_no_answer() -> None:
    consensus, blob, random = MemoryConsensus(), MemoryBlob(), Random(5)
    await fill(opened(consensus, blob), ROLLUP_EVERY + 4, 200)
    good = await contents(opened(consensus, blob))
    kinds: Counter[str] = Counter()
    entries = await blob.list("")
    chosen = [entry.key for entry in entries if "rollup" in entry.key] + random.sample(
        [entry.key for entry in entries if "part" in entry.key], 3
    )
    for key in chosen:
        whole = await blob.get(key)
        assert whole is not None
        kinds[key.split("/")[1].split("-")[0]] += 1
        cuts = [whole[: random.randrange(len(whole))], whole + b"\0", b""]
        for wrong in [*(_flipped(whole, random) for _ in range(25)), *cuts]:
            await blob.put(key, wrong)
            assert await read_all(opened(consensus, blob)) == "corrupt", key
        await blob.put(key, whole)
    assert kinds == {"rollup": 2, "part": 3}
    log = consensus._logs["ledger"]
    for place, version in enumerate(tuple(log)):
        for _ in range(8):
            log[place] = version._replace(data=_flipped(version.data, random))
            assert await read_all(opened(consensus, blob)) == "corrupt"
        log[place] = version
    assert await read_all(opened(consensus, blob)) == good


def _flipped(data: bytes, random: Random) -> bytes:
    wrong = bytearray(data)
    wrong[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(wrong)


@pytest.mark.server
@pytest.mark.rule("S3", "P1", "P8")
async def test_a_wrong_byte_in_redis_or_a_bucket_changes_no_answer(
    redis_url: str, object_store: str
) -> None:
    prefix, random = f"damage{token_hex(4)}", Random(6)
    place = BlobPlace(f"s3://tidemill/{prefix}?endpoint={object_store}", "test", "test-secret")

    def store() -> Collections:
        return opened(RedisConsensus(redis_url, prefix=prefix), open_blob(place, lambda: "x"))

    filling = store()
    await fill(filling, 5, 200)
    good = await contents(filling)
    await filling.close()
    blob = open_blob(place, lambda: "x")
    for entry in await blob.list(""):
        whole = await blob.get(entry.key)
        assert whole is not None
        for wrong in (_flipped(whole, random), whole[:-7]):
            await blob.put(entry.key, wrong)
            assert await read_all(store()) == "corrupt"
        await blob.put(entry.key, whole)
    await blob.close()
    with closing(redis.Redis.from_url(redis_url)) as admin:
        stream = next(key for key in admin.scan_iter(f"{prefix}:*:log"))
        entries = admin.xrange(stream)
        for number in (0, len(entries) - 1):
            fields = [(name, dict(data)) for name, data in entries]
            fields[number][1][b"d"] = _flipped(fields[number][1][b"d"], random)
            _rewrite(admin, stream, fields)
            assert await read_all(store()) == "corrupt"
        _rewrite(admin, stream, [(name, dict(data)) for name, data in entries])
    assert await read_all(store()) == good


def _rewrite(admin: redis.Redis, stream: bytes, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> None:  # fmt: skip
    admin.delete(stream)
    for name, data in entries:
        admin.xadd(stream, data, id=name)  # type: ignore[arg-type]  # bytes are fields, too


FULL = """
    import asyncio, resource, signal, sys
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from test_shard_damage import at, frontier, updates
    from tidemill.errors import Indeterminate, Unavailable

    async def main() -> None:
        store, full = at(Path({folder!r})), 0
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        {limit}
        step = int(str((await store.status("ledger")).upper).strip("[]"))
        while full < 3 and step < 400:
            try:
                await store.compare_and_append(
                    "ledger", frontier(step), frontier(step + 1), updates(step, {rows}), writer="w",
                    token=str(step),
                )
            except (Unavailable, Indeterminate) as error:
                full += 1
                print("full", type(error).__name__, flush=True)
                continue
            step += 1
            print(step, flush=True)

    asyncio.run(main())
"""


async def _append_until_full(folder: Path, limit: str, rows: int) -> tuple[int, int, Callable[[], Collections]]:  # fmt: skip
    """(the last step that was acknowledged, how often there was no room, the store without a
    limit).
    """
    store = at(folder)
    await store.create("ledger", Description(ROWS), lease_ms=None)
    await store.close()
    program = textwrap.dedent(FULL).format(
        tests=str(Path(__file__).parent), folder=str(folder), limit=limit, rows=rows
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    steps = [int(line) for line in lines if not line.startswith("full")]
    return steps[-1], len(lines) - len(steps), lambda: at(folder)


async def _goes_on(store: Collections, acknowledged: int, rows: int) -> None:
    """Everything acknowledged is there, a write without an answer whole or not; and there is room
    again.
    """
    upper = sole_time((await store.status("ledger")).upper)
    assert upper in (acknowledged, acknowledged + 1)
    stored = await store.read_updates("ledger")
    assert sorted(stored["n"].to_pylist()) == [n for step in range(upper) for n in range(step * 1000, step * 1000 + rows)]  # fmt: skip
    outcome = await store.compare_and_append(
        "ledger", frontier(upper), frontier(upper + 1), updates(upper, rows), writer="w"
    )
    assert outcome == Appended(frontier(upper + 1))
    await store.close()


@pytest.mark.rule("S4", "P4", "K10")
@pytest.mark.parametrize("rows", [1, 900], ids=["versions", "objects"])
async def test_files_that_may_not_grow_lose_nothing(tmp_path: Path, rows: int) -> None:
    size = 60_000 if rows == 1 else 9_000
    limit = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY))"
    if rows > 1:  # objects too large, versions not: the first of them fits by its size
        limit = (
            "await store.compare_and_append('ledger', frontier(0), frontier(1), updates(0, 900), writer='w');"
            f"print(1, flush=True); {limit.replace(str(size), '1_000')}"
        )
    acknowledged, full, store = await _append_until_full(tmp_path, limit, rows)
    assert full == 3
    await _goes_on(store(), acknowledged, rows)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a mebibyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root; RLIMIT_FSIZE is tried everywhere")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.rule("S4", "P4", "K10")
async def test_a_full_disk_loses_nothing(tiny_disk: Path) -> None:
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(96 * 1024))
    acknowledged, full, store = await _append_until_full(tiny_disk, "pass", 300)
    assert full == 3
    assert acknowledged > 1
    ballast.unlink()
    await _goes_on(store(), acknowledged, 300)


async def test_an_object_that_cannot_be_written_nor_cleaned_up_is_unavailable(
    tmp_path: Path,
) -> None:
    (tmp_path / "blob").mkdir()
    blob = DirectoryBlob(tmp_path / "blob", lambda: "x")
    await blob.put("a/one", b"1")
    (tmp_path / "blob" / "b").write_bytes(b"a file where a folder should be")
    with pytest.raises(Unavailable):
        await blob.put("b/two", b"2")
    assert await blob.get("a/one") == b"1"


async def test_each_who_waits_for_a_refused_write_hears_of_it_by_an_error_of_its_own(
    tmp_path: Path,
) -> None:
    """One error raised by many grows by the frames of all of them, as long as the store is away."""
    consensus = SqliteConsensus(tmp_path / "log.sqlite")
    await consensus.keys()
    await consensus._submit(lambda: consensus._opened().execute("drop table versions"))
    version = Version(0, b"v")
    errors = await asyncio.gather(
        *(consensus.compare_and_set(key, None, version) for key in "abc"), return_exceptions=True
    )
    assert len({type(error) for error in errors}) == len({str(error) for error in errors}) == 1
    assert all(isinstance(error, TidemillError) for error in errors)
    assert len(set(map(id, errors))) == 3
    await consensus.close()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_an_object_that_is_no_regular_file_is_damage(tmp_path: Path, kind: str) -> None:
    """A pipe held a thread for ever, and a link to a device that never ends took all memory."""
    blob = DirectoryBlob(tmp_path, lambda: "1")
    path = tmp_path / "a" / "1"
    path.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(Corrupt, match="a/1 is no regular file"):
        asyncio.run(blob.get("a/1"))
    with pytest.raises(Corrupt, match="a/1 is no regular file"):
        asyncio.run(blob.get_range("a/1", 0, 10))
