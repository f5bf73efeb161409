"""The parts of a running computation: what each does with the rows that reach it in a pass.

A pass belongs to one time and runs the members of a scope in an order in which every row is
delivered before its receiver runs; only the variables of loops receive from behind, for later
passes. Rows of later times may come early: joins take them at once, whatever depends on the sum up
to a time waits for the pass of that time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array
from tidemill.arrangement.loops.agenda import Agenda
from tidemill.arrangement.loops.counts import Counts, Listed, Rule, distinct
from tidemill.arrangement.loops.groups import Groups
from tidemill.arrangement.loops.index import Index
from tidemill.arrangement.loops.reductions import GroupReduction
from tidemill.arrangement.loops.rows import MANY, Rows
from tidemill.arrangement.loops.times import Rounds
from tidemill.errors import UsageError

Columns = tuple[U64Array, U64Array]
"""Keys and values."""
Project = Callable[[U64Array, U64Array, U64Array], Columns]
"""From keys, left values and right values the keys and values of a match."""

Receive = Callable[[Rows], None]


class Stream:
    """Hands rows on to whoever receives them."""

    def __init__(self) -> None:
        self.receivers: list[Receive] = []

    def send(self, rows: Rows) -> None:
        """Deliver the rows, if there are any."""
        if len(rows):
            for receive in self.receivers:
                receive(rows)


class Member(Protocol):
    """What a scope runs in each pass."""

    @property
    def due(self) -> int | None:
        """The least time at which it has something to do, whatever comes."""

    def start(self, rounds: Rounds) -> None:
        """Prepare for the first epoch, once it is known how times are laid out."""

    def run(self, time: int) -> None:
        """Take in what was delivered, and do what is due at `time`."""

    @property
    def bytes_held(self) -> int:
        """Bytes of its history that are in use."""

    def settle(self) -> None:
        """Maintenance between epochs, bounded by the work of the epoch."""

    def sweep(self) -> None:
        """Rewrite all history in the least memory."""


class Stateless:
    """A member that has nothing to do between epochs."""

    due: int | None = None
    bytes_held = 0

    def start(self, rounds: Rounds) -> None:
        """Nothing to prepare."""

    def settle(self) -> None:
        """Nothing to maintain."""

    def sweep(self) -> None:
        """Nothing to rewrite."""


class Inbox:
    """Rows delivered since the last run."""

    def __init__(self) -> None:
        self._parts: list[Rows] = []

    def __call__(self, rows: Rows) -> None:
        self._parts.append(rows)

    def take(self) -> Rows | None:
        """All rows, which are then the taker's; none if nothing was delivered."""
        if not self._parts:
            return None
        rows = Rows.concat(self._parts)
        self._parts = []
        return rows


class Arrange(Stateless):
    """The history of a collection by key, for all joins that ask for it."""

    def __init__(self, settled: bool) -> None:
        self._settled = settled
        self.inbox = Inbox()
        self.out = Stream()

    def start(self, rounds: Rounds) -> None:
        """An empty history."""
        self.index = Index(rounds)

    def run(self, time: int) -> None:
        """Insert what was delivered, netted, and hand it on."""
        rows = self.inbox.take()
        if rows is not None:
            rows = rows if self._settled else rows.netted()
            self.index.insert(rows)
            self.out.send(rows)

    def settle(self) -> None:
        """Net runs in which rows were removed."""
        self.index.settle()

    @property
    def bytes_held(self) -> int:  # type: ignore[override]  # A property where the default is none.
        """Bytes of its history that are in use."""
        return self.index.runs.bytes_held

    def sweep(self) -> None:
        """Net all runs and drop dead keys."""
        self.index.sweep()


