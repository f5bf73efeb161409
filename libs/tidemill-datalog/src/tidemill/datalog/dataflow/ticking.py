"""Ticked programs on the dataflow: inputs sampled at ticks, and `@next` as a feedback edge.

A tick is an instant of the timeline. Collections hold on intervals; only their values at ticks
count. A row of `#next:p` that is present at one tick is fed to `p` from the following tick on. Of a
fact that is handed on from tick to tick nothing moves, for its row comes and goes once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tidemill.arrangement.interval_updates import net_moves
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow.engine import DataflowEngine
from tidemill.datalog.dataflow.operators.sampling import at_ticks
from tidemill.datalog.dataflow.scheduler import Strategy
from tidemill.datalog.dataflow.schema import record_of
from tidemill.datalog.dataflow.ticked_plan import ticked_plan
from tidemill.datalog.evaluation.limits import Limits
from tidemill.datalog.evaluation.logical import NEXT, SENT, logical_plan
from tidemill.datalog.presence import END, Instant, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.ticks import Message

Given = Mapping[str, Iterable[Record]]


@dataclass(frozen=True, slots=True)
class TickGiven:
    """One tick to run: its instant, the input records that come to it, and those that go."""

    at: int
    come: Given
    gone: Given


@dataclass(frozen=True, slots=True)
class TickTold:
    """Changes of a tick since the one before, records and errors with ±1; and its messages."""

    facts: list[tuple[Record, int]]
    errors: list[tuple[str, int]]
    messages: tuple[Message, ...]


class DataflowTicker:
    """The ticks of one program at one node, one or many in a step.

    Raises: NotInDataflow for a construct that is not here yet.
    """

    def __init__(
        self,
        checked: CheckedProgram,
        *,
        strategy: Strategy = "strata",
        limits: Limits | None = None,
    ) -> None:
        plan = ticked_plan(logical_plan(checked))
        names = [name for each in plan.components for name in each.predicates]
        self._next = [name for name in names if name.startswith(NEXT)]
        self._sent = [name for name in names if name.startswith(SENT)]
        self._derived = checked.derived
        self.engine = DataflowEngine(
            checked, plan=plan, strategy=strategy, limits=limits, ticked=True,
            watch=(*self._next, *self._sent),
        )  # fmt: skip
        self._last = np.empty(0, np.int64)
        self._handed: dict[str, I64Array] = {}
        self._sending: Counter[Record] = Counter()
        self._errors: set[str] = set()

    def run(self, ticks: Sequence[TickGiven]) -> list[TickTold]:
        """Run ticks, whose instants ascend; what each has changed.

        Of input records each may come several times. Cost: what follows from the changes. A fact
        that changes from tick to tick costs a round for each of them.
        """
        engine, instants = self.engine, np.array([tick.at for tick in ticks], np.int64)
        engine.begin_ticks(instants)
        for name, moves in self._handed.items():
            self._hand_on(name, moves, np.concatenate([self._last, instants[:1]]))
        for tick in ticks:
            for moved, diff in ((tick.come, 1), (tick.gone, -1)):
                for name, records in moved.items():
                    found = [
                        Presence(r, tick.at, END if r.expires is None else r.expires)
                        for r in records
                        if r.expires is None or r.expires > tick.at
                    ]
                    engine.feed_presences(name, found, diff)
        while engine.settle():
            for name in self._next if len(instants) > 1 else ():
                self._hand_on(name, engine.moves(name, int(instants[-2]) + 1), instants)
        self._last, upper = instants[-1:], int(instants[-1]) + 1
        self._handed = {name: engine.moves(name, upper) for name in self._next}
        told = self._told(instants, upper)
        engine.finish(upper)
        return told

    def _hand_on(self, name: str, moves: I64Array, ticks: I64Array) -> None:
        """Feed what some ticks say of the ones that follow them, each row one tick later."""
        if len(moves):
            change = at_ticks(moves, ticks)
            change[:, -3] = ticks[np.searchsorted(ticks, change[:, -3]) + 1]
            change[:, -2] = change[:, self.engine.schemas[name].expiry]
            change = change[change[:, -3] < change[:, -2]]
            self.engine.feed(name.removeprefix(NEXT), change)

    @property
    def unsettled(self) -> bool:
        """Whether a tick that changes no input may still answer differently, or sends something.

        Changes by time alone are told by `soonest`.
        """
        return bool(self._sending) or any(len(self._net(name)) for name in self._handed)

    @property
    def soonest(self) -> Instant:
        """The instant from which on time alone may change an answer."""
        return self.engine.soonest

    def _net(self, name: str) -> I64Array:
        """Moves of a predicate between what two ticks hand on, without rows that end by then."""
        moves = self._handed[name]
        moves = moves[moves[:, self.engine.schemas[name].expiry] > self._last[-1]]
        moves[:, -2] = 0
        return net_moves(moves)

    def _told(self, instants: I64Array, upper: int) -> list[TickTold]:
        changes = [self._by_tick(name, instants, upper) for name in self._derived]
        sent = [self._by_tick(name, instants, upper) for name in self._sent]
        return [
            TickTold(
                [item for found in changes for item in found[number].items() if item[1]],
                self._failed(at),
                self._messages([found[number] for found in sent], at),
            )
            for number, at in enumerate(instants.tolist())
        ]

    def _by_tick(self, name: str, instants: I64Array, upper: int) -> list[Counter[Record]]:
        """The changes of a predicate, tick by tick."""
        found: list[Counter[Record]] = [Counter() for _ in instants]
        moves = self.engine.moves(name, upper)
        numbers = np.searchsorted(instants, moves[:, -2]).tolist()
        schema, texts = self.engine.schemas[name], self.engine.texts
        for number, move in zip(numbers, moves.tolist(), strict=True):
            found[number][record_of(schema, move, texts)] += move[-1]
        return found

    def _messages(self, changes: Iterable[Counter[Record]], at: int) -> tuple[Message, ...]:
        """The messages of a tick: one for each row that it derives, new or not."""
        for change in changes:
            self._sending.update(change)
        self._sending = +self._sending
        return tuple(
            Message(record.arguments[0], _as_sent(record))
            for record in self._sending
            if record.expires is None or record.expires > at
        )

    def _failed(self, at: int) -> list[tuple[str, int]]:
        """Errors that begin or end with a tick."""
        now = {e.text for e in self.engine.all_errors.presences(at + 1) if e.end > at}
        before, self._errors = self._errors, now
        found = [(text, -1) for text in sorted(before - now)]
        return found + [(text, 1) for text in sorted(now - before)]


def _as_sent(record: Record) -> Record:
    return replace(
        record, predicate=record.predicate.removeprefix(SENT), arguments=record.arguments[1:]
    )
