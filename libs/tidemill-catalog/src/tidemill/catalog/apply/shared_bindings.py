"""Sources that share their bindings: who may join, and from which instant on.

Bindings that are shared have the id that the first of these sources would have given its own, so an
id never means others. They begin when that source is applied: what the name they are shared under
meant before is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from tidemill.catalog.apply.context import ApplyContext
from tidemill.catalog.apply.turns import in_turns
from tidemill.catalog.entry import located
from tidemill.catalog.store import BEGINS, REMAP, Stored
from tidemill.errors import UnknownCollection, UsageError
from tidemill.runtime.resources import Resource, SourceSpec
from tidemill.time import sole_time

JOINING_MS = 60_000
"""For so long the bindings are held for a source that is to join: it has to begin within it."""


async def join_bindings(
    fresh: Sequence[Stored], resources: Sequence[Resource], context: ApplyContext, now_ms: int,
    makers: Collection[str],
) -> list[Stored]:  # fmt: skip
    """New resources, the sources among them with the bindings that they share.

    `resources` are all that are applied; resources of the kinds `makers` give their names to
    collections. Raises: UsageError with its place.
    """
    made = [resource for resource in resources if resource.kind in makers]
    async for resource in in_turns(made):
        if context.store.sharing(resource.name):
            with located(resource, "metadata", "name"):
                raise UsageError(
                    f"sources share their bindings as {resource.name}: choose another name",
                    reason="Namesake",
                )
    names = {resource.name: str(resource) for resource in made}
    known: list[Stored] = []
    joining: defaultdict[str, list[Stored]] = defaultdict(list)
    async for stored in in_turns(fresh):
        spec = stored.resource.spec
        if isinstance(spec, SourceSpec) and spec.remap is not None:
            with located(stored.resource, "spec", "remap"):
                _refuse_taken(spec.remap, names, context, makers)
                # Those of this apply are like the first of them.
                others = [*context.store.sharing(spec.remap), *joining[spec.remap][:1]]
                stored = await _join(stored, spec, spec.remap, others, context, now_ms)
            joining[spec.remap].append(stored)
        known.append(stored)
    return known


def _refuse_taken(
    name: str, names: Mapping[str, str], context: ApplyContext, makers: Collection[str],
) -> None:  # fmt: skip
    """Raises: UsageError if the name is that of other collections."""
    taken = [names[name]] if name in names else []
    taken += [f"{kind}/{name}" for kind in makers if context.store.get(kind, name) is not None]
    created = context.catalog.created(name)
    taken += [] if created is None else [f"the collection {created}"]
    if taken:
        raise UsageError(
            f"the bindings would be named as {taken[0]} is: choose a name that nothing has",
            reason="Namesake",
        )


async def _join(
    stored: Stored, spec: SourceSpec, name: str, others: Sequence[Stored],
    context: ApplyContext, now_ms: int,
) -> Stored:  # fmt: skip
    """The source with the bindings that `others` share under the name; with new ones if nobody
    does.
    """
    own = stored.resource.name  # which may be there as something that cannot be read
    sharing = [each for each in others if each.resource.name != own]
    for other in sharing:
        _refuse_other(spec, other, name)
    if not sharing:
        interval = int(spec.timestamp_interval)
        begins = max(context.store.first_after(name, now_ms), -(-now_ms // interval) * interval + 1)
        begins = max(begins, stored.begins)
        return _with(stored, name, f"{stored.prefix}/remap", begins, begins)
    bindings = sharing[0]
    since = bindings.bound_from
    with suppress(UnknownCollection):  # of a source that is applied with this one, or begins later
        # NB: the source holds it itself, without a lease, once it has begun.
        held, _ = await context.collections.acquire(
            bindings.remap, owner=f"joining:{name}", lease_ms=JOINING_MS
        )
        since = sole_time(held.frontier)
    begins = max(stored.begins, since)
    return _with(stored, name, bindings.remap, bindings.bound_from, begins)


def _with(stored: Stored, name: str, collection: str, bound_from: int, begins: int) -> Stored:
    shared = {"name": name, "collection": collection, "begins": bound_from}
    return replace(stored, resolved={**stored.resolved, REMAP: shared, BEGINS: begins})


def _refuse_other(spec: SourceSpec, other: Stored, name: str) -> None:
    """Raises: UsageError if the bindings of another source say nothing of what this one reads."""
    theirs = other.resource.spec
    if not isinstance(theirs, SourceSpec):
        raise UsageError(
            f"{other.resource}, which shares the bindings {name}, cannot be read: mend or delete it first",
            reason="Remap",
        )
    mine, its = _bound_by(spec), _bound_by(theirs)
    differing = [
        f"{field} is {said}, that of {other.resource} {its[field]}"
        for field, said in mine.items()
        if said != its[field]
    ]
    if differing:
        raise UsageError(
            f"bindings {name} are of one topic at one interval, and {'; '.join(differing)}: make them equal, or "
            "share under another name",
            reason="Remap",
        )


def _bound_by(spec: SourceSpec) -> dict[str, str]:
    """The clock that the bindings of a source describe, as field → value of its spec."""
    assert spec.kafka is not None
    return {
        "kafka.bootstrap": spec.kafka.bootstrap or "that of this Tidemill",
        "kafka.topic": spec.kafka.topic,
        "timestampInterval": str(spec.timestamp_interval),
    }
