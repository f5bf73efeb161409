"""The plan of an apply: new resources, permitted changes, and the order in which they begin."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.catalog.apply.context import ApplyContext, Origins
from tidemill.catalog.apply.documents import MAKERS, taken
from tidemill.catalog.apply.permissions import decided, permit_names, permit_topics
from tidemill.catalog.apply.ranges import refuse_spark, with_places
from tidemill.catalog.apply.restatement import refuse_other_columns, stated_anew
from tidemill.catalog.apply.shared_bindings import join_bindings
from tidemill.catalog.apply.turns import forget_all, in_turns
from tidemill.catalog.apply.widths import refuse_wide_rows
from tidemill.catalog.catalog import Catalog
from tidemill.catalog.eager import refuse_eager
from tidemill.catalog.entry import CatalogEntry, PlannedView, columns_of, located
from tidemill.catalog.firing import refuse_forgotten, refuse_template
from tidemill.catalog.names import resource_of
from tidemill.catalog.own_log import in_own_log
from tidemill.catalog.places import check_resource
from tidemill.catalog.record_shape import TEXTS, read_descriptors
from tidemill.catalog.store import BEGINS, ResourceStore, Stored
from tidemill.catalog.versions import aborted, changing, plan_version, served
from tidemill.catalog.versions import changed as changed_view
from tidemill.datalog.check_times import rule_without_time
from tidemill.datalog.goals import goal_over
from tidemill.errors import TidemillError, UnknownCollection, UsageError
from tidemill.rpc.identity import Principal
from tidemill.runtime.formats import (
    AvroFormat,
    CsvFormat,
    JsonFormat,
    ProtobufFormat,
    infer_columns,
)
from tidemill.runtime.resources import (
    ActionSpec,
    ArrangementSpec,
    ColumnSpec,
    HoldSpec,
    Resource,
    SourceSpec,
    TableSpec,
    UnreadableSpec,
    ViewSpec,
)
from tidemill.runtime.resources.decoding import has_header, record_format
from tidemill.runtime.resources.rules import EVENT_COLUMNS
from tidemill.shard.offloading import all_of

_ORDER = {"Source": 0, "Table": 1, "View": 2, "Action": 3, "Arrangement": 4, "Hold": 5}


GAINS = (
    "a table, or a source without keys whose records or files name their columns, may gain nullable columns "
    "behind those it has while no view reads it"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """An apply that may go ahead over the catalog as it was: nothing has been written."""

    created: tuple[Stored, ...]
    configured: tuple[Stored, ...]
    unchanged: tuple[Resource, ...]


async def plan_apply(
    read: Sequence[Resource],
    context: ApplyContext,
    now_ms: int,
    by: Principal,
) -> Plan:
    """The plan of these documents: new, changed and unchanged resources, in the order of their
    reads.

    New views are planned in `context.catalog`; after a refusal the catalog is as before. A right
    that `by` lacks is refused before anything else of a resource is looked at. Raises: UsageError
    naming file and line, for all documents or none; Denied.
    """
    store = context.store
    resources = sorted(read, key=lambda r: _ORDER[r.kind])
    async for resource in in_turns(resources):
        permit_names(resource, by)
        check_resource(resource, context.places)
    bound = {each.partition("/")[0] for each in await context.collections.ids()}
    fresh: list[Stored] = []
    configured: list[Stored] = []
    mended: list[Stored] = []
    unchanged: list[Resource] = []
    async for resource in in_turns(resources):
        known = store.get(resource.kind, resource.name)
        unread = known is not None and isinstance(known.resource.spec, UnreadableSpec)
        anew = stated_anew(known, resource) if known is not None and unread else None
        if anew is not None:
            permit_topics(resource, by, context.shared_brokers)
            if isinstance(resource.spec, TableSpec):
                await refuse_other_columns(anew, context.collections)
            mended.append(anew)
        elif known is None or unread:
            _refuse_namesake(resource, store)
            _refuse_created(resource, store, context.catalog)
            permit_topics(resource, by, context.shared_brokers)
            number = store.next_incarnation(resource.kind, resource.name)
            unbound = _unbound(Stored(resource, now_ms + len(fresh), number), bound)
            fresh.append(_begun(unbound, store, now_ms))
        elif known.resource == resource:
            unchanged.append(resource)
        else:
            configured.append(_reconfigured(known, resource, context))
    fresh = await join_bindings(fresh, resources, context, now_ms, MAKERS)
    names = {stored.resource.name for stored in [*fresh, *mended]}
    try:
        async for stored in in_turns([*mended, *configured]):
            await context.catalog.foresee(stored)
        mended = await _plan_again(mended, context.catalog, by)
        created = await _plan_new(fresh, context, by)
        async for stored in in_turns(created):
            refuse_wide_rows(stored)
        configured = [decided(stored, context.catalog, by) async for stored in in_turns(configured)]
        async for stored in in_turns(configured):
            if isinstance(stored.resource.spec, ViewSpec):
                _check_version(stored, context)
        plan = Plan(tuple(created), (*mended, *configured), tuple(unchanged))
        _refuse_changing(plan, store)
    except BaseException:  # whatever ends it: what is refused is not known by name
        await forget_all(context.catalog, names)
        raise
    return plan


def _refuse_namesake(resource: Resource, store: ResourceStore) -> None:
    """Raises: UsageError if a resource of another kind has given its name to collections."""
    for kind in MAKERS if resource.kind in MAKERS else ():
        if kind == resource.kind:
            continue  # itself, as something that cannot be read
        other = store.get(kind, resource.name)
        if other is not None:
            raise UsageError(
                f"{resource.place('metadata', 'name')}: metadata.name: {taken(resource, other.resource)}, "
                "which is applied; choose another name",
                reason="Namesake",
            )


def _refuse_created(resource: Resource, store: ResourceStore, catalog: Catalog) -> None:
    """Raises: UsageError if the name would no longer mean a collection that users created, and
    others read.
    """
    name = resource.name
    if resource.kind not in MAKERS or catalog.created(name) is None:
        return
    readers = [f"View/{view}" for view in catalog.readers_of(name)]
    readers += [
        str(other.resource) for other in store.live() if name == _reads(other.resource.spec)
    ]
    if readers:
        raise UsageError(
            f"{resource.place('metadata', 'name')}: metadata.name: {', '.join(readers)} reads the "
            f"collection {name}, which was created by a command; choose another name",
            reason="Namesake",
        )


def _reads(spec: object) -> str | None:
    return spec.collection if isinstance(spec, ArrangementSpec | HoldSpec) else None


def _unbound(stored: Stored, bound: Collection[str]) -> Stored:
    """The resource under a prefix that no collection has: an id never means another collection."""
    while stored.prefix in bound:
        stored = replace(stored, incarnation=stored.incarnation + 1)
    return stored


def _reconfigured(known: Stored, resource: Resource, context: ApplyContext) -> Stored:
    """The stored resource with what may change: how long history is kept, labels, annotations.

    A view may change altogether: that makes a new version of it.
    A table or source that no view reads may gain nullable columns, as GAINS says.
    """
    old, new = known.resource.spec, resource.spec
    if isinstance(old, HoldSpec) and isinstance(new, HoldSpec):
        backward = (old.frontier or 0) > (new.frontier or 0)
        if old.collection == new.collection and not backward:
            return replace(known, resource=resource)
    if isinstance(old, ViewSpec) and isinstance(new, ViewSpec):
        refuse_spark(resource)
        return changed_view(known, resource)
    keep = (SourceSpec, TableSpec)
    if isinstance(old, keep) and type(old) is type(new):
        changed = [
            name
            for name in type(old).__struct_fields__
            if name != "retain" and getattr(old, name) != getattr(new, name)
        ]
        if not changed:
            return replace(known, resource=resource)
        wider = _wider(known, resource, context) if changed == ["columns"] else None
        if wider is not None and not context.catalog.readers_of(resource.name):
            refuse_wide_rows(wider)
            return wider
    else:
        changed = [
            n for n in type(old).__struct_fields__ if getattr(old, n) != getattr(new, n, None)
        ]
        if not changed:
            return replace(known, resource=resource)
    fields = ", ".join(f"spec.{_camel(name)}" for name in changed) or "spec"
    first = (_camel(changed[0]),) if changed else ()
    allowed = f"; {GAINS}" if changed == ["columns"] else ""
    raise UsageError(
        f"{resource.place('spec', *first)}: {resource}: {fields} cannot change while it exists; "
        f"delete it first: tidemill delete {resource.kind.lower()} {resource.name}{allowed}",
        reason="Immutable",
    )


def _wider(known: Stored, resource: Resource, context: ApplyContext) -> Stored | None:
    """The resource with all its columns as they were and behind them new nullable ones; None if it
    is not so.

    Raises: UsageError if its records cannot have the new ones.
    """
    spec, held = resource.spec, columns_of(known)
    assert isinstance(spec, SourceSpec | TableSpec)
    kept, gained = spec.columns[: len(held)], spec.columns[len(held) :]
    if kept != held or not all(column.nullable for column in gained):
        return None
    if isinstance(spec, TableSpec):
        return replace(known, resource=resource)
    if not _names_columns(spec):
        return None
    resolved = {name: value for name, value in known.resolved.items() if name != "columns"}
    with located(resource, "spec", "columns"):
        missing = [c.name for c in gained if c.name not in resolved.get("header", [c.name])]
        if missing:
            raise UsageError(
                f"{resource}: the file has the columns {', '.join(resolved['header'])}, "
                f"not {', '.join(missing)}",
                reason="ColumnsMissing",
            )
        if descriptors := read_descriptors(spec, context.places):
            resolved["descriptors"] = descriptors
        wider = replace(known, resource=resource, resolved=resolved)
        context.origins.refuse_undecodable(wider)
    return wider


def _names_columns(source: SourceSpec) -> bool:
    """Whether records of a source say which columns they have, so that there may be more of them.

    Lines without a header, and texts, do not. The rows of a keyed source are kept packed, each as
    wide as it came.
    """
    told = record_format(source)
    keyed = source.key_format is not None or bool(source.envelope.key)
    plain = isinstance(told, JsonFormat | AvroFormat | ProtobufFormat)
    return not keyed and (plain or has_header(source))


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _check_version(stored: Stored, context: ApplyContext) -> None:
    """Refuse a changed view that cannot take the place of the one that is read.

    Raises: UsageError.
    """
    if changing(stored):
        plan_version(stored, context.catalog)
        return
    if aborted(stored):
        return
    with located(stored.resource):
        context.catalog.plan_view(stored)


def _begun(stored: Stored, store: ResourceStore, now_ms: int) -> Stored:
    """The resource with where it begins, if its name has meant something else before."""
    used = stored.incarnation > 1 or store.shared_before(stored.resource.name)
    if not used or not isinstance(stored.resource.spec, SourceSpec | TableSpec):
        return stored
    begins = store.first_after(stored.resource.name, now_ms)
    return replace(stored, resolved={**stored.resolved, BEGINS: begins})


async def _plan_new(fresh: list[Stored], context: ApplyContext, by: Principal) -> list[Stored]:
    """The new resources with what has to be decided now, in an order in which each can begin."""
    done: list[Stored] = []
    readers: list[Stored] = []
    sources = [each for each in fresh if isinstance(each.resource.spec, SourceSpec)]
    decided_now = iter(await all_of(_resolve(each, context) for each in sources))
    async for stored in in_turns(fresh):
        spec = stored.resource.spec
        if isinstance(spec, SourceSpec):
            resolved = replace(stored, resolved={**stored.resolved, **next(decided_now)})
            context.catalog.plan(resolved)
            done.append(resolved)
        elif isinstance(spec, ViewSpec | ActionSpec):
            readers.append(stored)
        elif isinstance(spec, TableSpec):
            context.catalog.plan(stored)
            done.append(stored)
    done += await _plan_readers(readers, context.catalog, by)
    await _refuse_forgotten(readers, context)
    async for stored in in_turns(fresh):
        if isinstance(stored.resource.spec, ArrangementSpec):
            done.append(decided(stored, context.catalog, by))
            context.catalog.plan(done[-1])
    for stored in fresh:
        if isinstance(stored.resource.spec, HoldSpec):
            done.append(decided(stored, context.catalog, by))
            await _refuse_late_hold(stored, context)
    return [replace(each, created_ms=fresh[0].created_ms + n) for n, each in enumerate(done)]


async def _plan_again(mended: list[Stored], catalog: Catalog, by: Principal) -> list[Stored]:
    """Unreadable resources, planned again before new ones, which may read them."""
    readers = [s for s in mended if isinstance(s.resource.spec, ViewSpec | ActionSpec)]
    done = [stored for stored in mended if stored not in readers]
    for stored in done:
        if isinstance(stored.resource.spec, SourceSpec | TableSpec):
            catalog.plan(stored)
    done += await _plan_readers(readers, catalog, by)
    for stored in done:
        if isinstance(stored.resource.spec, ArrangementSpec):
            catalog.plan(decided(stored, catalog, by))
    return [decided(stored, catalog, by) for stored in done]


async def _refuse_late_hold(stored: Stored, context: ApplyContext) -> None:
    """Raises: UsageError for a hold that is to keep what is forgotten already."""
    spec = stored.resource.spec
    assert isinstance(spec, HoldSpec)
    # A collection that this apply makes has no history yet.
    with suppress(UnknownCollection):
        collection = context.catalog.named(spec.collection).collection
        since = (await context.collections.status(collection)).since
        if spec.frontier is not None and not since.less_equal(spec.frontier):
            with located(stored.resource, "spec", "frontier"):
                raise UsageError(
                    f"{spec.frontier} is forgotten: {spec.collection} is known from {since} on; hold it "
                    "from there, or leave frontier out",
                    reason="Forgotten", since=since,
                )  # fmt: skip


def plan_reader(stored: Stored, catalog: Catalog) -> PlannedView | None:
    """Plan a view or an action over what is planned already. Raises: UsageError with its place."""
    spec, resource = stored.resource.spec, stored.resource
    if isinstance(spec, ActionSpec):
        watched = watched_by(spec, resource, catalog)
        if spec.remember is not None:
            with located(resource, "spec", "remember"):
                _refuse_without_times(catalog.planned(spec.view), watched.name)
    with located(resource):
        return catalog.plan(served(stored))


async def _plan_readers(readers: list[Stored], catalog: Catalog, by: Principal) -> list[Stored]:
    """Views and actions, each after what it reads; what cannot be planned says why."""
    done: list[Stored] = []
    waiting = list(readers)
    while waiting:
        left: list[Stored] = []
        refused: list[TidemillError] = []
        async for stored in in_turns(waiting):
            await catalog.foresee(stored)
            try:
                known = decided(stored, catalog, by)
                done.append(with_places(known, plan_reader(known, catalog)))
            except TidemillError as error:
                refused.append(error)
                left.append(stored)
        if len(left) == len(waiting):
            raise _stuck(left, refused)
        waiting = left
    return done


def _stuck(left: Sequence[Stored], refused: Sequence[TidemillError]) -> TidemillError:
    """Why none of these resources can be planned: the first mistake that is not another one's.

    Resources that only wait for one another read each other.
    """
    makes = {each.resource.name for each in left if isinstance(each.resource.spec, ViewSpec)}

    def waits(error: TidemillError) -> bool:
        missing = isinstance(error, UnknownCollection)
        return missing and resource_of(str(error.details.get("name", ""))) in makes

    own = [error for error in refused if not waits(error)]
    if own:
        return own[0]
    place = refused[0].details.get("position", left[0].resource.position)
    named = ", ".join(str(each.resource) for each in left)
    says = f"{named} reads what it makes" if len(left) == 1 else f"{named} read each other"
    return UsageError(
        f"{place}: {says}: views are made one after another; put rules that need each other into "
        "one view",
        reason="Cycle", position=place,
    )  # fmt: skip


async def _refuse_forgotten(readers: Sequence[Stored], context: ApplyContext) -> None:
    """Refuse actions that would fire from before what is known.

    Raises: UsageError with its place.
    """
    for stored in readers:
        if isinstance(stored.resource.spec, ActionSpec):
            watched = watched_by(stored.resource.spec, stored.resource, context.catalog)
            with suppress(UnknownCollection):  # one of a view that is made together with it
                since = (await context.collections.status(watched.collection)).since
                with located(stored.resource, "spec", "fireFrom"):
                    refuse_forgotten(stored.resource.spec, watched.name, since)


def watched_by(spec: ActionSpec, resource: Resource, catalog: Catalog) -> CatalogEntry:
    """The output of a view that an action's goal is about. Raises: UsageError."""

    with located(resource, "spec", "view"):
        view = catalog.view(spec.view)
    with located(resource, "spec", "goal"):
        predicate = spec.goal.partition("(")[0].strip()
        if predicate not in view.outputs:
            raise UnknownCollection(
                f"the view {spec.view} has no output {predicate}; it has {', '.join(view.outputs)}"
            )
        named = catalog.named(f"{spec.view}/{predicate}")
        goal = goal_over(spec.goal, {predicate: named.shape.argument_columns})
    names = [name for name, _ in named.shape.argument_columns]
    with located(resource, "spec", "sink"):
        told = names if spec.group is None else spec.group.by
        refuse_template(spec.sink, told, eager=spec.eager)
    for field, chosen in (("limit", spec.limit), ("group", spec.group)):
        for at, name in enumerate(() if chosen is None else chosen.by):
            if name not in names:
                with located(resource, "spec", field, "by", at):
                    raise UsageError(
                        f"the goal has no argument {name}; it has {', '.join(names) or 'none'}",
                        reason="UnknownArgument",
                    )
    if spec.remember is not None and not named.shape.timed:
        with located(resource, "spec", "remember"):
            raise UsageError(
                f"{spec.view}/{predicate} has facts without times, of which none gets old: leave it "
                "out, or give the head a @time", reason="NoTimes",
            )  # fmt: skip
    if spec.eager:
        with located(resource, "spec", "eager"):
            refuse_eager(catalog.planned(spec.view), goal, catalog)
    return named


