"""Obvious twins of what an action keeps as columns: the order of effects, numbers by key."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill_compute.actions.outbox import Firing


def in_order(firings: Iterable[Firing]) -> list[Firing]:
    """Firings in the order of their effects: by instants, events, and numbers under an event."""
    return sorted(firings, key=_place)


def _place(firing: Firing) -> tuple[int, str, int]:
    number = firing.key[len(firing.of) + 1 :]
    return firing.instant, firing.of, int(number or 0)
