"""A part of the work that fails with one replica again and again is another one's, and does not go
to and fro.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from tidemill.catalog.catalog import Catalog
from tidemill.catalog.store import Stored
from tidemill.errors import Unavailable
from tidemill.host.claimed_work import ClaimedWork
from tidemill.host.settings import ProcessSettings, ServicesSettings
from tidemill.runtime.resources import load_resources
from tidemill.shard import MemoryConsensus
from tidemill.shard.claims import LEASE_S, Claimant, KeptClaimant
from tidemill.shard.claims.working import RENEWALS_PER_LEASE
from tidemill.shard.offloading import first_of
from tidemill.testkit.faults.virtual_loop import LoopClock, VirtualLoop

T = TypeVar("T")
TABLE = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: NAME}
spec: {columns: [{name: n, type: int}], retain: all}
"""
NAMES = ("t1", "t2")
SETTINGS = ProcessSettings(
    retry_s_max=4.0, broken_s_max=4.0, services=ServicesSettings(tries=3, left_s=100.0)
)


class Told:
    """A catalog whose replicas hear of a change at once."""

    upper = 1

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self._changed = asyncio.Event()
        self.stored = [table(name) for name in NAMES]

    def add(self, name: str) -> None:
        self.stored.append(table(name))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def live(self) -> list[Stored]:
        return self.stored

    def get(self, kind: str, name: str) -> Stored | None:
        return next((s for s in self.stored if s.resource.name == name), None)

    async def refresh(self) -> bool:
        return False

    async def until_changed(self, timeout_s: float) -> None:
        await first_of((self._clock.sleep(timeout_s), self._changed.wait()))


def table(name: str) -> Stored:
    return Stored(load_resources(TABLE.replace("NAME", name), "test.yaml")[0], 0)


class Place:
    """Replicas of the role compute in virtual time; `fails` says where work fails, and how."""

    def __init__(self) -> None:
        self.loop = VirtualLoop(Random(5))
        self.clock = LoopClock(self.loop, 0)
        self.fails: dict[tuple[str, str], Exception] = {}
        self.begun: list[tuple[str, str]] = []
        """Process and resource, try after try."""
        self.away = 0
        """So many calls of the store fail from now on."""
        self.catalog = Told(self.clock)
        self._consensus = MemoryConsensus()
        self._numbers = itertools.count()
        self._working: list[ClaimedWork] = []

    def replica(self, name: str) -> ClaimedWork:
        claimant = Claimant(
            self._consensus, "compute", self.clock, lambda: f"s{next(self._numbers)}", name=name
        )

        async def there(call: Coroutine[Any, Any, T]) -> T:
            if self.away:
                self.away -= 1
                call.close()
                raise Unavailable("the store is away")
            return await call

        kept = KeptClaimant(claimant, there, self.clock)
        context: Any = SimpleNamespace(
            clock=self.clock, settings=SETTINGS, catalog=Catalog(), tried=None, discover=_nothing,
            store=self.catalog,
        )  # fmt: skip

        def make(stored: Stored, role: str, share: int | None, confirm: object) -> Tries:
            return Tries(self, name, stored.resource.name)

        work = ClaimedWork(context, ("compute",), lambda _: kept, make, name)
        self._working.append(work)
        self.loop.create_task(work.start())
        return work

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        async def run_story() -> None:
            try:
                await story()
            finally:
                for work in self._working:
                    await work.stop()

        self.loop.run_until_complete(run_story())


class Tries:
    """The work of one replica on one resource."""

    def __init__(self, place: Place, process: str, resource: str) -> None:
        self.name = f"Table/{resource}"
        self._place = place
        self._key = (process, resource)

    async def prepare(self) -> None: ...

    async def release(self) -> None: ...

    async def run(self, ready: Callable[[], None]) -> None:
        self._place.begun.append(self._key)
        if self._key in self._place.fails:
            raise self._place.fails[self._key]
        ready()
        await asyncio.get_running_loop().create_future()


async def _nothing() -> None: ...


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.loop.close()


def worked(*replicas: ClaimedWork) -> dict[str, tuple[str, str]]:
    """The process that works on each resource, and its health."""
    return {
        held.stored.resource.name: (replica._name, held.supervised.health.reason)
        for replica in replicas
        for held in replica.held()
    }


@pytest.mark.parametrize("error", [Unavailable("a broker is away from here"), IndexError("oops")])
def test_a1_a_part_that_fails_with_one_replica_is_given_to_another_and_stays_there(
    error: Exception, place: Place
) -> None:
    async def story() -> None:
        one = place.replica("one")
        place.fails |= {("one", "t1"): error}
        await place.clock.sleep(60)
        # Alone it has nobody to leave it to: it goes on, and says what is the matter.
        assert worked(one)["t1"] in {("one", "Retrying"), ("one", "Broken")}
        assert worked(one)["t2"] == ("one", "Running")
        tries = place.begun.count(("one", "t1"))
        assert tries > SETTINGS.services.tries  # the first replica really failed
        two = place.replica("two")
        await place.clock.sleep(30)
        assert worked(one, two)["t1"] == ("two", "Running")
        # Past every pause it stays where it goes well, and nothing of it begins anew.
        begun = list(place.begun)
        await place.clock.sleep(300)
        assert worked(one, two)["t1"] == ("two", "Running")
        assert [each for each in place.begun[len(begun) :] if each[1] == "t1"] == []

    place.run(story)


def test_a1_a_part_that_fails_with_everybody_goes_to_and_fro_ever_more_rarely(place: Place) -> None:
    async def story() -> None:
        away = Unavailable("the broker is away from everywhere")
        place.fails = {(name, "t1"): away for name in ("one", "two")}
        one, two = place.replica("one"), place.replica("two")
        await place.clock.sleep(1_000)
        tried = [process for process, name in place.begun if name == "t1"]
        moves = [process for process, _ in itertools.groupby(tried)]
        assert set(moves) == {"one", "two"}
        assert len(moves) <= 9  # each has its pauses of 100, 200, 400, … s
        assert len(tried) > 120  # and it is tried all the time, by one of them
        assert worked(one, two)["t1"][1] == "Retrying"
        place.fails.clear()
        await place.clock.sleep(30)
        assert worked(one, two)["t1"][1] == "Running"

    place.run(story)


def test_what_is_applied_is_claimed_before_the_next_renewal(place: Place) -> None:
    async def story() -> None:
        one, two = place.replica("one"), place.replica("two")
        await place.clock.sleep(60.1)
        for number in range(4):  # a renewal would find them together
            place.catalog.add(f"new{number}")
            await place.clock.sleep(LEASE_S / RENEWALS_PER_LEASE / 8)
            assert f"new{number}" in worked(one, two)

    place.run(story)


def test_what_could_not_be_claimed_at_once_is_tried_again_soon(place: Place) -> None:
    async def story() -> None:
        one = place.replica("one")
        await place.clock.sleep(60.1)
        place.away = 1
        place.catalog.add("new")
        await place.clock.sleep(1.5 * SETTINGS.retry_s_min)
        assert "new" in worked(one)
        assert 1.5 * SETTINGS.retry_s_min < LEASE_S / RENEWALS_PER_LEASE - 0.1

    place.run(story)
