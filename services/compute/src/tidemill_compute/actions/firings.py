"""Firings that follow from the changes of a collection: a pure state machine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from tidemill.datalog.goals import Goal, action_key
from tidemill.datalog.records import Record, elements_of, format_record
from tidemill.time.typed import plain
from tidemill_compute.actions.corrections import Correction, changed_after_firing
from tidemill_compute.actions.key_counts import SpannedCounts
from tidemill_compute.actions.limiting import Limiter
from tidemill_compute.actions.outbox import BEGIN, CHANGE, END, Firing

RecordChange: TypeAlias = "tuple[Record, int, int]"
"""A record, the instant at which it comes or goes, and ±1."""


class Firings:
    """Memory of what has fired for a goal, and what the next changes add to it.

    Each distinct event fires once. With `follow`, its changes, its end and its return do, too.
    With `remember_ms`, an event whose time is longer ago fires no more, and is not corrected. So
    its key is of no use: what fires once for it does so within that time. Keys of the last three
    such times are kept at most, beside those of events to come.
    """

    def __init__(
        self,
        goal: Goal,
        follow: bool,
        limiter: Limiter | None = None,
        remember_ms: int | None = None,
    ) -> None:
        """`remember_ms` is of a goal about events, which have times, and is without `follow`."""
        self._goal = goal
        self._remember_ms = remember_ms
        self._limiter = limiter
        self._follow = follow
        # Values that ride beside a fact are not in its key. An event that fired may stop matching
        # while its fact is still there.
        self._event = replace(goal, parafacts=())
        self.known = SpannedCounts(remember_ms)
        """Effects so far under each event that has fired."""
        self.told = SpannedCounts(remember_ms)
        """Corrections so far of each key."""
        self.ahead: dict[str, int] = {}
        """Of an eager action: keys that have fired and are still to begin, with the instant
        foreseen for it.
        """
        self.repeated = 0
        """Returns of what has fired."""
        self.outdated = 0
        """Beginnings of events whose time was too long ago."""

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
        times = {key: each.time or 0 for (_, key), each in (gone | come).items()}
        where = sorted(come.keys() | gone.keys())
        where, latest = [at for at in where if self._is_told(*at, times, come)], where[-1:]
        known = Counter(self.known.of((key for _, key in where), times))
        told = Counter(self.told.of(known, times))
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
        self.known.put({firing.of: known[firing.of] for firing in firings}, times)
        self.told.put({each.key: told[each.key] for each in corrections}, times)
        for instant, _ in latest:
            self.forget(instant)
        return firings if self._limiter is None else self._limiter.judge(firings), corrections

    def forget(self, instant: int) -> None:
        """Forget keys of events that can begin at no instant from this one on. Cost: O(spans)."""
        if self._remember_ms is not None:
            self.known.forget(instant - self._remember_ms)
            self.told.forget(instant - self._remember_ms)

    def _is_told(
        self,
        instant: int,
        key: str,
        times: Mapping[str, int],
        come: Mapping[tuple[int, str], Record],
    ) -> bool:
        """Whether the time of an event is not too long ago at an instant.

        IMPORTANT: by both alone. Keys that happen to be known must not matter.
        """
        if self._remember_ms is None or instant - times[key] <= self._remember_ms:
            return True
        self.outdated += self.matches(come.get((instant, key)))
        return False

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
