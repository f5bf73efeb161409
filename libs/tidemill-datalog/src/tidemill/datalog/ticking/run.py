"""The ticks of a program over its timeline: which node runs when, and what of its inputs and mail
it sees.

All of it is a function of the inputs: at which instants ticks run, what each admits, which messages
it takes in. A tick in which nothing can differ is left out: a program at rest costs nothing,
however short its period.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidemill.datalog.limits import LimitPassed
from tidemill.datalog.presence import END, Instant
from tidemill.datalog.records import Record
from tidemill.datalog.state import NO_RULE, StateRow
from tidemill.datalog.tick_plan import TickPlan
from tidemill.datalog.tick_state import (
    ENDING,
    MESSAGE,
    Handed,
    handed_of,
    message_of,
    message_row,
)
from tidemill.datalog.ticking.admitting import HELD, Gate, Moved, gate_of, held_of, held_row
from tidemill.datalog.ticks import Message, TickAnswer, TickNode
from tidemill.errors import Corrupt

RAN = "ran"
"""The kind of the row of a state that says at which instant the last tick ran."""
RETURNING = "returning"
"""The kind of a row with a node, the instant at which it runs again, and how often it has."""
NUMBER = "number"
"""The kind of a row with a node and the number of its next tick, where programs read it."""
PENDING = "pending"
"""The kind of a row with a change of an input that came after the last tick of a node."""
KINDS_OF_RUN = frozenset({ENDING, HELD, MESSAGE, NUMBER, PENDING, RAN, RETURNING})
"""The kinds of rows that belong to no node."""
RETURNS_MAX = 10_000
"""Ticks in a row for which nothing but `@next` is a reason."""


@dataclass(frozen=True, slots=True)
class TickStart:
    """Start of a run: no tick from `lower` on has run; `state` is that of the ticks before.

    `fresh`: there were none, and `present` are the input records at `lower`; otherwise those just
    before it.
    """

    lower: int
    fresh: bool
    present: Mapping[str, Iterable[Record]]
    state: frozenset[StateRow] = frozenset()


@dataclass(slots=True)
class RunningNode:
    """One copy of the program, what it has not seen yet, and when it has to look."""

    number: int
    ticks: TickNode
    last: int
    changes: Counter[Record] = field(default_factory=Counter)
    seen: Counter[Record] = field(default_factory=Counter)
    """The input of its last tick, until `ticks` knows it."""
    joining: Counter[Record] = field(default_factory=Counter)
    """Records that join its last tick, at `join`."""
    join: Instant = END
    sent: tuple[Message, ...] = ()
    """Messages of its last tick."""
    present: Counter[object] = field(default_factory=Counter)
    """Facts of inputs whose changes are a reason for a tick, by their keys."""
    mail: list[tuple[int, Message]] = field(default_factory=list)
    wake: Instant = END
    """From this instant on it may have something to say."""
    arrived: bool = False
    """Whether a change of an input has woken it since its last tick."""
    count: int = 0
    """The ticks that it has run."""
    numbered: Record | None = None
    """The number of its last tick, as the program has read it."""
    returns: int = 0
    """Its last ticks for which nothing but `@next` was a reason, where ticks follow changes."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One tick of one node: its answer, and those of its messages that go to no node."""

    node: int
    at: int
    answer: TickAnswer
    lost: tuple[Message, ...]


