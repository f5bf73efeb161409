"""Two processes that both believe to have an action: one writes, the other is refused."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from tidemill.errors import Fenced, Unavailable
from tidemill_compute.actions.outbox import Firing, Sink
from tidemill_compute.actions.sink_file import FileSink
from tidemill_compute.actions.sink_sqlite import SqliteSink


def firing(key: str) -> Firing:
    return Firing(key, "tell", 1, f"alarm({key})", "[]", None)


def sink(kind: str, folder: Path) -> Sink:
    if kind == "file":
        return FileSink(folder / "calls.jsonl")
    return SqliteSink(folder / "calls.db", "calls", "tell")


@pytest.mark.parametrize("kind", ["file", "sqlite"])
async def test_a_process_that_was_replaced_writes_nothing_more(kind: str, tmp_path: Path) -> None:
    before, after = sink(kind, tmp_path), sink(kind, tmp_path)
    await before.recover([])
    # Nothing but the other start refuses it: until then it writes.
    await before.fire([firing("a")])
    assert "a" in await after.recover([firing("a")])
    with pytest.raises(Fenced):
        await before.fire([firing("b")])
    await after.fire([firing("b")])
    assert await sink(kind, tmp_path).recover([firing("a"), firing("b")]) == {"a", "b"}
    if kind == "file":
        assert (tmp_path / "calls.jsonl").read_text().count("\n") == 2


async def test_a_process_paused_within_a_write_keeps_others_waiting(tmp_path: Path) -> None:
    before, after = sink("file", tmp_path), sink("file", tmp_path)
    await before.recover([])
    with (tmp_path / ".calls.jsonl.fence").open("r+b") as fence:
        fcntl.flock(fence, fcntl.LOCK_EX)
        with pytest.raises(Unavailable):
            await after.recover([])
        with pytest.raises(Unavailable):
            await before.fire([firing("a")])
    await before.fire([firing("a")])
    assert await after.recover([]) == {"a"}
