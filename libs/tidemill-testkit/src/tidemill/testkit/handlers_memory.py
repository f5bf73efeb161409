"""A server's handlers over update tables in memory, for tests of the wire and of the command.

Obvious rather than complete: goals are answered with the whole collection of their predicate, and
`failing` makes any call that names its key raise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeVar

import pyarrow as pa

from tidemill.arrangement.updates import accumulate, between, consolidate
from tidemill.errors import (
    AlreadyUsed,
    BeforeSince,
    NotYet,
    UnknownCapability,
    UnknownCollection,
    UsageError,
)
from tidemill.rpc.identity import PROCESS, Principal, Role
from tidemill.rpc.messages import (
    Answer,
    Appended,
    AppendOutcome,
    Applied,
    CapabilityPair,
    Changes,
    CollectionInfo,
    CollectionShape,
    ColumnInfo,
    Condition,
    Decision,
    Event,
    Explanation,
    HeldCapability,
    HeldVersion,
    HolderInfo,
    Inserted,
    Json,
    MaintainedView,
    Outcome,
    Progress,
    Pushed,
    ResourceDocument,
    ResourceStatus,
    Right,
    TimestampExplanation,
    Translation,
    UpperMismatch,
)
from tidemill.rpc.paging import Page, cut
from tidemill.rpc.server import serve
from tidemill.testkit.faults.proxy import Proxy
from tidemill.time import (
    Antichain,
    Frontier,
    SourceFrontier,
    frontier,
    partition_frontier,
    partition_offsets,
    sole_time,
)


@dataclass(frozen=True, slots=True)
class Held:
    """A collection: its updates with `_time` and `_diff`, and its frontiers."""

    updates: pa.Table
    since: Frontier
    upper: Frontier


@dataclass(slots=True)
class MemoryHandlers:
    """All three services; what was asked of subscriptions that ended is in `closed`."""

    collections_held: dict[str, Held] = field(default_factory=dict)
    resources: dict[tuple[str, str], ResourceStatus] = field(default_factory=dict)
    failing: dict[str, Exception] = field(default_factory=dict)
    pushed: list[tuple[str, bytes]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    capabilities: dict[str, HeldCapability] = field(default_factory=dict)
    tokens: dict[str, Frontier] = field(default_factory=dict)
    numbers: count[int] = field(default_factory=lambda: count(1))

    # Reading.

    async def snapshot(
        self,
        collection: str,
        as_of: int | None,
        wait_s: float | None,
        where: Sequence[Condition] = (),
    ) -> Answer:
        held = self._held(collection)
        latest = sole_time(held.upper) - 1
        as_of = latest if as_of is None else as_of
        if as_of > latest:
            raise NotYet(
                f"{collection} is not definite at {as_of}: its upper is {held.upper}",
                requested=as_of, upper=held.upper, collection=collection,
            )  # fmt: skip
        if not held.since.less_equal(as_of):
            raise BeforeSince(
                f"{collection} is no longer known at {as_of}: its since is {held.since}",
                requested=as_of, since=held.since, collection=collection, holder="retain 10m",
            )  # fmt: skip
        table = accumulate(held.updates, as_of)
        return Answer(table, as_of, held.since, held.upper, collection)

    async def ask(self, goal: str, as_of: int | None, wait_s: float | None) -> Answer:
        return await self.snapshot(goal.split("(")[0], as_of, wait_s)

    async def subscribe(
        self, goal: str, start: int | None, snapshot: bool, until: int | None
    ) -> AsyncIterator[Event]:
        try:
            first = await self.ask(goal, start, None)
            if snapshot:
                at = pa.array([first.as_of] * first.table.num_rows, pa.uint64())
                names = [n for n in first.table.column_names if n != "_diff"]
                rows = first.table.select(names).append_column("_time", at)
                yield Changes(rows.append_column("_diff", first.table["_diff"]))
            held = self._held(first.collection)
            later = between(held.updates, first.as_of + 1, None)
            if later.num_rows:
                yield Changes(later)
            while True:
                yield Progress(held.upper)
                if until is not None:
                    return
        finally:
            self.closed.append(goal)

    async def why(self, record: str, as_of: int | None) -> Explanation:
        self._raise_if_failing(record)
        leaf: Json = {"fact": "flight(1)", "rule": None, "children": []}
        tree: Json = {"fact": record, "rule": "late(f) := flight(f)", "children": [leaf]}
        return Explanation(f"{record}\n  by late(f) := flight(f)\n    flight(1)", tree)

    async def why_not(self, record: str, as_of: int | None) -> Explanation:
        self._raise_if_failing(record)
        return Explanation(f"{record} is not present: no match for flight(1)")

    async def explain(self, view: str, form: str) -> str:
        self._raise_if_failing(view)
        return f"view {view}\n  stratum 1" if form == "plan" else f"{form} of {view}"

    async def tables(
        self, names: Sequence[str], as_of: int | None, wait_s: float | None
    ) -> Mapping[str, Answer]:
        if as_of is None:
            as_of = min(sole_time(self._held(name).upper) for name in names) - 1
        return {name: await self.snapshot(name, as_of, wait_s) for name in names}

    async def collections(self, page: Page | None = None) -> Sequence[CollectionInfo]:
        found = [
            CollectionInfo(
                id=name, kind="table", timeline="system", since=held.since, upper=held.upper,
                lag_ms=None, holders=(HolderInfo("retain", held.since, None),),
                updates=held.updates.num_rows, batches=1, bytes=held.updates.nbytes,
                columns=tuple(
                    ColumnInfo(f.name, str(f.type), f.nullable)
                    for f in held.updates.schema if not f.name.startswith("_")
                ),
            )
            for name, held in sorted(self.collections_held.items())
        ]  # fmt: skip
        return cut(found, page, lambda each: each.id)

    async def explain_timestamp(
        self, names: Sequence[str], as_of: int | None
    ) -> TimestampExplanation:
        infos = {info.id: info for info in await self.collections()}
        chosen = min(sole_time(infos[name].upper) for name in names) - 1
        inputs = tuple((name, infos[name]) for name in names)
        return TimestampExplanation(chosen, "the least upper", inputs)

    async def translate(
        self, source: str, wanted: int | SourceFrontier | None, wait_s: float | None
    ) -> Translation:
        """At each instant t everything before the offset t of partition 0 is in."""
        held = self._held(source)
        latest = sole_time(held.upper) - 1
        at = latest if wanted is None else wanted
        if isinstance(at, Antichain):
            at = partition_offsets(at)[0]
        if at > latest:
            raise NotYet(f"{source} has come to p0={latest}", requested=at, upper=held.upper)
        offsets = partition_frontier({0: at})
        return Translation(at, "system", at, offsets, held.since, held.upper)

    # The catalog.

    async def apply(
        self, documents: Sequence[ResourceDocument], by: Principal = PROCESS
    ) -> Sequence[Applied]:
        applied: list[Applied] = []
        for document in documents:
            self._raise_if_failing(document.file)
            for text in filter(str.strip, document.text.split("\n---\n")):
                lines = {
                    k.strip(): v.strip()
                    for k, _, v in (n.partition(":") for n in text.splitlines())
                }
                if "kind" not in lines or "name" not in lines:
                    raise UsageError(f"{document.file}:1: kind: is required", reason="resource")
                key = (lines["kind"], lines["name"])
                by.demand(Role.admin, key[1])
                before = self.resources.get(key)
                status = ResourceStatus(*key, ready=True, reason="Running", document_yaml=text)
                self.resources[key] = status
                outcome = Outcome.CREATED if before is None else Outcome.CONFIGURED
                if before is not None and before.document_yaml == text:
                    outcome = Outcome.UNCHANGED
                applied.append(Applied(*key, outcome))
        return applied

    async def get(
        self,
        kind: str | None,
        name: str | None,
        documents: bool = True,
        as_of: int | None = None,
        page: Page | None = None,
    ) -> Sequence[ResourceStatus]:
        found = [
            status if documents else replace(status, document_yaml="")
            for key, status in sorted(self.resources.items())
            if kind in (None, key[0]) and name in (None, key[1])
        ]
        return cut(found, page, lambda each: each.key)

    async def describe(self, kind: str, name: str, as_of: int | None = None) -> ResourceStatus:
        self._raise_if_failing(name)
        if (kind, name) not in self.resources:
            raise UnknownCollection(f"there is no {kind} {name}", kind=kind, name=name)
        return self.resources[kind, name]

    async def delete(self, kind: str, name: str, by: Principal = PROCESS) -> None:
        await self.describe(kind, name)
        del self.resources[kind, name]

    async def decide(
        self, view: str, decision: Decision, version: int | None, by: Principal = PROCESS
    ) -> int:
        await self.describe("View", view)
        return version or 2

    async def insert(self, table: str, rows: pa.Table, token: str | None = None) -> Inserted:
        held = self._held(table)
        at = sole_time(held.upper)
        stamped = rows.append_column("_time", pa.array([at] * rows.num_rows, pa.uint64()))
        stamped = stamped.append_column("_diff", pa.array([1] * rows.num_rows, pa.int64()))
        grown = pa.concat_tables([held.updates, stamped.cast(held.updates.schema)])
        self.collections_held[table] = replace(held, updates=grown, upper=frontier(at + 1))
        return Inserted(time=at, rows=rows.num_rows)

    async def push(self, source: str, rows: Sequence[bytes], token: str | None = None) -> Pushed:
        self._raise_if_failing(source)
        self.pushed += [(source, row) for row in rows]
        return Pushed(accepted=len(rows))

    # Storage.

    async def create(
        self,
        collection: str,
        shape: CollectionShape,
        start: Frontier,
        owner: str,
        lease_ms: int | None,
        token: str | None = None,
    ) -> CapabilityPair:
        if collection in self.collections_held:
            raise AlreadyUsed(f"the id {collection} is in use", collection=collection)
        fields = [*shape.schema, pa.field("_time", pa.uint64()), pa.field("_diff", pa.int64())]
        self.collections_held[collection] = Held(pa.schema(fields).empty_table(), start, start)
        return await self.acquire(collection, owner, lease_ms)

    async def acquire(
        self, collection: str, owner: str, lease_ms: int | None, token: str | None = None
    ) -> CapabilityPair:
        held = self._held(collection)
        return CapabilityPair(
            self._issue(collection, held.since, Right.READ),
            self._issue(collection, held.upper, Right.WRITE),
        )

    async def acquire_right(
        self,
        collection: str,
        right: Right,
        owner: str,
        lease_ms: int | None,
        token: str | None = None,
    ) -> HeldCapability:
        held = self._held(collection)
        reads = right is Right.READ
        return self._issue(collection, held.since if reads else held.upper, right)

    async def renew(self, capability: HeldCapability) -> HeldCapability:
        return self._known(capability)

    async def maintain_view(
        self, view: MaintainedView, token: str | None = None, by: Principal = PROCESS
    ) -> Mapping[str, HeldCapability]:
        for held in view.inputs.values():
            self._known(held)
        at = view.at or frontier(0)
        return {p: self._issue(f"{view.name}/{p}", at, Right.READ) for p in view.outputs}

    async def drop_view(self, capability: HeldCapability, by: Principal = PROCESS) -> None:
        await self.drop(capability)

    async def expire(self, collection: str, key: str) -> HolderInfo:
        held = self.capabilities.pop(key, None)
        if held is None:
            raise UnknownCapability("there is no such holder", collection=collection)
        return HolderInfo("", held.frontier, key=key)

    async def clone(self, capability: HeldCapability, token: str | None = None) -> HeldCapability:
        known = self._known(capability)
        return self._issue(known.collection, known.frontier, known.right)

    async def transfer(
        self, capability: HeldCapability, owner: str, token: str | None = None
    ) -> HeldCapability:
        moved = await self.clone(capability)
        await self.drop(capability)
        return moved

    async def downgrade(self, capability: HeldCapability, to: Frontier) -> HeldCapability:
        moved = replace(self._known(capability), frontier=to)
        self.capabilities[capability.id] = moved
        return moved

    async def drop(self, capability: HeldCapability) -> None:
        self._known(capability)
        del self.capabilities[capability.id]

    async def update_and_downgrade(
        self, capability: HeldCapability, updates: pa.Table | None, new: Frontier, token: str | None
    ) -> AppendOutcome:
        held = self._held(self._known(capability).collection)
        if token is not None and token in self.tokens:
            return Appended(self.tokens[token])
        if capability.frontier != held.upper:
            return UpperMismatch(held.upper)
        tables = [held.updates] if updates is None else [held.updates, updates]
        grown = consolidate(pa.concat_tables(tables))
        self.collections_held[capability.collection] = Held(grown, held.since, new)
        if token is not None:
            self.tokens[token] = new
        await self.downgrade(capability, new)
        return Appended(new)

    async def subscribe_at(
        self,
        capability: HeldCapability,
        at: int,
        snapshot: bool,
        up_to: int | None,
        columns: Sequence[str] = (),
        where: Sequence[Condition] = (),
    ) -> AsyncIterator[Event]:
        async for event in self.subscribe(self._known(capability).collection, at, snapshot, up_to):
            yield event

    async def hold_version(
        self,
        collection: str,
        at: int | None,
        owner: str,
        lease_ms: int | None,
        token: str | None = None,
    ) -> HeldVersion:
        held = self._held(collection)
        instant = sole_time(held.upper) - 1 if at is None else at
        capability = self._issue(collection, frontier(instant), Right.READ)
        return HeldVersion(capability, instant, b"no objects")

    async def locate(self, capability: HeldCapability, keys: Sequence[str]) -> Sequence[str]:
        self._known(capability)
        return [f"file:///nowhere/{key}" for key in keys]

    def _issue(self, collection: str, at: Frontier, right: Right) -> HeldCapability:
        held = HeldCapability(f"secret{next(self.numbers)}", collection, at, right)
        self.capabilities[held.id] = held
        return held

    def _known(self, capability: HeldCapability) -> HeldCapability:
        if capability.id not in self.capabilities:
            raise UnknownCapability("the capability was dropped", collection=capability.collection)
        return self.capabilities[capability.id]

    def _held(self, name: str) -> Held:
        self._raise_if_failing(name)
        if name not in self.collections_held:
            raise UnknownCollection(f"there is no collection {name}", collection=name)
        return self.collections_held[name]

    def _raise_if_failing(self, name: str) -> None:
        error = self.failing.get(name)
        if error is not None:
            raise error


def flights(rows: int = 3) -> Held:
    """Delays of that many flights, one more per time from 10 on; since 10, upper after the last."""
    numbers = list(range(rows))
    updates = pa.table(
        {
            "carrier": pa.array([("AA", "UA", "DL")[n % 3] for n in numbers], pa.string()),
            "delay": pa.array([n * 15 for n in numbers], pa.int64()),
            "_time": pa.array([10 + n for n in numbers], pa.uint64()),
            "_diff": pa.array([1] * rows, pa.int64()),
        }
    )
    return Held(updates, frontier(10), frontier(10 + rows))


H = TypeVar("H", bound=MemoryHandlers)


@asynccontextmanager
async def behind_proxy(handlers: H) -> AsyncIterator[tuple[H, Proxy]]:
    """These handlers in a server, and the proxy that its clients are to ask."""
    server = await serve("127.0.0.1:0", handlers, handlers, handlers)
    proxy = Proxy(server.port)
    await proxy.start()
    try:
        yield handlers, proxy
    finally:
        await proxy.stop()
        await server.stop(0)