class Join(Stateless):
    """Every pair of rows of one key once, at the join of their times.

    Both histories hold the rows of this pass already, so pairs of two new rows are found twice and
    taken back once.
    """

    def __init__(self, left: Arrange, right: Arrange, project: Project) -> None:
        self._left, self._right, self._project = left, right, project
        self._fresh_left, self._fresh_right = Inbox(), Inbox()
        left.out.receivers.append(self._fresh_left)
        right.out.receivers.append(self._fresh_right)
        self.out = Stream()

    def start(self, rounds: Rounds) -> None:
        """How to join times."""
        self._rounds = rounds

    def run(self, time: int) -> None:
        """Match what is new on either side."""
        left, right = self._fresh_left.take(), self._fresh_right.take()
        if left is not None:
            self._match_left(left, self._right.index, 1)
        if right is not None:
            self._match_right(self._left.index, right, 1)
        if left is not None and right is not None:
            if len(left) < len(right):
                self._match_right(self._index_of(left), right, -1)
            else:
                self._match_left(left, self._index_of(right), -1)

    def _index_of(self, rows: Rows) -> Index:
        index = Index(self._rounds)
        index.insert(rows)
        return index

    def _match_left(self, left: Rows, right: Index, sign: int) -> None:
        keys, given, stored, times, diffs = right.match(left)
        self._send(keys, given, stored, times, diffs, sign)

    def _match_right(self, left: Index, right: Rows, sign: int) -> None:
        keys, given, stored, times, diffs = left.match(right)
        self._send(keys, stored, given, times, diffs, sign)

    def _send(
        self, keys: U64Array, left: U64Array, right: U64Array, times: U64Array, diffs: I64Array,
        sign: int,
    ) -> None:  # fmt: skip
        if len(keys):
            columns = checked_columns(self._project(keys, left, right), len(keys))
            self.out.send(Rows(*columns, times, diffs if sign > 0 else -diffs))


class Threshold:
    """A rule of each record's multiplicity, at every time."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self.inbox = Inbox()
        self.out = Stream()
        self._agenda: Agenda[Listed] = Agenda(lambda due, places: (due[0][places], due[1][places]))

    @property
    def due(self) -> int | None:
        """The least time at which some output may change."""
        return self._agenda.due

    def start(self, rounds: Rounds) -> None:
        """An empty history."""
        self._counts = Counts(rounds)

    def run(self, time: int) -> None:
        """Take in what was delivered; evaluate what is due, and hand its changes on."""
        rows = self.inbox.take()
        if rows is not None:
            at_once = None
            if self._rule is distinct and self._agenda.due != time:
                at_once = self._counts.add_and_evaluate(time, rows)
            if at_once is not None:
                changes, times, later = at_once
                self._agenda.add(times, later)
                self.out.send(changes)
                return
            self._agenda.add(*self._counts.take_in(rows))
        parts = self._agenda.pop(time)
        if parts:
            slots, vals = parts[0]
            if len(parts) > 1:
                slots = np.concatenate([part[0] for part in parts])
                vals = np.concatenate([part[1] for part in parts])
            changes, times, later = self._counts.evaluate(time, (slots, vals), self._rule)
            self._agenda.add(times, later)
            self.out.send(changes)

    def settle(self) -> None:
        """Drop what cancelled in this epoch."""
        self._counts.settle()

    @property
    def bytes_held(self) -> int:
        """Bytes of its history that are in use."""
        return self._counts.runs.bytes_held

    def sweep(self) -> None:
        """Rewrite the history in the least memory."""
        self._counts.sweep()


class Reduce:
    """The reduction of each key's values, at every time."""

    def __init__(self, reduction: GroupReduction) -> None:
        self._reduction = reduction
        self.inbox = Inbox()
        self.out = Stream()
        self._agenda: Agenda[I64Array] = Agenda(lambda slots, places: slots[places])

    @property
    def due(self) -> int | None:
        """The least time at which some output may change."""
        return self._agenda.due

    def start(self, rounds: Rounds) -> None:
        """An empty history."""
        self._groups = Groups(rounds)

    def run(self, time: int) -> None:
        """Take in what was delivered; evaluate what is due, and hand its changes on."""
        rows = self.inbox.take()
        if rows is not None:
            # Sorted, many rows find their groups one after the other instead of at random.
            rows = rows.netted() if len(rows) >= MANY else rows
            self._agenda.add(*self._groups.take_in(rows))
        parts = self._agenda.pop(time)
        if parts:
            slots = parts[0] if len(parts) == 1 else np.concatenate(parts)
            changes, later = self._groups.evaluate(time, slots, self._reduction)
            self._agenda.add(*later)
            self.out.send(changes)

    def settle(self) -> None:
        """Drop what cancelled in this epoch."""
        self._groups.settle()

    @property
    def bytes_held(self) -> int:
        """Bytes of its history that are in use."""
        return self._groups.runs.bytes_held

    def sweep(self) -> None:
        """Rewrite the history in the least memory."""
        self._groups.sweep()


