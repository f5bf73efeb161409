"""A view kept up to date by the changes of its inputs, from an instant on at which everything is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemill.datalog.evaluation import EngineState
from tidemill.datalog.evaluation.state import StateRow
from tidemill.datalog.incremental import Changes, IncrementalEngine
from tidemill_compute.living import LivingInput
from tidemill_compute.view_target import ViewTarget

_WINDOW_ROWS = 128
"""What a window costs even for nothing, in rows that it looks at."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What one step has changed: facts and errors at their instants, and rows of the state."""

    changes: Changes
    state_gone: tuple[StateRow, ...]
    state_come: tuple[StateRow, ...]


class Follower:
    """Holds what the view holds just before `lower`, and goes on from there.

    What is present in the inputs just before `lower`, and the state, are all it needs; the outputs are
    not read. Cost: of the beginning, one pass over the rows alive; of a step, what its changes touch.
    """

    def __init__(
        self,
        target: ViewTarget,
        inputs: Sequence[LivingInput],
        lower: int,
        state: EngineState | None,
    ) -> None:
        self._inputs = inputs
        self._engine = IncrementalEngine(
            target.program, begin=lower - 1, state=state, strategy=target.strategy,
            limits=target.limits,
        )  # fmt: skip
        for living in inputs:
            self._engine.feed(living.predicate, living.present())
        self._engine.advance(lower)
        self._engine.take_state_changes()

    def step(self, upper: int) -> Followed:
        """Take the changes of the inputs before `upper`; what they change."""
        for living in self._inputs:
            for record, time, diff in living.take(upper):
                self._engine.update(living.predicate, record, time, diff)
        changes = self._engine.advance(upper)
        gone, come = self._engine.take_state_changes()
        return Followed(changes, gone.to_rows(), come.to_rows())

    def state(self) -> EngineState:
        """What a window that begins here needs."""
        return self._engine.state()


def changes_are_few(inputs: Iterable[LivingInput], upper: int, following: bool) -> bool:
    """Whether following the changes before `upper` costs less than looking at all that is alive.

    A change costs about as much as two rows that a window looks at, changed or alive. A view that is
    followed stays so for some time longer, because to begin again takes a pass over all rows.
    """
    changes = alive = 0
    for living in inputs:
        changes += living.waiting(upper)
        alive += living.alive
    return changes <= (4 if following else 1) * (alive + _WINDOW_ROWS)
