"""Those who look at the services under faults see what is wrong, and nothing where all is well."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from tidemill.runtime.clock import ManualClock, SystemClock
from tidemill.runtime.log import Entry
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.testkit.faults.proxies import proxies
from tidemill.testkit.faults.proxy import Mode
from tidemill.testkit.service_faults.cluster import ALIVE_MS, FLIGHTS, METER, SKEW_MS
from tidemill.testkit.service_faults.effects import check_effects
from tidemill.testkit.service_faults.fault_injector import (
    BUCKET,
    TRIES_MAX,
    FaultInjector,
    Parts,
    said_of_work,
)
from tidemill.testkit.service_faults.machine import Machine, Patience, Used, share_of_ours
from tidemill.testkit.service_faults.oracle import (
    Flight,
    Oracle,
    Reading,
    Topic,
    bound_by,
    difference,
    row_of,
)
from tidemill.testkit.service_faults.outcome import Outcome
from tidemill.testkit.service_faults.poison import records as poisoned_records

AT = 1_700_000_000_000


@pytest.mark.parametrize(
    ("done", "all_done", "says"),
    [
        ({7: 1, 8: 1}, True, []),
        ({7: 1}, False, []),
        ({7: 1}, True, ["did not do 1"]),
        ({7: 2, 8: 1}, False, ["twice"]),
        ({7: 1, 8: 1, 9: 1}, False, ["no alarms"]),
    ],
)
def test_effects_that_are_twice_missing_or_strange_are_found(
    done: dict[int, int], all_done: bool, says: list[str]
) -> None:
    outcome = Outcome()
    check_effects({"target": Counter(done)}, Counter([7, 8]), outcome, all_done=all_done)
    assert len(outcome.violations) == len(says)
    assert all(words in found for words, found in zip(says, outcome.violations, strict=True))


def flight(plane: str, delay: int, at: int, number: int) -> bytes:
    return json.dumps({"plane": plane, "delay": delay, "at": at, "id": number}).encode()


async def oracle_of(
    folder: Path,
    flights: list[bytes],
    meter: list[bytes],
    book: Sequence[tuple[bytes, bytes]] = (),
    crew: Sequence[tuple[bytes, bytes]] = (),
) -> Oracle:
    """The oracle of topics with one partition each."""
    log, clock = EmbeddedLog(folder), ManualClock()
    topics = []
    plain = {"flights": flights, "meter": meter}
    named = {name: [(b"", row) for row in rows] for name, rows in plain.items()}
    for name, records in {**named, "book": book, "crew": crew}.items():
        await log.create_topic(name, 1)
        await log.append(name, [Entry(key, row) for key, row in records])
        topic = Topic(log, name, 1, clock)
        topic.keys[0] = {at: key for at, (key, _) in enumerate(records)}
        topic.records[0] = {at: row for at, (_, row) in enumerate(records)}
        topics.append(topic)
    await log.close()
    oracle = Oracle(*topics)
    oracle.take()
    return oracle


async def test_what_holds_follows_from_the_records_by_the_definitions(tmp_path: Path) -> None:
    rows = [
        flight("N1", 40, AT, 1), b"{not a row", flight("N5", 50, AT + 1, 2), flight("N1", 30, AT + 2, 3),
    ]  # fmt: skip
    meter = [b'{"n": 4, "k": 0}', b'{"n": 5, "k": 0}', b'{"n": 6, "k": 1}']
    oracle = await oracle_of(tmp_path, rows, meter)
    assert oracle.bad == {(0, 1): 1}
    assert not oracle.disordered
    at_first = oracle.events_at(AT)
    assert at_first["delays/late"] == {("N1", 40, 1, AT, AT + ALIVE_MS): 1}
    assert oracle.events_at(AT + 2)["delays/busy"] == {("N1", 2, 40): 1, ("N5", 1, 50): 1}
    assert oracle.events_at(AT + ALIVE_MS + 2)["flights"] == Counter()
    assert oracle.alarms(AT + 1) == {1: 1}
    assert oracle.alarms(AT) == Counter()
    assert oracle.readings_at({0: 2})["totals/total"] == {(0, 9, 2): 1}
    assert bound_by(Counter({(0, 0, 2): 1, (0, 9, 1): 1}), 2) == {0: 2, 1: 1}
    assert "lacks 1" in difference(Counter(), at_first["delays/late"])


async def test_rows_by_key_follow_from_the_changes_before_the_offsets(tmp_path: Path) -> None:
    book = [
        (b"P1", b'{"seats": 80}'),
        (b"P2", b'{"seats": 9}'),
        (b"P1", b'{"seats": 7}'),
        (b"P2", b""),
    ]
    made, moved = {"id": 1, "plane": "N1"}, {"id": 1, "plane": "N2"}
    changes = [("c", None, made), ("u", moved, made), ("u", made, moved), ("d", moved, None)]
    crew = [
        (b"", json.dumps({"op": op, "before": before, "after": after}).encode())
        for op, before, after in changes
    ]
    oracle = await oracle_of(tmp_path, [], [], book, crew)
    assert oracle.book_at({0: 2}) == {"book": {("P1", 80): 1, ("P2", 9): 1}, "seated/big": {("P1", 80): 1}}  # fmt: skip
    assert oracle.book_at({0: 4}) == {"book": {("P1", 7): 1}, "seated/big": {}}
    assert oracle.crew_at({0: 2}) == {"crew": {(1, "N1"): 1}}
    assert oracle.crew_at({0: 3}) == {"crew": {(1, "N2"): 1}}
    assert oracle.crew_at({0: 4}) == {"crew": {}}
    assert oracle.broken() == {}
    gone = [*crew[:1], (b"", json.dumps({"op": "u", "before": moved, "after": None}).encode())]
    assert (await oracle_of(tmp_path / "gone", [], [], [], gone)).broken() == {(0, 1): 1}


@pytest.mark.parametrize(
    ("busy", "ours", "share"),
    [(0, 0, 1.0), (200, 200, 1.0), (100, 0, 0.5), (200, 50, 0.25), (200, 0, 0.0), (90, 100, 1.0)],
)
def test_what_others_take_of_the_machine_is_not_ours(busy: int, ours: int, share: float) -> None:
    before = Used(0.0, 1_000, 500, 70)
    after = Used(1.0, 1_200, 500 + busy, 70 + ours)
    assert share_of_ours(before, after) == pytest.approx(share)
    assert share_of_ours(before, before) == 1.0


def test_a_machine_knows_what_its_own_processes_use() -> None:
    machine = Machine(SystemClock(), ())
    before = machine._used()
    while machine._used().ours < before.ours + 3:
        sum(range(100_000))
    after = machine._used()
    assert after.busy - before.busy >= 0
    assert after.ours - before.ours >= 3
    others = Machine(SystemClock(), ("no command line has this in it",))
    others.look()
    assert 0.0 <= others.share <= 1.0


@dataclass
class OtherMachine:
    """A machine whose share is what a test says."""

    had_s: float = 0.0

    def look(self) -> None:
        """It has been looked at."""


def test_a_storm_waits_for_as_long_as_something_comes_nearer() -> None:
    """Seconds that other processes took are none; ten times the patience is the end."""
    machine, clock = OtherMachine(), ManualClock()
    patience = Patience(cast("Machine", machine), clock, 180.0)
    for seen, had_s, lasts in [
        (1, 100, True),
        (1, 100, True),
        (2, 100, True),
        (2, 100, True),
        (2, 100, False),
    ]:
        machine.had_s += had_s
        assert patience.lasts(seen) is lasts
    slow = Patience(cast("Machine", machine), clock, 180.0)
    clock.move(1_799)
    assert slow.lasts(1)
    clock.move(2)
    assert not slow.lasts(2)


async def test_an_event_behind_what_its_partition_promised_is_noticed(tmp_path: Path) -> None:
    rows = [flight("N1", 40, AT, 1), flight("N1", 40, AT - SKEW_MS - 1, 2)]
    oracle = await oracle_of(tmp_path, rows, [])
    assert [late.id for late in oracle.disordered] == [2]


async def test_an_error_of_a_storm_is_told_though_its_proxies_are_gone() -> None:
    async def storm() -> None:
        async with proxies({"echo": 1}) as between:
            assert os.getpgid(between._process.pid) != os.getpgid(0)  # signals to ours spare it
            between._process.kill()
            await between._process.wait()
            raise LookupError("of the storm")

    with pytest.raises(LookupError, match="of the storm"):
        await storm()


async def test_proxies_in_their_process_count_what_meets_a_fault() -> None:
    async def echo(reader: Any, writer: Any) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with proxies({"echo": port}) as between:
        reader, writer = await asyncio.open_connection("127.0.0.1", between.ports["echo"])
        writer.write(b"a")
        assert await reader.read(1) == b"a"
        assert await between.set_mode("echo", "slow") == 0
        writer.write(b"b")
        assert await reader.read(1) == b"b"
        assert await between.count_met("echo", "slow") == 2
        assert await between.cut("echo") == 1
        with suppress(ConnectionError):
            assert await reader.read(1) == b""
        writer.close()
        async with asyncio.timeout(20):
            while await between.cut("echo"):  # until both ends have seen it
                await asyncio.sleep(0.01)
        await between.set_mode("echo", "cutting")
        reader, writer = await asyncio.open_connection("127.0.0.1", between.ports["echo"])
        assert await between.count_met("echo", "cutting") <= 1
        writer.write(b"c")
        with suppress(ConnectionError):
            assert await reader.read(1) == b""
        assert await between.count_met("echo", "cutting") == 2
        writer.close()
    server.close()
    await server.wait_closed()


def test_what_a_process_works_on_is_read_from_its_log() -> None:
    log = (
        "2026-11-22T02:00:00Z info     claimed    component=resources epoch=3 item=Source/book role=reclock\n"
        "2026-11-22T02:00:00Z info     running    component=resources resource=Source/book\n"
        "2026-11-22T02:00:01Z info     let go     component=resources epoch=3 item=Source/book role=reclock\n"
        "2026-11-22T02:00:02Z info     claimed    component=resources epoch=4 item=Source/book role=reclock\n"
    )
    assert said_of_work(log) == {
        ("reclock", "Source/book", 3): "let go",
        ("reclock", "Source/book", 4): "claimed",
    }
    assert said_of_work("") == {}


class Hasty(ManualClock):
    """A clock that has come to the end of a sleep at once."""

    async def sleep(self, seconds: float) -> None:
        self.move(seconds)
        await asyncio.sleep(0)


CLAIMED_LINE = "info claimed [claims] epoch=3 item=Source/book role=reclock\n"
LET_GO_LINE = "info let go [claims] epoch=3 item=Source/book role=reclock\n"


@pytest.mark.parametrize(
    ("before", "since", "violations"),
    [
        ("", CLAIMED_LINE, ["reclock-a woke and kept Source/book, which others have"]),
        ("", CLAIMED_LINE + LET_GO_LINE, []),
        ("", "", []),
        # The claim of a process of the same name that was killed.
        (CLAIMED_LINE, "", []),
    ],
)
async def test_who_keeps_what_others_have_is_found(
    before: str, since: str, violations: list[str]
) -> None:
    class Place:
        clock = Hasty()

        def member(self, name: str) -> Any:
            return type("Member", (), {"running": True, "log": before + since})

        def said(self, name: str) -> str:
            return since

    outcome = Outcome()
    injector = FaultInjector(Place(), Random(0), outcome)  # type: ignore[arg-type]  # all of a cluster that is asked for
    await injector._let_go("reclock-a", Parts({("reclock", "Source/book"): 3}))
    assert outcome.violations == violations


@pytest.mark.parametrize(("meets_at", "felt"), [(3, 1), (TRIES_MAX + 1, 0)])
async def test_a_fault_that_nobody_meets_is_injected_again_a_few_times(
    meets_at: int, felt: int
) -> None:
    """The bucket of this storm is met silent at the third time, or never."""

    class Between:
        injected = 0

        async def set_mode(self, end: str, mode: Mode) -> int:
            self.injected += mode == "silent"
            return 0

        async def count_met(self, end: str, mode: Mode) -> int:
            return int(mode != "silent" or self.injected >= meets_at)

        async def cut(self, end: str) -> int:
            return 1

    between, outcome = Between(), Outcome()
    place = type("Place", (), {"clock": Hasty(), "proxies": between})
    injector = FaultInjector(place, Random(0), outcome)  # type: ignore[arg-type]  # all that is asked for
    await injector._again(BUCKET, injector._bucket, 0.0)
    assert between.injected == min(meets_at, TRIES_MAX)
    assert outcome.happened["fault: silent s3"] == between.injected
    assert outcome.happened["felt: s3 was met silent"] == felt
    assert outcome.happened["felt: connections to s3 cut"] == outcome.happened["fault: cut s3"] == 1


def test_a4_the_truth_reads_no_poison_as_a_row() -> None:
    assert row_of(flight("N1", 7, 1, 2), Flight) == Flight("N1", 7, 1, 2)
    for topic, kind in ((FLIGHTS, Flight), (METER, Reading)):
        assert [
            name for name, value in poisoned_records(topic).items() if row_of(value, kind)
        ] == []


STORM = """
import asyncio, sys
from contextlib import asynccontextmanager
from tidemill.testkit.service_faults import __main__ as program

