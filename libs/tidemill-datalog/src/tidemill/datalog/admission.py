"""Admission policies: which external events a tick takes in, for each input of a ticked program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Batch:
    """Hold events until there are `rows` of them, or the first has waited `wait_ms`."""

    rows: int
    wait_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Skew:
    """Hold an event until one with a time more than `ms` after its own has come."""

    ms: int


Admission: TypeAlias = "Literal['tick', 'stratum', 'eager'] | Batch | Skew"
"""`tick`: hold to the next tick.

`stratum`: take in at once if no unit that has run could have said otherwise. `eager`: as `stratum`,
and an event that waits wakes a tick.
"""
