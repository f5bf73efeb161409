"""Shared inputs of the views of one process: each is read once, for all that read it alike.

Every view keeps its own place in an input. A view that comes later, or falls behind, finds the
changes in the log of the input as far as other views need them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from math import inf
from threading import Condition, Lock
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet, WeakValueDictionary

import pyarrow as pa

from tidemill.catalog.record_rows import PredicateShape
from tidemill.datalog.logical.scans import Scan
from tidemill.runtime.clock import Clock
from tidemill_compute.views.input_log import InputLog, InputReader

if TYPE_CHECKING:  # importing them loads loops
    from tidemill.arrangement.interval_updates import Sharing
    from tidemill.datalog.columns.texts import Texts

TEXTS_MAX = 1 << 20
"""After so many texts numbers are begun anew, if most are of rows that are gone: some 50 MB."""
TEXTS_A_ROW = 4
"""So many texts for each row that is alive are kept all the same: others cost more to find."""
TEXTS_MADE_MAX = 1 << 28
"""After so many characters that functions made the numbers of texts are begun anew."""
THREADS = 256
"""So many views may be evaluated at once; the threads that read and write for everybody are others.
"""

QUICK_S = 0.05
"""A step is quick if the one before it took less. So long it waits for those of others, too."""

ReadChanges: TypeAlias = "Callable[[int, int], Awaitable[pa.Table]]"
ReadPresent: TypeAlias = "Callable[[int], Awaitable[pa.Table]]"


class SharedInput:
    """One input in one way of reading, for all views of the process that read it so.

    For one event loop. `reads` counts questions to the store, and `wanted` those of the views.
    """

    def __init__(self) -> None:
        self.reads = 0
        self.wanted = 0
        self.alive = 0
        """Rows that were alive at the place of the last look."""
        self._readers: WeakSet[InputReader] = WeakSet()
        self._reading = asyncio.Lock()
        self.log = InputLog()
        """The rows that were read, as far as a reader may need them."""
        self._kept: dict[Hashable, tuple[Texts, Sharing]] = {}
        self._keeping = Lock()

    @property
    def readers(self) -> int:
        """Number of views that read it."""
        return len(self._readers)

    def kept(self, texts: Texts, kinds: Hashable) -> Sharing:
        """The meeting place of engines with one numbering of texts and columns of these kinds."""
        from tidemill.arrangement.interval_updates import Sharing

        with self._keeping:
            known = self._kept.get(kinds)
            if known is None or known[0] is not texts:
                known = self._kept[kinds] = texts, Sharing()
            return known[1]

    def join(self, reader: InputReader) -> None:
        """A view reads it from now on."""
        self._readers.add(reader)

    def leave(self, reader: InputReader) -> None:
        """A view does not read it any more."""
        self._readers.discard(reader)

    async def present(self, reader: InputReader, at: int, read: ReadPresent) -> pa.Table:
        """Contents of the input at an instant; from the log where that goes back so far."""
        async with self._reading:
            self.log.release_but(self._readers)
            self.wanted += 1
            known = self.log.contents(at)
            if known is None:
                known = await read(at)
                self.reads += 1
                self.log.begin(reader, known, at)
            else:
                self.log.hold(reader, at)
            return known

    async def read(self, reader: InputReader, until: int, read: ReadChanges) -> None:
        """Give a view all changes below `until`, and those that another view has read already."""
        async with self._reading:
            self.log.release_but(self._readers)
            self.wanted += 1
            reached, known = self.log.following(reader)
            if reached < until:
                changes = await read(reached, until)
                known.append((until, changes))
                self.reads += 1
                if self.readers > 1:
                    self.log.append(reached, until, changes)
            for upper, changes in known:
                reader.extend(changes, upper)
            if self.readers > 1:
                self.log.move(reader, self._readers)
            else:
                self.log.forget()  # a later one begins with the store


class QuickSteps:
    """Says which quick step of all views is under way, if one is. For any thread."""

    def __init__(self) -> None:
        self._ended = Condition()
        self._under_way: TurnOfSteps | None = None

    def begin(self, turn: TurnOfSteps) -> bool:
        """Whether it is the one under way now: it waits for another one, `QUICK_S` at most.

        Nobody waits for one that has lasted so long already.
        """
        with self._ended:
            if self._under_way is not None and self._under_way.lasted_s < QUICK_S:
                self._ended.wait_for(lambda: self._under_way is None, QUICK_S)
            if self._under_way is not None:
                return False
            self._under_way = turn
            turn.start()
            return True

    def end(self) -> None:
        """End the one under way."""
        with self._ended:
            self._under_way = None
            self._ended.notify()


class TurnOfSteps:
    """Within `with` a step of one view; those that are quick go one after the other.

    Ten that a change of one input wakes would take the interpreter from each other at each call of
    a library. A step waits for `QUICK_S` at most, and none waits for one that has lasted so long.
    The first step of a view may take in a history, so it is none of the quick ones.
    """

    def __init__(self, quick: QuickSteps, clock: Clock) -> None:
        self._quick = quick
        self._clock = clock
        self._took, self._began = inf, 0.0
        self.alone = False
        """Whether no other quick step is under way."""

    @property
    def lasted_s(self) -> float:
        """Seconds since the step began."""
        return self._clock.monotonic_s() - self._began

    def start(self) -> None:
        """The step begins now."""
        self._began = self._clock.monotonic_s()

    def __enter__(self) -> None:
        """Begin a step."""
        self.alone = self._took < QUICK_S and self._quick.begin(self)
        self.start()

    def __exit__(self, *raised: object) -> None:
        self._took = self.lasted_s
        if self.alone:
            self._quick.end()


class SharedInputs:
    """Inputs of all views of a process, by collection and reading; and one numbering of texts.

    Only equal readings are shared. A view that needs nearly all of an input reads all of it, if
    another one does. One that needs few rows or columns never does, nor one without room for all.
    """

    def __init__(self) -> None:
        self._inputs: WeakValueDictionary[Hashable, SharedInput] = WeakValueDictionary()
        self._texts: Texts | None = None
        self._living_texts = self._made_texts = 0
        """Most texts, and characters made, after the beginning of a view: these are of rows."""
        self._begun = False
        self._numbering = Lock()
        self.threads = ThreadPoolExecutor(THREADS, "views")
        """The threads on which views are evaluated."""
        self._quick = QuickSteps()

    def turn_of_steps(self, clock: Clock) -> TurnOfSteps:
        """The turns of the steps of one view."""
        return TurnOfSteps(self._quick, clock)

    def input(
        self, collection: str, shape: PredicateShape, scan: Scan | None, stored: bool = False
    ) -> SharedInput:
        """The shared input of a collection with a scan; None: all of it.

        `stored` says that changes are read as they are stored, not added up.
        """
        key = _key(collection, shape, scan, stored)
        found = self._inputs.get(key)
        if found is None:
            found = self._inputs[key] = SharedInput()
        return found

    def is_read(
        self, collection: str, shape: PredicateShape, scan: Scan, stored: bool = False
    ) -> bool:
        """Whether some view has this reading of a collection now."""
        found = self._inputs.get(_key(collection, shape, scan, stored))
        return found is not None and found.readers > 0

    def inputs(self) -> list[SharedInput]:
        """Those that any view reads."""
        return list(self._inputs.values())

    def texts(self, alive: int) -> Texts:
        """Numbering of texts for a view with so many rows alive.

        It is begun anew once most texts are of rows that are gone.
        """
        from tidemill.datalog.columns.texts import Texts

        with self._numbering:
            every = max(alive, sum(shared.alive for shared in self.inputs()))
            least = max(TEXTS_MAX, TEXTS_A_ROW * every)
            texts, most = self._texts, max(least, 2 * self._living_texts)
            made = max(TEXTS_MADE_MAX, 2 * self._made_texts)
            if texts is None or len(texts) > most or texts.made > made:
                texts = self._texts = Texts()
                if self._begun:
                    self._living_texts = self._made_texts = 0
                self._begun = False
            return texts

    def texts_begun(self, texts: Texts) -> None:
        """A view has begun with these texts: rows that are there have all of them.

        IMPORTANT: without this a view with more texts than `TEXTS_MAX` began again for ever.
        """
        with self._numbering:
            self._living_texts = max(self._living_texts, len(texts))
            self._made_texts = max(self._made_texts, texts.made)
            self._begun = self._begun or texts is self._texts


def _key(collection: str, shape: PredicateShape, scan: Scan | None, stored: bool) -> Hashable:
    """Readings with equal keys are one."""
    narrowed = None if scan is None else scan.nameless
    fields = tuple((field.name, str(field.type)) for field in shape.schema)
    carried = (shape.lattices, shape.written, shape.sure, shape.marked)
    return collection, fields, shape.arguments, shape.timed, carried, narrowed, stored
