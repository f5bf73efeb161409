"""One layer of a spine: vacant, one batch, or a merge of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeAlias

from tidemill.arrangement.trace.batches import BatchT, Merger


@dataclass(frozen=True, slots=True)
class Vacant:
    """Nothing."""

    count = 0
    rows = 0


@dataclass(frozen=True, slots=True)
class Single(Generic[BatchT]):
    """One batch; None is a stand-in without an interval that is charged like a full batch."""

    batch: BatchT | None
    count = 1

    @property
    def rows(self) -> int:
        return 0 if self.batch is None else len(self.batch)


@dataclass(frozen=True, slots=True)
class Double(Generic[BatchT]):
    """Two neighbouring batches and their merge; with a stand-in there is nothing to merge."""

    older: BatchT | None
    newer: BatchT | None
    merger: Merger[BatchT] | None
    count = 2

    @property
    def complete(self) -> bool:
        return self.merger is None or self.merger.complete

    @property
    def rows(self) -> int:
        return sum(len(batch) for batch in self.present())

    def outcome(self) -> BatchT | None:
        """The result of the complete merge."""
        if self.merger is None:
            return self.newer if self.older is None else self.older
        return self.merger.outcome()

    def present(self) -> list[BatchT]:
        """The batches that a reader sees: both until the merge is complete."""
        return [batch for batch in (self.older, self.newer) if batch is not None]


Layer: TypeAlias = Vacant | Single[BatchT] | Double[BatchT]


def present(layer: Layer[BatchT]) -> list[BatchT]:
    """The batches that a reader sees in `layer`, older before newer."""
    if isinstance(layer, Double):
        return layer.present()
    if isinstance(layer, Single) and layer.batch is not None:
        return [layer.batch]
    return []
