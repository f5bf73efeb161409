"""Firings of an action over the history of a running server, of which none happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidemill.catalog.names import meant
from tidemill.client.connection import Client
from tidemill.datalog.goals import goal_over
from tidemill.datalog.presence import END, Presence
from tidemill.errors import UnknownCollection
from tidemill_compute.actions.corrections import Correction
from tidemill_compute.actions.firings import Firings, RecordChange
from tidemill_compute.actions.grouping import grouping_of
from tidemill_compute.actions.limiting import limiter_of
from tidemill_compute.actions.outbox import Firing
from tidemill_server.trials.answers import rules_of
from tidemill_server.trials.history import Stretch, facts_in, resources_on, stretch_of


@dataclass(frozen=True, slots=True)
class Replay:
    """Firings and corrections within a stretch, by instants and keys."""

    stretch: Stretch
    firings: Sequence[Firing]
    corrections: Sequence[Correction]
    messages: Sequence[Firing]
    """Firings as a sink is told them: in groups, if the action has groups."""


def replay(
    client: Client, name: str, start: int | None, at: int | None, changes_max: int
) -> Replay:
    """Firings of an action with `fireFrom: START`, had there been one, up to an instant.

    Left out, the stretch is all that is known. Raises: UnknownCollection, UsageError. Cost: the
    changes of the watched output in the stretch.
    """
    rules = rules_of(resources_on(client))
    if name not in rules.actions:
        says = f"there is no action {name}{meant(name, rules.actions)}"
        raise UnknownCollection(says, name=name)
    spec = rules.actions[name]
    predicate = spec.goal.partition("(")[0].strip()
    entry = rules.views[spec.view].outputs[predicate]
    known = stretch_of(client, [entry.name], None, at)
    stretch = known if start is None else stretch_of(client, [entry.name], start, at)
    # The instant before tells history from what begins with the stretch.
    before = stretch.start - 1 if stretch.start > known.start else None
    read = stretch if before is None else Stretch(before, stretch.at)
    goal = goal_over(spec.goal, {predicate: entry.shape.argument_columns}, name)
    facts = facts_in(client, entry, read, changes_max)
    arguments = [name for name, _ in entry.shape.argument_columns]
    limiter = limiter_of(spec.limit, arguments)
    memory = Firings(goal, spec.follow, limiter, spec.remember)
    firings, corrections = memory.take(_changes(facts, before))
    grouping = grouping_of(spec.group, arguments)
    if grouping is None:
        messages = [each for each in firings if not each.limited]
    else:
        told_until = grouping.whole(stretch.at + 1)
        messages = grouping.messages(each for each in firings if each.instant < told_until)
    return Replay(stretch, firings, corrections, messages)


def _changes(facts: Sequence[Presence], before: int | None) -> Iterator[RecordChange]:
    """Beginnings and ends of facts; those of `before` and earlier are history."""
    for fact in facts:
        if before is None or fact.start > before:
            yield fact.record, int(fact.start), 1
        if fact.end != END:
            yield fact.record, int(fact.end), -1
