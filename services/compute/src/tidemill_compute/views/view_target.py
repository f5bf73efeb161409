"""A view: its program, the collections it reads and writes, its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.catalog.record_rows import PredicateShape
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.limits import Limits
from tidemill.datalog.strategy import Strategy
from tidemill.datalog.tick_plan import TickPlan
from tidemill.time import Frontier


@dataclass(frozen=True, slots=True)
class RangeOf:
    """Range `number` of so many `ranges`, and the columns by which each input is divided.

    `places` are columns of the key of an input, 0 its time; without any its rows are in all ranges.
    """

    number: int
    ranges: int
    places: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ViewTarget:
    """A view: its program, the collection of each input and output, its errors and its state.

    `ticks` is there if and only if the program is ticked. History of the inputs before `begin` does
    not count; without it all that can be read does.
    """

    name: str
    program: CheckedProgram
    inputs: Mapping[str, tuple[str, PredicateShape]]
    outputs: Mapping[str, tuple[str, PredicateShape]]
    errors: str
    state: str
    ticks: TickPlan | None = None
    strategy: Strategy = "strata"
    begin: Frontier | None = None
    limits: Limits = field(default_factory=Limits)
    allowance: Allowance = field(default_factory=Allowance, compare=False)
    """Memory of the view."""
    part: RangeOf | None = None
    """The range that is kept, by rows of the inputs and a state of its own; None: the whole."""

    @property
    def written(self) -> list[str]:
        """The collections that are written, the state first, the errors last."""
        return [self.state, *(collection for collection, _ in self.outputs.values()), self.errors]
