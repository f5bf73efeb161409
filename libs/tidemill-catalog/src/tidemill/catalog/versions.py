"""Versions of a view: the version that is read, and at most one changed version that will replace
it.

The decisions about a view hold them. `version` is the number of the newest version, from 1. Until
that takes over, `before` is the document of the version that is read, and `base` its number. Then
`from` is the common frontier, once it is decided, and `beforeReads` the collections that the
version reads. `left` names earlier versions with collections that are still to be closed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidemill.catalog.catalog import Catalog
from tidemill.catalog.entry import READS, CatalogEntry, PlannedView, located, own_prefix
from tidemill.catalog.store import Stored
from tidemill.errors import Unavailable, UsageError
from tidemill.runtime.resources import Resource, ViewSpec, stored_resource

_KEPT = ("retain", "strategy", "engine", "limits")
"""Fields that change nothing of what a view says: no new version."""


def version_of(stored: Stored) -> int:
    """The number of the newest version."""
    return int(stored.resolved.get("version", 1))


def changing(stored: Stored) -> bool:
    """Whether the newest version has not taken over yet, as far as that can be read."""
    return "before" in stored.resolved and stored.raw is None


def served(stored: Stored) -> Stored:
    """The version that is read, as a resource without a change."""
    if not changing(stored):
        return stored
    resolved: dict[str, Any] = {"version": stored.resolved["base"]}
    if "beforeReads" in stored.resolved:
        resolved[READS] = stored.resolved["beforeReads"]
    before = stored_resource(stored.resolved["before"], "catalog")
    return replace(stored, resource=before, resolved=resolved)


def changed(known: Stored, resource: Resource) -> Stored:
    """The resource with another document: a new version, unless what it says stays the same."""
    old, new = served(known).resource.spec, resource.spec
    assert isinstance(old, ViewSpec)
    assert isinstance(new, ViewSpec)
    newest = known.resource.spec
    assert isinstance(newest, ViewSpec)
    if _said(newest) == _said(new):
        return replace(known, resource=resource)
    if frontier_of(known) is not None:
        raise Unavailable(
            f"{resource}: version {version_of(known)} is taking over at this moment: apply again"
        )
    base = served(known)
    resolved: dict[str, Any] = {
        "version": version_of(known) + 1,
        "base": version_of(base),
        "before": base.resource.to_document(),
    }
    if READS in base.resolved:
        resolved["beforeReads"] = base.resolved[READS]
    if changing(known) or "left" in known.resolved:
        resolved["left"] = True
    return replace(known, resource=resource, resolved=resolved)


def frontier_of(stored: Stored) -> int | None:
    """The instant from which on the newest version is read, if it is decided and not done."""
    at = stored.resolved.get("from")
    return None if at is None else int(at)


def decided(stored: Stored, at: int) -> Stored:
    """The resource whose newest version takes over at an instant."""
    return replace(stored, resolved={**stored.resolved, "from": at})


def taken_over(stored: Stored) -> Stored:
    """The resource once its newest version is read: what the one before has made can be closed."""
    reads = {READS: stored.resolved[READS]} if READS in stored.resolved else {}
    return replace(stored, resolved={"version": version_of(stored), "left": True, **reads})


def cleaned(stored: Stored) -> Stored:
    """The resource once nothing is left of other versions."""
    resolved = {name: each for name, each in stored.resolved.items() if name != "left"}
    return replace(stored, resolved=resolved)


def to_clean(stored: Stored) -> bool:
    """Whether versions that nobody reads may have left something."""
    return "left" in stored.resolved


def names_of(stored: Stored) -> tuple[list[str], list[str]]:
    """The names under which versions work: those in use, those of the past."""
    used = {version_of(stored), version_of(served(stored))}
    every = range(1, version_of(stored) + 1)
    return (
        [own_prefix(stored, number) for number in sorted(used)],
        [own_prefix(stored, number) for number in every if number not in used],
    )


def _said(spec: ViewSpec) -> list[Any]:
    return [getattr(spec, n) for n in ViewSpec.__struct_fields__ if n not in _KEPT]


def plan_version(stored: Stored, catalog: Catalog) -> PlannedView:
    """The newest version over what can be read now.

    Raises: UsageError if it cannot take the other one's place.
    """
    name, resource = stored.resource.name, stored.resource
    before = catalog.planned(name)
    with located(resource):
        view = catalog.plan_view(stored)
        if before.timeline != view.timeline:
            raise UsageError(
                f"the view is on the timeline {before.timeline} and would be on {view.timeline}: delete "
                "it first",
                reason="Incompatible",
            )
        for predicate, was in before.outputs.items():
            refuse_other_columns(predicate, was, view.outputs.get(predicate))
        with located(resource, "spec", "inputs"):
            loop = catalog.reads_itself(name, view.inputs.values())
            if loop is not None:
                raise UsageError(
                    f"{loop} is derived from what {name} derives", reason="ReadsItself"
                )
    return view


def refuse_other_columns(predicate: str, was: CatalogEntry, now: CatalogEntry | None) -> None:
    """Refuse a version whose output is not what readers of the old one expect.

    Raises: UsageError.
    """
    if now is None:
        raise UsageError(
            f"the output {predicate} would be gone, and its collection may have readers: go on deriving "
            "it, or delete the view first",
            reason="Incompatible",
        )
    if was.shape != now.shape:
        raise UsageError(
            f"the output {predicate} has the columns {_columns(was)}, and would have {_columns(now)}: "
            "give it another name, or delete the view first",
            reason="Incompatible",
        )


def _columns(named: CatalogEntry) -> str:
    shape = named.shape
    told = dict.fromkeys(shape.sure, " (of every fact)")
    fields = (f"{field.name} {field.type}{told.get(field.name, '')}" for field in shape.schema)
    return ", ".join(fields) or "none"
