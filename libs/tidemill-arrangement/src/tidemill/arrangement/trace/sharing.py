"""One trace, many readers: named handles with holds of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar

from tidemill.arrangement.trace.batches import BatchT
from tidemill.arrangement.trace.spine import Spine
from tidemill.errors import UsageError
from tidemill.time import Antichain, Lattice, MutableAntichain

T = TypeVar("T")

Exertion: TypeAlias = Callable[[Sequence[Any]], int]  # Any: the batches of the trace
"""The fuel of one piece of idle merging, of the batches that there are; 0 for none."""


@dataclass(frozen=True, slots=True)
class Holder(Generic[T]):
    """A handle by name, and how far it lets the trace compact."""

    name: str
    logical: Antichain[T]
    physical: Antichain[T]


@dataclass(frozen=True, slots=True)
class TraceStatus(Generic[T]):
    """Contents of a trace, and the handles that hold it back."""

    batches: int
    updates: int
    bytes: int
    pending: int
    upper: Antichain[T]
    logical: Antichain[T]
    physical: Antichain[T]
    holders: tuple[Holder[T], ...]
    layers: str


class SharedTrace(Generic[T, BatchT]):
    """A trace that compacts exactly as far as all of its handles let it: the meet of their holds.

    Its batches live as long as there is a handle; without one only its upper moves on.
    """

    def __init__(self, spine: Spine[T, BatchT]) -> None:
        self._lattice = spine.lattice
        self._spine: Spine[T, BatchT] | None = spine
        self._upper = spine.upper
        self._handles: dict[int, TraceHandle[T, BatchT]] = {}
        self._serial = 0
        self._exertion: Exertion | None = None
        self._activate: Callable[[], None] = lambda: None
        self._logical: MutableAntichain[T] = MutableAntichain(spine.lattice)
        self._physical: MutableAntichain[T] = MutableAntichain(spine.lattice)

    @property
    def lattice(self) -> Lattice[T]:
        return self._lattice

    @property
    def upper(self) -> Antichain[T]:
        return self._upper

    @property
    def logical(self) -> Antichain[T]:
        """Frontier to which the trace may compact times; empty without handles."""
        return self._logical.frontier

    @property
    def physical(self) -> Antichain[T]:
        """Frontier up to which the trace may merge batches; empty without handles."""
        return self._physical.frontier

    @property
    def spine(self) -> Spine[T, BatchT]:
        """Raises: UsageError if the last handle was dropped."""
        if self._spine is None:
            raise UsageError("the trace is gone: its last handle was dropped")
        return self._spine

    def hold(self, name: str) -> TraceHandle[T, BatchT]:
        """A new handle that holds both frontiers where the trace has them now.

        Raises: UsageError if the trace is gone.
        """
        return self._added(name, self.spine.logical, self.spine.physical)

    def insert(self, batch: BatchT) -> None:
        """Append the next batch. Raises: UsageError if it does not start at `upper`."""
        if self._spine is not None:
            self._spine.insert(batch)
        elif batch.description.lower != self._upper:
            raise UsageError(f"insert refused: the trace ends at {self._upper}")
        self._upper = batch.description.upper
        self._exert_as_set()

    def set_exertion(self, exertion: Exertion, activate: Callable[[], None]) -> None:
        """Merge as much as `exertion` says after each batch, and when `exert` is called.

        `activate` is called while merging is left; whoever hears it calls `exert` when it is idle.
        """
        self._exertion, self._activate = exertion, activate

    def exert(self, effort: int | None = None) -> bool:
        """Spend one piece of idle maintenance; whether there was anything to do.

        Without an effort that of `set_exertion`, which calls its activator while more is left.
        """
        if effort is None and self._exertion is not None:
            return self._exert_as_set()
        return self._spine is not None and self._spine.exert(effort)

    def _exert_as_set(self) -> bool:
        if self._spine is None or self._exertion is None:
            return False
        fuel = self._exertion(self._spine.batches())
        worked = fuel > 0 and self._spine.exert(fuel)
        if worked:
            self._activate()
        return worked

    def status(self) -> TraceStatus[T]:
        """Present contents and handles."""
        batches = [] if self._spine is None else self._spine.batches()
        holders = [Holder(h.name, h.logical, h.physical) for h in self._handles.values()]
        return TraceStatus(
            batches=len(batches),
            updates=sum(len(batch) for batch in batches),
            bytes=sum(batch.nbytes for batch in batches),
            pending=0 if self._spine is None else self._spine.pending,
            upper=self._upper,
            logical=self.logical,
            physical=self.physical,
            holders=tuple(holders),
            layers="" if self._spine is None else self._spine.state(),
        )

    def _added(
        self, name: str, logical: Antichain[T], physical: Antichain[T]
    ) -> TraceHandle[T, BatchT]:
        handle = TraceHandle(self, name, self._serial, logical, physical)
        self._handles[self._serial] = handle
        self._serial += 1
        nothing: Antichain[T] = Antichain(self._lattice)
        self._logical.move(nothing, logical)
        self._physical.move(nothing, physical)
        return handle

    def _moved_logical(self, before: Antichain[T], after: Antichain[T]) -> None:
        # Both halves of a move are one change: there is never a moment without the hold.
        if self._logical.move(before, after) and self._spine is not None:
            self._spine.set_logical(self.logical)

    def _moved_physical(self, before: Antichain[T], after: Antichain[T]) -> None:
        if self._physical.move(before, after) and self._spine is not None:
            self._spine.set_physical(self.physical)

    def _removed(self, serial: int) -> None:
        handle = self._handles.pop(serial)
        if not self._handles:
            self._spine = None
        nothing: Antichain[T] = Antichain(self._lattice)
        self._moved_logical(handle.logical, nothing)
        self._moved_physical(handle.physical, nothing)


class TraceHandle(Generic[T, BatchT]):
    """A named reader of a trace. Times that it holds stay readable, whatever others release.

    Usable in a `with` block, which drops it at the end.
    """

    def __init__(
        self,
        shared: SharedTrace[T, BatchT],
        name: str,
        serial: int,
        logical: Antichain[T],
        physical: Antichain[T],
    ) -> None:
        self.name = name
        self._shared = shared
        self._serial = serial
        self._logical = logical
        self._physical = physical
        self._dropped = False

    @property
    def logical(self) -> Antichain[T]:
        """From when on this reader distinguishes times; empty: released for good."""
        return self._logical

    @property
    def physical(self) -> Antichain[T]:
        """From when on this reader can cut between batches; empty: released for good."""
        return self._physical

    @property
    def upper(self) -> Antichain[T]:
        return self._shared.upper

    @property
    def lattice(self) -> Lattice[T]:
        return self._shared.lattice

    def set_logical(self, to: Antichain[T]) -> None:
        """Move the logical hold to its join with `to`: never back. Empty releases it for good.

        Raises: UsageError if the handle was dropped.
        """
        before = self._live()._logical
        self._logical = before.join(to, self.lattice)
        self._shared._moved_logical(before, self._logical)

    def set_physical(self, to: Antichain[T]) -> None:
        """Move the physical hold to its join with `to`: never back. Empty releases it for good.

        Raises: UsageError if the handle was dropped.
        """
        before = self._live()._physical
        self._physical = before.join(to, self.lattice)
        self._shared._moved_physical(before, self._physical)

    def clone(self, name: str) -> TraceHandle[T, BatchT]:
        """Another handle with the holds of this one. Raises: UsageError if this was dropped."""
        self._live()
        return self._shared._added(name, self._logical, self._physical)

    def drop(self) -> None:
        """Give up both holds; again is fine."""
        if not self._dropped:
            self._dropped = True
            self._shared._removed(self._serial)

    def through(self, upper: Antichain[T]) -> list[BatchT]:
        """The batches with rows that hold all updates not beyond `upper`, in order of time.

        Raises: UsageError if the handle was dropped, its logical hold is released, `upper` is not
            beyond its physical hold or cuts through a batch. NotYet if the trace has not come so
            far.
        """
        self._live()
        if upper.less_equal(self.lattice.minimum()):
            return []
        if self._logical.empty:
            raise UsageError(f"the hold of {self.name} is released: it reads nothing")
        if not self._physical.precedes(upper):
            raise UsageError(f"{upper} is not beyond the physical hold {self._physical}")
        return self._shared.spine.through(upper)

    def history(self) -> list[BatchT]:
        """All batches, empty ones included, in order of time. Raises: UsageError if dropped."""
        self._live()
        return self._shared.spine.batches()

    def following(self, lower: Antichain[T]) -> list[BatchT]:
        """All batches from the cut `lower` on, empty ones included, in order of time.

        Raises: UsageError if the handle was dropped or `lower` is not beyond its physical hold, or
            cuts through a batch.
        """
        self._live()
        if not self._physical.precedes(lower):
            raise UsageError(f"{lower} is not beyond the physical hold {self._physical}")
        found = [
            batch
            for batch in self._shared.spine.batches()
            if not batch.description.upper.precedes(lower)
        ]
        if found and not lower.precedes(found[0].description.lower):
            raise UsageError(f"{lower} lies inside a batch")
        return found

    def _live(self) -> Self:
        if self._dropped:
            raise UsageError(f"the handle {self.name} was dropped")
        return self

    def __enter__(self) -> Self:
        return self._live()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.drop()
