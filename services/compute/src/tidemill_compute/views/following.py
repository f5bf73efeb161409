"""A view kept up to date by the changes of its inputs, from a completely written instant on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemill.datalog.allowance import Allowance
from tidemill.datalog.incremental import Changes, FactVersion, IncrementalEngine, Pause
from tidemill.datalog.state import EngineState, StateRow
from tidemill_compute.views.input_state import InputState
from tidemill_compute.views.view_target import ViewTarget

_CHANGE_US, _BEGIN_US = 70, 50
"""Microseconds to follow one change, and to begin following, for each row alive."""
_ROWS_US, _COLUMNS_US = (4_500, 35.0), (10_000, 1.0)
"""Microseconds of a window, and of each row that it looks at: on rows, on columns."""
_IDLE_ROWS_MAX = 1_000_000
"""Beside more rows than this the changes that come have to say first that it is worth it."""
_KEPT_LONG = 64
"""Steps of following after which the cost of its beginning was worth it."""
_PATIENCE_US = 100_000
"""A beginning that costs no more is not thought about."""


@dataclass(frozen=True, slots=True)
class Followed:
    """Changes of one step: facts and errors at their instants, and rows of the state."""

    changes: Changes
    state_gone: tuple[StateRow, ...]
    state_come: tuple[StateRow, ...]


class Follower:
    """State of a view just before `lower`, kept up to date by changes from there on.

    The rows in the inputs just before `lower`, and the state, are all it needs; the outputs are not
    read. The facts of the inputs are shared with other views at the same instant. Cost: at the
    beginning, one pass over the rows alive; for a step, the work that its changes cause.
    """

    def __init__(
        self,
        target: ViewTarget,
        inputs: Sequence[InputState],
        lower: int,
        state: EngineState | None,
        allowance: Allowance,
        pause: Pause | None = None,
    ) -> None:
        self.allowance = allowance
        """The count of memory that this view draws on."""
        lent = {each.predicate: _lent(target, each, pause) for each in inputs}
        known = {name: version for name, version in lent.items() if version is not None}
        self._lent = [each for each in inputs if each.predicate in known]
        self._fed = [each for each in inputs if each.predicate not in known]
        self._engine = IncrementalEngine(
            target.program, begin=lower - 1, state=state, strategy=target.strategy,
            limits=target.limits, lent=known, pause=pause, allowance=allowance,
        )  # fmt: skip
        for living in self._fed:
            self._engine.feed(living.predicate, living.present())
        self._engine.advance(lower)
        self._engine.take_state_changes()

    def stand_on(self, inputs: Mapping[str, InputState]) -> None:
        """Go on with these inputs, which hold what it has begun with, as that is held now."""
        for living in (*self._lent, *self._fed):
            inputs[living.predicate].become(living)
        self._lent = [inputs[living.predicate] for living in self._lent]
        self._fed = [inputs[living.predicate] for living in self._fed]

    def step(self, upper: int) -> Followed:
        """Take the changes of the inputs before `upper`; what they change."""
        for living in self._lent:
            for later in living.walk(upper):
                self._engine.move(living.predicate, later)
        for living in self._fed:
            for record, time, diff in living.take(upper):
                self._engine.update(living.predicate, record, time, diff)
        changes = self._engine.advance(upper)
        gone, come = self._engine.take_state_changes()
        return Followed(changes, gone.to_rows(), come.to_rows())

    def state(self) -> EngineState:
        """State of a window that begins here."""
        return self._engine.state()


def _lent(target: ViewTarget, living: InputState, pause: Pause | None) -> FactVersion | None:
    """The facts of an input, shared with other views, if the program reads them as they are held,
    and derives none.
    """
    name, program = living.predicate, target.program
    kinds = [kind for _, kind in living.shape.argument_columns]
    as_held = [kind for _, kind in program.columns.get(name, ())] == kinds
    return living.hold_facts(pause) if as_held and name not in program.derived else None


class CostModel:
    """Cost model of the two ways: deterministic, never more than about twice the better one.

    Following begins with a pass over all rows alive. So a way is left only when its extra cost over
    the other one equals that pass. While nothing waits the pass delays nobody. There the condition
    is that following was not left for too many changes since the last few. Following that was begun
    so is abandoned for the first changes that a window would save from waiting. Each wasted pass
    doubles the number of moments until the next one.
    """

    def __init__(self) -> None:
        self._lost_us = 0.0
        self._few = True
        self._idly = False
        self._failed = self._passes = self._kept = 0

    def begins_while_idle(self, alive: int) -> bool:
        """Whether to begin following in a moment in which nothing waits."""
        if self._passes:
            self._passes -= 1
            return False
        return self._few and alive <= _IDLE_ROWS_MAX

    def interrupted(self) -> None:
        """A change came before following had begun."""
        self._failed += 1
        self._passes = (1 << min(self._failed, 16)) - 1

    def begun(self) -> None:
        """Following has begun while nothing waited."""
        self._lost_us = 0.0
        self._idly = True
        self._passes = self._kept = 0

    def follows(self, following: bool, changes: int, alive: int, on_columns: bool) -> bool:
        """Whether to follow the next `changes` beside `alive` rows, which were followed until now
        or not.
        """
        fixed, each = _COLUMNS_US if on_columns else _ROWS_US
        more = _CHANGE_US * changes - fixed - each * (alive + changes)
        begin = _BEGIN_US * alive
        self._lost_us = max(0.0, self._lost_us + (more if following else -more))
        if not following and more < 0:
            self._few = True
        if following:
            stays = self._lost_us <= _PATIENCE_US + (0 if self._idly else begin)
            self._kept += 1
            if self._kept == _KEPT_LONG:
                self._failed = 0
        else:
            stays = more >= 0 or self._lost_us < begin - _PATIENCE_US
        if not stays:
            self._lost_us = 0.0
            self._few = not following
            if self._idly:
                self.interrupted()
            self._idly = False
            self._kept = 0
        return following == stays
