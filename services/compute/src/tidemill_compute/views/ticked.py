"""Programs with `@next` and `@async` as views: tick after tick, at its instant (language.md 7).

A row of a tick is present from its instant until the next tick states otherwise, or until it
expires.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.catalog.schemas import STATE_SCHEMA
from tidemill.datalog.allowance import Allowance, found_bytes
from tidemill.datalog.state import StateRow
from tidemill.datalog.tick_plan import TickPlan
from tidemill.datalog.tick_state import Handed
from tidemill.datalog.ticking.run import KINDS_OF_RUN, TickRun, TickStart, of_node
from tidemill.datalog.ticks import TickNode
from tidemill.errors import UsageError
from tidemill.time import U64_MAX
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.input_state import InputState, cut_step
from tidemill_compute.views.shared_inputs import SharedInputs
from tidemill_compute.views.tick_outputs import TickOutputs
from tidemill_compute.views.view_target import ViewTarget
from tidemill_compute.views.view_updates import Start, Step, moved_rows, update_table

if TYPE_CHECKING:  # importing it loads loops
    from tidemill.datalog.columns.texts import Texts

_ALONE_MAX = 1_000_000
_TOLD_BYTES = found_bytes(4)
"""Bytes of a change that a tick has told, until the step is written."""
_FEWER = 4
"""A step that ran out of memory begins again with this part of its ticks and changes."""


class TickedMaintainer:
    """At each instant the outputs are what the last tick at or before it said.

    The state is what one tick hands to the next; kept facts that stay are written once.
    """

    reads_max = None
    reads_present = True
    held = (0, 0)

    def __init__(
        self,
        target: ViewTarget,
        settings: ComputeSettings,
        shared: SharedInputs | None = None,
    ) -> None:
        assert target.ticks is not None
        self._target = target
        self._plan: TickPlan = target.ticks
        self._settings = settings
        self._shared = shared or SharedInputs()
        self._texts: Texts
        self._ticks_max = settings.window_ticks_max
        self._changes_max = settings.step_changes_max
        self._returns_max = settings.tick_returns_max
        self._inputs: Mapping[str, InputState] = {}
        self._run: TickRun
        self._outputs = TickOutputs(target)
        self._kept_rows: set[StateRow] = set()
        self._alone = 0
        self._allowance = target.allowance.apart()
        self._of_nodes: list[Allowance] = []

    @property
    def outdated(self) -> bool:
        """Whether the dataflow numbers texts anew, as most of them are of rows that are gone."""
        return self._shared.texts(self._alive()) is not self._texts

    def _alive(self) -> int:
        return sum(living.alive for living in self._inputs.values())

    def begin(self, start: Start, inputs: Mapping[str, InputState]) -> None:
        """Go on from a start: with the facts present there, and what the last tick handed on."""
        self._inputs, self._of_nodes = inputs, []
        self._allowance = self._target.allowance.apart()
        self._outputs.begin(start)
        self._texts = self._shared.texts(self._alive())
        present = {name: living.present() for name, living in inputs.items()}
        begun = TickStart(start.lower, start.fresh, present, start.state)
        self._run = TickRun(
            self._plan, inputs, self._node, begun, self._outputs.misplaced, self._returns_max
        )
        self._shared.texts_begun(self._texts)
        self._kept_rows = {row for row in start.state if row[1] in KINDS_OF_RUN}

    def go_on(self, start: Start) -> bool:
        """Its inputs are read again."""
        return False

    def _node(self, number: int, handed: Handed) -> TickNode:
        from tidemill.datalog.dataflow.ticker import DataflowTicker  # loads loops

        target, allowance = self._target, self._allowance.apart()
        self._of_nodes.append(allowance)
        return DataflowTicker(
            target.program, handed=handed, strategy=target.strategy, limits=target.limits,
            allowance=allowance, texts=self._texts, told=target.outputs, keeps_state=True,
            may_go_on="stratum" in self._plan.admission.values(),
        )  # fmt: skip

    def fewer(self) -> bool:
        """Shrink steps after one ran out of memory; whether that is possible: no tick is cut."""
        smaller = max(self._ticks_max, self._changes_max) > 1
        self._ticks_max = max(1, self._ticks_max // _FEWER)
        self._changes_max = max(1, self._changes_max // _FEWER)
        return smaller

    def call_off(self) -> None:
        """Abandon the ticks under way."""
        for allowance in self._of_nodes:
            allowance.call_off()

    def step(self, lower: int, common: int, half_written: int | None) -> Step:
        """All ticks below `common`, or as many as one step may hold."""
        run, outputs, inputs = self._run, self._outputs, list(self._inputs.values())
        upper = half_written or cut_step(inputs, lower, common, self._changes_max)
        beside = sum(living.bytes_held for living in inputs)
        self._allowance.settle(beside + sum(each.held for each in self._of_nodes))
        run.take({name: living.take(upper) for name, living in self._inputs.items()})
        ran, last = 0, lower - 1
        while True:
            arrival, tick = run.next_arrival(), run.next_tick()
            at = min(arrival, tick)
            if at >= upper:
                break
            if half_written is None and ran >= self._ticks_max and at > last:
                upper = last + 1
                break
            if arrival <= tick:
                self._alone = 0
                run.arrive(int(arrival))
            else:
                last = int(tick)
                outputs.expire(last)
                for each in run.tick(last):
                    ran += 1
                    outputs.tell(each.node, last, each.answer, each.lost)
                    self._allowance.take(len(each.answer.facts) * _TOLD_BYTES)
                self._check_rest(common)
        outputs.expire(upper)
        self._ticks_max = min(self._settings.window_ticks_max, 2 * self._ticks_max)
        self._changes_max = min(self._settings.step_changes_max, 2 * self._changes_max)
        state = update_table(self._state_changes(upper - 1), STATE_SCHEMA)
        updates: list[tuple[str, pa.Table]] = [(self._target.state, state)]
        return Step(upper, [*updates, *outputs.take()])

    def _check_rest(self, common: int) -> None:
        """Give up on a program that goes on for ever over inputs that will never change again."""
        self._alone += 1
        if common == U64_MAX and self._alone > _ALONE_MAX:
            raise UsageError(
                f"{self._target.name}: its inputs are closed, and it does not come to rest within "
                f"{_ALONE_MAX} ticks", reason="NeverRests",
            )  # fmt: skip

    def _state_changes(self, at: int) -> list[tuple[tuple[object, ...], int, int]]:
        """The difference of the state, at the last instant of a step."""
        before, self._kept_rows = self._kept_rows, self._run.own_rows()
        gone: list[StateRow] = list(before - self._kept_rows)
        come: list[StateRow] = list(self._kept_rows - before)
        for node in self._run.nodes:
            left, entered = node.ticks.take_state()
            gone += [of_node(row, node.number) for row in left - entered]
            come += [of_node(row, node.number) for row in entered - left]
        return moved_rows(gone, come, at)
