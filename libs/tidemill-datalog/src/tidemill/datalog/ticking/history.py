"""Record of ticks: inputs, answers and state of each, as they run again over their history.

Nothing of this is recorded while a view is maintained. Ticks are a function of the inputs, and of
the facts that the ticks before the history handed on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Generic, TypeAlias, TypeVar

from tidemill.arrangement.looks import Things
from tidemill.datalog.allowance import Allowance, found_bytes
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.limits import Limits
from tidemill.datalog.presence import END, Instant, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.state import StateRow
from tidemill.datalog.tick_plan import TickPlan
from tidemill.datalog.tick_state import Handed
from tidemill.datalog.ticking.run import TickRun, TickStart
from tidemill.datalog.ticks import Given, Message, TickAnswer, TickNode

What = TypeVar("What")
TickNumber: TypeAlias = int
"""The number of a tick in a history: 0 for the first that ran at any node."""


class Stretches(Generic[What]):
    """Things that come and go, each from one tick of a node to before another one."""

    def __init__(self) -> None:
        self._ended: list[tuple[What, int, float]] = []
        self._open: dict[What, int] = {}

    def come(self, what: What, at: int) -> None:
        """It is there from this tick on, if it was not before."""
        self._open.setdefault(what, at)

    def go(self, what: What, at: int) -> None:
        """It is not there any more in this tick."""
        begun = self._open.pop(what, None)
        if begun is not None and begun < at:
            self._ended.append((what, begun, at))

    def parts(self) -> tuple[Things, Things]:
        """The containers of all of them."""
        return self._ended, self._open

    def every(self) -> Iterator[tuple[What, int, float]]:
        """Each with its first tick and the tick after its last one; END if it still is there."""
        yield from self._ended
        yield from ((what, begun, END) for what, begun in self._open.items())


@dataclass(slots=True)
class NodeHistory:
    """The ticks of one node, by number from 0: `instants`, and what stretches over which of them.

    A tick that goes on has one more number each time; `first` is the one of its beginning.
    """

    number: int
    instants: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    places: list[TickNumber] = field(default_factory=list)
    seen: Stretches[Record] = field(default_factory=Stretches)
    """Input records, those of messages among them."""
    handed: Stretches[StateRow] = field(default_factory=Stretches)
    """Rows of what the ticks before handed on: a row handed by one is there from the next on."""
    said: Stretches[Record] = field(default_factory=Stretches)
    """Derived records."""

    def before(self, number: int) -> TickNumber | None:
        """The end of the tick before, None for the first tick."""
        first = self.first[number]
        return self.places[first - 1] if first else None

    def goes_on(self, number: int) -> bool:
        """Whether the tick goes on after this number."""
        return self.first[number + 1 : number + 2] == [self.first[number]]

    def number_at(self, at: int) -> int | None:
        """The last tick at or before an instant, None if there was none."""
        found = bisect_right(self.instants, at) - 1
        return found if found >= 0 else None

    def presences(self) -> dict[str, list[Presence]]:
        """Presences of all records: until a tick says otherwise, or they expire."""
        found: dict[str, list[Presence]] = {}
        for what, begun, ended in (*self.seen.every(), *self.said.every()):
            until: Instant = END if ended == END else self.instants[int(ended)]
            if what.expires is not None:
                until = min(until, what.expires)
            start = self.instants[begun]
            if start < until:
                found.setdefault(what.predicate, []).append(Presence(what, start, until))
        return found


@dataclass(slots=True)
class TickHistory:
    """All ticks that ran in a history that begins at `begin`; `fresh` if there were none before.

    `ran` has for each place its node and its number there; `sent` the messages of each place.
    """

    program: CheckedProgram
    begin: int
    fresh: bool
    nodes: list[NodeHistory]
    inputs: frozenset[str]
    ran: list[tuple[int, int]] = field(default_factory=list)
    sent: dict[TickNumber, tuple[Message, ...]] = field(default_factory=dict)

    def parts(self) -> list[Things]:
        """The containers of what may be much, for whoever lets the history go."""
        each = [s for node in self.nodes for s in (node.seen, node.handed, node.said)]
        return [self.ran, self.sent, *(part for stretches in each for part in stretches.parts())]

    def instant(self, place: TickNumber) -> int:
        """When the tick ran."""
        node, number = self.ran[place]
        return self.nodes[node].instants[number]

    def name(self, place: TickNumber) -> str:
        """When, and if there are several nodes, where a tick ran."""
        node = f"of node {self.ran[place][0]} " if len(self.nodes) > 1 else ""
        return f"{node}at {self.instant(place)}"

    def senders(self, place: TickNumber) -> list[TickNumber]:
        """The ticks, of any node, whose messages could come in at this one."""
        node, number = self.ran[place]
        instants, first = self.nodes[node].instants, self.nodes[node].first
        begun = first[number]
        after = instants[first[begun - 1]] if begun else self.begin - 1
        return [
            sender
            for each in self.nodes
            for at, sender in zip(each.instants, each.places, strict=True)
            if after <= at < instants[begun]
        ]


class _Recording:
    """A node that writes down what it sees, says and hands on."""

    def __init__(
        self, history: TickHistory, number: int, handed: Handed, make: Callable[[Handed], TickNode]
    ) -> None:
        self._history = history
        self._mine = history.nodes[number]
        self._inner = make(handed)
        self._handed = handed
        self._left: set[StateRow] = set()
        self._entered = handed.rows
        self._counts: dict[Record, int] = {}

    def tick(self, at: int, come: Given, gone: Given) -> TickAnswer:
        number = self._begin(at, len(self._mine.instants), come, gone)
        for row in self._left:
            self._mine.handed.go(row, number)
        for row in self._entered:
            self._mine.handed.come(row, number)
        self._left, self._entered = set(), set()
        return self._said(number, self._inner.tick(at, come, gone))

    def go_on(self, at: int, come: Given) -> TickAnswer:
        mine = self._mine
        if not mine.first:
            handed = self._handed.begun().rows
            for row in handed:
                mine.handed.come(row, 0)
            self._left, self._entered = handed - self._entered, self._entered - handed
        number = self._begin(at, mine.first[-1] if mine.first else 0, come, {})
        return self._said(number, self._inner.go_on(at, come))

    def _begin(self, at: int, first: int, come: Given, gone: Given) -> int:
        """Write down what is seen from a new number on."""
        mine, history = self._mine, self._history
        number = len(mine.instants)
        mine.instants.append(at)
        mine.first.append(first)
        mine.places.append(len(history.ran))
        history.ran.append((mine.number, number))
        for moved, diff in ((gone, -1), (come, 1)):
            for records in moved.values():
                for record in records:
                    self._count(record, number, diff)
        return number

    def _said(self, number: int, answer: TickAnswer) -> TickAnswer:
        """Write down what is said, and what the next tick is handed."""
        mine = self._mine
        for record, diff in answer.facts:
            (mine.said.come if diff > 0 else mine.said.go)(record, number)
        self._history.sent[mine.places[-1]] = answer.messages
        left, entered = self._inner.take_state()
        self._left, self._entered = (
            (self._left - entered) | (left - self._entered),
            (self._entered - left) | (entered - self._left),
        )
        return answer

    def _count(self, record: Record, number: int, diff: int) -> None:
        now = self._counts[record] = self._counts.get(record, 0) + diff
        if now > 0:
            self._mine.seen.come(record, number)
        else:
            self._mine.seen.go(record, number)

    @property
    def unsettled(self) -> bool:
        return self._inner.unsettled

    @property
    def hands_on_anew(self) -> bool:
        return self._inner.hands_on_anew

    @property
    def soonest(self) -> Instant:
        return self._inner.soonest

    def take_state(self) -> tuple[set[StateRow], set[StateRow]]:
        raise NotImplementedError  # its state is written down, not handed out


def recorded(
    program: CheckedProgram,
    plan: TickPlan,
    start: TickStart,
    changes: Mapping[str, Iterable[tuple[Record, int, int]]],
    upper: int,
    limits: Limits | None = None,
    allowance: Allowance | None = None,
) -> TickHistory:
    """The history of all ticks from a start on, below `upper`.

    `changes` are those of the inputs from `start.lower` on: record, instant, ±1. Raises:
    LimitPassed, Exhausted. Cost: that of keeping the view up to date over the history, and memory
    for all that changed in it.
    """
    from tidemill.datalog.dataflow.ticker import DataflowTicker  # loads loops

    nodes = [NodeHistory(number) for number in range(plan.nodes)]
    moves = {name: sorted(moved, key=itemgetter(1, 2)) for name, moved in changes.items()}
    carrying = {name for name, moved in moves.items() if any(r.parafacts for r, _, _ in moved)}
    carrying |= {name for name, each in start.present.items() if any(r.parafacts for r in each)}
    history = TickHistory(
        program, start.lower, start.fresh, nodes, frozenset({*moves, plan.number or ""})
    )

    def making(handed: Handed) -> DataflowTicker:
        apart = allowance and allowance.apart()
        return DataflowTicker(
            program, handed=handed, limits=limits, allowance=apart, keeps_state=True,
            carrying=carrying,
        )  # fmt: skip

    def recording(number: int, handed: Handed) -> _Recording:
        return _Recording(history, number, handed, making)

    run = TickRun(plan, moves, recording, start, lambda *_: None)
    run.take(moves)
    while True:
        arrival, tick = run.next_arrival(), run.next_tick()
        if min(arrival, tick) >= upper:
            return history
        if arrival <= tick:
            run.arrive(int(arrival))
        else:
            for each in run.tick(int(tick)):
                if allowance is not None:  # what was said and sent is written down
                    told = len(each.answer.facts) + len(each.answer.messages)
                    allowance.take((1 + told) * found_bytes(4))
