"""Cases of durable collections: one shard with its readers and writers, and a catalogue of
capabilities.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tidemill.errors import Indeterminate, UnknownCapability, UnknownCollection
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Appended,
    AppendOutcome,
    Capability,
    CapabilityId,
    Collections,
    Description,
    MemoryBlob,
    MemoryConsensus,
    ReadCapability,
    Subscription,
    WriteCapability,
)
from tidemill.shard.appending import check_bounds
from tidemill.shard.part_store import Limits
from tidemill.testkit.conformance.expectations import run_steps
from tidemill.testkit.conformance.registry import Case, Options
from tidemill.testkit.conformance.values import CaseError, Json, read_frontier, read_u64
from tidemill.time import U64_TIME, Frontier, frontier

DATA = pa.schema([("data", pa.string())])
SHARD = "shard"


def run_shard(case: Case, options: Options) -> list[str]:
    """`shard`: one collection whose writers append by compare-and-append on its upper."""
    return _Run(_Shard(_frontier(case.get("start", [0])))).steps(case["ops"])


def run_capability(case: Case, options: Options) -> list[str]:
    """`capability`: a catalogue of user-writable collections."""
    return _Run(_Catalogue()).steps(case["ops"])


def _frontier(times: Json) -> Frontier:
    return read_frontier(U64_TIME, times)


def _times(held: Frontier) -> list[int]:
    return list(held)


def _table(updates: Json) -> pa.Table:
    schema = DATA.append(pa.field("_time", pa.uint64())).append(pa.field("_diff", pa.int64()))
    rows = [
        {"data": json.dumps(data, sort_keys=True), "_time": time, "_diff": diff}
        for data, time, diff in updates
    ]
    return pa.Table.from_pylist(rows, schema)


def _updates(table: pa.Table) -> list[list[Json]]:
    return [[json.loads(r["data"]), r["_time"], r["_diff"]] for r in table.to_pylist()]


def _contents(table: pa.Table) -> list[list[Json]]:
    return [[json.loads(row["data"]), row["_diff"]] for row in table.to_pylist()]


def _outcome(outcome: AppendOutcome) -> dict[str, Json]:
    if isinstance(outcome, Appended):
        return {"appended": _times(outcome.upper)}
    return {"mismatch": _times(outcome.current)}


async def _read_stored(collections: Collections, collection: str) -> list[list[Json]]:
    """The stored updates, with times advanced by since."""
    updates = _updates(await collections.read_updates(collection))
    since = (await collections.status(collection)).since
    return [[data, max(time, *since), diff] for data, time, diff in updates]


class _Stores:
    """Durable state, and one process on it for each party that sends commands."""

    def __init__(self) -> None:
        self._consensus = MemoryConsensus()
        self._blob = MemoryBlob()
        self._clock = ManualClock()
        self._names = (f"{number:032x}" for number in itertools.count(1))
        self._parties: dict[str, Collections] = {}

    def of(self, party: str = "") -> Collections:
        """The process of a party."""
        if party not in self._parties:
            self._parties[party] = Collections(
                self._consensus,
                self._blob,
                self._clock,
                lambda: next(self._names),
                limits=Limits(diff_max=None),  # diffs of cases are whatever 64 bits hold
            )
        return self._parties[party]

    def restart(self) -> None:
        """Forget everything that is not durable."""
        self._parties.clear()


class _Shard:
    """The steps of a `shard` case."""

    def __init__(self, start: Frontier) -> None:
        self._stores = _Stores()
        self._start = start
        self._readers: dict[str, ReadCapability] = {}
        self._listens: dict[str, tuple[Subscription, int, str]] = {}

    @property
    def _collections(self) -> Collections:
        return self._stores.of()

    async def begin(self) -> None:
        read, _ = await self._collections.create(
            SHARD, Description(DATA, allow_negative=True), start=self._start, lease_ms=None
        )
        await self._collections.drop(read)

    async def observe(self, step: Mapping[str, Json]) -> dict[str, Json]:
        status = await self._collections.status(SHARD)
        return {"since": _times(status.since), "upper": _times(status.upper)}

    def _reader(self, name: str) -> ReadCapability:
        if name not in self._readers:
            raise UnknownCapability(f"there is no reader {name}")
        return self._readers[name]

    async def perform(self, step: Mapping[str, Json]) -> dict[str, Json]:
        match step["op"]:
            case "register":
                held, _ = await self._collections.acquire(SHARD, lease_ms=None)
                self._readers[step["as"]] = held
                return {"hold": _times(held.frontier)}
            case "downgrade":
                held = await self._collections.downgrade(
                    self._reader(step["reader"]), _frontier(step["to"])
                )
                return {"hold": _times(held.frontier)}
            case "drop":
                await self._collections.drop(self._reader(step["reader"]))
            case "expire":
                await self._collections.expire(self._reader(step["reader"]))
            case "caa":
                return await self._append(step)
            case "snapshot":
                table = await self._collections.snapshot(
                    self._reader(step["reader"]), read_u64(step["as_of"])
                )
                return {"contents": _contents(table)}
            case "listen":
                await self._listen(step)
            case "poll":
                return await self._poll(step)
            case "policy":
                await self._collections.set_policy(SHARD, _frontier(step["to"]))
            case "compact":
                await self._collections.compact(SHARD)
                return {"stored": await _read_stored(self._collections, SHARD)}
            case "restart":
                self._restart()
            case "state":
                pass
            case op:
                raise CaseError(f"unknown op {op!r}")
        return {}

    def _restart(self) -> None:
        self._stores.restart()

    async def _append(self, step: Mapping[str, Json]) -> dict[str, Json]:
        expected, new = _frontier(step["expected"]), _frontier(step["new"])
        table = _table(step.get("updates", []))
        fault = step.get("fault")
        times = [read_u64(update[1]) for update in step.get("updates", [])]
        if fault is not None:
            check_bounds(expected, new, (min(times), max(times)) if times else None)
        if fault == "request-lost":
            raise Indeterminate("the request was lost")
        before = (await self._collections.status(SHARD)).version
        outcome = await self._collections.compare_and_append(
            SHARD, expected, new, table, writer=step["writer"], token=step.get("token")
        )
        if fault == "reply-lost":
            raise Indeterminate("the reply was lost")
        after = (await self._collections.status(SHARD)).version
        return {**_outcome(outcome), "new_version": after > before}

    async def _listen(self, step: Mapping[str, Json]) -> None:
        reader, at = self._reader(step["reader"]), read_u64(step["as_of"])
        await self._collections.check_subscription(reader, at)
        subscription = self._collections.subscription(reader, at, snapshot=False)
        self._listens[step["as"]] = (subscription, at, step["reader"])

    async def _poll(self, step: Mapping[str, Json]) -> dict[str, Json]:
        subscription, at, _ = self._listens[step["listen"]]
        subscription.attach(self._collections)
        table, _ = await subscription.poll()
        upper = (await self._collections.status(SHARD)).upper
        reached = upper if upper.empty else frontier(max(upper.elements[0], at + 1))
        return {"updates": _updates(table), "frontier": _times(reached)}


class _Catalogue:
    """The steps of a `capability` case."""

    def __init__(self) -> None:
        self._stores = _Stores()
        self._held: dict[str, Capability] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._cancelled: set[str] = set()
        self._party = ""

    @property
    def _collections(self) -> Collections:
        return self._stores.of(self._party)

    async def begin(self) -> None:
        return

    async def observe(self, step: Mapping[str, Json]) -> dict[str, Json]:
        name = step.get("id")
        if name is None:
            cap = step.get("cap")
            if "sub" in step and step["sub"] in self._subscriptions:
                name = self._subscriptions[step["sub"]].collection
            elif cap in self._held:
                name = self._held[cap].collection
        if name is None:
            return {}
        try:
            status = await self._collections.status(name)
        except UnknownCollection:
            return {}
        return {"since": _times(status.since), "upper": _times(status.upper)}

    def _cap(self, name: str) -> Any:
        if name not in self._held:
            raise UnknownCapability(f"there is no capability {name}")
        return self._held[name]

    async def perform(self, step: Mapping[str, Json]) -> dict[str, Json]:
        self._party = step.get("by", "")
        match step["op"]:
            case "create":
                read, write = await self._collections.create(
                    step["id"],
                    Description(
                        DATA, allow_negative=step.get("allow_negative", False), user_writable=True
                    ),
                    start=_frontier(step.get("start", [0])),
                    lease_ms=None,
                )
                return self._keep(step, read, write)
            case "acquire":
                read, write = await self._collections.acquire(step["id"], lease_ms=None)
                return self._keep(step, read, write)
            case "list":
                return {"ids": list(await self._collections.ids())}
            case "state":
                await self._collections.status(step["id"])
                return {}
            case "policy":
                await self._collections.set_policy(step["id"], _frontier(step["to"]))
                return {}
            case "compact":
                await self._collections.compact(step["id"])
                return {"stored": await _read_stored(self._collections, step["id"])}
            case "restart":
                self._stores.restart()
                return {}
            case _:
                return await self._capability_step(step)

    def _keep(
        self, step: Mapping[str, Json], read: ReadCapability, write: WriteCapability | None
    ) -> dict[str, Json]:
        assert write is not None
        self._held[step["read"]] = read
        self._held[step["write"]] = write
        return {"read": _times(read.frontier), "write": _times(write.frontier)}

    async def _capability_step(self, step: Mapping[str, Json]) -> dict[str, Json]:
        match step["op"]:
            case "clone":
                copy = await self._collections.clone(self._cap(step["cap"]))
                self._held[step["as"]] = copy
                return {"hold": _times(copy.frontier)}
            case "downgrade":
                held = await self._collections.downgrade(
                    self._cap(step["cap"]), _frontier(step["to"])
                )
                return {"hold": _times(held.frontier)}
            case "drop":
                await self._collections.drop(self._cap(step["cap"]))
            case "expire":
                await self._collections.expire(self._cap(step["cap"]))
            case "update":
                return await self._update(step)
            case "snapshot":
                table = await self._collections.snapshot(
                    self._cap(step["cap"]), read_u64(step["as_of"])
                )
                return {"contents": _contents(table)}
            case "subscribe":
                cap, at = self._cap(step["cap"]), read_u64(step["at"])
                await self._collections.check_subscription(cap, at)
                self._cancelled.discard(step["as"])
                self._subscriptions[step["as"]] = self._collections.subscription(
                    cap, at, snapshot=step.get("snapshot", True)
                )
            case "poll":
                subscription = self._subscription(step["sub"])
                subscription.attach(self._collections)
                table, upper = await subscription.poll()
                return {"updates": _updates(table), "frontier": _times(upper)}
            case "cancel":
                self._cancelled.add(step["sub"])
            case op:
                raise CaseError(f"unknown op {op!r}")
        return {}

    def _subscription(self, name: str) -> Subscription:
        if name not in self._subscriptions or name in self._cancelled:
            raise CaseError(f"there is no subscription {name}")
        return self._subscriptions[name]

    async def _update(self, step: Mapping[str, Json]) -> dict[str, Json]:
        cap = self._cap(step["cap"])
        stated = WriteCapability(CapabilityId(cap.id), cap.collection, _frontier(step["frontier"]))
        outcome = await self._collections.update_and_downgrade(
            stated,
            _table(step.get("updates", [])),
            _frontier(step["new"]),
            token=step.get("token"),
        )
        return _outcome(outcome)


class _Run:
    """One case on an event loop of its own."""

    def __init__(self, subject: _Shard | _Catalogue) -> None:
        self._subject = subject

    def steps(self, steps: list[Mapping[str, Json]]) -> list[str]:
        """The differences of the first step that has any."""
        with asyncio.Runner() as runner:
            runner.run(self._subject.begin())
            for number, step in enumerate(steps, 1):
                found = run_steps(
                    [_advanced(runner, self._subject, step)],
                    lambda step: runner.run(self._subject.perform(step)),
                    lambda step: runner.run(self._subject.observe(step)),
                )
                if found:
                    return [line.replace("step 1", f"step {number}", 1) for line in found]
        return []


def _advanced(
    runner: asyncio.Runner, subject: _Shard | _Catalogue, step: Mapping[str, Json]
) -> Mapping[str, Json]:
    """`stored` is compared after advancing both sides by since."""
    expect = step.get("expect", {})
    if "stored" not in expect:
        return step
    since = runner.run(subject.observe(step))["since"]
    if not since:
        return step
    stored = [[data, max(time, since[0]), diff] for data, time, diff in expect["stored"]]
    return {**step, "expect": {**expect, "stored": stored}}
