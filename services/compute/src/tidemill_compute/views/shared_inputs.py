"""Shared inputs of the views of one process: read once, decoded once, held once at each instant.

Every view keeps its own place in an input. Views at one place share the rows that are alive there.
The next view at a place finds the window that the first one has made. Nothing is counted or
released: an object without a view at its place is gone with the last one, also if that view died.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Protocol, TypeAlias
from weakref import WeakSet, WeakValueDictionary

import pyarrow as pa

from tidemill.catalog.record_rows import PredicateShape
from tidemill.datalog.incremental import FactVersion, Given, Later
from tidemill.datalog.logical.scans import Scan
from tidemill.errors import UsageError
from tidemill_compute.views.idling import Quiet
from tidemill_compute.views.input_log import InputLog

if TYPE_CHECKING:  # importing it imports numba
    from tidemill.arrangement.kernels import I64Array
    from tidemill.datalog.columnar import Columns, Texts, WindowColumns
    from tidemill.datalog.columnar.living import LivingColumns

TEXTS_MAX = 1 << 22
"""After so many texts numbers are begun anew, if most are of rows that are gone: some 170 MB."""
TEXTS_MADE_MAX = 1 << 28
"""After so many characters that functions made the numbers of texts are begun anew."""
THREADS = 256
"""So many views may be evaluated at once; the threads that read and write for everybody are others.
"""

ReadChanges: TypeAlias = "Callable[[int, int], Awaitable[pa.Table]]"
ReadPresent: TypeAlias = "Callable[[int], Awaitable[pa.Table]]"


class InputReader(Protocol):
    """A view's place in an input, and what it holds there: on columns, or as facts, or neither."""

    lower: int
    upper: int
    columns: LivingColumns | None
    facts: FactVersion | None

    def extend(self, changes: pa.Table, upper: int) -> None:
        """Take the changes of [upper so far, `upper`)."""


