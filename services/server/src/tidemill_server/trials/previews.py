"""New versions of views beside the old ones: which records and firings differ, before an apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random  # noqa: TID251  the type of what is handed in

from tidemill.client.connection import Client
from tidemill.datalog.records import format_record
from tidemill.runtime.resources import ActionSpec, Resource, ViewSpec
from tidemill_server.trials.answers import (
    Facts,
    Rules,
    evaluate,
    facts_of,
    firing_line,
    output_of,
    present,
)
from tidemill_server.trials.answers import rules_of as planned
from tidemill_server.trials.history import (
    Stretch,
    all_facts,
    bases_of,
    columns_on,
    readers_of,
    resources_on,
    stretch_of,
    views_below,
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Lines that only the new version has, those that only the old one has, and how many both
    have.
    """

    what: str
    more: Sequence[str]
    fewer: Sequence[str]
    alike: int


@dataclass(frozen=True, slots=True)
class Preview:
    """A view whose answers may differ; `kind` says why it is here."""

    view: str
    kind: str
    stretch: Stretch
    differences: Sequence[Difference]


def previews(
    client: Client,
    documents: Sequence[Resource],
    *,
    start: int | None,
    at: int | None,
    changes_max: int,
    random: Random,
) -> Iterator[Preview]:
    """Each view that an apply would change, or that reads one; the old version is the server's.

    Both versions are evaluated here over the history that the server has kept. Raises: UsageError,
    ProgramErrors for documents that do not fit, or for too much history.
    """  # fmt: skip
    there = resources_on(client)
    named = {(each.kind, each.name): each for each in there}
    changed = [
        each
        for each in documents
        if (held := named.get((each.kind, each.name))) is None or held.spec != each.spec
    ]
    inferred = columns_on(client, there)
    old = planned(there, inferred)
    whole = {**named, **{(each.kind, each.name): each for each in documents}}
    new = planned([*whole.values()], inferred)
    views = [each.name for each in changed if isinstance(each.spec, ViewSpec)]
    for view in readers_of(new, views):
        bases = bases_of(new, view)
        bases += [n for n in (bases_of(old, view) if view in old.views else ()) if n not in bases]
        read = [name for name in bases if name in old.inputs]
        stretch = stretch_of(client, read, start, at)
        facts = all_facts(client, old, read, stretch, changes_max)
        empty: dict[str, Facts] = {name: {} for name in bases if name not in old.inputs}
        before = _derived(old, view, {**facts, **empty}, stretch, random)
        after = _derived(new, view, {**facts, **empty}, stretch, random)
        kind = "new" if view not in old.views else "changed" if view in views else "reads a change"
        told = [*_records(before, after, stretch.at), *_firings(old, new, view, before, after)]
        yield Preview(view, kind, stretch, told)


def _derived(
    rules: Rules, view: str, known: Mapping[str, Facts], stretch: Stretch, random: Random
) -> Facts:
    """Everything that a view derives, after the views that it reads; nothing if it is not there."""
    if view not in rules.views:
        return {}
    held = dict(known)
    below = views_below(rules, view)
    for name in (each for each in rules.views if each in below):
        program = rules.views[name]
        held[name] = evaluate(
            program.program, facts_of(rules, program, held), stretch.at + 1,
            strategy="strata", cut="all at once", random=random,
        )  # fmt: skip
    return {name: held[view].get(name, ()) for name in rules.views[view].outputs}


def _records(before: Facts, after: Facts, at: int) -> Iterator[Difference]:
    for predicate in dict.fromkeys((*before, *after)):
        old = {format_record(each) for each in present(before.get(predicate, ()), at)}
        new = {format_record(each) for each in present(after.get(predicate, ()), at)}
        yield _between(predicate, old, new)


def _firings(
    old: Rules, new: Rules, view: str, before: Facts, after: Facts
) -> Iterator[Difference]:
    """Firings from the start of the stretch on, of the actions that watch the view."""
    for name, spec in new.actions.items():
        if spec.view != view:
            continue
        had = old.actions.get(name)
        was = _fired(old, had, before) if had is not None and had.view == view else set()
        yield _between(f"action {name} fires", was, _fired(new, spec, after))


def _fired(rules: Rules, action: ActionSpec, derived: Facts) -> set[str]:
    told = output_of(action, rules.views[action.view], derived)
    return {firing_line(each) for each in told.fired}


def _between(what: str, old: set[str], new: set[str]) -> Difference:
    return Difference(what, sorted(new - old), sorted(old - new), len(old & new))
