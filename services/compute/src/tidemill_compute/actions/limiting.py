"""Limits on how often an action tells, by group and stretch of the timeline: a pure state machine.

The outcome follows from the events alone, whatever restarts: instants are those of the timeline.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tidemill.runtime.resources.specs import RateSpec
from tidemill_compute.actions.outbox import BEGIN, END, Firing

GROUPS_KEPT = 1_000
"""Groups above whose number those that tell nothing any more are looked for."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Of each group, events with the same arguments at these places, so many begin in a stretch."""

    count: int
    per_ms: int
    by: Sequence[int] = ()


class Limiter:
    """Marks the firings that are not told: of an event that is not told to begin, none is.

    The end of an event that was told is always told. Cost: O(count) memory for each group.
    """

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._begun: dict[tuple[object, ...], deque[int]] = {}
        self._mute: set[str] = set()
        """Events that go on, and whose beginning was not told."""
        self._looked_at = GROUPS_KEPT

    def judge(self, firings: Iterable[Firing]) -> list[Firing]:
        """The firings, which come in the order of their effects, with their marks."""
        return [self._take(each, replace(each, limited=self._passes(each))) for each in firings]

    def recall(self, firing: Firing) -> None:
        """Take in a firing that was judged before; they come in the order of their effects."""
        self._take(firing, firing)

    def _passes(self, firing: Firing) -> bool:
        if firing.phase != BEGIN:
            return firing.of in self._mute
        begun = self._begun.get(self._group(firing), ())
        recent = sum(1 for at in begun if at > firing.instant - self._rate.per_ms)
        return recent >= self._rate.count

    def _take(self, firing: Firing, judged: Firing) -> Firing:
        if firing.phase == BEGIN and judged.limited and firing.event:
            self._mute.add(firing.of)
        elif firing.phase == BEGIN and not judged.limited:
            begun = self._begun.setdefault(self._group(firing), deque(maxlen=self._rate.count))
            begun.append(firing.instant)
            self._forget(firing.instant)
        elif firing.phase == END:
            self._mute.discard(firing.of)
        return judged

    def _group(self, firing: Firing) -> tuple[object, ...]:
        arguments = json.loads(firing.arguments) if self._rate.by else ()
        return tuple(json.dumps(arguments[at]) for at in self._rate.by)

    def _forget(self, now: int) -> None:
        if len(self._begun) <= self._looked_at:
            return
        since = now - self._rate.per_ms
        self._begun = {group: begun for group, begun in self._begun.items() if begun[-1] > since}
        self._looked_at = max(GROUPS_KEPT, 2 * len(self._begun))


def limiter_of(rate: RateSpec | None, arguments: Sequence[str]) -> Limiter | None:
    """The limiter that an action declares, whose goal has arguments of these names."""
    if rate is None:
        return None
    return Limiter(Rate(rate.count, int(rate.per), [arguments.index(name) for name in rate.by]))
