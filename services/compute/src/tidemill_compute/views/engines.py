"""The engine of a view: this process, or windows on Spark. Answers are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tidemill.shard import Collections
from tidemill_compute.views.bulk import HISTORY_BYTES_MAX, History
from tidemill_compute.views.view_updates import Maintainer
from tidemill_compute.views.windows.asking import Ask

if TYPE_CHECKING:  # importing it imports numba
    from tidemill_compute.views.windows.maintainer import WindowMaintainer
    from tidemill_compute.views.windows.planning import WindowPlan

Engine = Literal["local", "spark"]


@dataclass(frozen=True, slots=True)
class Windows:
    """Where windows are evaluated: `ask` does it, with `bytes_max` of memory for one range."""

    ask: Ask
    now_ms: Callable[[], int]
    bytes_max: int = HISTORY_BYTES_MAX


class Engines:
    """Chooses the engine of one view at each start, and says why.

    A view whose program has no windows stays in one process, whatever is asked for.
    """

    def __init__(self, asked: Engine, windows: Windows) -> None:
        self.asked = asked
        self._windows = windows
        self._plan: WindowPlan | None = None
        self._keeper: WindowMaintainer | None = None
        self.running: Engine = "local"
        self.reason = "it has not begun yet"

    def plan(self, history: History) -> None:
        """Find out whether the program has windows, by the rows of its inputs. Once."""
        from tidemill_compute.views.windows.planning import plan_windows

        if self._plan is None:
            self._plan = plan_windows(history)

    @property
    def read_again(self) -> list[str]:
        """Outputs that windows read as they are just before them."""
        if self._plan is None or self._plan.lacking:
            return []
        written = self._plan.divided.history.written
        return [name for name in self._plan.collections() if name in written]

    @property
    def wanted(self) -> Engine:
        """The engine that the next start would choose, if the view has begun."""
        lacking = "" if self._plan is None else self._plan.lacking
        return "local" if lacking else self.asked

    def choose(self, *, fresh: bool) -> Engine:
        """The engine from now on. A view begins in one process: its history is a job of its own."""
        lacking = "" if self._plan is None else self._plan.lacking
        self.running = "local" if fresh else self.wanted
        if self.asked == "local":
            self.reason = "engine: local"
        elif lacking:
            self.reason = lacking
        elif fresh:
            self.reason = "the view begins, and goes over to windows with its second step"
        else:
            self.reason = "engine: spark"
        return self.running

    @property
    def figures(self) -> dict[str, object]:
        """Windows that were evaluated since the last start, and ranges that the last one touched."""
        keeper = self._keeper
        if keeper is None or self.running == "local":
            return {}
        return {"windows": keeper.windows, "rangesTouched": keeper.touched}

    def maintainer(self, collections: Collections) -> Maintainer:
        """A maintainer by windows."""
        from tidemill_compute.views.windows.maintainer import WindowMaintainer

        assert self._plan is not None, "windows are planned before they are asked for"
        windows = self._windows
        self._keeper = WindowMaintainer(
            self._plan, collections, windows.ask, windows.now_ms, windows.bytes_max
        )
        return self._keeper