def _refuse_without_times(view: PlannedView, watched: str) -> None:
    """Raises: UsageError for a rule whose facts, which are as old as the timeline, never fire."""
    rule = rule_without_time(view.program, watched.rpartition("/")[2])
    if rule is not None:
        raise UsageError(
            f"{watched} may have facts without times, which are too old to fire at once, by the rule in "
            f"line {rule.source.head.span.line} of the program: leave it out, or give the head a @time",
            reason="NoTimes",
        )


def _refuse_changing(plan: Plan, store: ResourceStore) -> None:
    """Refuse another program for a view that an eager action watches: what it has fired follows
    from the old one.

    Raises: UsageError with its place.
    """
    views = {each.resource.name: each for each in plan.configured if each.resource.kind == "View"}
    for action in (*store.live(), *plan.created):
        spec = action.resource.spec
        if not isinstance(spec, ActionSpec) or not spec.eager:
            continue
        view = views.get(spec.view) or store.get("View", spec.view)
        if view is not None and changing(view):
            asked = view.resource if spec.view in views else action.resource
            with located(asked, "spec"):
                raise UsageError(
                    f"{view.resource} cannot change while {action.resource} watches it and is eager: what "
                    "has fired early follows from its rules; delete the action, and apply it once the view "
                    "has changed",
                    reason="Eager",
                )


