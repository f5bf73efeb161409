"""History of a running server, read as facts: nothing of it is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidemill.arrangement.column_types import arrow_type
from tidemill.arrangement.updates import DIFF, TIME
from tidemill.catalog.entry import CatalogEntry
from tidemill.catalog.record_rows import record_of
from tidemill.client.connection import Client
from tidemill.client.instants import shown
from tidemill.datalog.dataflow.evaluating import presences_of
from tidemill.datalog.presence import Instant, Presence
from tidemill.datalog.records import Record
from tidemill.errors import NotYet, UsageError
from tidemill.rpc.messages import Changes, ResourceStatus
from tidemill.runtime.clock import SystemClock
from tidemill.runtime.resources import Resource, SourceSpec, load_resources
from tidemill.time import sole_time
from tidemill_server.trials.answers import Columns, Rules

_BASES = ("Source", "Table")
_TYPES = {str(arrow_type(name)): name for name in ("int", "float", "text", "bool")}
"""Types that are inferred, by the name of their Arrow type."""
PATIENCE_S = 10
"""Seconds for which an instant is waited for that is not definite yet."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a timeline, [start, at]; `at` is definite."""

    start: int
    at: int


def document_on(status: ResourceStatus) -> str:
    """The document of a resource that answers: a new version may wait, or have been aborted."""
    return str(status.details.get("served") or status.document_yaml)


def resources_on(client: Client) -> list[Resource]:
    """Every resource of the server, in the version that answers. Raises: UsageError."""
    return [
        resource
        for status in client.get()
        if status.document_yaml
        for resource in load_resources(document_on(status), f"{status.kind}/{status.name}")
    ]


def columns_on(client: Client, resources: Sequence[Resource]) -> Columns:
    """Columns that the server has found for sources whose resources state none."""
    wanted = {
        each.name: each.spec.event_time is not None
        for each in resources
        if isinstance(each.spec, SourceSpec) and not each.spec.columns
    }
    found: dict[str, Sequence[Mapping[str, object]]] = {}
    for info in client.collections() if wanted else ():
        name = info.id.partition("~")[0]
        if name in wanted:
            data = info.columns[:-2] if wanted[name] else info.columns
            found[name] = [
                {"name": each.name, "type": _TYPES[each.type], "nullable": each.nullable}
                for each in data
            ]
    return found


def bases_of(rules: Rules, view: str) -> list[str]:
    """Sources and tables that a view rests on, by other views too, each once."""
    found: dict[str, None] = {}
    for entry in rules.views[view].inputs.values():
        owner, _, _ = entry.name.rpartition("/")
        if owner:
            found |= dict.fromkeys(bases_of(rules, owner))
        else:
            found[entry.name] = None
    return list(found)


def views_below(rules: Rules, view: str) -> set[str]:
    """A view and all views that it rests on."""
    owners = {entry.name.rpartition("/")[0] for entry in rules.views[view].inputs.values()} - {""}
    return {view}.union(*(views_below(rules, owner) for owner in owners))


def readers_of(rules: Rules, changed: Iterable[str]) -> list[str]:
    """The changed views and all that read them, in the order in which they are planned."""
    found = set(changed)
    for name, view in rules.views.items():
        owners = {entry.name.rpartition("/")[0] for entry in view.inputs.values()}
        if owners & found:
            found.add(name)
    return [name for name in rules.views if name in found]


def stretch_of(
    client: Client, collections: Sequence[str], start: int | None, at: int | None
) -> Stretch:
    """The stretch in which all collections are known; by default all of it, up to the latest
    instant.

    Raises: UsageError where there is none. NotYet for an instant that is not definite in time.
    """
    begins, ends = _known(client, collections)
    if at is not None and ends:
        clock = SystemClock()
        patience = clock.monotonic_s() + PATIENCE_S
        while at >= min(ends):
            if clock.monotonic_s() > patience:
                raise NotYet(
                    f"{', '.join(collections)} are definite together up to {shown(min(ends) - 1)}, not "
                    f"yet at {shown(at)}",
                    requested=at,
                    upper=min(ends),
                )
            asyncio.run(clock.sleep(0.1))
            begins, ends = _known(client, collections)
    last = min(ends, default=1) - 1 if at is None else at
    first = max(begins, default=0) if start is None else start
    if first > last:
        raise UsageError(
            f"{', '.join(collections)} are known together from {first} on, and definite up to {last}",
            reason="history",
        )
    return Stretch(first, last)


def _known(client: Client, collections: Sequence[str]) -> tuple[list[int], list[int]]:
    """(since, upper) of the collections, of each that has one."""
    known = [
        (each.since, each.upper)
        for each in client.get()
        if each.name in collections and each.kind in _BASES
    ]
    if derived := [name for name in collections if "/" in name]:
        infos = client.explain_timestamp(*derived).inputs
        known += [(info.since, info.upper) for _, info in infos]
    begins = [sole_time(since) for since, _ in known if since and not since.empty]
    return begins, [sole_time(upper) for _, upper in known if upper and not upper.empty]


def facts_in(
    client: Client, entry: CatalogEntry, stretch: Stretch, changes_max: int
) -> list[Presence]:
    """The facts of a collection in a stretch: present at its start, or since.

    Raises: UsageError for more than `changes_max` changes.
    """
    make = record_of(entry.shape)
    names = entry.shape.schema.names
    changes: list[tuple[Instant, Record, int]] = []
    for event in client.subscribe(entry.name, stretch.start, until=stretch.at + 1):
        if not isinstance(event, Changes):
            continue
        columns = [event.table[name].to_pylist() for name in (*names, TIME, DIFF)]
        changes += [(row[-2], make(row[:-2]), row[-1]) for row in zip(*columns, strict=True)]
        if len(changes) > changes_max:
            raise UsageError(
                f"{entry.name} has more than {changes_max} changes from {stretch.start} on: name a "
                "later start with --from, or raise --changes-max",
                reason="changes",
            )
    changes.sort(key=lambda change: (change[0], change[2]))
    return presences_of(_apart(changes))


def _apart(
    changes: Sequence[tuple[Instant, Record, int]],
) -> Iterator[tuple[Instant, Record, int]]:
    """First copies and last ones: a record that stands several times is one fact."""
    copies: dict[Record, int] = {}
    for at, record, diff in changes:
        before = copies.get(record, 0)
        copies[record] = before + diff
        if (before > 0) != (copies[record] > 0):
            yield at, record, 1 if diff > 0 else -1


def all_facts(
    client: Client, rules: Rules, names: Sequence[str], stretch: Stretch, changes_max: int
) -> Mapping[str, Mapping[str, Sequence[Presence]]]:
    """Facts of sources and tables, by name and predicate. Raises: UsageError."""
    return {
        name: {name: facts_in(client, rules.inputs[name][1], stretch, changes_max)}
        for name in names
    }
