"""The engine of a view: this process, or windows on Spark. Answers are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tidemill.errors import Exhausted, UsageError
from tidemill.shard import Collections
from tidemill_compute.views.auto import AutoRule, Engine, Why
from tidemill_compute.views.bulk import HISTORY_BYTES, HISTORY_BYTES_MAX, History
from tidemill_compute.views.view_updates import Maintainer
from tidemill_compute.views.windows.asking import Ask, WindowCounts

if TYPE_CHECKING:  # importing it loads loops
    from tidemill_compute.views.windows.planning import WindowPlan

Asked = Literal["auto", "local", "spark"]


@dataclass(frozen=True, slots=True)
class Windows:
    """The evaluation of windows: `ask` does it, with `bytes_max` of memory for one range.

    `setting` says how much that is. `unique` gives names that nobody has. `lacking` is a sentence
    where no driver can run, which `auto` then does without.
    """

    ask: Ask
    now_ms: Callable[[], int]
    unique: Callable[[], str]
    bytes_max: int = HISTORY_BYTES_MAX
    lacking: Callable[[], str] = lambda: ""
    setting: str = HISTORY_BYTES


class Engines:
    """Chooses the engine of one view at each start, and says why.

    A view whose program has no windows stays in one process, whatever is asked for.
    """

    def __init__(self, asked: Asked, windows: Windows, bytes_max: int) -> None:
        """`bytes_max` is the memory that one process may use for the view."""
        self.asked = asked
        self.rule = AutoRule(bytes_max)
        self._windows = windows
        self._plan: WindowPlan | None = None
        self.counts = WindowCounts()
        self.running: Engine = "local"
        self.why = Why("Begins", "it has not begun yet")

    @property
    def planned(self) -> bool:
        """Whether windows have been planned, or nobody wants them."""
        return self._plan is not None or self._first_choice == "local"

    def plan(self, history: History) -> None:
        """Find out whether the program has windows, by the rows of its inputs."""
        from tidemill_compute.views.windows.planning import plan_windows

        self._plan = plan_windows(history)

    @property
    def read_again(self) -> list[str]:
        """Outputs that windows read as they are just before them."""
        if self._plan is None or self._plan.lacking:
            return []
        outputs = {name for name, _ in self._plan.divided.history.target.outputs.values()}
        return [name for name in self._plan.collections(whole=False) if name in outputs]

    @property
    def _first_choice(self) -> Engine:
        return self.rule.wanted if self.asked == "auto" else self.asked

    @property
    def wanted(self) -> Engine:
        """The engine that the next start would choose, if the view has begun."""
        return self._first_choice if self._lacking is None else "local"

    @property
    def _lacking(self) -> Why | None:
        """Why windows are not possible, if they are wanted."""
        if self._first_choice == "local":
            return None
        if self._plan is not None and self._plan.lacking:
            return Why("NoWindows", self._plan.lacking)
        if self._plan is not None and self._plan.anew and self._for_lag:
            said = "would evaluate its recursion anew, from all of its facts: more work, not less"
            return Why("Rounds", f"{self.rule.why.said}; each window on Spark {said}")
        lacking = self._windows.lacking() if self.asked == "auto" else ""
        return Why("NoDriver", lacking) if lacking else None

    @property
    def _for_lag(self) -> bool:
        return self.asked == "auto" and self.rule.why.cause == "Lag"

    def choose(self, *, fresh: bool) -> Engine:
        """The engine from now on. A view begins in one process: its history is a job of its own.

        Raises: UsageError where Spark is asked for and cannot run, with what to install.
        """
        if self.asked == "spark" and self.wanted == "spark" and (said := self._windows.lacking()):
            raise UsageError(f"no windows on Spark: {said}", reason="launcher")
        self.running = "local" if fresh else self.wanted
        lacking = self._lacking
        if lacking is not None:
            self.why = lacking
        elif fresh and self._first_choice == "spark":
            self.why = Why("Begins", "the view begins, and goes over to windows after a step")
        elif self.asked == "auto":
            self.why = self.rule.why
        else:
            self.why = Why("Asked", f"engine: {self.asked}")
        return self.running

    def gave_up(self, error: Exhausted, *, begins: bool) -> bool:
        """Whether Spark may go on where one process has no room to begin, or for a step.

        A view without room on Spark has none anywhere.
        """
        if self.running == "spark":
            return False
        self.rule.exhausted(error.message, begins=begins)
        return self.wanted == "spark"

    def begun(self, held: tuple[int, int]) -> None:
        """Note the bytes and rows that are held as the view goes on from a start."""
        if self.running == "local":
            self.rule.kept_here(held[0])

    def stepped(self, now_s: float, took_s: float, behind: int, held: tuple[int, int]) -> None:
        """Note a step that left changes behind, and the bytes and rows that are held."""
        if self.running == "local":
            self.rule.step_here(now_s, took_s, behind, *held)
        else:
            self.rule.window_there(now_s, held[1])

    @property
    def figures(self) -> dict[str, object]:
        """Windows that were evaluated, and ranges that the newest touched."""
        if not self.counts.windows:
            return {}
        return {"windows": self.counts.windows, "rangesTouched": self.counts.newest}

    def maintainer(self, collections: Collections) -> Maintainer:
        """A maintainer by windows."""
        from tidemill_compute.views.windows.maintainer import WindowMaintainer

        assert self._plan is not None, "windows are planned before they are asked for"
        windows = self._windows
        return WindowMaintainer(
            self._plan, collections, windows.ask, windows.now_ms, windows.unique(),
            self.counts, windows.bytes_max, windows.setting,
        )  # fmt: skip
