"""The rows of an input kept once for several readers, each of whom stands at its own instant.

An update at an instant changes nothing before it. So the rows that one reader has taken in show
another one, behind it, all that it has to see. Rows that begin later are not there yet, and a row
that was cut later still lasts as long as it said (`end_as_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Condition, Lock
from typing import TypeAlias
from weakref import WeakSet, ref

import numpy as np

from tidemill.arrangement.interval_updates.arranged import Arrangement, AsOf, Index
from tidemill.arrangement.interval_updates.merging import Merged
from tidemill.arrangement.interval_updates.novelty import Novelty
from tidemill.arrangement.interval_updates.rows import (
    BEGIN_WORD,
    Change,
    end_as_of,
)
from tidemill.arrangement.interval_updates.slots import (
    BLOCK,
    I32Array,
    find_slot,
    is_past,
    look_ahead,
    row_in,
)
from tidemill.arrangement.kernels.arrays import I64Array, compiled
from tidemill.errors import Exhausted, UsageError

LAGGING_ROWS_MAX = 1 << 20
"""Rows that are kept for readers behind alone, if they are more than those of use to the first."""


@compiled
def _heads(
    change: I64Array, columns: I64Array, rows: I64Array, slots: I32Array, used: I64Array,
    out: I64Array,
) -> None:  # fmt: skip
    """The newest row with the key of each row of a change, -1 for none."""
    nulls, theirs, last = change.shape[1] - 4, rows.shape[1] - 3, change.shape[0]
    hashes, base, ready = np.empty(BLOCK + 1, np.uint64), 0, 0
    for i in range(last):
        if i >= ready:
            base, ready = i, look_ahead(change, i, last, columns, rows, slots, used, hashes)
        at = find_slot(
            change, i, columns, nulls, hashes[i - base], rows, columns, theirs, slots, used
        )
        out[i] = row_in(slots, at, used)


@compiled
def _differences(
    heads: I64Array, rows: I64Array, nexts: I32Array, lasts: int, since: int, before: int,
    after: int, out: I64Array,
) -> int:  # fmt: skip
    """Keys from `since` on as of a later place, without what they show as of one before it.

    Returns the number of changes, of which `out` has as many as it has room for.
    """
    width, found = rows.shape[1] - 2, 0
    for head in heads:
        row = np.int64(head)
        while row >= 0:
            start = max(rows[row, width], since)
            old = max(start, end_as_of(rows, row, before, lasts))
            new = max(start, end_as_of(rows, row, after, lasts))
            if old != new:
                if found < out.shape[0]:
                    for column in range(width):
                        out[found, column] = rows[row, column]
                    out[found, width], out[found, width + 1] = min(old, new), max(old, new)
                    out[found, width + 2] = 1 if new > old else -1
                found += 1
            past = is_past(rows, row, since, min(before, after))
            row = np.int64(-1) if past else np.int64(nexts[row])
    return found


class _Turns:
    """Any number of threads read together; one that writes, within `with`, is alone."""

    __slots__ = ("_free", "_reading")

    def __init__(self) -> None:
        self._free = Condition(Lock())
        self._reading = 0

    def enter(self) -> None:
        """Begin to read."""
        with self._free:
            self._reading += 1

    def leave(self) -> None:
        """End to read."""
        with self._free:
            self._reading -= 1
            if not self._reading:
                self._free.notify_all()

    def __enter__(self) -> None:
        """Begin to write, once nobody reads."""
        self._free.acquire()
        while self._reading:
            self._free.wait()

    def __exit__(self, *raised: object) -> None:
        self._free.release()


class SharedRows:
    """The derivations of an input below `upper`, for readers that stand there or before it.

    A place after `since` can be taken. Any thread may call. Rows that ended before the places of
    all readers are forgotten; a reader that others would keep too much for is `lost`.
    """

    def __init__(self, merged: Merged) -> None:
        self.merged = merged
        self.upper = self.since = BEGIN_WORD
        self.first: int | None = None
        """The least instant at which rows begin; None before the first row."""
        self.turns = _Turns()
        self.broken = False
        """Whether a change could not be taken in: nobody goes on with these rows."""
        self.met_at: Sharing | None = None
        """The meeting place at which readers find these rows."""
        self.readers: WeakSet[RowsAsOf] = WeakSet()
        self._look = LAGGING_ROWS_MAX

    @property
    def nbytes(self) -> int:
        """The bytes for each reader, in equal parts."""
        self.turns.enter()
        try:
            return self.merged.nbytes // max(1, len(self.readers))
        finally:
            self.turns.leave()

    def extend(self, change: Change, upper: int) -> Change:
        """Take in the changes of [upper so far, `upper`), in a turn alone; see `Merged.take`."""
        if self.first is None and len(change):
            self.first = int(change[:, -3].min())
        try:
            told = self.merged.take(change)
        except BaseException:
            self.broken = True
            if self.met_at is not None:
                self.met_at.ended = True
            raise
        self.upper = upper
        return told

    def compact(self) -> None:
        """Forget what no reader sees any more. Cost: as `Arrangement.compact`."""
        with self.turns:
            self._forget()
            if len(self.merged.facts) > self._look:
                self._leave_behind()
                self._forget()

    def _forget(self) -> None:
        least = min((each.held for each in self.readers), default=BEGIN_WORD)
        if least > self.since + 1:
            before = len(self.merged.facts) + len(self.merged.spare)
            self.merged.compact(least - 1)
            if len(self.merged.facts) + len(self.merged.spare) < before:
                self.since = least - 1

    def _leave_behind(self) -> None:
        """Give up readers that others keep too many rows for. Cost: O(rows), now and then."""
        count = len(self.merged.facts)
        alive = self.merged.facts.useful(self.upper - 1)
        if count - alive > max(LAGGING_ROWS_MAX, alive):
            for reader in list(self.readers):
                if reader.held < self.upper and not reader.stepping:
                    reader.lost = True
                    self.readers.discard(reader)
        self._look = count + LAGGING_ROWS_MAX // 2


class RowsAsOf:
    """The derivations of an input as one reader sees them: in the place of `Merged`, and its facts.

    A step begins with `go_to`, the end of the changes that it takes in, in one piece. Of several
    the latest counts: what it begins with may go beyond the step that takes it in. It ends with
    `arrive`: the reader looks at nothing before that any more. The rows are its own until it meets
    others (`Sharing`). For one thread at a time.
    """

    def __init__(self, columns: int, key: Sequence[int], expiry: int) -> None:
        self.expiry = expiry
        self.columns = columns
        self._key = tuple(key)
        self.place = self.held = self._toward = BEGIN_WORD
        """Changes before `place` are seen; for `held` all is kept that is seen from there on."""
        self.stepping = self.lost = False
        self.store = SharedRows(Merged(columns, key, expiry))
        self.store.readers.add(self)
        self._novelty = Novelty(self._key[:1] if self._key[:1] == (0,) else (), self._key)

    @property
    def outdated(self) -> bool:
        """Whether it has to begin again."""
        return self.lost or self.store.broken

    def go_to(self, upper: int) -> None:
        """A step begins that takes in the changes before `upper`. Raises: Exhausted when lost."""
        with self.store.turns:
            if self.lost:
                raise Exhausted(
                    "the rows of an input are not kept any more for a view so far behind"
                )
            self.stepping, self._toward = True, max(upper, self._toward)

    def arrive(self) -> None:
        """The step is done."""
        with self.store.turns:
            self.store.upper = max(self.store.upper, self._toward)
            self.place = self.held = self._toward
            self.stepping = False

    def leave(self) -> None:
        """Read nothing any more, so that nothing is kept for it."""
        with self.store.turns:
            self.store.readers.discard(self)

    def join(self, store: SharedRows, place: int) -> bool:
        """See the rows of others, at a place; whether these can show it."""
        with store.turns:
            if store.broken or not store.since < place <= store.upper:
                return False
            store.readers.add(self)
            self.held = place
        self.leave()
        self.store = store
        return True

    # In the place of `Merged`.

    @property
    def facts(self) -> RowsAsOf:
        """The facts are seen here."""
        return self

    @property
    def spare(self) -> Arrangement:
        """The derivations that are no facts, of all readers."""
        return self.store.merged.spare

    @property
    def nbytes(self) -> int:
        """The bytes of the rows, in equal parts for each reader."""
        return self.store.nbytes

    def compact(self, since: int) -> None:
        """Forget what no reader sees any more; no reader looks before its place."""
        self.store.compact()

    def take(self, change: Change) -> Change:
        """The change of the facts by one of the input, which the first reader takes in.

        Raises: NegativeRow, after which all readers begin again. Cost: as `Merged.take`.
        """
        store, before, upper = self.store, self.place, self._toward
        if not len(change):
            return change
        if upper <= before:
            raise UsageError(
                "change refused: the changes of an input come in one piece for each step",
                reason="TakenTwice", at=upper,
            )  # fmt: skip
        with store.turns:
            if before == store.upper:
                told = store.extend(change, upper)
                self._novelty.follow(store.merged.novelty)
                self.place = upper
                return told
            if store.upper < upper:
                store.extend(change[change[:, -3] >= store.upper], upper)
        self.place = upper
        if self._novelty.admit(change):
            return change
        return self._differences(change, before, upper)

    def _differences(self, change: Change, before: int, after: int) -> Change:
        """The keys of a change as of a later place, without what they show as of one before it."""
        heads, since = np.empty(len(change), np.int64), int(change[:, -3].min())
        room = len(change) + 16
        index = self.hold(self._key)
        try:
            rows = self.rows
            _heads(change, index.columns, rows, index.slots, index.used, heads)
            heads = np.unique(heads)
            while True:
                out = np.empty((room, change.shape[1]), np.int64)
                found = _differences(
                    heads, rows, index.nexts, self.expiry, since, before, after, out
                )
                if found <= room:
                    return out[:found]
                room = found
        finally:
            self.release()

    # In the place of an arrangement: see `Facts`.

    def __len__(self) -> int:
        # IMPORTANT: matches would walk through all rows of a key that others have taken in.
        first = self.store.first
        return 0 if first is None or self.place <= first else len(self.store.merged.facts)

    @property
    def rows(self) -> I64Array:
        """The rows with start and end."""
        return self.store.merged.facts.rows

    @property
    def counts(self) -> I64Array:
        """Rows, and again: none is negative."""
        return self.store.merged.facts.counts

    @property
    def as_of(self) -> AsOf:
        """The reader sees what began before its place."""
        return self.place, self.expiry

    def hold(self, columns: Sequence[int]) -> Index:
        """The index by some columns, unchanged until `release`. Cost: O(rows that have come)."""
        store, facts = self.store, self.store.merged.facts
        while True:
            store.turns.enter()
            index = facts.complete(columns)
            if index is not None:
                return index
            store.turns.leave()
            with store.turns:
                facts.index(columns)

    def release(self) -> None:
        """The rows are not read any more."""
        self.store.turns.leave()

    def living(self) -> I64Array:
        """The rows that the reader sees, on the intervals that it sees. Cost: O(rows)."""
        self.store.turns.enter()
        try:
            rows = self.rows[: len(self)]
            rows = rows[rows[:, -2] < self.place]
        finally:
            self.store.turns.leave()
        rows[:, -1] = np.where(rows[:, -1] >= self.place, rows[:, self.expiry], rows[:, -1])
        return rows[rows[:, -2] < rows[:, -1]]

    def present(self) -> Change:
        """All derivations that hold just before its place, from then on for as long as they say.

        A reader that begins at this place begins with them. Cost: O(rows).
        """
        place, merged = self.place, self.store.merged
        self.store.turns.enter()
        try:
            kept = [each.rows[: len(each)] for each in (merged.facts, merged.spare)]
            parts = [rows[(rows[:, -2] < place) & (rows[:, -1] >= place)] for rows in kept]
        finally:
            self.store.turns.leave()
        rows = np.concatenate(parts)
        found = np.ones((len(rows), self.columns + 3), np.int64)
        found[:, :-1] = rows
        found[:, -3], found[:, -2] = place - 1, rows[:, self.expiry]
        return found[found[:, -3] < found[:, -2]]


Facts: TypeAlias = Arrangement | RowsAsOf
"""Rows that matches are completed by: an arrangement, or what a reader may see of one."""


class Sharing:
    """The meeting place of the readers of one input: all go on with the rows furthest ahead.

    Once these rows are broken each reader has its own again. Any thread may call.
    """

    def __init__(self) -> None:
        self._meeting = Lock()
        self._found: ref[SharedRows] | None = None
        self.ended = False
        """Whether each reader has rows of its own from now on."""

    @property
    def store(self) -> SharedRows | None:
        """The rows that readers share, None while there are none."""
        return None if self.ended or self._found is None else self._found()

    def begin(self, reader: RowsAsOf, place: int) -> None:
        """A reader begins at a place; it takes in as one change what holds just before that."""
        with self._meeting:
            store = self.store
            if store is None or not reader.join(store, place):
                reader.store.since = place - 1

    def meet(self, reader: RowsAsOf) -> None:
        """A reader is between two steps: go on with the rows that are furthest ahead, if it can."""
        if reader.outdated or self.ended or self.store is reader.store:
            return
        with self._meeting:
            store = self.store
            if store is None or store.upper < reader.store.upper:
                self._found, reader.store.met_at = ref(reader.store), self
            else:
                reader.join(store, reader.place)
