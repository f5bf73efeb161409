"""Handlers of a server's calls, as interfaces in domain types.

Handlers raise the errors of `tidemill.errors` and nothing else. `wait_s` is the longest wait
for an instant to become definite: None or 0 means NotYet at once. An `as_of` of None is the latest
definite instant, which is the last one before the upper.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from tidemill.rpc.identity import PROCESS, Principal
from tidemill.rpc.messages import (
    Answer,
    AppendOutcome,
    Applied,
    CapabilityPair,
    CollectionInfo,
    CollectionShape,
    Condition,
    Decision,
    Delivered,
    Event,
    Explanation,
    HeldCapability,
    HeldVersion,
    HolderInfo,
    Inserted,
    MaintainedView,
    Pushed,
    ResourceDocument,
    ResourceStatus,
    Right,
    TimestampExplanation,
    Translation,
    Work,
)
from tidemill.rpc.paging import Page
from tidemill.time import Frontier, SourceFrontier


class QueryHandlers(Protocol):
    """Exact reads."""

    async def snapshot(
        self,
        collection: str,
        as_of: int | None,
        wait_s: float | None,
        where: Sequence[Condition] = (),
    ) -> Answer:
        """The whole collection at one instant, or its rows that meet every condition."""
        ...

    async def ask(self, goal: str, as_of: int | None, wait_s: float | None) -> Answer:
        """The records that match a goal such as `late(f, d)` or `delays/late(f, d)`.

        The columns are the goal's variables under their names, then the parafacts.
        """
        ...

    def subscribe(
        self, goal: str, start: int | None, snapshot: bool, until: int | None
    ) -> AsyncIterator[Event]:
        """Changes of a goal or collection from `start`, the snapshot there first if asked for.

        Ends once the upper has passed `until`, and never if that is None and the collection stays
        open. A progress statement comes at least every second.
        """
        ...

    async def why(self, record: str, as_of: int | None) -> Explanation:
        """The proof of a record that is present."""
        ...

    async def why_not(self, record: str, as_of: int | None) -> Explanation:
        """For each rule that could derive the record, how far it came and what stopped it."""
        ...

    async def explain(self, view: str, form: str) -> str:
        """A view as `plan`, `analyze` (with rows, bytes and time), `json`, `analyze-json`, `dot` or
        `svg` (its strata).
        """
        ...

    async def tables(
        self, names: Sequence[str], as_of: int | None, wait_s: float | None
    ) -> Mapping[str, Answer]:
        """All named collections at one and the same instant.

        With `as_of` None that is the latest instant at which every one of them is definite.
        """
        ...

    async def explain_timestamp(
        self, names: Sequence[str], as_of: int | None
    ) -> TimestampExplanation:
        """Which instant a question over these collections, goals or views gets, and what decides
        it.
        """
        ...

    async def translate(
        self, source: str, wanted: int | SourceFrontier | None, wait_s: float | None
    ) -> Translation:
        """Offsets behind a source's answer as of an instant (None: the latest definite one).

        For offsets, the answer as of the least instant at which all records before them are in.
        """
        ...

    async def collections(self, page: Page | None = None) -> Sequence[CollectionInfo]:
        """Every collection with its frontiers and who holds them; or those of a page, by id."""
        ...


class CatalogHandlers(Protocol):
    """Resources, and rows from users."""

    async def apply(self, documents: Sequence[ResourceDocument]) -> Sequence[Applied]:
        """Make all resources so, or none of them if one is refused."""
        ...

    async def get(
        self,
        kind: str | None,
        name: str | None,
        documents: bool = True,
        as_of: int | None = None,
        page: Page | None = None,
    ) -> Sequence[ResourceStatus]:
        """Resources of a kind (None: all) and name (None: all). No match is an empty answer.

        With `page` those of the page, by the key of their statuses: no other one is looked at.
        Without `documents` the text of each is empty, and none is written. With `as_of`, of the
        timeline of the system, those of that instant: their definitions alone. Raises: NotYet,
        BeforeSince for an instant that is not known yet, or not kept any more.
        """
        ...

    async def describe(self, kind: str, name: str, as_of: int | None = None) -> ResourceStatus:
        """One resource with its details, or as of an instant its definition alone.

        UnknownCollection if there is none, or was none then; NotYet, BeforeSince as for `get`.
        """
        ...

    async def delete(self, kind: str, name: str) -> None:
        """Remove the resource; refused while another one reads what it makes."""
        ...

    async def decide(self, view: str, decision: Decision, version: int | None) -> int:
        """Approve or abort the version of a view that waits; its number."""
        ...

    async def insert(self, table: str, rows: pa.Table, token: str | None = None) -> Inserted:
        """Write rows durably to a table. An int64 column `_diff` of −1 removes rows.

        A repeated token writes nothing and is answered as the first time.
        """
        ...

    async def push(self, source: str, rows: Sequence[bytes], token: str | None = None) -> Pushed:
        """Write raw rows ahead to the log of a source, durably before the answer.

        Rows of a repeated token are there once.
        """
        ...


class StorageHandlers(Protocol):
    """The commands of durable collections."""

    async def create(
        self,
        collection: str,
        shape: CollectionShape,
        start: Frontier,
        owner: str,
        lease_ms: int | None,
        token: str | None = None,
    ) -> CapabilityPair:
        """Bind a name that was never bound, with since and upper at `start`.

        A repeated token is answered with the same capabilities while they live; so it is below.
        """
        ...

    async def acquire(
        self, collection: str, owner: str, lease_ms: int | None, token: str | None = None
    ) -> CapabilityPair:
        """Capabilities at the collection's since and upper."""
        ...

    async def acquire_right(
        self,
        collection: str,
        right: Right,
        owner: str,
        lease_ms: int | None,
        token: str | None = None,
    ) -> HeldCapability:
        """One capability, to read at since or to write at upper."""
        ...

    async def clone(self, capability: HeldCapability, token: str | None = None) -> HeldCapability:
        """A second capability with the same right and frontier."""
        ...

    async def transfer(
        self, capability: HeldCapability, owner: str, token: str | None = None
    ) -> HeldCapability:
        """The same right under a new id, held in the name of `owner`; the old id is dead."""
        ...

    async def downgrade(self, capability: HeldCapability, to: Frontier) -> HeldCapability:
        """Give up the times before `to`."""
        ...

    async def drop(self, capability: HeldCapability) -> None:
        """Give up the capability."""
        ...

    async def renew(self, capability: HeldCapability) -> HeldCapability:
        """Begin the lease anew."""
        ...

    async def expire(self, collection: str, key: str) -> HolderInfo:
        """End the capability of the holder with this key, as if its lease had run out; who it
        was.
        """
        ...

    async def update_and_downgrade(
        self,
        capability: HeldCapability,
        updates: pa.Table | None,
        new: Frontier,
        token: str | None,
    ) -> AppendOutcome:
        """Append and move on in one step. A repeated token never writes twice."""
        ...

    def subscribe_at(
        self,
        capability: HeldCapability,
        at: int,
        snapshot: bool,
        up_to: int | None,
        columns: Sequence[str] = (),
        where: Sequence[Condition] = (),
    ) -> AsyncIterator[Event]:
        """The collection's changes from `at`, the snapshot there first if asked for.

        Only those `columns`, if any are named, of rows that meet every condition (SU6).
        """
        ...

    async def hold_version(
        self,
        collection: str,
        at: int | None,
        owner: str,
        lease_ms: int | None,
        token: str | None = None,
    ) -> HeldVersion:
        """The newest version, held at an instant, by default the latest definite one."""
        ...

    async def locate(self, capability: HeldCapability, keys: Sequence[str]) -> Sequence[str]:
        """The places of objects of a held version: a URL for each key."""
        ...