class Net(Stateless):
    """Rows netted for each time: what is delivered waits for the pass of its time."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.out = Stream()
        self._agenda: Agenda[Rows] = Agenda(Rows.take)

    @property
    def due(self) -> int | None:  # type: ignore[override]  # A property where the default is none.
        """The least time of rows that wait."""
        return self._agenda.due

    def run(self, time: int) -> None:
        """Hand on the rows of `time`."""
        rows = self.inbox.take()
        if rows is not None:
            self._agenda.add(rows.times, rows)
        parts = self._agenda.pop(time)
        if parts:
            self.out.send(Rows.concat(parts).netted())


class Variable(Stateless):
    """What a loop made of its rows, one round later.

    Rows are netted for each round, unless they come netted or the caller opted out: without netting
    updates that cancel would circulate for ever.
    """

    def __init__(self, depth: int, netting: bool) -> None:
        self._depth = depth
        self.netting = netting
        self.out = Stream()
        self._agenda: Agenda[Rows] = Agenda(Rows.take)

    @property
    def due(self) -> int | None:  # type: ignore[override]  # A property where the default is none.
        """The least round in which rows come back."""
        return self._agenda.due

    def start(self, rounds: Rounds) -> None:
        """How to count rounds."""
        self._rounds = rounds

    def take_back(self, rows: Rows) -> None:
        """Receive the rows that the loop made."""
        times = self._rounds.next_round(rows.times, self._depth)
        self._agenda.add(times, Rows(rows.keys, rows.vals, times, rows.diffs))

    def run(self, time: int) -> None:
        """Hand on the rows of this round."""
        parts = self._agenda.pop(time)
        if parts:
            rows = Rows.concat(parts)
            self.out.send(rows.netted() if self.netting else rows)


class Scope:
    """Members that share a clock: passes at one time after the other, until nothing is due."""

    def __init__(self, depth: int, rounds_max: int | None, outer: Scope | None) -> None:
        self.depth = depth
        self.deepest = depth
        self.members: list[Member] = []
        self.outer = outer
        self.passes = 0
        self._rounds_max = rounds_max
        while outer is not None:
            outer.deepest = max(outer.deepest, depth)
            outer = outer.outer

    @property
    def due(self) -> int | None:
        """The least time of the scope around it at which a member has something to do."""
        least = self._least()
        return None if least is None else least & self._prefix

    def start(self, rounds: Rounds) -> None:
        """Start all members."""
        self.rounds = rounds
        self._prefix = ~rounds.inner(self.depth - 1) if self.depth else 0
        for member in self.members:
            member.start(rounds)

    def run(self, time: int) -> None:
        """Passes at all times that belong to `time` of the scope around it, in order.

        Raises: UsageError if the loop does not settle within its most rounds.
        """
        now: int | None = time
        rounds = 0
        while now is not None and now & self._prefix == time:
            for member in self.members:
                member.run(now)
            self.passes += 1
            rounds += 1
            if self._rounds_max is not None and rounds > self._rounds_max:
                raise UsageError(f"a loop did not settle within {self._rounds_max} rounds")
            now = self._least()

    @property
    def bytes_held(self) -> int:
        """Bytes of all histories that are in use."""
        return sum(member.bytes_held for member in self.members)

    def settle(self) -> None:
        """Let all members maintain what they keep."""
        for member in self.members:
            member.settle()

    def sweep(self) -> None:
        """Let all members rewrite what they keep."""
        for member in self.members:
            member.sweep()

    def _least(self) -> int | None:
        least: int | None = None
        for member in self.members:
            due = member.due
            if due is not None and (least is None or due < least):
                least = due
        return least


def checked_columns(columns: Columns, rows: int) -> Columns:
    """Keys and values as contiguous unsigned words.

    Raises: UsageError if they are not both of length `rows`.
    """
    keys, vals = (np.ascontiguousarray(column, np.uint64) for column in columns)
    if len(keys) != rows or len(vals) != rows:
        raise UsageError(f"{rows} rows gave {len(keys)} keys and {len(vals)} values")
    return keys, vals
