"""Groups of firings that one message tells: a pure function of the outbox.

A group is told once its stretch of the timeline is definite, so its events follow from the history
alone. Its key follows from the action, the stretch, the group and the phase, whatever restarts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from tidemill.runtime.resources.specs import GroupSpec
from tidemill.time import U64_MAX
from tidemill_compute.actions.outbox import Firing

EVENTS_MAX = 100
"""Events that one message tells; the next ones of a group are another message."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Firings of one phase in one stretch, with equal arguments at these places, are a message."""

    within_ms: int
    by: Sequence[int] = ()

    def whole(self, upper: int) -> int:
        """The end of the last stretch that is definite below `upper`."""
        return upper if upper == U64_MAX else upper - upper % self.within_ms

    def end_of(self, firing: Firing) -> int:
        """The last instant of the stretch of a firing."""
        return firing.instant - firing.instant % self.within_ms + self.within_ms - 1

    def messages(self, firings: Iterable[Firing]) -> list[Firing]:
        """Messages for firings of whole stretches, which come in the order of their effects.

        Firings beyond a limit are left out. The order is that of stretches, then of first events.
        """
        groups: dict[tuple[int, str, str], list[Firing]] = {}
        for each in firings:
            if not each.limited:
                chosen = self._chosen(each)
                groups.setdefault((self.end_of(each), each.phase, chosen), []).append(each)
        return [
            _message(group, start // EVENTS_MAX, events[start : start + EVENTS_MAX])
            for group, events in groups.items()
            for start in range(0, len(events), EVENTS_MAX)
        ]

    def _chosen(self, firing: Firing) -> str:
        arguments = json.loads(firing.arguments) if self.by else ()
        return json.dumps([arguments[at] for at in self.by], ensure_ascii=False)


def _message(group: tuple[int, str, str], number: int, events: Sequence[Firing]) -> Firing:
    """The firing of a message: it is at the instant of its last event."""
    last, (_, _, chosen) = events[-1], group
    key = sha256(json.dumps([last.action, *group, number]).encode()).hexdigest()
    return replace(
        last, key=key, record="\n".join(each.record for each in events), arguments=chosen,
        event_time=None, event=key if last.event else "", events=tuple(events),
    )  # fmt: skip


def grouping_of(group: GroupSpec | None, arguments: Sequence[str]) -> Grouping | None:
    """The grouping that an action declares, whose goal has arguments of these names."""
    if group is None:
        return None
    return Grouping(int(group.within), [arguments.index(name) for name in group.by])
