"""Permission of a plan: the collections that it may read and write in the name of its user.

Names are resolved once, when a resource is applied, and the collections are kept with it. A name
that later means another collection changes nothing about the reads of a resource.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tidemill.catalog.catalog import Catalog
from tidemill.catalog.entry import READS, located
from tidemill.catalog.firing import proves
from tidemill.catalog.own_log import OWN_PREFIX, owner_of
from tidemill.catalog.store import Stored
from tidemill.errors import UsageError
from tidemill.rpc.identity import SYSTEM_RESOURCE, Principal, Role
from tidemill.runtime.resources import (
    ActionSpec,
    ArrangementSpec,
    HoldSpec,
    Resource,
    SourceSpec,
    ViewSpec,
)


def permit_names(resource: Resource, by: Principal) -> None:
    """Refuse to make what `by` does not administer. Raises: Denied, UsageError."""
    if resource.name == SYSTEM_RESOURCE:
        raise UsageError(
            f"{resource.place('metadata', 'name')}: metadata.name: {SYSTEM_RESOURCE} is what the system "
            "says of itself; choose another name",
            reason="Reserved",
        )
    by.demand(Role.admin, resource.name)
    spec = resource.spec
    if isinstance(spec, SourceSpec) and spec.remap is not None:
        with located(resource, "spec", "remap"):
            by.demand(Role.admin, spec.remap)  # who binds what has come writes for all who share it


def decided(stored: Stored, catalog: Catalog, by: Principal) -> Stored:
    """The resource with the collections that it reads, if `by` may read all of them.

    Raises: Denied, which names them as they are written; UsageError for what there is not.
    """
    resource = stored.resource
    for path, written in _written(resource):
        with located(resource, *path):
            by.demand(Role.reader, _found(catalog, written), shown=written)
    if isinstance(resource.spec, ActionSpec) and proves(resource.spec.sink):
        with located(resource, "spec", "sink"):
            _permit_proofs(resource.spec.view, catalog, by)
    if READS in stored.resolved:
        kept = stored.resolved[READS].items()
        reads = {own: (own, catalog.named(name)) for own, name in kept}
    else:
        reads = catalog.reads_of(stored)
    for written, named in reads.values():
        with located(resource):
            by.demand(Role.reader, named.name, shown=written)
    if not isinstance(resource.spec, ViewSpec | ArrangementSpec | HoldSpec):
        return stored
    names = {own: named.name for own, (_, named) in reads.items()}
    return replace(stored, resolved={**stored.resolved, READS: names})


def _written(resource: Resource) -> Iterator[tuple[tuple[str, ...], str]]:
    """The names in a resource of what it reads, with the fields they are in."""
    spec = resource.spec
    if isinstance(spec, ActionSpec):
        yield ("spec", "view"), spec.view
    elif isinstance(spec, ArrangementSpec | HoldSpec):
        yield ("spec", "collection"), spec.collection
    elif isinstance(spec, ViewSpec):
        for predicate, name in spec.inputs.items():
            yield ("spec", "inputs", predicate), name


def _permit_proofs(view: str, catalog: Catalog, by: Principal) -> None:
    """Refuse proofs to a user who may not read the facts that a view is derived from. Raises:
    Denied.
    """
    for predicate, named in catalog.planned(view).inputs.items():
        by.demand(Role.reader, named.name, shown=f"{predicate}, which {view} reads")


def _found(catalog: Catalog, written: str) -> str:
    """The collection that a name means now; the name as it is written, if it means none."""
    return catalog.named(written).name if catalog.knows(written) else written


def permit_topics(resource: Resource, by: Principal, shared_brokers: bool) -> None:
    """Refuse topics of the own log that belong to the system, or to a source without a right for
    `by`.

    With `shared_brokers` the own log is on brokers that a source may also reach by their addresses.
    Topics are then refused by their names, whichever address a source gives. Raises: Denied,
    UsageError.
    """
    spec = resource.spec
    if isinstance(spec, SourceSpec) and spec.kafka is not None:
        if spec.kafka.bootstrap is None or shared_brokers:
            _permit_topic(resource, ("spec", "kafka", "topic"), spec.kafka.topic, Role.reader, by)
    elif isinstance(spec, ActionSpec) and spec.sink.log is not None:
        place = ("spec", "sink", "log", "topic")
        _permit_topic(resource, place, spec.sink.log.topic, Role.writer, by)


def _permit_topic(
    resource: Resource, path: tuple[str, ...], topic: str, role: Role, by: Principal
) -> None:
    with located(resource, *path):
        if topic.startswith(OWN_PREFIX):
            raise UsageError(
                f"the topic {topic} is one of those in which Tidemill talks to itself: topics that "
                f"begin with {OWN_PREFIX} are nobody's",
                reason="OwnTopic",
            )
        if (owner := owner_of(topic)) is not None:
            by.demand(role, owner)


def refuse_foreign_push(resource: Resource, topic: str) -> None:
    """Refuse rows for a source that reads what is another one's. Raises: UsageError."""
    spec = resource.spec
    assert isinstance(spec, SourceSpec)
    if spec.kafka is None:
        return
    if owner_of(topic) not in (None, resource.name) or topic.startswith(OWN_PREFIX):
        raise UsageError(
            f"{resource} only reads the topic {topic}, which is not its own: push to the source that the "
            "topic belongs to",
            reason="OwnTopic",
        )


def seen(users: Sequence[str], by: Principal) -> str:
    """Resources that use something, as far as `by` may read them."""
    named = [user for user in users if by.has(Role.reader, user.partition("/")[2])]
    hidden = len(users) - len(named)
    others = f"{hidden} that you may not see"
    return ", ".join([*named, *([others] if hidden else [])])


def refuse_used(what: str, users: Sequence[str], by: Principal) -> None:
    """Raises: UsageError if somebody uses it."""
    if users:
        raise UsageError(f"{what} is used by {seen(users, by)}: delete them first", reason="InUse")
