"""Programs with `@next` and `@async` as views: tick after tick, each at its instant (language.md 7).

What a tick derives is present from its instant until the next tick says otherwise, or until it expires. A tick in
which nothing can differ is left out: a program at rest costs nothing, however short its period.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from tidemill.datalog.evaluation.state import StateRow
from tidemill.datalog.presence import END, Instant
from tidemill.datalog.records import Record
from tidemill.datalog.tick_state import MESSAGE, Handed, handed_of, message_of, message_row
from tidemill.datalog.ticks import Message
from tidemill.time import U64_MAX, UsageError
from tidemill_compute.admitting import HELD, Gate, Moved, gate_of, held_of, held_row
from tidemill_compute.living import LivingInput
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.tick_nodes import IncrementalNode, ScratchNode, TickNode
from tidemill_compute.tick_outputs import TickOutputs
from tidemill_compute.view_target import STATE_SCHEMA, TickPlan, ViewTarget
from tidemill_compute.view_updates import Start, Step, moved_rows, update_table

_ALONE_MAX = 1_000_000


@dataclass(slots=True)
class _Node:
    """One copy of the program, what it has not seen yet, and when it has to look."""

    number: int
    ticks: TickNode
    last: int
    changes: Counter[Record] = field(default_factory=Counter)
    present: Counter[object] = field(default_factory=Counter)
    mail: list[tuple[int, Message]] = field(default_factory=list)
    wake: Instant = END
    """From this instant on it may have something to say."""


class Ticked:
    """At each instant the outputs are what the last tick at or before it said.

    All of it is a function of the inputs: at which instants ticks run, what each admits, which messages it
    takes in. The state is what one tick hands to the next; kept facts that stay are written once.
    """

    reads_contents = True

    def __init__(self, target: ViewTarget, settings: ComputeSettings) -> None:
        assert target.ticks is not None
        self._target = target
        self._plan: TickPlan = target.ticks
        self._ticks_max = settings.window_ticks_max
        self._inputs: Mapping[str, LivingInput] = {}
        self._nodes: list[_Node] = []
        self._gates: dict[str, Gate] = {}
        self._arriving: deque[tuple[int, dict[str, list[Moved]]]] = deque()
        self._outputs = TickOutputs(target)
        self._kept_rows: set[StateRow] = set()
        self._alone = 0

    @property
    def mode(self) -> str:
        """The engine that runs the ticks."""
        return "scratch" if self._target.engine == "scratch" else "incremental"

    # Where a run begins.

    def begin(self, start: Start, inputs: Mapping[str, LivingInput]) -> None:
        """Go on from a start: with the facts present there, and what the last tick handed on."""
        self._inputs = inputs
        admission = self._plan.admission
        self._gates = {name: gate_of(admission.get(name, "tick")) for name in inputs}
        self._arriving.clear()
        self._outputs.begin(start)
        last = start.lower - 1
        by_node = _by_node(start.state, self._plan.nodes)
        self._nodes = [_Node(n, self._ticker(handed_of(by_node[n])), last) for n in by_node]
        for node in self._nodes:
            node.wake = self._tick_from(start.lower) if self._plan.period_ms is not None else END
        for sent, message in (message_of(row) for row in start.state if row[1] == MESSAGE):
            self._post(sent, message)
        held = held_of(row for row in start.state if row[1] == HELD)
        for name, waiting in held.items():
            self._gates[name].hold(waiting)
        present = {
            name: [(p.record, 1) for p in living.present()] for name, living in inputs.items()
        }
        if start.fresh:
            if any(present.values()):
                self._arriving.append((start.lower, present))
        else:
            for name, moved in present.items():
                withheld = [(record, -diff) for record, _, diff in held.get(name, ()) if diff]
                self._admit(last, name, [*moved, *withheld], wakes=False)
        self._kept_rows = {row for row in start.state if row[1] in (HELD, MESSAGE)}

    def _ticker(self, handed: Handed) -> TickNode:
        if self._target.engine == "scratch":
            return ScratchNode(self._target, handed)
        return IncrementalNode(self._target, handed)

    # One step.

    def step(self, lower: int, common: int, half_written: int | None) -> Step:
        """All ticks below `common`, or as many as one step may hold."""
        upper = common if half_written is None else half_written
        self._take(common)
        ran, last = 0, lower - 1
        while True:
            arrival, tick = self._next_arrival(), self._next_tick()
            at = min(arrival, tick)
            if at >= upper:
                break
            if half_written is None and ran >= self._ticks_max and at > last:
                upper = last + 1
                break
            if arrival <= tick:
                self._arrive(int(arrival))
            else:
                last = int(tick)
                self._outputs.expire(last)
                for node in self._nodes:
                    if self._due(node) <= last:
                        ran += 1
                        self._run(node, last)
                self._check_rest(common)
        self._outputs.expire(upper)
        state = update_table(self._state_changes(upper - 1), STATE_SCHEMA)
        updates: list[tuple[str, pa.Table]] = [(self._target.state, state)]
        return Step(upper, [*updates, *self._outputs.take()])

    def _check_rest(self, common: int) -> None:
        """Give up on a program that goes on for ever over inputs that will never change again."""
        self._alone += 1
        if common == U64_MAX and self._alone > _ALONE_MAX:
            raise UsageError(
                f"{self._target.name}: its inputs are closed, and it does not come to rest within "
                f"{_ALONE_MAX} ticks", reason="NeverRests",
            )  # fmt: skip

    def _take(self, common: int) -> None:
        """Queue what the inputs change before `common`, by instant."""
        arriving: dict[int, dict[str, list[Moved]]] = {}
        for name, living in self._inputs.items():
            for record, at, diff in living.take(common):
                arriving.setdefault(at, {}).setdefault(name, []).append((record, diff))
        self._arriving.extend(sorted(arriving.items()))

    def _next_arrival(self) -> Instant:
        """The next instant at which an input changes, or a gate lets something through."""
        deadlines = [gate.deadline for gate in self._gates.values() if gate.deadline is not None]
        soonest = min(deadlines, default=END)
        return min(soonest, self._arriving[0][0]) if self._arriving else soonest

    def _arrive(self, at: int) -> None:
        """Let the gates pass what they will at an instant."""
        self._alone = 0
        came: dict[str, list[Moved]] = {}
        if self._arriving and self._arriving[0][0] == at:
            came = self._arriving.popleft()[1]
        for name, gate in self._gates.items():
            passed = gate.pass_at(at, came.get(name, ()))
            if passed:
                self._admit(at, name, passed, wakes=True)

    def _admit(self, at: int, name: str, moved: Iterable[Moved], wakes: bool) -> None:
        """Give changes of an input to the nodes that see them, and wake those for which they matter."""
        place = self._plan.place.get(name)
        eager = self._plan.admission.get(name) == "eager"
        by_node: dict[int, list[Moved]] = {}
        for record, diff in moved:
            if place is None:
                for node in self._nodes:
                    by_node.setdefault(node.number, []).append((record, diff))
            else:
                number = record.arguments[place]
                if isinstance(number, int) and 0 <= number < len(self._nodes):
                    by_node.setdefault(number, []).append((record, diff))
                else:
                    self._outputs.misplaced(record, at, diff)
        for number, changes in by_node.items():
            node = self._nodes[number]
            toggled = _toggled(node.present, changes)
            for record, diff in changes:
                node.changes[record] += diff
            if wakes and (toggled or self._plan.period_ms is not None):
                node.wake = min(node.wake, at if eager else self._tick_from(at))

    def _tick_from(self, at: Instant) -> Instant:
        """The first instant from `at` on at which a tick may run: any, or a multiple of the period."""
        period = self._plan.period_ms
        return at if period is None or at == END else -(-int(at) // period) * period

    def _due(self, node: _Node) -> Instant:
        """When the node's next tick is."""
        due = node.wake
        if node.mail:
            due = min(due, self._tick_from(node.mail[0][0] + 1))
        return max(due, node.last + 1)

    def _next_tick(self) -> Instant:
        return min(self._due(node) for node in self._nodes)

    def _run(self, node: _Node, at: int) -> None:
        """One tick of one node."""
        changes, node.changes = node.changes, Counter()
        letters = [message for sent, message in node.mail if sent < at]
        node.mail = [(sent, message) for sent, message in node.mail if sent >= at]
        for message in letters:
            if message.record.expires is None or message.record.expires > at:
                changes[message.record] += 1
                node.changes[message.record] -= 1
        come: dict[str, list[Record]] = {}
        gone: dict[str, list[Record]] = {}
        for record, diff in changes.items():
            into = come if diff > 0 else gone
            into.setdefault(record.predicate, []).extend([record] * abs(diff))
        answer = node.ticks.tick(at, come, gone)
        unknown = [m for m in answer.messages if not self._post(at, m)]
        self._outputs.tell(node.number, at, answer, unknown)
        node.last = at
        node.wake = END
        if self._plan.period_ms is not None:
            rests = not node.changes and not node.ticks.unsettled
            node.wake = self._tick_from(max(node.ticks.soonest, at + 1) if rests else at + 1)

    def _post(self, sent: int, message: Message) -> bool:
        """Put a message on its way; whether there is such a node."""
        number = message.node
        if not isinstance(number, int) or isinstance(number, bool):
            return False
        if not 0 <= number < len(self._nodes):
            return False
        self._nodes[number].mail.append((sent, message))
        return True

    # What a restart needs.

    def _own_rows(self) -> set[StateRow]:
        """What is held at the gates and on its way between nodes."""
        rows = {message_row(sent, m) for node in self._nodes for sent, m in node.mail}
        for name, gate in self._gates.items():
            rows |= {held_row(name, number, held) for number, held in enumerate(gate.held())}
        return rows

    def _state_changes(self, at: int) -> list[tuple[tuple[object, ...], int, int]]:
        """The difference of the state, at the last instant of a step."""
        before, self._kept_rows = self._kept_rows, self._own_rows()
        gone: list[StateRow] = list(before - self._kept_rows)
        come: list[StateRow] = list(self._kept_rows - before)
        for node in self._nodes:
            left, entered = node.ticks.take_state()
            gone += [_of_node(row, node.number) for row in left - entered]
            come += [_of_node(row, node.number) for row in entered - left]
        return moved_rows(gone, come, at)


def _of_node(row: StateRow, number: int) -> StateRow:
    rule, kind, text = row
    return rule, f"{kind}@{number}", text


def _by_node(state: Iterable[StateRow], nodes: int) -> dict[int, list[StateRow]]:
    """The rows that each node handed on."""
    found: dict[int, list[StateRow]] = {number: [] for number in range(nodes)}
    for rule, kind, text in state:
        name, at, number = kind.partition("@")
        if at:
            found[int(number)].append((rule, name, text))
    return found


def _toggled(present: Counter[object], changes: Iterable[Moved]) -> bool:
    """Whether the set of facts that are present differs after the changes, told by their keys."""
    before: dict[object, bool] = {}
    for record, diff in changes:
        before.setdefault(record.key, present[record.key] > 0)
        present[record.key] += diff
    toggled = False
    for key, was in before.items():
        toggled |= (present[key] > 0) != was
        if not present[key]:
            del present[key]
    return toggled
