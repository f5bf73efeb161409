"""Plan of ticks: their instants, the nodes, and the admission of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.datalog.admission import Admission


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
