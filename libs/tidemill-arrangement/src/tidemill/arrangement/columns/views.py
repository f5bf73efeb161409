"""A trace of columns seen differently: from inside a loop, through a filter, or as it was once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

from tidemill.arrangement.columns.batches import ColumnBatch, ColumnLattice, Times
from tidemill.arrangement.kernels import BoolArray, Columns, Layout, beyond, frontier_rows
from tidemill.arrangement.trace import Description
from tidemill.errors import BeforeSince
from tidemill.time import Antichain, ProductOrder

Time = Any  # Any: a whole number, or a tuple of them


class ReadableTrace(Protocol):
    """What readers of a trace of columns use of it: a handle, or a view of one."""

    @property
    def name(self) -> str: ...
    @property
    def lattice(self) -> ColumnLattice: ...
    @property
    def upper(self) -> Times: ...
    @property
    def logical(self) -> Times: ...
    @property
    def physical(self) -> Times: ...
    def set_logical(self, to: Times) -> None: ...
    def set_physical(self, to: Times) -> None: ...
    def clone(self, name: str) -> ReadableTrace: ...
    def drop(self) -> None: ...
    def through(self, upper: Times) -> list[ColumnBatch]: ...
    def history(self) -> list[ColumnBatch]: ...
    def following(self, lower: Times) -> list[ColumnBatch]: ...


class _View:
    """A handle whose batches are shown in another way; its holds are its own."""

    def __init__(self, source: ReadableTrace) -> None:
        self._source = source

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def lattice(self) -> ColumnLattice:
        return self._source.lattice

    @property
    def upper(self) -> Times:
        return self._shown(self._source.upper)

    @property
    def logical(self) -> Times:
        return self._shown(self._source.logical)

    @property
    def physical(self) -> Times:
        return self._shown(self._source.physical)

    def set_logical(self, to: Times) -> None:
        """As that of the handle."""
        self._source.set_logical(self._asked(to))

    def set_physical(self, to: Times) -> None:
        """As that of the handle."""
        self._source.set_physical(self._asked(to))

    def clone(self, name: str) -> Self:
        """The same view of another handle with the holds of this one."""
        return self._over(self._source.clone(name))

    def drop(self) -> None:
        """Give up both holds; again is fine."""
        self._source.drop()

    def through(self, upper: Times) -> list[ColumnBatch]:
        """As that of the handle; batches without rows are left out."""
        batches = map(self._seen, self._source.through(self._asked(upper)))
        return [batch for batch in batches if len(batch)]

    def history(self) -> list[ColumnBatch]:
        """As that of the handle."""
        return [self._seen(batch) for batch in self._source.history()]

    def following(self, lower: Times) -> list[ColumnBatch]:
        """As that of the handle."""
        return [self._seen(batch) for batch in self._source.following(self._asked(lower))]

    def _over(self, source: ReadableTrace) -> Self:
        raise NotImplementedError

    def _seen(self, batch: ColumnBatch) -> ColumnBatch:
        raise NotImplementedError

    def _shown(self, frontier: Times) -> Times:
        return frontier

    def _asked(self, frontier: Times) -> Times:
        return frontier


class EnteredTrace(_View):
    """A trace from inside a loop: each time gains a last lane, the round, which is zero.

    Holds set from inside are projected: what some round of a time still needs, the time needs.
    Batches share their rows with the trace. Cost: O(1) for each batch.
    """

    def __init__(self, source: ReadableTrace) -> None:
        super().__init__(source)
        self._inner = ProductOrder(ColumnBatch.lanes_of(source.lattice) + 1)

    @property
    def lattice(self) -> ColumnLattice:
        return self._inner

    def _over(self, source: ReadableTrace) -> Self:
        return type(self)(source)

    def _seen(self, batch: ColumnBatch) -> ColumnBatch:
        layout = Layout((*batch.layout.lows, 0), (*batch.layout.bits, 0))
        bounds = batch.description
        lifted: Description[Any] = Description(  # Any: tuples of whole numbers
            self._shown(bounds.lower), self._shown(bounds.upper), self._shown(bounds.since)
        )
        return ColumnBatch(self._inner, lifted, layout, batch.rows, batch.diffs, batch.storage)

    def _shown(self, frontier: Times) -> Times:
        outer = (time if isinstance(time, tuple) else (time,) for time in frontier)
        return Antichain.of(self._inner, ((*time, 0) for time in outer))

    def _asked(self, frontier: Times) -> Times:
        lattice = self._source.lattice
        outer = (time[:-1] for time in frontier)
        if isinstance(lattice.minimum(), tuple):
            return Antichain.of(lattice, outer)
        return Antichain.of(lattice, (time[0] for time in outer))


class FilteredTrace(_View):
    """The updates of a trace that `keep` says, a function of each update alone.

    A function of key and val shows a part of the collection; with `until` only updates not beyond
    it are shown, so the collection stands still from there on.
    Cost: that of `keep` on all rows of the batches, each time they are read.
    """

    def __init__(
        self,
        source: ReadableTrace,
        keep: Callable[[Columns], BoolArray] | None = None,
        until: Times | None = None,
    ) -> None:
        super().__init__(source)
        self._keep, self._until = keep, until

    def _over(self, source: ReadableTrace) -> Self:
        return type(self)(source, self._keep, self._until)

    def _seen(self, batch: ColumnBatch) -> ColumnBatch:
        if not len(batch):
            return batch
        updates = batch.updates()
        if self._until is not None:
            late = beyond(updates.times, frontier_rows(self._until, updates.lanes))
            updates = updates.where(~late)
        if self._keep is not None and len(updates):
            updates = updates.where(self._keep(updates))
        if len(updates) == len(batch):
            return batch
        return ColumnBatch.sorted(batch.lattice, batch.description, updates, batch.storage)


class FrozenTrace(_View):
    """The collection as it was at a time, at every time that is not before it.

    Shown are the updates at or before `at`. What a reader of the view still asks for never lies
    beyond it: a hold moved on goes no further than lets `at` be told from later times, unless it is
    released.

    Raises: BeforeSince if the handle no longer distinguishes `at` from earlier times.
    Cost: that of a look at all times of the batches, each time they are read.
    """

    def __init__(self, source: ReadableTrace, at: Time) -> None:
        frozen: Times = Antichain.of(source.lattice, [at])
        if not source.logical.precedes(frozen):
            raise BeforeSince(
                f"{at} is not beyond the hold {source.logical}",
                requested=at,
                since=source.logical,
            )
        super().__init__(source)
        self._at, self._frozen = at, frozen

    def set_logical(self, to: Times) -> None:
        """As that of the handle, but not beyond the time of the view unless `to` is empty."""
        self._source.set_logical(to.meet(self._frozen) if len(to) else to)

    def _over(self, source: ReadableTrace) -> Self:
        return type(self)(source, self._at)

    def _seen(self, batch: ColumnBatch) -> ColumnBatch:
        if not len(batch):
            return batch
        updates = batch.updates()
        last = frontier_rows(self._frozen, updates.lanes)[0]
        shown = (updates.times <= last[:, None]).all(axis=0)
        if shown.all():
            return batch
        kept = updates.where(shown)
        return ColumnBatch.sorted(batch.lattice, batch.description, kept, batch.storage)
