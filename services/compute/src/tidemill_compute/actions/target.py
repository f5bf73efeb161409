"""The collections and the declaration of one action."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.catalog.record_rows import PredicateShape
from tidemill.datalog.goals import Goal
from tidemill.runtime.resources.specs import GroupSpec, RateSpec


@dataclass(frozen=True, slots=True)
class ActionTarget:
    """An action: its goal, the collection that is watched, its outbox, and what is done of it."""

    name: str
    goal: Goal
    watched: str
    shape: PredicateShape
    outbox: str
    done: str
    corrections: str
    follow: bool = False
    limit: RateSpec | None = None
    group: GroupSpec | None = None
    remember_ms: int | None = None
    """Beginnings of events whose time is longer ago do not fire."""
    repeats: bool = False
    """Whether what goes on is told again and again, of an action that follows its events."""
