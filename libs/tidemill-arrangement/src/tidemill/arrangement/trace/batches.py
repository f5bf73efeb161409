"""Protocols of a batch and of a merge in a spine, for every layout of rows."""

from __future__ import annotations

from typing import Any, Protocol, Self, TypeVar

from tidemill.arrangement.trace.description import Description
from tidemill.time import Antichain

BatchT = TypeVar("BatchT", bound="TraceBatch")
BatchT_co = TypeVar("BatchT_co", bound="TraceBatch", covariant=True)


class Merger(Protocol[BatchT_co]):
    """A merge of two batches that can stop after any number of rows and go on later."""

    @property
    def complete(self) -> bool:
        """Whether all rows of both batches were read."""

    def work(self, fuel: int) -> int:
        """Read at most `fuel` more rows; how many were read."""

    def outcome(self) -> BatchT_co:
        """The merged batch. Raises: UsageError if the merge is not complete."""


class TraceBatch(Protocol):
    """An immutable batch: sorted, consolidated rows for one interval of times."""

    @property
    def description(self) -> Description[Any]:  # Any: the times are the spine's
        """The interval and the since."""

    def __len__(self) -> int:
        """The number of rows."""

    @property
    def nbytes(self) -> int:
        """The bytes of its columns; what is shared with others, as values are, is not counted."""

    def begin_merge(self, later: Self, logical: Antichain[Any]) -> Merger[Self]:
        """A merge with the batch that follows, compacting to `logical`.

        Raises: UsageError if the intervals do not touch.
        """

    def merge_empty(self, later: Self, logical: Antichain[Any]) -> Self:
        """The one empty batch for the intervals of two that have no rows."""

    def seen(self, since: Antichain[Any], until: Antichain[Any]) -> Self:
        """The rows at times advanced by `since`, without those beyond `until`; empty: none is."""
