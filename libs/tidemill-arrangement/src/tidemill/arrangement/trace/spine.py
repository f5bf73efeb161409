"""A trace as layers of geometrically growing batches, merged a bounded piece at a time."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from tidemill.arrangement.trace.batches import BatchT
from tidemill.arrangement.trace.layers import Double, Layer, Single, Vacant, present
from tidemill.errors import NotYet, UsageError
from tidemill.time import Antichain, Lattice

T = TypeVar("T")

_FUEL_PER_ROW = 8
"""Rows read for each row that arrives: four finish a merge before the next one needs its layer,
four carry what lies below upward."""


class Spine(Generic[T, BatchT]):
    """All batches of one collection from the minimum to `upper`, few of them, in order of time.

    Accumulations at times beyond `logical` are exact; cuts at frontiers at or beyond `physical`
    can be taken. With n rows ready to merge at most two batches are visible in each of O(log n)
    layers. Merges for m inserted rows read O(m · layers) rows. Batches whose upper is not
    at or before `physical` wait unmerged.
    """

    def __init__(self, lattice: Lattice[T], effort: int = 1) -> None:
        self._lattice = lattice
        self._effort = max(effort, 1)
        self._layers: list[Layer[BatchT]] = []
        self._pending: deque[BatchT] = deque()
        self._upper = Antichain.minimum(lattice)
        self._logical = self._upper
        self._physical = self._upper
        self._rows_read = 0

    @property
    def lattice(self) -> Lattice[T]:
        return self._lattice

    @property
    def upper(self) -> Antichain[T]:
        return self._upper

    @property
    def logical(self) -> Antichain[T]:
        """Accumulations at times beyond it stay exact; empty: nobody reads any more."""
        return self._logical

    @property
    def physical(self) -> Antichain[T]:
        """Cuts at or beyond it can be taken."""
        return self._physical

    @property
    def pending(self) -> int:
        """The number of batches that wait for the physical frontier."""
        return len(self._pending)

    @property
    def rows_read(self) -> int:
        """Rows that merges have read since the spine was made."""
        return self._rows_read

    def insert(self, batch: BatchT) -> None:
        """Append the next batch, and spend fuel on merges in proportion to its size.

        Raises: UsageError if the batch does not start at `upper` or its interval is empty, as after
            the spine was closed; nothing changes then.
        Cost: amortised O(log n) rows read for each row, never more than O(rows · layers) at once.
        """
        lower, upper = batch.description.lower, batch.description.upper
        if lower == upper:
            raise UsageError(f"insert refused: nothing lies between {lower} and {upper}")
        if lower != self._upper:
            raise UsageError(
                f"insert refused: the batch starts at {lower}, the trace ends at {self._upper}",
                reason="InvalidBounds",
                lower=lower,
                upper=self._upper,
            )
        self._upper = upper
        self._pending.append(batch)
        self._consider_merges()

    def set_logical(self, to: Antichain[T]) -> None:
        """Advance times by `to` in merges that begin from now on.

        Empty: nothing is accumulated any more, so rows before the physical frontier are forgotten.

        Raises: UsageError if `to` is not beyond the present logical frontier.
        """
        if not self._logical.precedes(to):
            raise UsageError(f"the logical frontier {self._logical} cannot go back to {to}")
        self._logical = to
        if to.empty:
            self._forget()

    def set_physical(self, to: Antichain[T]) -> None:
        """Permit merges of batches up to `to`.

        Raises: UsageError if `to` is not beyond the present physical frontier.
        """
        if not self._physical.precedes(to):
            raise UsageError(f"the physical frontier {self._physical} cannot go back to {to}")
        self._physical = to
        self._consider_merges()

    def batches(self) -> list[BatchT]:
        """All batches in order of time, each touching the next, empty ones included."""
        found = [batch for layer in reversed(self._layers) for batch in present(layer)]
        return [*found, *self._pending]

    def through(self, upper: Antichain[T]) -> list[BatchT]:
        """The batches with rows that hold all updates not beyond `upper`, in order of time.

        Nothing if `upper` is the minimum, everything if it is empty.

        Raises: UsageError if the logical frontier was released, if `upper` is not beyond the
            physical frontier, or if it cuts through a batch with rows. NotYet if it is past the
            upper of the trace.
        """
        if upper.less_equal(self._lattice.minimum()):
            return []
        if self._logical.empty:
            raise UsageError("the trace is released: nothing is readable")
        if not self._physical.precedes(upper):
            raise UsageError(f"{upper} is not beyond the physical frontier {self._physical}")
        if not upper.empty and not upper.precedes(self._upper):
            raise NotYet(
                f"{upper} is past the upper {self._upper}", requested=upper, upper=self._upper
            )
        found = [batch for layer in reversed(self._layers) for batch in present(layer)]
        for batch in self._pending:
            bounds = batch.description
            if bounds.upper.precedes(upper):
                found.append(batch)
            elif len(batch) and bounds.lower.precedes(upper) and bounds.lower != upper:
                raise UsageError(
                    f"{upper} lies inside the batch from {bounds.lower} to {bounds.upper}"
                )
        return [batch for batch in found if len(batch)]

    def exert(self, effort: int | None = None) -> bool:
        """Spend one piece of idle maintenance; whether there was anything to do.

        Stand-ins walk real batches upward until they meet, as if rows had arrived.
        """
        self._tidy()
        layers_with_a_batch = sum(bool(present(layer)) for layer in self._layers)
        merging = any(isinstance(layer, Double) for layer in self._layers)
        if layers_with_a_batch < 2 and not merging:
            return False
        piece = self._effort if effort is None else effort
        if merging:
            self._apply_fuel(piece)
        else:
            self._introduce(None, _level_of(piece))
        return True

    def settle(self) -> None:
        """Idle maintenance until at most one batch is left beside the pending ones.

        Cost: O(n) rows read.
        """
        effort = self._effort
        while self.exert(effort):
            effort *= 2

    def state(self) -> str:
        """`level:count(length)` for each layer from high to low, vacant ones left out."""
        return " ".join(
            f"{level}:{layer.count}({layer.rows})"
            for level, layer in reversed(list(enumerate(self._layers)))
            if layer.count
        )

    def _consider_merges(self) -> None:
        while self._pending and self._pending[0].description.upper.precedes(self._physical):
            batch = self._emptied(self._pending.popleft())
            if len(batch) or not self._absorb_empty(batch):
                self._introduce(batch, _level_of(len(batch)))

    def _forget(self) -> None:
        """Keep of all batches that are not pending their intervals only."""
        found = [batch for layer in reversed(self._layers) for batch in present(layer)]
        self._layers = []
        for batch in found:
            empty = self._emptied(batch)
            if not self._absorb_empty(empty):
                self._insert_at(empty, 0)

    def _emptied(self, batch: BatchT) -> BatchT:
        """The batch, without its rows where nobody accumulates any more."""
        if not self._logical.empty or not len(batch):
            return batch
        return batch.seen(self._logical, Antichain.minimum(self._lattice))

    def _absorb_empty(self, batch: BatchT) -> bool:
        """Whether `batch`, without rows, went into the lowest batch, which has none either."""
        for level, layer in enumerate(self._layers):
            if isinstance(layer, Vacant):
                continue
            if not isinstance(layer, Single) or layer.rows:
                return False
            absorbed = batch
            if layer.batch is not None:
                absorbed = layer.batch.merge_empty(batch, self._logical)
            self._layers[level] = Single(absorbed)
            return True
        return False

    def _introduce(self, batch: BatchT | None, level: int) -> None:
        self._apply_fuel((_FUEL_PER_ROW << level) * self._effort)
        self._roll_up(level)
        self._insert_at(batch, level)
        self._tidy()

    def _apply_fuel(self, fuel: int) -> None:
        """Give each layer `fuel`, from low to high; a finished merge moves up at once."""
        for level in range(len(self._layers)):
            layer = self._layers[level]
            if not isinstance(layer, Double):
                continue
            if layer.merger is not None:
                self._rows_read += layer.merger.work(fuel)
            if layer.complete:
                self._insert_at(self._take_complete(level), level + 1)

    def _roll_up(self, level: int) -> None:
        """Carry everything below `level` into it, finishing merges on the way."""
        self._grow(level)
        if all(isinstance(layer, Vacant) for layer in self._layers[:level]):
            return
        carried: BatchT | None = None
        for below in range(level):
            self._insert_at(carried, below)
            carried = self._take_complete(below)
        self._insert_at(carried, level)
        if isinstance(self._layers[level], Double):
            self._insert_at(self._take_complete(level), level + 1)

    def _insert_at(self, batch: BatchT | None, level: int) -> None:
        self._grow(level)
        match self._layers[level]:
            case Vacant():
                self._layers[level] = Single(batch)
            case Single(older):
                merger = None
                if older is not None and batch is not None:
                    merger = older.begin_merge(batch, self._logical)
                self._layers[level] = Double(older, batch, merger)
            case Double():
                raise AssertionError(f"a batch arrived at layer {level} before its merge was done")

    def _take_complete(self, level: int) -> BatchT | None:
        """Empty layer `level`, finishing its merge whatever that costs."""
        layer, self._layers[level] = self._layers[level], Vacant()
        if isinstance(layer, Vacant):
            return None
        if isinstance(layer, Single):
            return layer.batch
        if layer.merger is not None:
            self._rows_read += layer.merger.work(layer.rows)
        return layer.outcome()

    def _tidy(self) -> None:
        """Move a top batch that has shrunk to a layer of its size; merge where that is safe."""
        while self._layers:
            top = len(self._layers) - 1
            highest = self._layers[top]
            if not isinstance(highest, Single) or _level_of(highest.rows) >= top:
                return
            below = self._layers[top - 1]
            if isinstance(below, Double):
                return
            if isinstance(below, Vacant) or below.batch is None:
                del self._layers[top - 1]
                continue
            smaller = sum(layer.count << i for i, layer in enumerate(self._layers[: top - 1]))
            if smaller <= (2 << top) // 8:
                del self._layers[top - 1]
                self._insert_at(below.batch, top - 1)
            return

    def _grow(self, level: int) -> None:
        self._layers.extend(Vacant() for _ in range(len(self._layers), level + 1))


def _level_of(rows: int) -> int:
    """The layer for a batch of `rows`: 2^level is the least power of two that holds it."""
    return max(rows - 1, 0).bit_length()
