"""Applied resources, durable: a collection like any other, on the system timeline."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from tidemill.arrangement.looks import with_looks
from tidemill.arrangement.updates import DIFF, TIME
from tidemill.catalog.unreadable import resource_of
from tidemill.errors import BeforeSince, NotYet, UsageError
from tidemill.runtime.clock import Clock
from tidemill.runtime.resources import Resource, SourceSpec, stored_resource
from tidemill.shard import Collections, Description, ReadCapability, UpperMismatch
from tidemill.shard.offloading import compute_beside
from tidemill.time import frontier, sole_time

CATALOG = "catalog"
ROW_COST = 1_000
"""A resource is written as a row in as long as so many rows of columns take."""
RESOURCES_A_LOOK = 10
ENDING = "ending"
"""Of what was decided about a deleted resource: its collections and holds may still be there."""

BEGINS = "begins"
"""Of what was decided about a resource: the first instant that nothing was said of under its name.
"""

REMAP = "remap"
"""Of what was decided about a source that shares its bindings: their `name`, `collection`, and
where they `begin`.
"""

_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("name", pa.string()),
        ("document", pa.string()),
        ("resolved", pa.string()),
        ("created_ms", pa.int64()),
        ("incarnation", pa.int64()),
        ("deleted", pa.bool_()),
    ]
)


@dataclass(frozen=True, slots=True)
class Stored:
    """A resource with what was decided when it was created: `resolved` never changes.

    A name may be used again after it was deleted; the `incarnation` tells the collections apart,
    because an id never means another collection.
    """

    resource: Resource
    created_ms: int
    incarnation: int = 1
    resolved: Mapping[str, Any] = field(default_factory=dict, hash=False)
    deleted: bool = False
    raw: Mapping[str, Any] | None = field(default=None, hash=False)
    """The row as it is in the catalog, of a resource that cannot be read."""

    @property
    def prefix(self) -> str:
        """The prefix of the names of its collections."""
        name = self.resource.name
        return name if self.incarnation == 1 else f"{name}~{self.incarnation}"

    @property
    def begins(self) -> int:
        """The first instant of its collections, on the timeline of the system.

        Below it a reused name has no answer. There the name meant another collection, so an empty
        answer would be wrong.
        """
        return int(self.resolved.get(BEGINS, 0))

    @property
    def remap(self) -> str:
        """The collection of the bindings of a source: its own, or one that it shares."""
        return str(self._shared.get("collection", f"{self.prefix}/remap"))

    @property
    def bound_from(self) -> int:
        """The first instant of the bindings of a source."""
        return int(self._shared.get("begins", self.begins))

    @property
    def shares(self) -> str | None:
        """The name under which a source shares its bindings; None if they are its own."""
        name = self._shared.get("name")
        return None if name is None else str(name)

    @property
    def _shared(self) -> Mapping[str, Any]:
        found = self.resolved.get(REMAP)
        return found if isinstance(found, dict) else {}  # whatever a row of the catalog holds

    def row(self) -> dict[str, object]:
        """The resource as a row of the catalog."""
        if self.raw is not None and self.deleted:
            kept = json.dumps(self.resolved, sort_keys=True)
            return {**self.raw, "resolved": kept, "deleted": True}
        if self.raw is not None:
            return dict(self.raw)
        return {
            "kind": self.resource.kind,
            "name": self.resource.name,
            "document": json.dumps(self.resource.to_document(), sort_keys=True),
            "resolved": json.dumps(self.resolved, sort_keys=True),
            "created_ms": self.created_ms,
            "incarnation": self.incarnation,
            "deleted": self.deleted,
        }


Key = tuple[str, str]
Row = Mapping[str, Any]


class CatalogMoved(Exception):
    """Another process has written the catalog since it was read: look again, decide again."""


class ResourceStore:
    """The catalog: what was applied is there after a restart, whatever killed the process.

    A row that cannot be read is an unreadable resource, and hides no other one.
    Several processes may have it open; each sees what others wrote when it refreshes.
    """

    def __init__(
        self, collections: Collections, clock: Clock, *, keep_ms: int | None = None
    ) -> None:
        """`keep_ms` before its last change the catalog can be read as of an instant; None leaves
        that to other processes.
        """
        self._collections = collections
        self._clock = clock
        self._keep_ms = keep_ms
        self._rows: dict[Key, Stored] = {}
        self._by_name: dict[str, set[Key]] = {}
        """The rows with a name of their own, and under which sources share their bindings."""
        self._written: dict[Key, Row] = {}
        """Rows as they are in the catalog: what is retracted is what was written, whoever wrote it.
        """
        self._read: ReadCapability | None = None
        self.upper = -1

    async def open(self) -> None:
        """Create the catalog, or read it; it is retained as this process is told, if it is."""
        description = Description(_SCHEMA, kind="catalog", retain_ms=self._keep_ms or 0)
        made = await self._collections.bind(CATALOG, description, frontier(0))
        if not made and self._keep_ms is not None:
            await self._collections.retain(CATALOG, self._keep_ms)
        await self.refresh()

    async def refresh(self) -> bool:
        """Read what others wrote; whether there was anything.

        Cost: the updates since the last look, however much history is kept. The first look, and one
        behind the history that is kept, read the catalog.
        """
        while True:
            upper, known = sole_time((await self._collections.status(CATALOG)).upper), self.upper
            if upper == known:
                return False
            # One hold of all processes, found by its owner: it may have moved on meanwhile.
            self._read = await self._collections.read_hold(CATALOG, owner="catalog", lease_ms=None)
            if upper == 0:
                self.upper = 0
                return True
            try:
                written = await self._read_rows(self._read, known, upper)
            except BeforeSince:
                continue
            if self.upper != known:
                continue  # another task has read or written meanwhile
            self._know(written)
            self.upper = upper
            return True

    async def _read_rows(self, hold: ReadCapability, known: int, upper: int) -> dict[Key, Row]:
        """The rows before `upper`, where those before `known` are known. Raises: BeforeSince."""
        if known > 0:
            with suppress(BeforeSince):
                news = await self._collections.changes(hold, known, upper)
                in_order = news.sort_by([(TIME, "ascending"), (DIFF, "ascending")])
                return _changed(self._written, in_order.to_pylist())
        rows = await self._collections.snapshot(hold, upper - 1)
        return {_key(row): row for row in rows.select(_SCHEMA.names).to_pylist()}

    def _know(self, written: dict[Key, Row]) -> None:
        """Read the rows that are not as they were, and forget the resources whose rows are gone."""
        before, self._written = self._written, written
        for key in before.keys() - written.keys():
            for name in _names(self._rows.pop(key)):
                self._by_name[name].discard(key)
        self._add({k: _stored(row) for k, row in written.items() if before.get(k) != row})

    async def until_changed(self, timeout_s: float) -> None:
        """Return when somebody has written, or after a while."""
        with suppress(NotYet):
            await self._collections.wait_for_upper(CATALOG, self.upper, timeout_s)

    def live(self) -> list[Stored]:
        """The resources that are not deleted, in the order of their creation."""
        found = [stored for stored in self._rows.values() if not stored.deleted]
        return sorted(found, key=_age)

    def get(self, kind: str, name: str) -> Stored | None:
        """A resource that is not deleted."""
        stored = self._rows.get((kind, name))
        return None if stored is None or stored.deleted else stored

    async def as_of(self, at: int) -> list[Stored]:
        """The resources that were there at an instant, in the order of their creation.

        From the last change on they are those of now, as far as changes are known. Raises: NotYet
        for an instant to come, BeforeSince for one that is not kept any more. Cost: a read of the
        catalog.
        """
        await self.refresh()
        if at >= self.upper:
            if at > (now_ms := self._clock.now_ms()):
                raise NotYet(
                    f"definitions as of {at} are not known yet: it is {now_ms}",
                    requested=at, upper=frontier(max(self.upper, now_ms + 1)),
                )  # fmt: skip
            return self.live()
        rows = None
        while rows is None:
            try:
                rows = await self._collections.read_without_hold(CATALOG, at)
            except BeforeSince as error:
                since = (await self._collections.status(CATALOG)).since
                raise BeforeSince(
                    f"definitions as of {at} are not kept any more: they can be read since {sole_time(since)}; "
                    "the setting catalog.keep_s says how long later ones are kept",
                    **error.details,
                ) from None
        found = [self._known(row) for row in rows.select(_SCHEMA.names).to_pylist()]
        return sorted((each for each in found if not each.deleted), key=_age)

    def _known(self, row: Row) -> Stored:
        """The resource of a row, which is not read again where it is as it was then."""
        key = _key(row)
        return self._rows[key] if self._written.get(key) == row else _stored(row)

    def sharing(self, name: str) -> list[Stored]:
        """The sources that share their bindings under a name."""
        found = [each for each in self._named(name) if each.shares == name and not each.deleted]
        return sorted(found, key=_age)

    def shared_before(self, name: str) -> bool:
        """Whether sources, as far as is known of them, have shared their bindings under a name."""
        return any(stored.shares == name for stored in self._named(name))

    def bound_by_others(self, stored: Stored) -> frozenset[str]:
        """The bindings that other resources share with a source.

        Bindings that nobody shares stay unshared: a later resource gets bindings of its own.
        """
        own = stored.resource.kind, stored.prefix
        return frozenset(
            other.remap
            for other in self._rows.values()
            if other.shares is not None
            and not other.deleted
            and (other.resource.kind, other.prefix) != own
        )

    def _named(self, name: str) -> list[Stored]:
        """All that has the name, or shares bindings under it, deleted or not."""
        return [self._rows[key] for key in self._by_name.get(name, ())]

    def _add(self, rows: Mapping[Key, Stored]) -> None:
        """Know these rows, in place of those of the same resources."""
        for key, stored in rows.items():
            known = self._rows.get(key)
            for name in () if known is None else _names(known):
                self._by_name[name].discard(key)
            self._rows[key] = stored
            for name in _names(stored):
                self._by_name.setdefault(name, set()).add(key)

    def next_incarnation(self, kind: str, name: str) -> int:
        """The number of a resource that is about to be created."""
        before = self._rows.get((kind, name))
        return 1 if before is None else before.incarnation + 1

    def first_after(self, name: str, now_ms: int) -> int:
        """The first instant of which what had the name, and is deleted now, cannot have said
        anything.

        Bindings are made for the end of the interval that is under way.
        """
        before = [stored.resource.spec for stored in self._named(name)]
        intervals = [int(b.timestamp_interval) for b in before if isinstance(b, SourceSpec)]
        return max([now_ms, *(-(-now_ms // each) * each + 1 for each in intervals)])

    async def put(self, resources: Sequence[Stored], planned_at: int | None = None) -> None:
        """Write all resources at one instant; durable on return. Raises: CatalogMoved.

        With `planned_at` they are written only if the upper of the catalog is still the one of the
        plan.
        """
        assert self._read is not None
        if planned_at is not None and planned_at != self.upper:
            raise CatalogMoved
        upper = self.upper
        at = max(upper, self._clock.now_ms())
        made, updates = await compute_beside(
            ROW_COST * len(resources), partial(_updates, resources, self._written, at)
        )
        outcome = await self._collections.compare_and_append(
            CATALOG, frontier(upper), frontier(at + 1), updates, writer="catalog",
        )  # fmt: skip
        if isinstance(outcome, UpperMismatch):
            raise CatalogMoved
        self._written.update(made)
        self._add(dict(zip(made, resources, strict=True)))
        self.upper = at + 1
        await self._let_go(at)

    async def _let_go(self, at: int) -> None:
        """Move the hold behind what was written, unless another process has moved it further."""
        held = await self._collections.read_hold(CATALOG, owner="catalog", lease_ms=None)
        if held.frontier != frontier(at) and held.frontier.precedes(frontier(at)):
            with suppress(UsageError):
                held = await self._collections.downgrade(held, frontier(at))
        self._read = held

    async def delete(self, kind: str, name: str) -> None:
        """Mark a resource as deleted, with what it made still there; its name stays known.

        Raises: CatalogMoved.
        """
        stored = self._rows[kind, name]
        ending = {**stored.resolved, ENDING: True}
        await self.put([replace(stored, deleted=True, resolved=ending)])

    def ending(self) -> list[Stored]:
        """The deleted resources of which it is not known that nothing is left."""
        return [each for each in self._rows.values() if each.deleted and ENDING in each.resolved]

    async def record_end(self, stored: Stored) -> None:
        """Write down that nothing is left of a deleted resource. Raises: CatalogMoved."""
        key = stored.resource.kind, stored.resource.name
        known = self._rows.get(key)
        if known is not None and known.deleted and ENDING in known.resolved:
            left = {name: each for name, each in known.resolved.items() if name != ENDING}
            await self.put([replace(known, resolved=left)])


def _updates(
    resources: Sequence[Stored], written: Mapping[Key, Row], at: int
) -> tuple[dict[Key, dict[str, object]], pa.Table]:
    """The rows of resources, and the updates at an instant that put them in place of others."""
    made = {
        _key(row): row
        for row in (stored.row() for stored in with_looks(resources, RESOURCES_A_LOOK))
    }
    rows = []
    for key, row in made.items():
        if key in written:
            rows.append({**written[key], "_time": at, "_diff": -1})
        rows.append({**row, "_time": at, "_diff": 1})
    schema = pa.schema([*_SCHEMA, ("_time", pa.uint64()), ("_diff", pa.int64())])
    return made, pa.Table.from_pylist(rows, schema)


def _changed(rows: Mapping[Key, Row], updates: Sequence[Row]) -> dict[Key, Row]:
    """Rows after updates in the order of their times, at one time those that take away first."""
    found = dict(rows)
    for update in updates:
        row = {name: update[name] for name in _SCHEMA.names}
        if update[DIFF] > 0:
            found[_key(row)] = row
        elif found.get(_key(row)) == row:
            del found[_key(row)]
    return found


def _names(stored: Stored) -> set[str]:
    return {stored.resource.name, *filter(None, [stored.shares])}


def _age(stored: Stored) -> tuple[int, str, str]:
    return stored.created_ms, stored.resource.kind, stored.resource.name


def _key(row: Row) -> Key:
    return str(row["kind"]), str(row["name"])


def _stored(row: Row) -> Stored:
    created_ms, incarnation = row["created_ms"] or 0, row["incarnation"] or 1
    try:
        resource = stored_resource(json.loads(row["document"]), CATALOG)
        resolved = json.loads(row["resolved"])
        if "before" in resolved:
            stored_resource(resolved["before"], CATALOG)
        if (resource.kind, resource.name) != _key(row) or not isinstance(resolved, dict):
            raise UsageError(f"a row of {_key(row)} holds {resource}")
        return Stored(resource, created_ms, incarnation, resolved, row["deleted"])
    except Exception as error:  # whatever a row holds, it is one resource that does not run
        resolved = _resolved_of(row)
        unread = resource_of(row, error)
        return Stored(unread, created_ms, incarnation, resolved, bool(row["deleted"]), row)


def _resolved_of(row: Row) -> Mapping[str, Any]:
    try:
        resolved = json.loads(row["resolved"])
    except (TypeError, ValueError, RecursionError):
        return {}
    return resolved if isinstance(resolved, dict) else {}
