"""Inputs as the ticks of a program see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.datalog.presence import BEGINNING, END, Presence, normalise
from tidemill.datalog.records import Record


def change_instants(inputs: Mapping[str, Sequence[Presence]], upper: float = END) -> list[int]:
    """The instants below `upper` at which the set of facts present in some input differs from just
    before.
    """
    stretches: dict[object, list[tuple[float, float]]] = {}
    for presences in inputs.values():
        for presence in presences:
            if presence.start < presence.end:
                key = presence.record.key
                stretches.setdefault(key, []).append((presence.start, presence.end))
    borders = {
        border
        for intervals in stretches.values()
        for interval in normalise(intervals)
        for border in interval
    }
    return sorted(int(border) for border in borders if BEGINNING < border < min(upper, END))


def present_at(inputs: Mapping[str, Sequence[Presence]], at: int) -> dict[str, list[Record]]:
    """The input records at one instant."""
    return {
        name: [p.record for p in presences if p.start <= at < p.end]
        for name, presences in inputs.items()
    }