@asynccontextmanager
async def servers():
    open("begun", "w").close()
    try:
        yield
    finally:
        open("ended", "w").close()

async def run(*_, **__):
    async with servers():
        await asyncio.sleep(600)

program.run = run
sys.exit(program.main(["--seconds", "1"]))
"""
"""A storm whose servers are files."""


def test_a4_a_storm_that_is_told_to_end_ends_what_it_has_begun(tmp_path: Path) -> None:
    storm = subprocess.Popen([sys.executable, "-c", STORM], cwd=tmp_path)
    appeared(tmp_path / "begun")
    storm.send_signal(signal.SIGTERM)
    assert storm.wait(60) == 128 + signal.SIGTERM
    assert (tmp_path / "ended").exists()


def test_a4_processes_of_a_run_that_is_killed_end_with_it(tmp_path: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from tidemill.testkit.fleet import fleet
from tidemill.testkit.fork_client import fork_server
with fleet(Path({str(tmp_path)!r})) as system:
    member = system.start("query-a", "query")
    Path("pid").write_text(f"{{member.pid}} {{fork_server().pid}}")
    Path("begun").touch()
    time.sleep(600)
"""
    run = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path)
    appeared(tmp_path / "begun")
    pids = (tmp_path / "pid").read_text().split()
    assert all(Path("/proc", pid).exists() for pid in pids)
    run.kill()
    run.wait(60)
    deadline = time.monotonic() + 60
    while any(Path("/proc", pid).exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def appeared(file: Path) -> None:
    """Wait for a file."""
    deadline = time.monotonic() + 120
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
