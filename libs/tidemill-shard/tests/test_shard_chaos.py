"""Real processes on real stores: killed, stopped past their leases, cut off; their histories have
an order.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.testkit.faults.campaign import CLIENT, Report
from tidemill.testkit.faults.chaos import Felt, Outcome, Place, Round
from tidemill.testkit.faults.forked_processes import ForkedProcesses
from tidemill.testkit.faults.proxy import Proxy
from tidemill.testkit.servers import redis_server

SECONDS = 2.0
LEASES_ENDED = frozenset({"expired reader", "expired writer"})
FELT = (LEASES_ENDED, frozenset({"merge", "compaction"}), *map(frozenset, ({"mismatch"}, {"compared"}, {"appended"})))  # fmt: skip
AWAY = frozenset({"Unavailable", "Indeterminate"})
ENDS = ("silent", "refusing", "slow", "cut")


@pytest.fixture(scope="module")
def processes() -> Iterator[ForkedProcesses]:
    with ForkedProcesses(CLIENT) as begun:
        yield begun


def survived(place: Place, folder: Path, processes: ForkedProcesses, *more: Felt) -> Outcome:
    """A round without a violation in which every kind of fault came about and was felt."""
    there = Round(place, 5, folder / "histories", processes, (*FELT, *more))
    outcome = asyncio.run(there.run(SECONDS))
    happened = outcome.happened
    assert outcome.violations == [], outcome.schedule
    for name in ("fault: kill", "fault: stop", "transactions", "frontiers audited", "elements"):
        assert happened[name], name
    assert happened["expired reader"] + happened["expired writer"]
    assert happened["appends: mismatch"]
    assert happened["compared"]
    assert happened["merge"] + happened["compaction"]
    return outcome


@pytest.mark.rule("F14", "L2c", "K1", "K10", "K12", "UP1", "UP5", "UP6", "D1", "S3", "S4", "P1", "P2", "P3", "P4", "P5", "P6", "P7", "P9")  # fmt: skip
def test_histories_on_sqlite_and_a_directory_are_in_order(
    tmp_path: Path, processes: ForkedProcesses
) -> None:
    consensus, blob = f"sqlite:{tmp_path}/consensus.sqlite", f"file:{tmp_path}/blob"
    survived(Place("sqlite", consensus, blob), tmp_path, processes)


@pytest.mark.server
@pytest.mark.rule("F14", "L2c", "K1", "K10", "K12", "UP1", "UP5", "UP6", "D1", "S3", "S4", "P1", "P2", "P3", "P4", "P5", "P6", "P7", "P9")  # fmt: skip
def test_histories_on_redis_and_a_directory_are_in_order(
    tmp_path: Path, processes: ForkedProcesses
) -> None:
    with redis_server("chaos") as server:
        place = Place("redis", f"{server.address}?prefix=chaos", f"file:{tmp_path}/blob", server)
        happened = survived(place, tmp_path, processes, AWAY).happened
    for mode in ENDS:
        assert happened[f"fault: {mode} redis"], mode
    assert happened["fault: restart redis"]
    assert happened["Unavailable"] + happened["Indeterminate"]


@pytest.mark.server
@pytest.mark.rule("F14", "L2c", "K1", "K10", "K12", "UP1", "UP5", "UP6", "D1", "S3", "S4", "P1", "P2", "P3", "P4", "P5", "P6", "P7", "P9")  # fmt: skip
def test_histories_on_redis_and_a_bucket_are_in_order(
    tmp_path: Path, processes: ForkedProcesses, object_store: str
) -> None:
    with redis_server("chaos") as server:
        blob = f"s3://tidemill/{tmp_path.name}?endpoint={object_store}"
        place = Place("s3", f"{server.address}?prefix=chaos", blob, server)
        happened = survived(place, tmp_path, processes, AWAY).happened
    for mode in ENDS:
        assert happened[f"fault: {mode} s3"], mode
    assert happened["Unavailable"] + happened["Indeterminate"]


async def test_the_proxy_does_what_its_mode_says() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = Proxy(server.sockets[0].getsockname()[1], delay_s=0.05)
    await proxy.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"a")
    assert await reader.readexactly(1) == b"a"
    proxy.set_mode("slow")
    writer.write(b"b")
    assert await reader.readexactly(1) == b"b"
    proxy.set_mode("silent")
    writer.write(b"c")
    answer = asyncio.ensure_future(reader.readexactly(1))
    assert await asyncio.wait((answer,), timeout=0.1) == (set(), {answer})
    proxy.set_mode("open")
    assert await answer == b"c"
    proxy.cut()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    proxy.set_mode("refusing")
    reader, other = await asyncio.open_connection("127.0.0.1", proxy.port)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    for end in (writer, other):
        end.close()
    await proxy.stop()
    server.close()
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", proxy.port), timeout=1):
        pass


def test_a_report_names_every_violation_and_says_none_if_there_is_none() -> None:
    report = Report()
    report.add("simulation", Counter({"reads": 3, "crashes": 2}))
    lines = list(report.lines())
    assert lines[-1] == "violations: none"
    assert lines.index("  faults") < lines.index("            2  crashes")
    report.violations.append("it broke")
    assert list(report.lines())[-2:] == ["violations: 1", "it broke"]