class SharedInput:
    """One input in one way of reading, for all views of the process that read it so.

    Reads are for one event loop, the rest for any number of threads. `reads` and `advances` count
    questions to the store and moves of rows, `wanted` the moves that views wanted.

    Readers are looked at by others under the lock. A thread that takes content from a reader, or
    moves it, does so before its place changes, and only here is it given anything.
    """

    def __init__(self) -> None:
        self.reads = 0
        self.advances = 0
        self.wanted = 0
        self.alive = 0
        """Rows that were alive at the place of the last look."""
        self._readers: WeakSet[InputReader] = WeakSet()
        self._reading = asyncio.Lock()
        self.log = InputLog()
        """The rows that were read, as far as a reader may need them."""
        self._moving = Lock()
        self._windows: dict[tuple[int, int], tuple[LivingColumns, WindowColumns]] = {}

    @property
    def readers(self) -> int:
        """Number of views that read it."""
        return len(self._readers)

    @property
    def places(self) -> int:
        """Number of different contents that views hold of it, on columns and as facts."""
        with self._moving:
            return len({id(held) for r in self._readers for held in (r.columns, r.facts) if held})

    @property
    def waiting(self) -> int:
        """Number of windows that are kept for views that have yet to take them."""
        return len(self._windows)

    def join(self, reader: InputReader) -> None:
        """A view reads it from now on."""
        with self._moving:
            self._readers.add(reader)

    def leave(self, reader: InputReader) -> None:
        """A view does not read it any more."""
        with self._moving:
            self._readers.discard(reader)
            self._forget_windows()

    # Reading.

    async def present(self, reader: InputReader, at: int, read: ReadPresent) -> pa.Table:
        """Contents of the input at an instant; from the log where that goes back so far."""
        async with self._reading:
            self.log.release_but(self._readers)
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
            reached, known = self.log.following(reader)
            if reached < until:
                changes = await read(reached, until)
                known.append((until, changes))
                self.reads += 1
                self.log.append(reached, until, changes)
            for upper, changes in known:
                reader.extend(changes, upper)
            self.log.move(reader, self._readers)

    # Contents as columns.

    def window(
        self,
        reader: InputReader,
        upper: int,
        texts: Texts,
        begin: Callable[[], LivingColumns],
        changes: Callable[[], tuple[Columns, I64Array]],
    ) -> WindowColumns:
        """Advance a view that holds columns to `upper`; returns the rows present on the way.

        `begin` gives the rows where it stands, `changes` the changes after it. Neither is asked if
        another view has taken the same window. Raises: their errors; Corrupt as
        `LivingColumns.advanced`.
        """
        from tidemill.datalog.columnar import WindowColumns

        with self._moving:
            self._check(reader)
            self.wanted += 1
            place = (reader.lower, upper)
            found = self._windows.get(place)
            if found is None or found[1].columns.texts is not texts:
                held = self._columns_at(reader.lower, texts)
                living, stretches = (held or begin()).advanced(*changes())
                self.advances += 1
                found = self._columns_at(upper, texts) or living, WindowColumns(stretches)
            if any(other is not reader and other.lower == reader.lower for other in self._readers):
                self._windows[place] = found
            else:
                self._windows.pop(place, None)
            reader.facts = None
            reader.columns, reader.lower = found[0], upper
            self.alive = len(found[0])
            self._forget_windows()
            return found[1]

    def _columns_at(self, lower: int, texts: Texts) -> LivingColumns | None:
        """The contents just before an instant, if a view holds them on columns with these texts."""
        for other in self._readers:
            held = other.columns if other.lower == lower else None
            if held is not None and held.rows.texts is texts:
                return held
        return None

    # Contents as facts.

    def begin(self, reader: InputReader, given: Callable[[], Iterable[Given]]) -> FactVersion:
        """Give a view the facts where it stands: those of another view, else the given ones."""
        with self._moving:
            self._check(reader)
            known = [o.facts for o in self._readers if o.lower == reader.lower and o.facts]
            reader.facts = known[0] if known else FactVersion.of(reader.lower - 1, given())
            reader.columns = None
            return reader.facts

    def facts_of(self, reader: InputReader) -> FactVersion | None:
        """The facts where a view stands, if another one holds them."""
        with self._moving:
            known = [o.facts for o in self._readers if o.lower == reader.lower and o.facts]
            return known[0] if known else None

    def hold(
        self, reader: InputReader, columns: LivingColumns | None, facts: FactVersion | None
    ) -> None:
        """Give a view the columns or facts that were made of the rows where it stands."""
        with self._moving:
            self._check(reader)
            reader.columns, reader.facts = columns, facts

    def walk(
        self,
        reader: InputReader,
        upper: int,
        times: Sequence[int],
        given: Callable[[], list[Given]],
    ) -> list[Later]:
        """Advance a view that holds facts to `upper`, by versions of others or new ones.

        Shapes: `times` ascend, one for each change of `given` below `upper`; nobody asks for these
        unless a version is missing. Raises: Corrupt as `FactVersion.change`.
        """
        with self._moving:
            self._check(reader)
            version, changes = reader.facts, list[Given]()
            assert version is not None
            found: list[Later] = []
            place = 0
            while True:
                own = times[place] if place < len(times) else upper
                later = version.later
                if later is not None and later.at < own:
                    pass  # what changed then has cancelled out where this view read it
                elif place == len(times):
                    break
                else:
                    end = bisect_right(times, own, place)
                    if later is None or later.at != own:
                        changes = changes or given()
                        later = self._made(reader, version, own, changes[place:end])
                        self.advances += 1
                    place = end
                    self.wanted += 1
                found.append(later)
                version = later.version
            reader.facts, reader.lower = version, upper
            return found

    def _check(self, reader: InputReader) -> None:
        """Refuse who has left: the thread of a view that is stopped may be at work for a moment
        yet.
        """
        if reader not in self._readers:
            raise UsageError("a view that has let go of an input asks for more of it")

    def _made(
        self, reader: InputReader, version: FactVersion, at: int, changes: list[Given]
    ) -> Later:
        """The next version; that of another view which has come there on its own."""
        for other in self._readers:
            known = other.facts
            if other is not reader and known is not None and known.at == at:
                return version.join(at, changes, known)
        return version.change(at, changes)

    def _forget_windows(self) -> None:
        """Forget the windows that no view can take any more."""
        if self._windows:
            places = {reader.lower for reader in self._readers}
            for place in [place for place in self._windows if place[0] not in places]:
                del self._windows[place]


class SharedInputs:
    """Inputs of all views of a process, by collection and reading; and one numbering of texts.

    Only equal readings are shared: a view that reads few rows or columns is never made to look at
    more.
    """

    def __init__(self) -> None:
        self._inputs: WeakValueDictionary[Hashable, SharedInput] = WeakValueDictionary()
        self._texts: Texts | None = None
        self._living_texts = self._made_texts = 0
        """Most texts, and characters made, after the beginning of a view: these are of rows."""
        self._begun = False
        self._numbering = Lock()
        self.quiet = Quiet()
        """Whether any of the views is at work."""
        self.threads = ThreadPoolExecutor(THREADS, "views")
        """The threads on which views are evaluated."""

    def input(
        self, collection: str, shape: PredicateShape, scan: Scan | None, stored: bool = False
    ) -> SharedInput:
        """The shared input of a collection with a scan; None: all of it.

        `stored` says that changes are read as they are stored, not added up.
        """
        narrowed = None if scan is None else scan.nameless
        fields = tuple((field.name, str(field.type)) for field in shape.schema)
        carried = (shape.lattices, shape.written, shape.sure, shape.marked)
        key = (collection, fields, shape.arguments, shape.timed, carried, narrowed, stored)
        found = self._inputs.get(key)
        if found is None:
            found = self._inputs[key] = SharedInput()
        return found

    def inputs(self) -> list[SharedInput]:
        """Those that any view reads."""
        return list(self._inputs.values())

    def texts(self, alive: int) -> Texts:
        """Numbering of texts for a view with so many rows alive.

        It is begun anew once most texts are of rows that are gone.
        """
        from tidemill.datalog.columnar import Texts

        with self._numbering:
            every = max(alive, sum(shared.alive for shared in self.inputs()))
            texts, most = self._texts, max(TEXTS_MAX, 8 * every, 2 * self._living_texts)
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
