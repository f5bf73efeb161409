"""Programs with `@next` and `@async` as views: tick after tick, at its instant (language.md 7).

A row of a tick is present from its instant until the next tick states otherwise, or until it
expires.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.catalog.schemas import STATE_SCHEMA
from tidemill.datalog.allowance import Allowance, found_bytes
from tidemill.datalog.presence import END
from tidemill.datalog.records import Record
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
    from tidemill.datalog.dataflow.ticker import DataflowTicker
    from tidemill_compute.views.tick_rows import TickRows

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
        self._tickers: list[DataflowTicker] = []
        self._tells_rows = False
        self._rows: dict[str, TickRows] = {}
        """The inputs whose rows are no records for the run."""
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
        self._tickers, self._rows, self._tells_rows = [], {}, False
        self._allowance = self._target.allowance.apart()
        self._outputs.begin(start)
        self._texts = self._shared.texts(self._alive())
        present = {name: self._records(name) for name in inputs}
        begun = TickStart(start.lower, start.fresh, present, start.state)
        self._run = TickRun(
            self._plan, inputs, self._node, begun, self._outputs.misplaced, self._returns_max
        )
        for each in self._rows.values():
            each.begin(start.lower, start.fresh)
        self._shared.texts_begun(self._texts)
        self._kept_rows = {row for row in start.state if row[1] in KINDS_OF_RUN}

    def go_on(self, start: Start) -> bool:
        """Its inputs are read again."""
        return False

    def _records(self, name: str) -> Iterator[Record]:
        """The records of an input at the start, for the run. To be read once there are nodes."""
        if name not in self._rows:
            yield from self._inputs[name].present()

    def _node(self, number: int, handed: Handed) -> TickNode:
        from tidemill.datalog.dataflow.ticker import DataflowTicker  # loads loops

        target, allowance = self._target, self._allowance.apart()
        self._of_nodes.append(allowance)
        ticker = DataflowTicker(
            target.program, handed=handed, strategy=target.strategy, limits=target.limits,
            allowance=allowance, texts=self._texts, told=target.outputs, keeps_state=True,
            may_go_on="stratum" in self._plan.admission.values(),
        )  # fmt: skip
        self._tickers.append(ticker)
        self._read_as_rows(ticker)
        return ticker

    def _read_as_rows(self, ticker: DataflowTicker) -> None:
        """Read inputs as words that the run has to know nothing of, where no gate holds them."""
        from tidemill_compute.views.tick_rows import TickRows  # loads loops

        for name, living in self._inputs.items():
            schema = ticker.engine.schema_of(name)
            # NB: values with numbers of their own are forgotten by the engine, which must know all.
            if self._plan.takes_rows(name) and not (schema and schema.numbered):
                self._rows[name] = TickRows(living, schema, self._texts)

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
        beside += sum(each.nbytes for each in self._rows.values())
        self._allowance.settle(beside + sum(each.held for each in self._of_nodes))
        for each in self._rows.values():
            each.take(upper)
        others = self._inputs.keys() - self._rows.keys()
        run.take({name: self._inputs[name].take(upper) for name in others})
        ran, last = 0, lower - 1
        while True:
            rows_arrive = min((each.next_arrival for each in self._rows.values()), default=END)
            arrival, tick = min(run.next_arrival(), rows_arrive), run.next_tick()
            at = min(arrival, tick)
            if at >= upper:
                break
            if half_written is None and ran >= self._ticks_max and at > last:
                upper = last + 1
                break
            if arrival <= tick:
                self._alone = 0
                self._arrive(int(arrival))
            else:
                last = int(tick)
                outputs.expire(last)
                self._begin_tick(last)
                for ran_one in run.tick(last):
                    ran += 1
                    outputs.tell(ran_one.node, last, ran_one.answer, ran_one.lost)
                    self._allowance.take(len(ran_one.answer.facts) * _TOLD_BYTES)
                self._take_told(last)
                self._check_rest(common)
        outputs.expire(upper)
        for name in self._rows:
            self._inputs[name].kept = self._tickers[0].engine.rows(name)
        self._ticks_max = min(self._settings.window_ticks_max, 2 * self._ticks_max)
        self._changes_max = min(self._settings.step_changes_max, 2 * self._changes_max)
        state = update_table(self._state_changes(upper - 1), STATE_SCHEMA)
        updates: list[tuple[str, pa.Table]] = [(self._target.state, state)]
        return Step(upper, [*updates, *outputs.take()])

    def _begin_tick(self, at: int) -> None:
        """Feed what a tick sees; ask for what it changes as rows, where none are to be compared."""
        for rows in self._rows.values():
            rows.feed(self._tickers[0], at)
        if len(self._tickers) == 1 and not (self._tells_rows or self._outputs.compares):
            schemas, self._tells_rows = self._tickers[0].engine.schemas, True
            names = [n for n in self._target.outputs if n in schemas and not schemas[n].numbered]
            self._tickers[0].tell_rows(names)

    def _take_told(self, at: int) -> None:
        """Tell what a tick has changed as rows."""
        for ticker in self._tickers:
            for name, told in ticker.take_told():
                self._outputs.tell_rows(name, told, at)
                self._allowance.take(int(told.moves.nbytes))

    def _arrive(self, at: int) -> None:
        """Changes of inputs arrive at an instant; rows, with all that the same tick sees."""
        arrived = [each for each in self._rows.values() if each.next_arrival <= at]
        if arrived:
            seen_at = self._run.stir(at)
            for each in arrived:
                each.arrive(seen_at)
        if self._run.next_arrival() <= at:
            self._run.arrive(at)

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
        before, self._kept_rows = self._kept_rows, self._run.own_rows() | self._outputs.endings
        gone: list[StateRow] = list(before - self._kept_rows)
        come: list[StateRow] = list(self._kept_rows - before)
        for node in self._run.nodes:
            left, entered = node.ticks.take_state()
            gone += [of_node(row, node.number) for row in left - entered]
            come += [of_node(row, node.number) for row in entered - left]
        return moved_rows(gone, come, at)
