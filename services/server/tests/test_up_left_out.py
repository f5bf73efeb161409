"""A server always starts: what it dies of is left out, by itself, by a flag, or deleted while
nothing runs.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tidemill.client import Client
from tidemill.errors import Indeterminate, Unavailable
from tidemill.host.last_tried import LEFT_OUT_S, WATCH_S, LastTried
from tidemill.rpc.messages import ResourceStatus
from tidemill.runtime.clock import ManualClock
from tidemill.testkit.up import UpProcess, up_process
from tidemill.time import sole_time

TABLE = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: NAME}
spec: {columns: [{name: n, type: int}], retain: all}
"""
VIEW = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: NAME}
spec: {retain: all, program: "p(x) := base(x);"}
"""

CUSTOM = """
import ctypes, os
from pathlib import Path
armed = Path("armed")
if armed.exists():
    from tidemill_compute.views.part import ViewPart
    run = ViewPart.run
    async def killing(self, ready):
        if self.name == "View/bad" and armed.exists():
            with open("deaths", "a") as deaths:
                deaths.write("x")
            if armed.read_text() == "segv":
                ctypes.string_at(0)
            os._exit(13)
        await run(self, ready)
    ViewPart.run = killing
"""
"""A program by which the work of one view kills its process."""


def prepared(folder: Path) -> None:
    (folder / "r.yaml").write_text(
        TABLE.replace("NAME", "base") + "---" + VIEW.replace("NAME", "good")
        + "---" + VIEW.replace("NAME", "bad")
    )  # fmt: skip


def statuses(client: Client) -> dict[str, ResourceStatus]:
    return {f"{each.kind}/{each.name}": each for each in client.get()}


def said(server: UpProcess, name: str, reason: str) -> ResourceStatus:
    def asked(client: Client) -> ResourceStatus | None:
        found = statuses(client).get(name)
        return found if found is not None and found.reason == reason else None

    return server.until(asked)


def answered(server: UpProcess, row: int) -> None:
    """Insert a row, and wait until the good view says it."""
    server.until(lambda client: client.insert("base", [{"n": row}]))

    def asked(client: Client) -> bool | None:
        table = client.query("good/p(x)", timeout_s=30).table
        return True if row in table.column(0).to_pylist() else None

    server.until(asked)


@pytest.mark.parametrize("how", ["exit", "segv"])
def test_a_resource_that_kills_its_process_twice_is_left_out_and_says_so(
    how: str, tmp_path: Path
) -> None:
    prepared(tmp_path)
    with up_process(tmp_path, "-f", "r.yaml", first=CUSTOM) as server:
        answered(server, 1)
        assert server.stop(signal.SIGTERM) == 0
        (tmp_path / "armed").write_text(how)
        for _ in range(2):
            server.start()
            assert server.ended() in (13, -signal.SIGSEGV)
        assert (tmp_path / "deaths").read_text() == "xx"
        left_out_before(tmp_path / "state" / "last_tried.json", "View/bad")
        server.start()
        status = said(server, "View/bad", "LeftOut")
        assert "died again within a minute" in status.message
        answered(server, 2)
        (tmp_path / "armed").unlink()
        server.until(lambda client: client.apply(tmp_path / "r.yaml") or True)
        said(server, "View/bad", "Running")
        assert server.stop(signal.SIGTERM) == 0
        assert json.loads((tmp_path / "state" / "last_tried.json").read_text())["begun"] == []


def test_a_resource_can_be_left_out_by_a_flag_and_deleted_offline(tmp_path: Path) -> None:
    prepared(tmp_path)
    with up_process(tmp_path, "-f", "r.yaml", first=CUSTOM) as server:
        answered(server, 1)
        refused = delete_offline(tmp_path, "view", "bad")
        assert refused.returncode != 0  # the directory is in use
        assert server.stop(signal.SIGTERM) == 0
    (tmp_path / "armed").write_text("exit")
    with up_process(tmp_path, "--without", "view/bad", first=CUSTOM) as server:
        assert "--without View/bad" in said(server, "View/bad", "LeftOut").message
        answered(server, 2)
        assert server.stop(signal.SIGTERM) == 0
    assert not (tmp_path / "deaths").exists()
    assert delete_offline(tmp_path, "view", "bad").returncode == 0
    again = delete_offline(tmp_path, "view", "bad")
    assert again.returncode != 0
    assert "there is no View bad" in again.stderr
    with up_process(tmp_path, first=CUSTOM) as server:
        answered(server, 3)
        with server.client() as client:
            found = statuses(client)
            assert set(found) == {"Table/base", "View/good"}
            held = found["View/good"].upper
            assert held is not None
            assert sole_time(held) > 0
        with server.client() as client, suppress(Unavailable, Indeterminate):
            client.apply(tmp_path / "r.yaml")  # it may die before it answers
        assert server.ended() == 13  # the fault was there all the time


def left_out_before(file: Path, name: str) -> None:
    """Have a resource left out so often that it is left out for an hour now."""
    known = json.loads(file.read_text())
    known["left_out"] = {name: {"times": 9, "until_ms": 0}}
    file.write_text(json.dumps(known))


def delete_offline(folder: Path, kind: str, name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidemill.client", "delete", "--offline", "--dir", "state"]
    return subprocess.run(
        [*command, kind, name], cwd=folder, capture_output=True, text=True, check=False
    )


async def test_what_ran_for_a_minute_is_no_suspect_and_what_is_left_out_comes_back(
    tmp_path: Path,
) -> None:
    clock, file = ManualClock(1_000_000), tmp_path / "last_tried.json"

    def died() -> LastTried:
        tried = LastTried(file, clock, ())
        tried.open()
        return tried

    tried = died()
    await tried.begin("View/old")
    for _ in range(int(WATCH_S) + 1):
        await clock.advance(1.0)
    await tried.begin("View/a")
    await tried.begin("View/b")
    tried = died()
    assert tried.waits("View/old") is None
    assert tried.waits("View/a") is None  # one by one
    assert (tried.waits("View/b") or ("",))[0] == "Starting"
    await clock.advance(5.0)
    assert tried.waits("View/b") is None
    await tried.begin("View/a")
    await tried.begin("View/b")
    tried = died()
    assert (tried.waits("View/b") or ("",))[0] == "LeftOut"
    assert (tried.waits("View/a") or ("",))[0] != "LeftOut"
    await clock.advance(LEFT_OUT_S + 5.0)
    assert tried.waits("View/b") is None
    await tried.begin("View/a")
    tried = died()  # it was not b: now what is begun, and more of it, is left out
    assert (tried.waits("View/a") or ("",))[0] == "LeftOut"
    tried.forgive("View/a")
    assert tried.waits("View/a") is None
    tried.close()
    tried = died()
    assert tried.waits("View/a") is None
    assert tried.waits("View/b") is None


async def test_a_busy_disk_holds_up_who_begins_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = LastTried(tmp_path / "last_tried.json", ManualClock(1), ())
    tried.open()
    idle, replace = threading.Event(), Path.replace

    def busy(path: Path, target: Path) -> Path:
        idle.wait(60.0)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", busy)
    begins = [asyncio.create_task(tried.begin(f"View/{name}")) for name in "ab"]
    for _ in range(100):
        await asyncio.sleep(0)
    assert not any(each.done() for each in begins)
    idle.set()
    await asyncio.gather(*begins)
    assert json.loads((tmp_path / "last_tried.json").read_text())["begun"] == ["View/a", "View/b"]
    tried.close()
    assert json.loads((tmp_path / "last_tried.json").read_text())["begun"] == []


async def test_many_that_begin_at_once_share_writes_and_each_waits_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each had a thread for the whole file: a thousand took all threads."""
    tried, file = LastTried(tmp_path / "last_tried.json", ManualClock(1), ()), "last_tried.json"
    tried.open()
    writes, replace = [], Path.replace

    def counted(path: Path, target: Path) -> Path:
        writes.append(path)
        return replace(path, target)

    async def begin(name: str) -> None:
        await tried.begin(name)
        assert name in json.loads((tmp_path / file).read_text())["begun"]

    monkeypatch.setattr(Path, "replace", counted)
    names = [f"View/{number}" for number in range(200)]
    await asyncio.gather(*(begin(name) for name in names))
    assert len(writes) <= 3
    assert json.loads((tmp_path / file).read_text())["begun"] == names
    tried.close()


async def test_who_is_cancelled_while_it_begins_is_no_suspect_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, idle, replace = ManualClock(1), threading.Event(), Path.replace
    tried = LastTried(tmp_path / "last_tried.json", clock, ())
    tried.open()

    def busy(path: Path, target: Path) -> Path:
        idle.wait(60.0)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", busy)
    begins = asyncio.create_task(tried.begin("View/a"))
    await asyncio.sleep(0)
    begins.cancel()
    await asyncio.gather(begins, return_exceptions=True)
    assert begins.cancelled()
    idle.set()
    for _ in range(100):
        await clock.advance(60.0)
        await asyncio.sleep(0.01)
        known = json.loads((tmp_path / "last_tried.json").read_text())
        if known["begun"] == []:
            return
    pytest.fail(f"still a suspect: {known}")


async def test_a_file_that_nobody_can_read_leaves_nothing_out(tmp_path: Path) -> None:
    for text in (b"", b"[]", b"\xff", b'{"begun": 7}', b'{"deaths": "x"}'):
        (tmp_path / "last_tried.json").write_bytes(text)
        tried = LastTried(tmp_path / "last_tried.json", ManualClock(1), ())
        tried.open()
        assert tried.waits("View/a") is None
        tried.close()