class ComputeHandlers(Protocol):
    """Views by command."""

    async def maintain_view(
        self, view: MaintainedView, token: str | None = None
    ) -> Mapping[str, HeldCapability]:
        """Maintain a program over what is held; a capability to read each output, by predicate.

        A repeated token is answered with the same view, and the same capabilities while they live.
        """
        ...

    async def drop_view(self, capability: HeldCapability) -> None:
        """End the view that was begun so, by a read capability on one of its outputs."""
        ...


class ActingCatalog(CatalogHandlers, Protocol):
    """A catalog that decides itself what `by` may have it read and write, once it knows what that
    is.
    """

    async def apply(
        self, documents: Sequence[ResourceDocument], by: Principal = PROCESS
    ) -> Sequence[Applied]:
        """The `apply` of a catalog, in the name of `by`."""
        ...

    async def delete(self, kind: str, name: str, by: Principal = PROCESS) -> None:
        """The `delete` of a catalog, in the name of `by`."""
        ...

    async def decide(
        self, view: str, decision: Decision, version: int | None, by: Principal = PROCESS
    ) -> int:
        """The `decide` of a catalog, in the name of `by`."""
        ...


class ActingCompute(ComputeHandlers, Protocol):
    """Commands of views that decide themselves what `by` may have a view read and write."""

    async def maintain_view(
        self, view: MaintainedView, token: str | None = None, by: Principal = PROCESS
    ) -> Mapping[str, HeldCapability]:
        """The `maintain_view` of ComputeHandlers, in the name of `by`."""
        ...

    async def drop_view(self, capability: HeldCapability, by: Principal = PROCESS) -> None:
        """The `drop_view` of ComputeHandlers, in the name of `by`."""
        ...


class IngestHandlers(Protocol):
    """Sources that this process reads.

    Unavailable with reason `elsewhere` for one that it does not.
    """

    async def probe(self, source: str) -> Mapping[int, int]:
        """The offset that the next record of each partition will get."""
        ...

    def deliver(self, source: str, starts: Mapping[int, int]) -> AsyncIterator[Delivered]:
        """Everything from `starts` on, in the order of each partition; never ends by itself."""
        ...

    async def commit(self, source: str, offsets: Mapping[int, int]) -> None:
        """Tell outside tools how far the source has been written."""
        ...


class WorkHandlers(Protocol):
    """Report of the work items of this process."""

    async def work(self) -> Sequence[Work]:
        """The parts of resources that it holds now."""
        ...