class TickRun:
    """Nodes with their gates and their mail. The caller asks what comes next, and lets it happen.

    `misplaced` hears of rows that name a node which there is not: record, instant, difference.
    """

    def __init__(
        self,
        plan: TickPlan,
        inputs: Iterable[str],
        make: Callable[[int, Handed], TickNode],
        start: TickStart,
        misplaced: Callable[[Record, int, int], None],
        returns_max: int = RETURNS_MAX,
    ) -> None:
        self._plan = plan
        self._returns_max = returns_max
        self._misplaced = misplaced
        self._arriving: deque[tuple[int, Mapping[str, Sequence[Moved]]]] = deque()
        self._gates: dict[str, Gate] = {
            name: gate_of(plan.admission.get(name, "tick")) for name in inputs
        }
        last = start.lower - 1
        by_node = _by_node(start.state, plan.nodes)
        self.nodes = [RunningNode(n, make(n, handed_of(by_node[n])), last) for n in by_node]
        for node in self.nodes:
            node.wake = self._tick_from(start.lower) if plan.period_ms is not None else END
        self._goes_on = "stratum" in plan.admission.values()
        self._last = max((int(row[2]) for row in start.state if row[1] == RAN), default=None)
        for number, wake, returns in (
            map(int, row[2].split()) for row in start.state if row[1] == RETURNING
        ):
            self.nodes[number].wake, self.nodes[number].returns = wake, returns
        for number, count in (map(int, row[2].split()) for row in start.state if row[1] == NUMBER):
            self.nodes[number].count = count
        for sent, message in (message_of(row) for row in start.state if row[1] == MESSAGE):
            receiver = self._reached(message)
            assert receiver is not None  # it was when the message was sent
            receiver.mail.append((sent, message))
        self._take_up(start)

    def _take_up(self, start: TickStart) -> None:
        """See what the inputs hold, and hold what the gates held."""
        held = held_of(row for row in start.state if row[1] == HELD)
        for name, waiting in held.items():
            self._gates[name].hold(waiting)
        present = {name: [(record, 1) for record in each] for name, each in start.present.items()}
        if start.fresh:
            if any(present.values()):
                self._arriving.append((start.lower, present))
            return
        for name, moved in present.items():
            withheld = [(record, -diff) for record, _, diff in held.get(name, ()) if diff]
            self._admit(start.lower - 1, name, [*moved, *withheld], wakes=False)
        for node in self.nodes:
            node.seen, node.changes = node.changes, node.seen
        for waiting in held_of(row for row in start.state if row[1] == PENDING).values():
            for record, number, diff in waiting:
                self.nodes[number].changes[record] += diff
                self.nodes[number].seen[record] -= diff

    def take(self, changes: Mapping[str, Iterable[tuple[Record, int, int]]]) -> None:
        """Queue changes of the inputs (record, instant, ±1), none before those in the queue."""
        arriving: dict[int, dict[str, list[Moved]]] = {}
        for name, moved in changes.items():
            for record, at, diff in moved:
                arriving.setdefault(at, {}).setdefault(name, []).append((record, diff))
        self._arriving.extend(sorted(arriving.items()))

    def next_arrival(self) -> Instant:
        """The next instant at which an input changes, or a gate lets something through."""
        deadlines = [gate.deadline for gate in self._gates.values() if gate.deadline is not None]
        soonest = min(deadlines, default=END)
        return min(soonest, self._arriving[0][0]) if self._arriving else soonest

    def next_tick(self) -> Instant:
        """The next instant at which a node runs or its tick goes on, if nothing arrives before."""
        return min(min(self._due(node), node.join) for node in self.nodes)

    def arrive(self, at: int) -> None:
        """Admit the changes that pass the gates at the instant of `next_arrival`."""
        came: Mapping[str, Sequence[Moved]] = {}
        if self._arriving and self._arriving[0][0] == at:
            came = self._arriving.popleft()[1]
        for name, gate in self._gates.items():
            passed = gate.pass_at(at, came.get(name, ()))
            if passed:
                self._admit(at, name, passed, wakes=True)

    def stir(self, at: int) -> Instant:
        """Rows that the run does not know arrive; the instant of the tick that sees them."""
        seen_at = self._tick_from(at)
        for node in self.nodes:
            node.wake, node.arrived = min(node.wake, seen_at), True
        return seen_at

    def tick(self, at: int) -> Iterator[Ran]:
        """Run every node that is due, and let ticks go on that records join, in their order."""
        self._last = at
        for node in self.nodes:
            if self._due(node) <= at:
                yield self._run(node, at)
            elif node.join <= at:
                yield from self._go_on(node, at)

    def _admit(self, at: int, name: str, moved: Iterable[Moved], wakes: bool) -> None:
        """Give changes of an input to the nodes that see them, and wake those nodes."""
        place, admission = self._plan.place.get(name), self._plan.admission.get(name)
        eager = admission == "eager"
        # A period ticks without a reason: only records that join a tick ask whether facts differ.
        compared = self._plan.period_ms is None or admission == "stratum"
        by_node: dict[int, list[Moved]] = {}
        for record, diff in moved:
            if place is None:
                for node in self.nodes:
                    by_node.setdefault(node.number, []).append((record, diff))
            else:
                number = record.arguments[place]
                if isinstance(number, int) and 0 <= number < len(self.nodes):
                    by_node.setdefault(number, []).append((record, diff))
                else:
                    self._misplaced(record, at, diff)
        for number, changes in by_node.items():
            node = self.nodes[number]
            toggled = compared and _toggled(node.present, changes)
            if wakes and toggled and self._joins(name, changes, at):
                for record, diff in changes:
                    (node.joining if diff > 0 else node.changes)[record] += diff
                node.join = at
                continue
            for record, diff in changes:
                node.changes[record] += diff
            if wakes and (toggled or self._plan.period_ms is not None):
                node.wake = min(node.wake, at if eager else self._tick_from(at))
                node.arrived = True

    def _joins(self, name: str, changes: Iterable[Moved], at: int) -> bool:
        """Whether changes of an input may join the tick that has run: none takes anything away.

        The end of an event takes away nothing, and is an instant of a tick on change.
        """
        period = self._plan.period_ms
        if self._plan.admission.get(name) != "stratum" or self._last is None:
            return False
        if period is not None and at % period == 0:
            return False
        ended = [
            period is not None and record.expires is not None and record.expires <= at
            for record, diff in changes
            if diff < 0
        ]
        return all(ended) and any(diff > 0 for _, diff in changes)

    def _tick_from(self, at: Instant) -> Instant:
        """The first instant from `at` on for a tick: any, or a multiple of the period."""
        period = self._plan.period_ms
        return at if period is None or at == END else -(-int(at) // period) * period

    def _due(self, node: RunningNode) -> Instant:
        """When the node's next tick is."""
        due = node.wake
        if node.mail:
            due = min(due, self._tick_from(node.mail[0][0] + 1))
        return max(due, node.last + 1)

    def _run(self, node: RunningNode, at: int) -> Ran:
        """One tick of one node."""
        changes, node.changes = node.changes, Counter()
        changes.update(node.seen)
        changes.update(node.joining)
        node.seen, node.joining, node.join = Counter(), Counter(), END
        returns, node.arrived = not node.arrived and self._plan.period_ms is None, False
        letters = [message for sent, message in node.mail if sent < at]
        node.mail = [(sent, message) for sent, message in node.mail if sent >= at]
        for message in letters:
            if message.record.expires is None or message.record.expires > at:
                changes[message.record] += 1
                node.changes[message.record] -= 1
        come, gone = _by_predicate(changes), _by_predicate(changes, -1)
        self._number(node, at, come, gone)
        answer = node.ticks.tick(at, come, gone)
        node.sent = ()
        lost = self._ran(node, at, answer)
        node.returns = node.returns + 1 if returns and not letters else 0
        if node.returns > self._returns_max:
            raise LimitPassed(
                f"no rest after {self._returns_max:,} ticks that nothing but @next has caused, the "
                f"last at {at}: let the rules with @next come to an end, or give spec.tick a period",
                reason="LimitPassed", limit="returns_max",
            )  # fmt: skip
        return Ran(node.number, at, answer, lost)

    def _go_on(self, node: RunningNode, at: int) -> Iterator[Ran]:
        """Extend the last tick of a node by the records that join it.

        After a restart it runs once more before, to know what it has said and sent.
        """
        if node.seen:
            come = _by_predicate(node.seen)
            node.seen = Counter()
            if self._plan.number is not None:
                node.count -= 1
                self._number(node, at - 1, come, {})
            again = node.ticks.go_on(at - 1, come)
            node.sent = again.messages
            yield Ran(node.number, at, again, self._ran(node, at - 1, again))
        come, node.joining, node.join = _by_predicate(node.joining), Counter(), END
        answer = node.ticks.go_on(at, come)
        yield Ran(node.number, at, answer, self._ran(node, at, answer))

    def _ran(self, node: RunningNode, at: int, answer: TickAnswer) -> tuple[Message, ...]:
        """Post what a node sends anew, and see when it runs again; its messages to no node."""
        known, node.sent = {*node.sent}, answer.messages
        lost = []
        for message in answer.messages:
            receiver = self._reached(message)
            if receiver is None:
                lost.append(message)
            elif message not in known:
                receiver.mail.append((at, message))
        node.last = at
        node.wake = END
        if self._plan.period_ms is not None:
            rests = not (node.changes or node.ticks.unsettled or self._plan.number)
            node.wake = self._tick_from(max(node.ticks.soonest, at + 1) if rests else at + 1)
        elif node.ticks.hands_on_anew:
            node.wake = at + 1
        return tuple(lost)

    def _number(
        self,
        node: RunningNode,
        at: int,
        come: dict[str, list[Record]],
        gone: dict[str, list[Record]],
    ) -> None:
        """Give the number of a tick to a program that asks for it."""
        name, period = self._plan.number, self._plan.period_ms
        if name is not None:
            if node.numbered is not None:
                gone[name] = [node.numbered]
            node.numbered = Record(name, (node.count if period is None else at // period,))
            come[name] = [node.numbered]
        node.count += 1

    def _reached(self, message: Message) -> RunningNode | None:
        """The node that a message is for, if there is such a node."""
        number = message.node
        if not isinstance(number, int) or isinstance(number, bool):
            return None
        return self.nodes[number] if 0 <= number < len(self.nodes) else None

    def own_rows(self) -> set[StateRow]:
        """Changes at the gates, messages on their way and the last tick, as rows to keep."""
        rows = {message_row(sent, m) for node in self.nodes for sent, m in node.mail}
        for name, gate in self._gates.items():
            rows |= {held_row(name, number, held) for number, held in enumerate(gate.held())}
        if self._goes_on:
            for node in self.nodes:
                for record, diff in node.changes.items():
                    rule, _, text = held_row(record.predicate, 0, (record, node.number, diff))
                    rows.add((rule, PENDING, text))
        if self._last is not None:
            rows.add((NO_RULE, RAN, str(self._last)))
        if self._plan.period_ms is None:
            for node in self.nodes:
                if self._plan.number is not None:
                    rows.add((NO_RULE, NUMBER, f"{node.number} {node.count}"))
                if node.wake != END:
                    text = f"{node.number} {node.wake} {node.returns}"
                    rows.add((NO_RULE, RETURNING, text))
        return rows


def of_node(row: StateRow, number: int) -> StateRow:
    """A row of what one node hands on, as a row of all nodes."""
    rule, kind, text = row
    return rule, f"{kind}@{number}", text


def _by_node(state: Iterable[StateRow], nodes: int) -> dict[int, list[StateRow]]:
    """The rows that each node handed on.

    Raises: Corrupt for a kind that is not known: a newer version has written it.
    """
    found: dict[int, list[StateRow]] = {number: [] for number in range(nodes)}
    for rule, kind, text in state:
        name, at, number = kind.partition("@")
        if at:
            found[int(number)].append((rule, name, text))
        elif kind not in KINDS_OF_RUN:
            raise Corrupt(f"the state has a row of the kind {kind}, which is not known")
    return found


def _by_predicate(changes: Mapping[Record, int], sign: int = 1) -> dict[str, list[Record]]:
    """The records that come, or with a sign of -1 go, each as often as it does."""
    found: dict[str, list[Record]] = {}
    for record, diff in changes.items():
        if sign * diff > 0:
            found.setdefault(record.predicate, []).extend([record] * abs(diff))
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
