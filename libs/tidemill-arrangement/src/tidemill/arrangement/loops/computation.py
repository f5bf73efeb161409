"""Computations over collections, with loops, kept up to date one epoch at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.kernels.arrays import I64Array, U64Array
from tidemill.arrangement.loops.counts import Rule, distinct
from tidemill.arrangement.loops.nodes import (
    Arrange,
    Columns,
    Inbox,
    Join,
    Member,
    Net,
    Project,
    Reduce,
    Scope,
    Stream,
    Threshold,
    Variable,
    checked_columns,
)
from tidemill.arrangement.loops.reductions import GroupReduction
from tidemill.arrangement.loops.rows import Rows
from tidemill.arrangement.loops.times import DEPTH_MAX, Rounds
from tidemill.errors import UsageError


@dataclass(frozen=True, slots=True)
class Changes:
    """What an epoch changes in a collection: each record `(key, val)` with the sum of its diffs.

    Shapes: three columns of n.
    """

    keys: U64Array
    vals: U64Array
    diffs: I64Array

    def __len__(self) -> int:
        return len(self.diffs)

    @classmethod
    def of(
        cls, keys: npt.ArrayLike, vals: npt.ArrayLike, diffs: npt.ArrayLike | None = None
    ) -> Changes:
        """Changes from any columns of numbers; each record is added once if no diffs are given.

        Raises: UsageError if the columns differ in length.
        """
        key, val = np.ascontiguousarray(keys, np.uint64), np.ascontiguousarray(vals, np.uint64)
        ones = np.ones(len(key), np.int64)
        diff = ones if diffs is None else np.ascontiguousarray(diffs, np.int64)
        if not len(key) == len(val) == len(diff):
            raise UsageError(f"columns of {len(key)}, {len(val)} and {len(diff)} rows")
        return cls(key, val, diff)


class Collection:
    """A collection of records `(key, val)` that changes from epoch to epoch, and in loops by round.

    Operators give new collections; functions take and give whole columns of unsigned words and
    must depend on nothing else. Both sides of an operator are in one scope.
    """

    def __init__(self, scope: Scope, stream: Stream, settled: bool = False) -> None:
        self.scope = scope
        self._stream = stream
        self._settled = settled
        self._arranged: Arrange | None = None

    def map(self, function: Callable[[U64Array, U64Array], Columns]) -> Collection:
        """Each record as the function of it: as many rows as there were."""

        def mapped(rows: Rows) -> Rows:
            columns = checked_columns(function(rows.keys, rows.vals), len(rows))
            return Rows(*columns, rows.times, rows.diffs)

        return self._linear(mapped)

    def swap(self) -> Collection:
        """Keys for values and values for keys. Cost: O(1)."""
        swapped = self._linear(lambda rows: Rows(rows.vals, rows.keys, rows.times, rows.diffs))
        swapped._settled = self._settled
        return swapped

    def flat_map(
        self, function: Callable[[U64Array, U64Array], tuple[I64Array, U64Array, U64Array]]
    ) -> Collection:
        """Each record as any number of records: the function gives places, keys and values.

        A place says of which given row an output row is made.
        """

        def mapped(rows: Rows) -> Rows:
            places, keys, vals = function(rows.keys, rows.vals)
            columns = checked_columns((keys, vals), len(places))
            return Rows(*columns, rows.times[places], rows.diffs[places])

        return self._linear(mapped)

    def filter(self, kept: Callable[[U64Array, U64Array], npt.NDArray[np.bool_]]) -> Collection:
        """The records of which `kept` is true."""
        filtered = self._linear(lambda rows: rows.take(np.flatnonzero(kept(rows.keys, rows.vals))))
        filtered._settled = self._settled
        return filtered

    def negate(self) -> Collection:
        """Each record as often less as it was there."""
        return self._linear(lambda rows: Rows(rows.keys, rows.vals, rows.times, -rows.diffs))

    def concat(self, *others: Collection) -> Collection:
        """All records of all collections, multiplicities added."""
        stream = Stream()
        for collection in (self, *others):
            self._require_same_scope(collection)
            collection._stream.receivers.append(stream.send)
        return Collection(self.scope, stream)

    def minus(self, other: Collection) -> Collection:
        """Multiplicities less those of `other`; perhaps negative."""
        return self.concat(other.negate())

    def distinct(self) -> Collection:
        """Each record with positive multiplicity, once."""
        return self.threshold(distinct)

    def threshold(self, rule: Rule) -> Collection:
        """Each record as often as `rule` says of it and its multiplicity."""
        return self._reduced(Threshold(rule))

    def reduce(self, reduction: GroupReduction) -> Collection:
        """For each key what its values reduce to.

        The reduction sees many groups at once; numbers in place of their keys tell them apart.
        """
        return self._reduced(Reduce(reduction))

    def consolidate(self) -> Collection:
        """The same collection, its changes netted for each time before they are handed on."""
        net = Net()
        return self._member(net, net.inbox, net.out, settled=True)

    def join(self, other: Collection, project: Project) -> Collection:
        """For each pair of records with one key, what `project` makes of key and both values.

        Collections are arranged by key once, however many joins they take part in.
        """
        self._require_same_scope(other)
        join = Join(self._arrange(), other._arrange(), project)
        self.scope.members.append(join)
        return Collection(self.scope, join.out)

    def semijoin(self, other: Collection) -> Collection:
        """The records whose key is a key of `other`, as often as they are here."""
        return self.join(other._keys(), lambda keys, vals, _: (keys, vals))

    def antijoin(self, other: Collection) -> Collection:
        """The records whose key is no key of `other`, as often as they are here."""
        return self.minus(self.semijoin(other))

    def iterate(
        self, body: Callable[[Loop, Collection], Collection], rounds_max: int | None = None
    ) -> Collection:
        """The fixed point of `body` from this collection on; `body` is called once, to be built.

        Raises: UsageError in the epoch in which it takes more than `rounds_max` rounds.
        """
        loop = Loop(self.scope, rounds_max)
        source = loop.enter(self)
        feedback = loop.variable()
        result = body(loop, source.concat(feedback))
        feedback.set(result.minus(source))
        return loop.leave(result)

    def _keys(self) -> Collection:
        return self.map(lambda keys, _: (keys, np.zeros(len(keys), np.uint64))).distinct()

    def _arrange(self) -> Arrange:
        if self._arranged is None:
            self._arranged = Arrange(self._settled)
            self._member(self._arranged, self._arranged.inbox, self._arranged.out)
        return self._arranged

    def _reduced(self, reduce: Threshold | Reduce) -> Collection:
        return self._member(reduce, reduce.inbox, reduce.out, settled=True)

    def _member(
        self, member: Member, inbox: Inbox, out: Stream, settled: bool = False
    ) -> Collection:
        self._stream.receivers.append(inbox)
        self.scope.members.append(member)
        return Collection(self.scope, out, settled)

    def _linear(self, function: Callable[[Rows], Rows]) -> Collection:
        stream = Stream()
        self._stream.receivers.append(lambda rows: stream.send(function(rows)))
        return Collection(self.scope, stream)

    def _require_same_scope(self, other: Collection) -> None:
        if other.scope is not self.scope:
            raise UsageError("the collections are in different scopes: enter or leave a loop first")


class Feedback(Collection):
    """What a loop made of its rows, one round later; empty in its first round."""

    def __init__(self, loop: Loop, netting: bool) -> None:
        self._variable = Variable(loop.scope.depth, netting)
        super().__init__(loop.scope, self._variable.out, settled=True)
        self._bound = False
        loop.scope.members.append(self._variable)

    def set(self, result: Collection) -> None:
        """Feed `result` back, one round later.

        Raises: UsageError if it was set before, or `result` is in another scope.
        """
        self._require_same_scope(result)
        if self._bound:
            raise UsageError("the variable was set already")
        self._bound = True
        self._variable.netting = self._variable.netting and not result._settled
        result._stream.receivers.append(self._variable.take_back)


class Loop:
    """A scope whose times have one more coordinate, the round.

    Collections enter it in round 0 or later ones, variables carry what was made in one round into
    the next, and what leaves it is the sum of all rounds: the fixed point. Everything that the loop
    uses from outside enters before anything leaves.

    Raises: UsageError if loops are nested deeper than DEPTH_MAX.
    """

    def __init__(self, outer: Scope, rounds_max: int | None = None) -> None:
        self.scope = Scope(outer.depth + 1, rounds_max, outer)
        if self.scope.depth > DEPTH_MAX:
            raise UsageError(f"loops are nested deeper than {DEPTH_MAX}")
        self._outer = outer
        self._left = False
        outer.members.append(self.scope)

    def enter(self, collection: Collection) -> Collection:
        """The collection, there from round 0 on.

        Raises: UsageError if it is not in the scope around this loop, or something left already.
        """
        self._admit(collection)
        return Collection(self.scope, collection._stream, collection._settled)

    def enter_at(
        self, collection: Collection, rounds: Callable[[U64Array, U64Array], U64Array]
    ) -> Collection:
        """The collection, each record there from the round that `rounds` says of it.

        Raises: UsageError as `enter`; in an epoch, if a round does not fit in the bits of a loop.
        """
        self._admit(collection)
        scope = self.scope

        def delayed(rows: Rows) -> Rows:
            later = np.ascontiguousarray(rounds(rows.keys, rows.vals), np.uint64)
            times = scope.rounds.later(rows.times, later, scope.depth)
            return Rows(rows.keys, rows.vals, times, rows.diffs)

        return Collection(scope, collection._stream)._linear(delayed)

    def variable(self, netting: bool = True) -> Feedback:
        """A collection to be set later.

        Without `netting`, changes circulate as they are: for loops whose operators net anyway.
        """
        return Feedback(self, netting)

    def leave(self, collection: Collection) -> Collection:
        """The sum of all rounds: as multiset, not as set, unless the records are distinct in it.

        Raises: UsageError if it is not in this loop.
        """
        if collection.scope is not self.scope:
            raise UsageError("only what is in a loop can leave it")
        self._left = True
        scope = self.scope

        def left(rows: Rows) -> Rows:
            times = rows.times & np.uint64(~scope.rounds.inner(scope.depth - 1) & (2**64 - 1))
            return Rows(rows.keys, rows.vals, times, rows.diffs)

        stream = Stream()
        collection._stream.receivers.append(lambda rows: stream.send(left(rows)))
        return Collection(self._outer, stream)

    def loop(self, rounds_max: int | None = None) -> Loop:
        """A loop inside this one."""
        return Loop(self.scope, rounds_max)

    def _admit(self, collection: Collection) -> None:
        if collection.scope is not self._outer:
            raise UsageError("only what is in the scope around a loop can enter it")
        if self._left:
            raise UsageError("everything enters a loop before anything leaves it")
        # After whatever the collection comes from, so that it is delivered before the loop runs.
        self._outer.members.remove(self.scope)
        self._outer.members.append(self.scope)


class Output:
    """The changes of a collection outside all loops, epoch by epoch."""

    def __init__(self, collection: Collection) -> None:
        self._inbox = Inbox()
        collection._stream.receivers.append(self._inbox)

    def take(self) -> Changes:
        """The changes since they were taken last, netted.

        Raises: UsageError if a sum of diffs does not fit in 64 bits.
        Cost: O(changes).
        """
        rows = self._inbox.take()
        rows = Rows.none() if rows is None else rows.netted()
        return Changes(rows.keys, rows.vals, rows.diffs)


class Input(Collection):
    """A collection whose changes the caller gives."""

    def send(self, changes: Changes) -> None:
        """Hand the changes of one epoch on."""
        times = np.zeros(len(changes), np.uint64)
        self._stream.send(Rows(changes.keys, changes.vals, times, changes.diffs))


class Computation:
    """Inputs, operators, loops and outputs, and the histories they keep.

    After each step every output, summed over all steps, is what the operators make of the sums of
    the inputs: as if everything were computed from the beginning. Histories hold the sum over all
    epochs, by round; what the difference between two past epochs was is nowhere needed.
    """

    def __init__(self, room: Callable[[int], int] | None = None) -> None:
        """`room` says how many things of so many bytes may be held: histories, and matches on the
        way.
        """
        self._room = room
        self._held_before = 0
        self._scope = Scope(0, None, None)
        self._constants: list[tuple[Input, Changes]] = []
        self._upper = 0
        self._started = False
        self._broken = False

    @property
    def upper(self) -> int:
        """The least epoch that is still to come."""
        return self._upper

    @property
    def bytes_held(self) -> int:
        """Bytes of all histories that are in use."""
        return self._scope.bytes_held if self._started else 0

    def input(self) -> Input:
        """A collection that starts empty."""
        return Input(self._scope, Stream())

    def constant(self, rows: Changes) -> Collection:
        """A collection that holds these rows from the first epoch on.

        Raises: UsageError if there was one already.
        """
        if self._started:
            raise UsageError("constants are there from the first epoch on")
        constant = self.input()
        self._constants.append((constant, rows))
        return constant

    def output(self, collection: Collection) -> Output:
        """What to take the changes of a collection from.

        Raises: UsageError if it is inside a loop.
        """
        if collection.scope is not self._scope:
            raise UsageError("only what left all loops can be an output")
        return Output(collection)

    def loop(self, rounds_max: int | None = None) -> Loop:
        """A loop around which there is no other."""
        return Loop(self._scope, rounds_max)

    def step(self, epoch: int, changes: Mapping[Input, Changes]) -> None:
        """Bring everything up to `epoch`, in which the inputs change by `changes`.

        Raises: UsageError if `epoch` is not beyond the upper; nothing changes then. Also if a sum
            of diffs does not fit in 64 bits, a loop does not settle within its most rounds or runs
            out of them, or a function gives columns of the wrong length: the computation is then
            broken and takes no further step.
        Cost: that of the changed records in each round and of those that share keys with them.
        """
        if self._broken:
            raise UsageError("an earlier step failed: build the computation again")
        if epoch < self._upper:
            raise UsageError(f"epoch {epoch} is before the upper {self._upper}")
        self._broken, self._held_before = True, self.bytes_held
        if not self._started:
            depth = self._scope.deepest
            self._scope.start(
                Rounds(depth) if self._room is None else Rounds(depth, self._left(self._room))
            )
            self._started = True
            for constant, rows in self._constants:
                constant.send(rows)
        for source, rows in changes.items():
            source.send(rows)
        self._scope.run(0)
        self._scope.settle()
        self._upper = epoch + 1
        self._broken = False

    def _left(self, room: Callable[[int], int]) -> Callable[[int], int]:
        """The room that is left beside what the histories have grown by in this step."""
        return lambda each: max(0, room(each) - (self.bytes_held - self._held_before) // each)

    def sweep(self) -> None:
        """Rewrite all histories in the least memory. Cost: O(all of them)."""
        if self._started:
            self._scope.sweep()
