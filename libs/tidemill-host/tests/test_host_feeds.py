"""A follower of a source in another process waits for a slow one, and leaves one that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

import pyarrow as pa
import pytest

from tidemill.errors import DeadlinePassed, Unavailable
from tidemill.host.feeds import ANSWER_S, LOOK_S_MAX, WATCH_S, Feed, Feeds
from tidemill.host.peers import Peers
from tidemill.host.readers import Readers
from tidemill.rpc.client_services import ServiceClient
from tidemill.rpc.messages import Delivered
from tidemill.runtime.clock import ManualClock

ITEM = "Source/s"
NOTHING = pa.table({"n": pa.array([], pa.int64())})


class Process(ServiceClient):
    """A process that reads a source: seconds until a delivery, and until an answer, or never."""

    def __init__(
        self, address: str, clock: ManualClock, row_s: float | None, answer_s: float | None
    ) -> None:
        self.address = address
        self.asked = self.opened = 0
        self._clock = clock
        self._row_s = row_s
        self._answer_s = answer_s

    async def probe(self, source: str, *, timeout_s: float | None = None) -> dict[int, int]:
        self.asked += 1
        assert timeout_s is not None
        if self._answer_s is None or self._answer_s > timeout_s:
            await self._clock.sleep(timeout_s)
            raise DeadlinePassed("the deadline passed before the answer came")
        await self._clock.sleep(self._answer_s)
        return {0: 7}

    async def deliver(
        self, source: str, starts: Mapping[int, int]
    ) -> AsyncGenerator[Delivered, None]:
        self.opened += 1
        at = starts[0]
        yield Delivered(NOTHING, NOTHING, {0: at})
        while True:
            if self._row_s is None:
                await asyncio.get_running_loop().create_future()
            else:
                await self._clock.sleep(self._row_s)
            at += 1
            yield Delivered(NOTHING, NOTHING, {0: at})


class Place(Peers):
    """Processes of which one has claimed the source."""

    def __init__(self, *processes: Process) -> None:
        self.claimed: str | None = processes[0].address
        self._processes = {each.address: each for each in processes}

    async def owner(self, role: str, item: str) -> str | None:
        assert (role, item) == ("ingest", ITEM)
        return self.claimed

    def client(self, address: str) -> ServiceClient:
        return self._processes[address]


def feed(place: Place, clock: ManualClock, shares: int = 1) -> Feed:
    return Feeds(Readers(), place, clock).of(ITEM, shares)


class Following:
    """A task that follows the source from 0 on, and the offsets that it was given."""

    def __init__(self, place: Place, clock: ManualClock) -> None:
        self.positions: list[int] = []
        self.task = asyncio.create_task(feed(place, clock).deliver_from({0: 0}, self._take))

    async def _take(self, delivered: Delivered) -> None:
        self.positions.append(delivered.positions[0])

    async def end(self) -> BaseException | None:
        self.task.cancel()
        (end,) = await asyncio.gather(self.task, return_exceptions=True)
        return end


async def test_a_reader_that_delivers_is_not_asked_whether_it_is_there() -> None:
    clock = ManualClock()
    process = Process("a", clock, row_s=WATCH_S / 2, answer_s=None)
    following = Following(Place(process), clock)
    await clock.advance(60)
    assert (process.asked, process.opened) == (0, 1)
    assert following.positions[-1] > 100
    await following.end()


@pytest.mark.parametrize("row_s", [ANSWER_S / 2, 2 * ANSWER_S])
async def test_a_reader_that_is_slow_is_waited_for_as_long_as_it_has_the_source(
    row_s: float,
) -> None:
    """On a machine with too much work everything takes longer than a deadline that was meant for
    an idle one. To begin again then would be more work, and nothing would ever come.
    """
    clock = ManualClock()
    process = Process("a", clock, row_s=row_s, answer_s=0.9 * ANSWER_S)
    following = Following(Place(process), clock)
    await clock.advance(10 * row_s + 1)
    assert following.positions == [*range(11)]
    assert process.opened == 1
    await following.end()


async def test_a_reader_that_has_lost_the_source_is_left_whether_it_answers_or_not() -> None:
    clock = ManualClock()
    paused = Process("a", clock, row_s=None, answer_s=None)
    other = Process("b", clock, row_s=1.0, answer_s=0.0)
    place = Place(paused, other)
    following = Following(place, clock)
    await clock.advance(3)
    assert following.positions == [0]
    place.claimed = "b"
    await clock.advance(3 * WATCH_S)
    assert following.positions[-1] > 0
    assert (paused.opened, other.opened) == (1, 1)
    await following.end()


async def test_a_reader_that_neither_delivers_nor_answers_is_told_of() -> None:
    """It keeps its claim, and each new call begins well."""
    clock = ManualClock()
    process = Process("a", clock, row_s=None, answer_s=None)
    following = Following(Place(process), clock)
    await clock.advance(LOOK_S_MAX + 3 * (ANSWER_S + WATCH_S))
    assert following.task.done()
    error = await following.end()
    assert isinstance(error, Unavailable)
    assert "the deadline passed" in str(error)


async def test_a_source_without_news_may_move_after_hours() -> None:
    clock = ManualClock()
    first = Process("a", clock, row_s=None, answer_s=0.0)
    second = Process("b", clock, row_s=1.0, answer_s=0.0)
    place = Place(first, second)
    following = Following(place, clock)
    await clock.advance(3_600)
    assert first.opened == 1
    place.claimed = None
    first._answer_s = None
    await clock.advance(LOOK_S_MAX / 2)
    place.claimed = "b"
    await clock.advance(5)
    assert following.positions[-1] > 0
    await following.end()


@pytest.mark.parametrize("shares", [1, 2])
async def test_a_probe_is_answered_by_a_process_however_slow(shares: int) -> None:
    clock = ManualClock()
    process = Process("a", clock, row_s=None, answer_s=0.9 * ANSWER_S)
    place = Shared(process)
    asking = asyncio.create_task(feed(place, clock, shares).probe())
    await clock.advance(2 * ANSWER_S)
    assert await asking == {0: 7}


class Shared(Place):
    """One process that reads all shares."""

    async def owner(self, role: str, item: str) -> str | None:
        return self.claimed
