"""Changes that make the declared state real.

Pure: from two states to a list of changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tidemill.rpc.messages import Decision
from tidemill_operator.objects import (
    ABANDON,
    ABORT,
    APPROVE,
    PLURALS,
    Declared,
    Key,
    KnownResource,
)


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Put our finalizer on the object, before anything is made for it."""

    of: Declared


@dataclass(frozen=True, slots=True)
class Apply:
    """Make the resource so in Tidemill."""

    of: Declared


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete the resource in Tidemill; refused while others read it."""

    of: Declared


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Take our finalizer away: nothing in Tidemill belongs to the object any more."""

    of: Declared


@dataclass(frozen=True, slots=True)
class Decide:
    """Approve or abort the version of a view that waits."""

    of: Declared
    decision: Decision
    version: int


Change: TypeAlias = "AddFinalizer | Apply | Decide | Remove | RemoveFinalizer"

_ORDER = {kind: number for number, kind in enumerate(PLURALS)}


def owners(
    objects: Sequence[Declared], known: Mapping[Key, KnownResource], barred: Collection[str] = ()
) -> dict[Key, str]:
    """Key → uid of the object that it belongs to.

    A resource of Tidemill belongs to the namespace that it was made for, whatever object is older:
    times of creation are new after a restore. A new name belongs to the first object of that kind
    and name in all namespaces. An object that was refused the name, in `barred` by uid, is left
    out.
    """
    first: dict[Key, str] = {}
    for each in sorted(objects, key=lambda o: (o.uid in barred, o.created, o.namespace, o.uid)):
        there = known.get(each.key)
        if there is None or there.namespace in (None, each.namespace):
            first.setdefault(each.key, each.uid)
    return first


def changes(
    objects: Sequence[Declared], known: Mapping[Key, KnownResource], barred: Collection[str] = ()
) -> list[Change]:
    """Next changes, in an order in which each can succeed if it can at all.

    `barred` is that of `owners`. Resources are made in the order in which one can need another, and
    removed in the opposite one. A resource that no object declares is left alone: somebody applied
    it without the cluster.
    """
    first = owners(objects, known, barred)
    mine = [each for each in objects if not each.paused]
    living = sorted((o for o in mine if not o.deleting), key=_age)
    leaving = sorted((o for o in mine if o.deleting and o.held), key=_age, reverse=True)
    found: list[Change] = []
    for each in leaving:
        belongs = first.get(each.key) == each.uid and each.key in known
        kept = each.annotations.get(ABANDON) == "true"
        found.append(Remove(each) if belongs and not kept else RemoveFinalizer(each))
    for each in living:
        if first.get(each.key) != each.uid:
            continue
        if not each.held:
            found.append(AddFinalizer(each))
        if not _is_so(each, known):
            found.append(Apply(each))
        elif (decided := _decided(each, known[each.key].waiting)) is not None:
            found.append(decided)
    return found


def _decided(each: Declared, waiting: int | None) -> Decide | None:
    """The decision on the version that waits, by annotations with its number; abort comes first."""
    if waiting is None:
        return None
    for name, decision in ((ABORT, Decision.ABORT), (APPROVE, Decision.APPROVE)):
        if each.annotations.get(name) == str(waiting):
            return Decide(each, decision, waiting)
    return None


def _age(each: Declared) -> tuple[int, str, str, str]:
    return _ORDER[each.kind], each.created, each.namespace, each.name


def _is_so(each: Declared, known: Mapping[Key, KnownResource]) -> bool:
    there = known.get(each.key)
    return there is not None and there.resource == each.resource()
