"""Status of resources: their health, their frontiers, and the holders of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypedDict

from tidemill.catalog.apply.turns import in_turns
from tidemill.catalog.entry import SYSTEM, read_name
from tidemill.catalog.made.making import made_by
from tidemill.catalog.names import meant
from tidemill.catalog.own_log import topic_of
from tidemill.catalog.resource_yaml import yaml_of
from tidemill.catalog.store import ResourceStore, Stored
from tidemill.catalog.versions import served
from tidemill.errors import (
    Corrupt,
    Indeterminate,
    TidemillError,
    Unavailable,
    UnknownCollection,
    UsageError,
)
from tidemill.host.context import Context
from tidemill.host.reports import PartReports, Reports, combined
from tidemill.host.roles import parts_for
from tidemill.host.speed import time_left_ms
from tidemill.host.supervised import RUNNING, Health
from tidemill.rpc.messages import Json, ResourceStatus, Work
from tidemill.rpc.paging import Page, cut
from tidemill.runtime.breaking import told
from tidemill.runtime.problems import did_you_mean
from tidemill.runtime.resources import (
    KINDS,
    ActionSpec,
    ArrangementSpec,
    HoldSpec,
    Resource,
    SourceSpec,
    ViewSpec,
)
from tidemill.shard import CollectionStatus
from tidemill.time import Frontier, sole_time
from tidemill_query.failure_counts import FailureCounts
from tidemill_query.listing import ALONE_AGE_S, NOTHING_BOUND, TURN
from tidemill_query.retention_report import who_holds, why_kept


class Seen(NamedTuple):
    """Statuses of collections, or why there is none; the furthest upper of each timeline."""

    made: Mapping[str, CollectionStatus | Exception]
    furthest: Mapping[str, int]

    @property
    def found(self) -> dict[str, CollectionStatus]:
        """The statuses that there are."""
        made = self.made.items()
        return {name: each for name, each in made if isinstance(each, CollectionStatus)}

    def of(self, collection: str) -> CollectionStatus:
        """The status of a collection that was looked at. Raises: why there is none."""
        found = self.made[collection]
        if isinstance(found, Exception):
            raise found
        return found


class Progress(TypedDict, total=False):
    """Fields of the status of a source or view; none of other resources."""

    records_per_s: float
    records_behind: int
    left_ms: int | None


def progress_of(details: Mapping[str, Any]) -> Progress:  # details are any JSON
    """The progress that the details of a resource tell of; empty where a part tells of none.

    Details of a source come from two parts, remap and reclock.
    """
    if "changesBehind" in details:
        behind, per_s = details["changesBehind"], details["changesPerSecond"]
        arriving = 0.0
    elif "offsetsWritten" in details and "offsetsKnown" in details:
        written, per_s = details["offsetsWritten"], details["writesPerSecond"]
        known = details["offsetsKnown"]
        behind = sum(max(0, offset - written.get(p, 0)) for p, offset in known.items())
        arriving = details["arrivesPerSecond"]
    else:
        return {}
    left_ms = time_left_ms(behind, per_s, arriving)
    return {"records_per_s": per_s, "records_behind": behind, "left_ms": left_ms}


def told_by(work: Work) -> dict[str, Any]:  # details are any JSON
    """The details of a part; of a range of a view also whose process keeps it."""
    details: dict[str, Any] = dict(work.details)
    process = {"process": work.process, "epoch": work.epoch}
    if ranges := details.get("ranges"):
        details["ranges"] = {number: {**process, **each} for number, each in ranges.items()}
    return details


def of_ranges(details: Sequence[dict[str, Any]]) -> dict[str, Json]:  # details are any JSON
    """The details of a view of several ranges: of each, which is the slowest, which the heaviest.

    All else is told of the slowest one, with whose upper the view is read.
    """
    told = [each for each in details if "ranges" in each]
    ranges = {number: found for each in told for number, found in each["ranges"].items()}
    if not ranges:
        return {}
    slowest = min(ranges, key=lambda number: ranges[number]["upper"])
    heaviest = max(ranges, key=lambda number: ranges[number]["rows"])
    whole = next(each for each in told if slowest in each["ranges"])
    ordered = {number: ranges[number] for number in sorted(ranges, key=int)}
    return {**whole, "ranges": ordered, "slowest": slowest, "heaviest": heaviest}


class ResourceStatuses:
    """The states of resources: of those that run in this process, and of those that others have
    claimed.
    """

    def __init__(self, context: Context, reports: Reports) -> None:
        self._context = context
        self._store = context.store
        self._reports = reports
        self._texts: dict[tuple[str, str], list[tuple[Resource, str]]] = {}
        self._failures = FailureCounts(context.collections)

    async def get(
        self,
        kind: str | None,
        name: str | None,
        documents: bool = True,
        page: Page | None = None,
    ) -> Sequence[ResourceStatus]:
        """Resources of a kind and name; without them all. Without `documents` none is written.

        Those of a page alone are looked at.
        """
        wanted = None if kind is None else kind_of(kind, self._store)
        found = [
            stored
            for stored in self._store.live()
            if wanted in (None, stored.resource.kind) and name in (None, stored.resource.name)
        ]
        found = cut(found, page, lambda stored: str(stored.resource))
        said = await self._reports.of(found)
        if kind is None and name is None and page is None:
            known = {(stored.resource.kind, stored.resource.name) for stored in found}
            self._texts = {key: text for key, text in self._texts.items() if key in known}
            self._failures.keep({stored.prefix for stored in found})
        seen = await self._look(found, ALONE_AGE_S if self._reports.sole else None)
        return [
            self._status(stored, said, seen, documents=documents)
            async for stored in in_turns(found, TURN)
        ]

    def _text(self, resource: Resource) -> str:
        """The document as YAML, written once: that takes ten times as long as all else of a status.

        Those of two versions are kept: while one takes over, the other is read.
        """
        known = self._texts.setdefault((resource.kind, resource.name), [])
        found = next((text for of, text in known if of is resource or of == resource), None)
        if found is None:
            found = yaml_of(resource.to_document())
            self._texts[resource.kind, resource.name] = [(resource, found), *known[:1]]
        return found

    async def describe(self, kind: str, name: str) -> ResourceStatus:
        """One resource with its details, and who keeps the history of its collections."""
        stored = live(self._store, kind, name)
        said, seen = await self._reports.of([stored]), await self._look([stored], 0.0)
        status = self._status(stored, said, seen)
        try:
            kept: list[Json] = []
            holders: list[Json] = []
            for named in made_by(stored, self._context.catalog):
                collection = seen.of(named.collection)
                kept += why_kept(collection)
                holders += who_holds(collection)
            failed = await self._failures.of(stored, seen.found)
        except (UnknownCollection, Corrupt):  # its status says why
            return status
        return replace(
            status, details={**status.details, **failed, "holders": holders, "heldBack": kept}
        )

    def _health(self, stored: Stored, said: PartReports) -> tuple[Health, dict[str, Json]]:
        """The health of the work on a resource, and its details."""
        resource = stored.resource
        found = said.get((resource.kind, resource.name), {})
        parts = {part: found.get(part) for part in parts_for(resource)}
        details = [told_by(work) for work in parts.values() if work is not None]
        if isinstance(resource.spec, ViewSpec) and resource.spec.ranges > 1:
            return combined(parts), of_ranges(details)
        return combined(parts), dict(pair for each in details for pair in each.items())

    async def _look(self, resources: Sequence[Stored], age_s_max: float | None = None) -> Seen:
        """The collections of resources, as `Collections.statuses` finds them, and the streams of
        their timelines, all in one pass.

        Raises: Unavailable, Indeterminate.
        """
        catalog, collections = self._context.catalog, self._context.collections
        wanted: dict[str, None] = {}
        async for stored in in_turns(resources, TURN):
            with suppress(TidemillError):  # the status says why
                wanted |= dict.fromkeys(self._read_of(stored))
                wanted |= dict.fromkeys(each.collection for each in made_by(stored, catalog))
        made = await collections.statuses(wanted, age_s_max)
        timelines = {each.timeline for each in made.values() if isinstance(each, CollectionStatus)}
        streams = {name: catalog.timeline_of(name) for name in timelines - {SYSTEM}}
        others = {each for ids in streams.values() for each in ids}.difference(made)
        made |= await collections.statuses(others, age_s_max)
        for each in made.values():
            if isinstance(each, Unavailable | Indeterminate):
                raise each
        return Seen(
            made, {name: _furthest(made[each] for each in ids) for name, ids in streams.items()}
        )

    def _status(
        self, stored: Stored, said: PartReports, seen: Seen, *, documents: bool = True
    ) -> ResourceStatus:
        """The status of a resource.

        Without `documents` neither its own one nor that of the version that is read is written.
        """
        resource = stored.resource
        health, details = self._health(stored, said)
        if health == RUNNING and isinstance(resource.spec, SourceSpec) and _is_unused(details):
            health = Health(True, "NoRecords", f"no records in {self._origin(stored)} yet")
        if health == RUNNING:
            health = versions_health(details) or health
        since = upper = lag_ms = None
        try:
            since, upper, timeline = self._frontiers(stored, seen)
            lag_ms = self._lag(upper, timeline, seen)
            if documents and (read := served(stored)) is not stored:
                details = {**details, "served": self._text(read.resource)}
        except Exception as error:  # of one resource no more is known; the others are told of
            health = _unknown(health, error)
        return ResourceStatus(
            kind=resource.kind,
            name=resource.name,
            ready=health.ready,
            reason=health.reason,
            message=health.message,
            since=since,
            upper=upper,
            lag_ms=lag_ms,
            age_ms=max(0, self._context.clock.now_ms() - stored.created_ms),
            document_yaml=self._text(resource) if documents else "",
            details={**details, **_reads(stored, self._context)},
            **progress_of(details),
        )

    def _origin(self, stored: Stored) -> str:
        """The topic of a source and its broker, or its files, in words."""
        spec = stored.resource.spec
        assert isinstance(spec, SourceSpec)
        if spec.file is not None:
            return "its files"
        bootstrap = spec.kafka.bootstrap if spec.kafka is not None else None
        own = self._context.settings.log.removeprefix("kafka:")
        return f"topic {topic_of(stored)} at {bootstrap or own or 'the own log'}"

    def _read_of(self, stored: Stored) -> list[str]:
        """The collections whose frontiers are those of a resource."""
        if isinstance(stored.resource.spec, ActionSpec):
            # An eager action covers the watched collection as far as its corrections go.
            part = "corrections" if stored.resource.spec.eager else "outbox"
            return [f"{stored.prefix}/{part}"]
        if isinstance(stored.resource.spec, HoldSpec):
            read = read_name(stored, stored.resource.spec.collection)
            return [self._context.catalog.named(read).collection]
        return [named.collection for named in made_by(stored, self._context.catalog)]

    def _frontiers(
        self, stored: Stored, seen: Seen
    ) -> tuple[Frontier | None, Frontier | None, str]:
        """The least since and upper of what a resource makes, and the timeline."""
        since: Frontier | None = None
        upper: Frontier | None = None
        timeline = SYSTEM
        for collection in self._read_of(stored):
            status = seen.of(collection)
            timeline = status.timeline
            since = status.since if since is None else since.meet(status.since)
            upper = status.upper if upper is None else upper.meet(status.upper)
        return since, upper, timeline

    def _lag(self, upper: Frontier | None, timeline: str, seen: Seen) -> int | None:
        """Milliseconds by which upper is behind the clock, or behind the furthest stream of its
        timeline.
        """
        if upper is None or upper.empty or sole_time(upper) <= NOTHING_BOUND:
            return None
        if timeline == SYSTEM:
            return max(0, self._context.clock.now_ms() - sole_time(upper))
        return max(0, seen.furthest[timeline] - sole_time(upper))


def _furthest(streams: Iterable[CollectionStatus | Exception]) -> int:
    """The greatest upper of the streams that there are; 0 if there is none."""
    uppers = [each.upper for each in streams if isinstance(each, CollectionStatus)]
    return max((0 if each.empty else sole_time(each) for each in uppers), default=0)


def _reads(stored: Stored, context: Context) -> dict[str, Json]:
    """The names of the collections that a resource reads, as its detail `reads`."""
    spec, names = stored.resource.spec, []
    if isinstance(spec, ViewSpec):
        with suppress(TidemillError):  # a view that cannot be planned says why elsewhere
            planned = context.catalog.planned(stored.resource.name)
            names = [named.name for named in planned.inputs.values()]
    elif isinstance(spec, ActionSpec):
        names = [spec.view]
    elif isinstance(spec, HoldSpec | ArrangementSpec):
        names = [read_name(stored, spec.collection)]
    told: list[Json] = [*sorted(set(names))]
    return {"reads": told} if told else {}


def versions_health(details: Mapping[str, Json]) -> Health | None:
    """Health of a view of which a new version is on its way, or was aborted; None of any other."""
    changing, aborted = details.get("changing"), details.get("aborted")
    if aborted is not None:
        return Health(
            True, "Aborted",
            f"version {aborted} was aborted, and version {details['version']} goes on; apply the "
            "program of either, or another one",
        )  # fmt: skip
    if not isinstance(changing, dict):
        return None
    if not changing.get("waits"):
        return Health(
            True, RUNNING.reason,
            f"new version {changing['to']} takes over once time has passed its {changing['upper']} "
            "and the upper of the old one",
        )  # fmt: skip
    said = f"is being evaluated, up to {changing['upper']}"
    if "asOf" in changing:
        rows = changing["differs"]
        told = "more rows than are compared" if rows is None else f"{rows} rows differ"
        said = f"{told} as of {changing['asOf']}"
    says = f"new version {changing['to']} waits: {said}; approve or abort"
    return Health(True, "TakeoverWaits", says)


def _is_unused(details: Mapping[str, Json]) -> bool:
    """Whether the log of a source was looked at, and has never had a record."""
    known = details.get("offsetsKnown")
    return (
        isinstance(known, dict) and bool(known or details["bindings"]) and not any(known.values())
    )


def live(store: ResourceStore, kind: str, name: str) -> Stored:
    """A resource that is there. Raises: UnknownCollection."""
    wanted = kind_of(kind, store)
    stored = store.get(wanted, name)
    if stored is None:
        raise unknown(store, wanted, name)
    return stored


def unknown(store: ResourceStore, kind: str, name: str) -> UnknownCollection:
    """The refusal of a name that no resource of the kind has, with the nearest that the caller may
    read.
    """
    known = [each.resource.name for each in store.live() if each.resource.kind == kind]
    says = f"there is no {kind} {name}{meant(name, known)}"
    return UnknownCollection(says, kind=kind, name=name)


def kind_of(name: str, store: ResourceStore) -> str:
    """A kind as users write it: any case, singular or plural; also one that only another version
    knows.
    """
    for kind in dict.fromkeys([*KINDS, *(stored.resource.kind for stored in store.live())]):
        if name.lower() in (kind.lower(), f"{kind.lower()}s"):
            return kind
    raise UsageError(f"there is no kind {name!r}; {did_you_mean(name, KINDS)}", reason="kind")


def _unknown(health: Health, error: Exception) -> Health:
    """The health of a resource whose collections cannot be looked at."""
    if not health.ready:
        return health
    if isinstance(error, TidemillError):
        return Health(False, "Stalled", str(error))
    return Health(False, "Broken", told(error))
