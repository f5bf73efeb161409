"""The plan of a view's windows on Spark, or why it has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.datalog.placement import Live, live_of, placement_of
from tidemill_compute.views.bulk import History
from tidemill_compute.views.range_history import RangeHistory


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The placement of a view that was made for so many `rows` of its inputs.

    `lacking` is a sentence if the view has no windows on Spark, and empty if it has.
    """

    divided: RangeHistory
    rows: Mapping[str, int]
    live: Live
    lacking: str

    def collections(self, *, whole: bool) -> list[str]:
        """The collections whose rows a window reads; of a `whole` one the inputs and the state."""
        find = self.divided.input_of if whole else self.divided.stored
        found = [
            find(read.predicate)
            for fragment in self.divided.placement.fragments
            for read in fragment.reads
        ]
        names = [each[0] for each in found if each is not None]
        names += [self.divided.history.target.state] if self.live.remembers else []
        return list(dict.fromkeys(names))


def plan_windows(history: History) -> WindowPlan:
    """The plan of a view, by the rows of its inputs. Pure. Cost: as `placement_of`."""
    target, rows = history.target, history.input_rows
    divided = RangeHistory(history.bare, placement_of(target.program, rows=rows), 1)
    live = live_of(divided.placement, target.outputs)
    lacking = live.lacking
    if not lacking and not divided.keys_fit():
        lacking = "rows cannot be divided by a column of sets, or of lattices of several values"
    return WindowPlan(divided, rows, live, lacking)
