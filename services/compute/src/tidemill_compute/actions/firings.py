"""Firings that follow from the changes of a collection: a pure state machine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeAlias

from tidemill.datalog.goals import Goal, action_key
from tidemill.datalog.records import Record, elements_of, format_record
from tidemill.time.typed import plain
from tidemill_compute.actions.corrections import Correction, changed_after_firing
from tidemill_compute.actions.key_counts import KeyCounts
from tidemill_compute.actions.limiting import Limiter
from tidemill_compute.actions.outbox import BEGIN, CHANGE, END, Firing

RecordChange: TypeAlias = "tuple[Record, int, int]"
"""A record, the instant at which it comes or goes, and ±1."""


class Firings:
    """Memory of what has fired for a goal, and what the next changes add to it.

    Each distinct event fires once. With `follow`, its changes, its end and its return do, too.
    """

    def __init__(self, goal: Goal, follow: bool, limiter: Limiter | None = None) -> None:
        self._goal = goal
        self._limiter = limiter
        self._follow = follow
        # Values that ride beside a fact are not in its key. An event that fired may stop matching
        # while its fact is still there.
        self._event = replace(goal, parafacts=())
        self.known = KeyCounts()
        """Effects so far under each event that has fired."""
        self.told = KeyCounts()
        """Corrections so far of each key."""
        self.ahead: dict[str, int] = {}
        """Of an eager action: keys that have fired and are still to begin, with the instant
        foreseen for it.
        """
        self.repeated = 0
        """Returns of what has fired."""

    def take(self, changes: Iterable[RecordChange]) -> tuple[list[Firing], list[Correction]]:
        """Firings, and corrections of earlier ones, by instant.

        All changes of an event at an instant come in one call. Cost: O(n log n) for n changes.
        """
        gone: dict[tuple[int, str], Record] = {}
        come: dict[tuple[int, str], Record] = {}
        for record, time, diff in changes:
            if self.asks(record):
                (come if diff > 0 else gone)[time, self.key_of(record)] = record
        firings: list[Firing] = []
        corrections: list[Correction] = []
        where = sorted(come.keys() | gone.keys())
        known = Counter(self.known.of(key for _, key in where))
        told = Counter(self.told.of(key for key in known))
        for instant, key in where:
            old, new = gone.get((instant, key)), come.get((instant, key))
            if new is not None and key in self.ahead:
                del self.ahead[key]  # it begins, as was foreseen
            elif key in known:
                self.repeated += new is not None
                corrections += changed_after_firing(key, instant, old, new, told)
                if self._follow and (then := self._phase(old, new)):
                    firings.append(self._followed(key, instant, *then, known))
            elif new is not None and self.matches(new) and not self.matches(old):
                firings.append(self._first(key, instant, new, known))
        self.known.put({firing.of: known[firing.of] for firing in firings})
        self.told.put({each.key: told[each.key] for each in corrections})
        return firings if self._limiter is None else self._limiter.judge(firings), corrections

    def asks(self, record: Record) -> bool:
        """Whether the event of a record is one of those that the goal is about."""
        return self._event.bindings(record) is not None

    def key_of(self, record: Record) -> str:
        """The key of an event."""
        return action_key(self._goal.name, record)

    def matches(self, record: Record | None) -> bool:
        """Whether there is a record, and it is what the goal asks for; one that was so before began
        before.
        """
        return record is not None and self._goal.bindings(record) is not None

    def firing(self, key: str, instant: int, record: Record) -> Firing:
        """The firing of a record that begins at an instant."""
        arguments = json.dumps(list(record.arguments), ensure_ascii=False, default=_plain)
        return Firing(key, self._goal.name, instant, format_record(record), arguments, record.time)

    def _phase(self, old: Record | None, new: Record | None) -> tuple[str, Record] | None:
        """Phase that a change begins for who follows the event, and its record; None for none."""
        was, is_there = self.matches(old), self.matches(new)
        if new is not None and is_there:
            return None if old == new else (CHANGE if was else BEGIN, new)
        return (END, old) if old is not None and was else None

    def _first(self, key: str, instant: int, record: Record, known: Counter[str]) -> Firing:
        if self._follow:
            return self._followed(key, instant, BEGIN, record, known)
        known[key] = 1
        return self.firing(key, instant, record)

    def _followed(
        self, event: str, instant: int, phase: str, record: Record, known: Counter[str]
    ) -> Firing:
        before = known[event]
        known[event] += 1
        key = f"{event}.{before}" if before else event
        return replace(self.firing(key, instant, record), event=event, phase=phase)


def _plain(value: Any) -> Any:
    """A value of the language that JSON lacks, as an action tells it."""
    return elements_of(value) if isinstance(value, frozenset) else plain(value)