async def _resolve(stored: Stored, context: ApplyContext) -> dict[str, Any]:
    """The decisions at the creation of a source: inferred columns, a file's header, offsets,
    limits.
    """
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    resolved: dict[str, Any] = {"rowBytes": context.row_bytes, TEXTS: True}
    header = list(context.origins.header(stored))
    if header:
        resolved["header"] = header
    if in_own_log(spec):
        await context.origins.ensure_topic(stored)
    if not spec.columns:
        sample = await _sample(
            stored, context.origins, 200 if spec.infer is None else spec.infer.sample
        )
        form = record_format(spec)
        assert isinstance(form, CsvFormat | JsonFormat)  # the others have to state their columns
        found = infer_columns(sample, form, header)
        own = {TIME, DIFF, *(EVENT_COLUMNS if spec.event_time is not None else ())}
        if taken := [column.name for column in found if column.name in own]:
            with located(stored.resource, "spec", "infer"):
                raise UsageError(
                    f"the rows have columns that the collection has already, {', '.join(taken)}: state "
                    "spec.columns",
                    reason="ColumnNames",
                )
        columns = [ColumnSpec(name=c.name, type=c.kind, nullable=c.nullable) for c in found]
        resolved["columns"] = msgspec.to_builtins(columns)
    if descriptors := read_descriptors(spec, context.places):
        resolved["descriptors"] = descriptors
    with located(stored.resource, "spec", "columns"):
        # A source that cannot be decoded is refused now, instead of each of its records later.
        context.origins.refuse_undecodable(replace(stored, resolved=resolved))
    start = spec.kafka.start_offset if spec.kafka is not None else "earliest"
    if start != "earliest":
        resolved["first"] = await _first_offsets(stored, context.origins, start)
    return resolved


async def _first_offsets(stored: Stored, origins: Origins, start: str | int) -> dict[str, int]:
    """The first offset of each partition, for a source that does not begin at the oldest record."""
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    assert spec.kafka is not None
    bounds = await origins.bounds(stored)
    if start == "latest":
        return {str(partition): high for partition, (_, high) in bounds.items()}
    for partition, (_, high) in bounds.items():
        if int(start) > high:
            raise UsageError(
                f"{stored.resource.place('spec', 'kafka', 'startOffset')}: {stored.resource}: partition "
                f"{partition} of {spec.kafka.topic} ends at {high}, before {start}",
                reason="StartOffset",
            )
    return {str(partition): max(int(start), low) for partition, (low, _) in bounds.items()}


async def _sample(stored: Stored, origins: Origins, rows: int) -> Sequence[bytes]:
    """The first rows of a source. Raises: UsageError if there are none yet."""
    values = await origins.sample(stored, rows)
    if not values:
        raise UsageError(
            f"{stored.resource.place('spec')}: {stored.resource}: there are no rows to infer columns "
            "from; state spec.columns",
            reason="NoSample",
        )
    return values
