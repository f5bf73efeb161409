"""The plan of a view's windows on Spark, or why it has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidemill.datalog.placement import HeavyKey, Live, live_of, ranges_for
from tidemill.shard.parts import Part
from tidemill_compute.views.bulk import History
from tidemill_compute.views.range_history import RangeHistory, heavy_in, placement_with

RANGES_MIN = 4
"""Ranges of a window over few rows."""
CHANGES = 2_000
"""Changes of a window for which there is a range more."""
_MARGIN = 4
"""A window is divided as if it looked at so many times more rows for a change than the last one."""
_LIGHT = 2
"""A key is heavy until it has so many times fewer rows than one that becomes heavy."""


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The placement of a view that was made for so many `rows` of its inputs.

    `lacking` is a sentence if the view has no windows on Spark, and empty if it has.
    """

    divided: RangeHistory
    rows: Mapping[str, int]
    live: Live
    lacking: str

    @property
    def anew(self) -> bool:
        """Whether windows that reach a recursion look at all of its keys."""
        return any(fragment.returning for fragment in self.divided.placement.fragments)

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
    return _planned(history.bare, history.input_rows, ())


def _planned(history: History, rows: Mapping[str, int], heavy: Sequence[HeavyKey]) -> WindowPlan:
    target = history.target
    divided = RangeHistory(history, placement_with(history, rows, heavy), 1)
    live = live_of(divided.placement, target.outputs)
    lacking = live.lacking
    if not lacking and not divided.keys_fit():
        lacking = "rows cannot be divided by a column of sets, or of lattices of several values"
    return WindowPlan(divided, rows, live, lacking)


class RangeCount:
    """The ranges of the next window, by the rows that the last one looked at.

    A range takes a while however few rows it has, so a window over few keys has few of them. One
    after a window that failed has as many as all rows need.
    """

    def __init__(self) -> None:
        self._each: float | None = None

    def take(self, rows: int, changes: int, *, whole: bool) -> int:
        """The ranges of a window with so many `changes`, beside `rows` of its collections."""
        most = ranges_for(rows, RANGES_MIN)
        each, self._each = self._each, None
        if whole or each is None:
            return most
        looked = int(_MARGIN * each * changes)
        return min(most, ranges_for(looked, max(RANGES_MIN, changes // CHANGES)))

    def learn(self, looked: int, changes: int) -> None:
        """Note the rows that a window looked at."""
        self._each = looked / max(1, changes)


class Dividing:
    """The heavy keys that the next window divides, which ranges agree on by what it says.

    Ranges keep nothing from one window to the next, so another window may divide other keys. It
    does so seldom: executors order the rows of heavy keys once.
    """

    def __init__(self, plan: WindowPlan) -> None:
        self._plan = plan
        self._heavy: tuple[HeavyKey, ...] = ()
        self._divided = plan

    def plan_for(
        self, inputs: Mapping[str, Sequence[Part]], *, whole: bool
    ) -> tuple[tuple[HeavyKey, ...], WindowPlan]:
        """The keys that a window divides, by the parts of the inputs, and its plan.

        Over few keys these are none where a window would look at all of them for that.
        """
        known = self._plan.divided.history
        parts = {name: (known.inputs[name][0], tuple(found)) for name, found in inputs.items()}
        heavy = self._heavy_in(replace(known, inputs=parts))
        if heavy != self._heavy:
            self._heavy = heavy
            self._divided = _planned(known, self._plan.rows, heavy) if heavy else self._plan
        divided = self._divided
        fits = not divided.lacking and (whole or self._looks_at_few(divided))
        return (heavy, divided) if fits else ((), self._plan)

    def _heavy_in(self, history: History) -> tuple[HeavyKey, ...]:
        ranges = ranges_for(history.rows, RANGES_MIN)
        found = heavy_in(history, ranges)
        before = {_place_of(key) for key in self._heavy}
        still = {_place_of(key) for key in heavy_in(history, _LIGHT * ranges)} if before else set()
        kept = before <= still and before.issuperset(map(_place_of, found))
        return self._heavy if kept else found

    def _looks_at_few(self, divided: WindowPlan) -> bool:
        """Whether all that windows read of a plan is held for the other one, too."""
        read = self._plan.collections(whole=False)
        return not divided.live.whole and {*divided.collections(whole=False)} <= {*read}


def _place_of(key: HeavyKey) -> tuple[str, int, int]:
    return key.predicate, key.column, key.spot
