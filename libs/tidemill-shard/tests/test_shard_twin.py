"""Random commands, from several processes and across restarts, answer as the twin does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import TidemillError
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Capability,
    CapabilityId,
    Collections,
    Description,
    Limits,
    MemoryBlob,
    MemoryConsensus,
    ReadCapability,
    Subscription,
    WriteCapability,
    reading,
)
from tidemill.testkit.twins.durable import CollectionTwin, Update
from tidemill.time import Frontier, frontier

ROWS = pa.schema([("row", pa.string())])
ROW_NAMES = ("a", "b", "c", "d")
LIMITS = {
    "inline": Limits(),
    "objects": Limits(inline_bytes_max=0),
    "split": Limits(inline_bytes_max=0, part_bytes_max=8, cache_bytes_max=100),
}

times = st.integers(0, 14)
frontiers = st.one_of(times.map(lambda time: frontier(time)), st.just(frontier()))
changes = st.lists(
    st.tuples(st.sampled_from(ROW_NAMES), times, st.sampled_from((1, 2, 1, -1))), max_size=4
)
numbers = st.integers(0, 9)
ahead = st.integers(0, 5)
steps = st.one_of(
    st.tuples(st.just("acquire")),
    st.tuples(st.just("clone"), numbers),
    st.tuples(st.just("downgrade"), numbers, frontiers),
    st.tuples(st.just("drop"), numbers),
    st.tuples(st.just("expire"), numbers),
    st.tuples(st.just("retain"), frontiers),
    st.tuples(st.just("write"), numbers, ahead, changes, st.booleans()),
    st.tuples(st.just("write"), numbers, ahead, changes, st.booleans()),
    st.tuples(st.just("write"), numbers, ahead, changes, st.booleans()),
    st.tuples(st.just("again"), numbers),
    st.tuples(st.just("misfit"), numbers, frontiers, frontiers, changes),
    st.tuples(st.just("close"), numbers),
    st.tuples(st.just("snapshot"), numbers, times),
    st.tuples(st.just("snapshot"), numbers, times),
    st.tuples(st.just("changes"), numbers, times, times),
    st.tuples(st.just("subscribe"), numbers, times, st.booleans()),
    st.tuples(st.just("poll"), numbers),
    st.tuples(st.just("compact")),
    st.tuples(st.just("merge")),
    st.tuples(st.just("clean")),
    st.tuples(st.just("restart")),
)


@dataclass
class Listener:
    """A subscription and what the twin has delivered to it."""

    capability: str
    subscription: Subscription
    at: int
    snapshot: bool
    delivered: Frontier | None = None


@dataclass
class Duel:
    """The product, as two processes use it, beside the twin."""

    user_writable: bool
    limits: Limits
    consensus: MemoryConsensus = field(default_factory=MemoryConsensus)
    blob: MemoryBlob = field(default_factory=MemoryBlob)
    names: Any = field(default_factory=count)
    held: dict[str, Capability] = field(default_factory=dict)
    listeners: list[Listener] = field(default_factory=list)
    sent: list[tuple[Capability, Frontier, Frontier, list[Update], str | None]] = field(
        default_factory=list
    )
    turn: int = 0

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.twin = CollectionTwin(self.user_writable, allow_negative=True)
        self.processes = [self._process(), self._process()]

    def _process(self) -> Collections:
        return Collections(
            self.consensus, self.blob, self.clock, lambda: f"{next(self.names):032x}", limits=self.limits
        )  # fmt: skip

    @property
    def collections(self) -> Collections:
        """The process whose turn it is."""
        return self.processes[self.turn % 2]

    async def begin(self) -> None:
        description = Description(ROWS, user_writable=self.user_writable, allow_negative=True)
        read, write = await self.collections.create("c", description, lease_ms=None)
        self.keep(read, write)
        self.keep(*await self.collections.acquire("c", lease_ms=None))

    def keep(self, *capabilities: Capability | None) -> None:
        for capability in capabilities:
            if capability is not None:
                right = "read" if isinstance(capability, ReadCapability) else "write"
                self.held[capability.id] = capability
                assert self.twin.acquire(capability.id, right) == capability.frontier

    def pick(self, number: int) -> Capability:
        return list(self.held.values())[number % len(self.held)]

    def pick_live(self, number: int, right: str) -> Capability:
        """One of the live capabilities of a right, or any if there is none."""
        live = [
            capability
            for name, capability in self.held.items()
            if (self.twin.holds[name].right, self.twin.holds[name].life) == (right, "live")
        ]
        return live[number % len(live)] if live else self.pick(number)

    async def same(self, real: Any, twin: Callable[[], Any]) -> None:
        """Both answer the same, or refuse with errors of the same class."""
        try:
            found: Any = await real
        except TidemillError as error:
            with pytest.raises(type(error)):
                twin()
            return
        assert found == twin()

    async def step(self, step: tuple[Any, ...]) -> None:
        self.turn += 1
        await getattr(self, step[0])(*step[1:])
        status = await self.collections.status("c")
        assert (status.since, status.upper) == (self.twin.since, self.twin.upper)

    async def acquire(self) -> None:
        self.keep(*await self.collections.acquire("c", lease_ms=None))

    async def clone(self, number: int) -> None:
        capability, copies = self.pick(number), []

        async def clone() -> Frontier:
            copies.append(await self.collections.clone(capability))
            return copies[0].frontier

        name = f"{next(self.names):032x}"
        await self.same(clone(), lambda: self.twin.clone(capability.id, name))
        if copies:
            self.held[copies[0].id] = copies[0]
            self.twin.holds[copies[0].id] = self.twin.holds.pop(name)

    async def downgrade(self, number: int, to: Frontier) -> None:
        name = self.pick(number).id

        async def move() -> Frontier:
            held = ReadCapability(name, "c", frontier(0))
            return (await self.collections.downgrade(held, to)).frontier

        await self.same(move(), lambda: self.twin.downgrade(name, to))

    async def drop(self, number: int) -> None:
        capability = self.pick(number)
        await self.same(
            self.collections.drop(capability), lambda: self.twin.end(capability.id, "dropped")
        )

    async def expire(self, number: int) -> None:
        capability = self.pick(number)
        await self.same(
            self.collections.expire(capability), lambda: self.twin.end(capability.id, "expired")
        )

    async def retain(self, to: Frontier) -> None:
        await self.same(self.collections.set_policy("c", to), lambda: self.twin.retain(to))

    async def write(self, number: int, ahead: int, rows: list[Update], with_token: bool) -> None:
        """Write where the writer stands, from its frontier on."""
        capability = self.pick_live(number, "write")
        hold = self.twin.holds[capability.id]
        lower = hold.held if hold.right == "write" else self.twin.upper
        if lower.empty:
            await self.misfit(number, lower, lower, rows)
            return
        begin = lower.elements[0]
        fitting = [(row, begin + time % ahead, n) for row, time, n in rows] if ahead else []
        token = f"t{begin}" if with_token else None
        await self.put(capability, lower, frontier(begin + ahead), fitting, token)

    async def misfit(self, number: int, lower: Frontier, new: Frontier, rows: list[Update]) -> None:
        await self.put(self.pick(number), lower, new, rows, None)

    async def close(self, number: int) -> None:
        if number == 9 and not self.user_writable:
            await self.put(self.pick(number), self.twin.upper, frontier(), [], None)

    async def put(
        self,
        capability: Capability,
        lower: Frontier,
        new: Frontier,
        rows: list[Update],
        token: str | None,
    ) -> None:
        self.sent.append((capability, lower, new, rows, token))
        if not self.user_writable:
            real = self.collections.compare_and_append(
                "c", lower, new, table(rows), writer="w", token=token
            )
            await self.same(real, lambda: self.twin.append(lower, new, rows, "w", token))
            return
        stated = WriteCapability(CapabilityId(capability.id), "c", lower)
        await self.same(
            self.collections.update_and_downgrade(stated, table(rows), new, token=token),
            lambda: self.twin.update(capability.id, lower, new, rows, token),
        )

    def near_upper(self, time: int, number: int) -> int:
        """A time just below upper, for most numbers."""
        if number % 4 == 3 or self.twin.upper.empty:
            return time
        return max(0, self.twin.upper.elements[0] - 1 - time % 3)

    async def again(self, number: int) -> None:
        """Send an append once more, as after an answer that was lost."""
        if self.sent:
            await self.put(*self.sent[-1 - number % min(3, len(self.sent))])

    async def snapshot(self, number: int, as_of: int) -> None:
        as_of = self.near_upper(as_of, number)
        capability = ReadCapability(self.pick_live(number, "read").id, "c", frontier(0))

        async def read() -> dict[str, int]:
            rows = (await self.collections.snapshot(capability, as_of)).to_pylist()
            assert len({row["row"] for row in rows}) == len(rows)
            return {row["row"]: row["_diff"] for row in rows}

        await self.same(read(), lambda: self.twin.contents(capability.id, as_of))

    async def changes(self, number: int, lower: int, upper: int) -> None:
        upper = self.near_upper(upper, number) + 1
        capability = ReadCapability(self.pick_live(number, "read").id, "c", frontier(0))
        if lower == 0 and self.twin.since != frontier(0):
            lower = 1

        async def read() -> dict[tuple[str, int], int]:
            return added_up(await self.collections.changes(capability, lower, upper))

        await self.same(read(), lambda: self.twin.changes(capability.id, lower, upper))

    async def subscribe(self, number: int, at: int, snapshot: bool) -> None:
        capability = ReadCapability(self.pick(number).id, "c", frontier(0))
        if self.twin.since.less_equal(at) and self.twin.holds[capability.id].right == "read":
            place = self.collections.subscription(capability, at, snapshot=snapshot)
            self.listeners.append(Listener(capability.id, place, at, snapshot))

    async def poll(self, number: int) -> None:
        if not self.listeners:
            return
        listener = self.listeners[number % len(self.listeners)]
        listener.subscription.attach(self.collections)

        async def poll() -> tuple[dict[tuple[str, int], int], Frontier]:
            news, upper = await listener.subscription.poll()
            return added_up(news), upper

        await self.same(poll(), lambda: self.told(listener))

    def told(self, listener: Listener) -> tuple[dict[tuple[str, int], int], Frontier]:
        """Deliveries of the twin: the contents first, then each update once."""
        twin, at = self.twin, listener.at
        twin.hold(listener.capability, "read")
        began = listener.delivered is not None
        if listener.delivered is not None and listener.delivered.empty:
            return {}, frontier()
        place = at if listener.snapshot and not began else at + 1
        if listener.delivered is not None:
            place = listener.delivered.elements[0]
        twin.changes(listener.capability, place, 0)
        if twin.upper.less_equal(at):
            return {}, frontier(at)
        news = twin.between(place if began else at + 1, None)
        if listener.snapshot and not began:
            present = twin.contents(listener.capability, at)
            news |= {(row, at): n for row, n in present.items()}
        listener.delivered = twin.upper
        return news, twin.upper

    async def compact(self) -> None:
        await self.collections.compact("c")
        assert (await self.collections.status("c")).batches <= 1
        stored = added_up(await self.collections.read_updates("c"))
        assert advanced(stored, self.twin.since) == advanced(
            {} if self.twin.since.empty else self.twin.between(0, None), self.twin.since
        )

    async def merge(self) -> None:
        await self.collections.compact_step("c", 1)

    async def clean(self) -> None:
        self.clock.move(10)
        await self.collections.collect_garbage("c", 1_000)
        await self.collections.reap_orphans("c", 1_000_000)

    async def restart(self) -> None:
        self.processes[self.turn % 2] = self._process()


def table(rows: list[Update]) -> pa.Table:
    lanes = [pa.field("_time", pa.uint64()), pa.field("_diff", pa.int64())]
    names = [{"row": row, "_time": time, "_diff": n} for row, time, n in rows]
    return pa.Table.from_pylist(names, pa.schema([*ROWS, *lanes]))


def added_up(found: pa.Table) -> dict[tuple[str, int], int]:
    rows = found.to_pylist()
    assert len({(row["row"], row["_time"]) for row in rows}) == len(rows)
    return {(row["row"], row["_time"]): row["_diff"] for row in rows}


def advanced(updates: dict[tuple[str, int], int], since: Frontier) -> dict[tuple[str, int], int]:
    counts: Counter[tuple[str, int]] = Counter()
    for (row, time), n in updates.items():
        counts[row, max([time, *since])] += n
    return {key: n for key, n in counts.items() if n}


@pytest.mark.rule("F1", "F2", "F4", "F5", "F6", "F7", "F8", "F14", "K15", "P1", "P2", "P6", "P7")
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("user_writable", [True, False], ids=["writers", "internal"])
@settings(max_examples=30, deadline=None)
@given(script=st.lists(steps, min_size=12, max_size=40))
def test_a_collection_answers_as_its_rules_say(
    limits: str, user_writable: bool, script: list[tuple[Any, ...]]
) -> None:
    async def run() -> None:
        duel = Duel(user_writable, LIMITS[limits])
        await duel.begin()
        for step in script:
            await duel.step(step)

    with pytest.MonkeyPatch.context() as patch:
        if limits == "split":
            patch.setattr(reading, "APART_ROWS_MIN", 0)
        asyncio.run(run())
