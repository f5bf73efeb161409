"""Collections of a view: outputs, errors, state, and those of a version that is to take over."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa

from tidemill.catalog import versions
from tidemill.catalog.entry import PLACES, SYSTEM, PlannedView, own_prefix
from tidemill.catalog.lifetime import close_collection, ensure_collection, release_holds
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.catalog.store import Stored
from tidemill.catalog.written_into import writer_of, written_into
from tidemill.errors import UnknownCollection, UsageError
from tidemill.runtime.resources import ViewSpec, retained_ms
from tidemill.shard import Collections, Description
from tidemill.time import Frontier, frontier


class ViewCollections:
    """Collections of a view, and its holds on its inputs.

    `changed` is the newest version if that is not read yet, and None once it is.
    """

    def __init__(
        self, stored: Stored, view: PlannedView, changed: PlannedView | None,
        collections: Collections,
    ) -> None:  # fmt: skip
        self.stored = stored
        self.name = f"View/{stored.resource.name}"
        self.view = view
        self.changed = changed
        self._collections = collections

    @property
    def outputs(self) -> list[str]:
        """The collections that users read."""
        return [named.collection for named in self.view.outputs.values()]

    @property
    def base(self) -> str:
        """Prefix of what belongs to the version that is read."""
        return own_prefix(self.stored, versions.version_of(versions.served(self.stored)))

    @property
    def newest(self) -> str:
        """Prefix of what belongs to the newest version."""
        return own_prefix(self.stored, versions.version_of(self.stored))

    def range_of(self, number: int) -> str:
        """Prefix of what belongs to one range of the view."""
        return f"{self.base}/{number}"

    @property
    def ranges(self) -> list[str]:
        """Prefixes of all ranges; none if the view is kept whole."""
        count = spec_of(self.view).ranges
        return [] if count == 1 else [self.range_of(number) for number in range(count)]

    def places(self) -> dict[str, tuple[int, ...]]:
        """The columns by whose hash each input is divided among ranges; none: it is in all."""
        return {name: tuple(each) for name, each in self.stored.resolved[PLACES].items()}

    def begins_at(self, view: PlannedView) -> Frontier | None:
        """The least time of history that counts; None for all of it.

        Ticks of the system's timeline do not run in the past.
        """
        spec = spec_of(view)
        if spec.hydrate_from is not None:
            return frontier(spec.hydrate_from)
        if view.ticks is not None and view.timeline == SYSTEM:
            return frontier(self.stored.created_ms)
        return None

    def written(self) -> dict[str, str]:
        """By output the collection of a user that it is written on into."""
        found = written_into(self.stored.resource).items()
        return {
            self.view.outputs[predicate].collection: into
            for predicate, into in found
            if predicate in self.view.outputs
        }

    async def prepare(self) -> None:
        """Create the outputs where every input can be read from on, and hold the inputs there."""
        if self.changed is not None:
            await self._hold_inputs(self.changed, self.newest)
            return
        ranges = self.ranges
        starts = [await self._hold_inputs(self.view, each) for each in ranges or [self.base]]
        # The holds of ranges have moved, if some of them have; their collections are there then.
        start = max(starts, key=lambda each: each.elements)
        written = (*self.outputs, f"{self.stored.prefix}/errors")
        for collection in (*written, *(f"{each}/state" for each in ranges or [self.base])):
            await self.create(collection, start)
        await self._hold_outputs(written)
        for output in self.written():
            owner = writer_of(self.stored.prefix)
            await self._collections.read_hold(output, owner=owner, lease_ms=None)

    async def _hold_outputs(self, written: Sequence[str]) -> None:
        """A write capability for each range, on each collection that all of them write.

        IMPORTANT: all ranges have theirs before one of them writes, so that upper is their meet.
        """
        for collection in written:
            for each in self.ranges:
                await self._collections.write_hold(
                    collection, owner=writer_of_range(each), users=False
                )

    async def _hold_inputs(self, view: PlannedView, own: str) -> Frontier:
        """Hold the inputs of a version; where it can begin. Raises: UsageError for a closed one."""
        begin = self.begins_at(view) or frontier(0)
        for collection in sorted({named.collection for named in view.inputs.values()}):
            held = await self._collections.read_hold(collection, owner=f"view:{own}", lease_ms=None)
            begin = held.frontier if begin.precedes(held.frontier) else begin
        if begin.empty:
            raise UsageError(f"{self.name}: one of its inputs is closed", reason="Closed")
        return begin

    async def create(self, collection: str, begin: Frontier) -> None:
        """Create a collection of the view: an output or its errors for readers, or its own ones."""
        _, _, part = collection.rpartition("/")
        own = "@" in collection or part == "state"
        if part == "state" and self.view.ticks is not None:
            # Proofs over ticks begin with the state, as far back as outputs are read.
            own = False
        schemas: dict[str, pa.Schema] = {"errors": ERROR_SCHEMA, "state": STATE_SCHEMA}
        for view in (self.view, self.changed):
            outputs = {} if view is None else view.outputs
            schemas |= {p: named.shape.schema for p, named in outputs.items()}
        kind = {"errors": "errors", "state": "state"}.get(part, "view")
        retain = retained_ms(spec_of(self.changed or self.view))
        description = Description(
            schemas[part], kind=kind, timeline=self.view.timeline,
            retain_ms=0 if own else retain,
        )  # fmt: skip
        await ensure_collection(self._collections, collection, description, begin)
        held = (await self._collections.description(collection)).schema.names
        if held != schemas[part].names:
            raise UsageError(
                f"{collection} was made with the columns {', '.join(held)}, and its rows would have "
                f"{', '.join(schemas[part].names)}: delete the view and apply it anew",
                reason="Incompatible",
            )

    async def clean(self) -> None:
        """Close collections of versions that nobody reads, and give up the holds of these."""
        used, past = versions.names_of(self.stored)
        owners = frozenset(f"{what}:{name}" for name in past for what in ("view", "takeover"))
        if not versions.changing(self.stored):
            owners |= {f"takeover:{name}" for name in used}
        for collection in await self._collections.ids():
            if self._is_left(collection, used):
                owned = owners | {f"view:{name}" for name in used}
                await close_collection(self._collections, collection, owned)
            else:
                with suppress(UnknownCollection):
                    await release_holds(self._collections, collection, owners)

    def _is_left(self, collection: str, used: list[str]) -> bool:
        """Whether a collection is of a past version, or only served the takeover of the present
        one.
        """
        prefix = self.stored.prefix
        mine = collection == f"{prefix}/state" or collection.startswith(f"{prefix}@")
        if not mine or any(collection == f"{name}/state" for name in used):
            return False
        return not (versions.changing(self.stored) and collection.startswith(f"{self.newest}/"))

    async def release(self) -> None:
        """Close what it writes, give up the holds on what it reads."""
        used, past = versions.names_of(self.stored)
        prefix = self.stored.prefix
        owners = frozenset(f"{w}:{name}" for name in (*used, *past) for w in ("view", "takeover"))
        owners |= {writer_of(prefix), *(f"view:{each}" for each in self.ranges)}
        owners |= set(map(writer_of_range, self.ranges))
        states = [f"{each}/state" for each in (prefix, *self.ranges)]
        if self.ranges:
            # A range that is ahead must not be read without the others once their holds are gone.
            for collection in (*self.outputs, f"{prefix}/errors"):
                with suppress(UnknownCollection):
                    await self._collections.retire(collection)
        for collection in await self._collections.ids():
            if collection in (*self.outputs, f"{prefix}/errors", *states) or (
                collection.startswith(f"{prefix}@")
            ):
                await close_collection(self._collections, collection, owners)
        for view in (self.view, self.changed):
            for named in () if view is None else view.inputs.values():
                await release_holds(self._collections, named.collection, owners)
        for into in written_into(self.stored.resource).values():
            with suppress(UnknownCollection):
                await release_holds(self._collections, into, owners)


def writer_of_range(prefix: str) -> str:
    """In whose name a range has its write capabilities; its holds are given up apart."""
    return f"range:{prefix}"


def spec_of(view: PlannedView) -> ViewSpec:
    """The declaration of a version."""
    spec = view.stored.resource.spec
    assert isinstance(spec, ViewSpec)
    return spec
