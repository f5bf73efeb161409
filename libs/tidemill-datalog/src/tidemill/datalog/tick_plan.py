"""Plan of ticks: their instants, the nodes, and the admission of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class TickPlan:
    """Ticks are at k·`period_ms`; without a period at the instants at which an input changes.

    Then there is also one an instant after each message and each tick that hands on something new.

    An input in `place` gives each row to the node that this argument of it names; all others are
    seen by every node. Nodes are 0, 1, … below `nodes`. A relation `number` has one row in a tick:
    how many periods its instant is, or how many ticks its node has run before.
    """

    period_ms: int | None = None
    nodes: int = 1
    place: Mapping[str, int] = field(default_factory=dict)
    admission: Mapping[str, Admission] = field(default_factory=dict)
    number: str | None = None

    def takes_rows(self, name: str) -> bool:
        """Whether one node sees every change of an input at the next multiple of the period.

        So it is no matter for the instants of ticks which facts a change begins or ends.
        """
        sees_all = self.nodes == 1 and self.period_ms is not None and name not in self.place
        admitted = self.admission.get(name, "tick") == "tick"
        return sees_all and admitted and "stratum" not in self.admission.values()
