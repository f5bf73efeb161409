"""Versions of a view: the version that is read, and at most one changed version that will replace
it.

The decisions about a view hold them. `version` is the number of the newest version, from 1. Until
that takes over, `before` is the document of the version that is read, and `base` its number. Then
`from` is the common frontier, once it is decided, and `beforeReads` the collections that the
version reads. `left` names earlier versions with collections that are still to be closed.

With `takeover: manual` a new version `waits` until somebody approves or aborts it. An `aborted`
one is never read; `last` is the greatest number that a version had once an older one is newest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidemill.catalog.catalog import Catalog
from tidemill.catalog.entry import READS, CatalogEntry, PlannedView, located, own_prefix
from tidemill.catalog.store import Stored
from tidemill.errors import Unavailable, UsageError
from tidemill.runtime.resources import Resource, ViewSpec, stored_resource

_KEPT = ("retain", "strategy", "engine", "limits", "takeover")
"""Fields that change nothing of what a view says: no new version."""


def version_of(stored: Stored) -> int:
    """The number of the newest version."""
    return int(stored.resolved.get("version", 1))


def changing(stored: Stored) -> bool:
    """Whether the newest version is to take over yet, as far as that can be read."""
    return _unread(stored) and not aborted(stored)


def _unread(stored: Stored) -> bool:
    return "before" in stored.resolved and stored.raw is None


def waits(stored: Stored) -> bool:
    """Whether the newest version waits for somebody to approve or abort it."""
    return changing(stored) and "waits" in stored.resolved


def aborted(stored: Stored) -> bool:
    """Whether the newest version was aborted, and the one before it goes on."""
    return "aborted" in stored.resolved


def approve(stored: Stored, version: int | None) -> Stored:
    """The resource whose newest version takes over once it has caught up. Raises: UsageError."""
    _refuse_idle(stored, version, "approved")
    return replace(stored, resolved=_without(stored, "waits"))


def abort(stored: Stored, version: int | None) -> Stored:
    """The resource whose newest version is given up: what it has made can be closed.

    Raises: UsageError. Only a version that waits can be: an approved one may have stopped the other
    for good.
    """
    _refuse_idle(stored, version, "aborted")
    resolved = {**_without(stored, "waits"), "aborted": True, "left": True}
    return replace(stored, resolved=resolved)


def _refuse_idle(stored: Stored, version: int | None, what: str) -> None:
    if not waits(stored):
        raise UsageError(
            f"nothing is {what}: {stored.resource} has no version that waits; one does after a "
            "changed program is applied with takeover: manual",
            reason="NothingWaits",
        )
    if version not in (None, version_of(stored)):
        raise UsageError(
            f"nothing is {what}: version {version_of(stored)} of {stored.resource} waits, not "
            f"{version}; look at it first",
            reason="OtherVersion",
        )


def _without(stored: Stored, *names: str) -> dict[str, Any]:
    return {name: each for name, each in stored.resolved.items() if name not in names}


def served(stored: Stored) -> Stored:
    """The version that is read, as a resource without a change."""
    if not _unread(stored):
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
        auto = ("waits",) if new.takeover == "auto" else ()
        return replace(known, resource=resource, resolved=_without(known, *auto))
    if (waits(known) or aborted(known)) and _said(old) == _said(new):
        back = served(known).resolved
        resolved = {**back, "last": _last(known), "left": True}
        return replace(known, resource=resource, resolved=resolved)
    if max(old.ranges, newest.ranges, new.ranges) > 1:
        raise UsageError(
            f"{resource.place('spec', 'ranges')}: {resource} is kept in ranges, or would be, and each "
            "has a state of its own: apply the changed view under another name, or delete this one "
            f"first: tidemill delete view {resource.name}",
            reason="Immutable",
        )
    if frontier_of(known) is not None:
        raise Unavailable(
            f"{resource}: version {version_of(known)} is taking over at this moment: apply again"
        )
    base = served(known)
    resolved = {
        "version": _last(known) + 1,
        "base": version_of(base),
        "before": base.resource.to_document(),
    }
    if READS in base.resolved:
        resolved["beforeReads"] = base.resolved[READS]
    if _unread(known) or "left" in known.resolved:
        resolved["left"] = True
    if new.takeover == "manual":
        resolved["waits"] = True
    return replace(known, resource=resource, resolved=resolved)


def _last(stored: Stored) -> int:
    """The greatest number that a version has had."""
    return max(version_of(stored), int(stored.resolved.get("last", 0)))


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
    return replace(stored, resolved=_without(stored, "left"))


def to_clean(stored: Stored) -> bool:
    """Whether versions that nobody reads may have left something."""
    return "left" in stored.resolved


def names_of(stored: Stored) -> tuple[list[str], list[str]]:
    """The names under which versions work: those in use, those of the past."""
    used = {version_of(served(stored))}
    if not aborted(stored):
        used.add(version_of(stored))
    every = range(1, _last(stored) + 1)
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
