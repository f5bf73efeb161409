"""Appends that wait together are written together, and each is told its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from tidemill.errors import Indeterminate, TidemillError, Unavailable, UsageError
from tidemill.runtime.log import Entry
from tidemill.runtime.log_groups import GroupCommit, Outcome, Place


class Disk:
    """Gives offsets, or what it was told to give, and keeps every group it was asked to write."""

    def __init__(self, outcomes: Mapping[int, TidemillError] | None = None) -> None:
        self.groups: list[dict[Place, int]] = []
        self.gate = asyncio.Event()
        self._outcomes = outcomes or {}
        self._next: dict[Place, int] = {}

    async def write(self, runs: Mapping[Place, list[Entry]]) -> Mapping[Place, Outcome]:
        await self.gate.wait()
        self.groups.append({place: len(run) for place, run in runs.items()})
        answers: dict[Place, Outcome] = {}
        for place, run in runs.items():
            start = self._next.get(place, 0)
            self._next[place] = start + len(run)
            answers[place] = self._outcomes.get(place[1], range(start, start + len(run)))
        return answers


ENTRY = Entry(None, b"")


async def test_what_comes_during_a_write_shares_the_next_one() -> None:
    disk = Disk()
    group = GroupCommit(disk.write)
    appends = [asyncio.create_task(group.append("t", [ENTRY], [0]))]
    await asyncio.sleep(0)
    appends += [
        asyncio.create_task(group.append("t", [ENTRY, ENTRY], [0, 1])),
        asyncio.create_task(group.append("u", [ENTRY, ENTRY], [0, 0])),
    ]
    await asyncio.sleep(0)
    disk.gate.set()
    await group.drain()
    assert disk.groups == [{("t", 0): 1}, {("t", 0): 1, ("t", 1): 1, ("u", 0): 2}]
    assert [await append for append in appends] == [
        [(0, 0)],
        [(0, 1), (1, 0)],
        [(0, 0), (0, 1)],
    ]
    assert await group.append("t", [], []) == []


@pytest.mark.parametrize(
    ("outcomes", "partitions", "expected"),
    [
        ({1: Unavailable("down")}, [0], None),
        ({1: Unavailable("down")}, [1], Unavailable),
        ({1: Unavailable("down")}, [1, 1], Unavailable),
        ({1: Unavailable("down")}, [0, 1], Indeterminate),
        ({1: UsageError("too old")}, [0, 1], Indeterminate),
        ({0: Unavailable("down"), 1: Indeterminate("lost")}, [0, 1], Indeterminate),
        ({0: Unavailable("down"), 1: Unavailable("down")}, [0, 1], Unavailable),
    ],
)
async def test_an_append_that_failed_in_part_may_have_happened(
    outcomes: Mapping[int, TidemillError],
    partitions: list[int],
    expected: type[TidemillError] | None,
) -> None:
    disk = Disk(outcomes)
    disk.gate.set()
    append = GroupCommit(disk.write).append("t", [ENTRY] * len(partitions), partitions)
    if expected is None:
        assert await append == [(0, 0)]
    else:
        with pytest.raises(TidemillError) as error:
            await append
        assert type(error.value) is expected


async def test_a_caller_that_leaves_does_not_disturb_the_others() -> None:
    disk = Disk()
    group = GroupCommit(disk.write)
    leaving = asyncio.create_task(group.append("t", [ENTRY], [0]))
    staying = asyncio.create_task(group.append("t", [ENTRY], [0]))
    await asyncio.sleep(0)
    leaving.cancel()
    disk.gate.set()
    assert await staying == [(0, 1)]
