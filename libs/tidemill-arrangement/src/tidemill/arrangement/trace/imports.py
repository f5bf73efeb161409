"""A trace that exists, in a new computation: its history at a frontier, then what comes."""

from __future__ import annotations

from typing import Generic, TypeVar

from tidemill.arrangement.trace.batches import BatchT
from tidemill.arrangement.trace.sharing import TraceHandle
from tidemill.errors import BeforeSince
from tidemill.time import Antichain

T = TypeVar("T")


class ImportedTrace(Generic[T, BatchT]):
    """The updates of a trace at times advanced by `since`, without those beyond `until`.

    Accumulations at times beyond `since` and not beyond `until` are those of the trace. Each update
    comes once: the history first, then what was appended since the last call.

    Raises: BeforeSince if the handle no longer distinguishes all times beyond `since`.
    """

    def __init__(
        self,
        handle: TraceHandle[T, BatchT],
        name: str,
        since: Antichain[T],
        until: Antichain[T] | None = None,
    ) -> None:
        if not handle.logical.precedes(since):
            raise BeforeSince(
                f"{since} is not beyond the hold {handle.logical}",
                requested=since,
                since=handle.logical,
            )
        self._handle = handle.clone(name)
        self._since = since
        self._until = Antichain(handle.lattice) if until is None else until
        self._handle.set_logical(since)
        self._position = Antichain.minimum(handle.lattice)
        self._ended = False
        self._started = False

    @property
    def frontier(self) -> Antichain[T]:
        """Up to where updates were given; empty once all times not beyond `until` were."""
        return Antichain(self._handle.lattice) if self._ended else self._position

    def step(self) -> list[BatchT]:
        """Batches with rows that were appended since the last step, at first the history.

        Afterwards the handle holds no more than it needs to go on; at the end it is dropped.
        """
        if self._ended:
            return []
        shared = self._handle
        batches = shared.following(self._position) if self._started else shared.history()
        self._started = True
        self._position = shared.upper
        seen = [batch.seen(self._since, self._until) for batch in batches if len(batch)]
        if self._until.precedes(self._position):
            self.close()
        else:
            shared.set_physical(self._position)
        return [batch for batch in seen if len(batch)]

    def close(self) -> None:
        """End the import and drop its holds; again is fine."""
        self._ended = True
        self._handle.drop()
