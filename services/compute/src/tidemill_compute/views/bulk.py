"""The port to whoever evaluates the history of a view in bulk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from tidemill.shard.parts import Part
from tidemill.shard.state import Description
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.view_target import ViewTarget

HISTORY_BYTES = "limits.history_bytes"
HISTORY_BYTES_MAX = 16 << 30
"""Bytes, by default, that evaluating a history may hold: all changes of the inputs at once."""


@dataclass(frozen=True, slots=True)
class History:
    """History of a view that has written nothing, from `lower` to `upper`.

    `inputs` are the descriptions of the inputs' collections, and their parts up to `upper`.
    `written` are the descriptions of the collections to write.
    """

    target: ViewTarget
    settings: ComputeSettings
    lower: int
    upper: int
    inputs: Mapping[str, tuple[Description, tuple[Part, ...]]]
    written: Mapping[str, Description]

    @property
    def rows(self) -> int:
        """Updates to read."""
        return sum(part.rows for _, parts in self.inputs.values() for part in parts)

    @property
    def input_rows(self) -> dict[str, int]:
        """Updates to read of each input, by its name in the program."""
        return {
            predicate: sum(part.rows for part in self.inputs[collection][1])
            for predicate, (collection, _) in self.target.inputs.items()
        }

    @property
    def bare(self) -> History:
        """The history of no instant, without parts: the same for all windows of a view."""
        empty = {name: (description, ()) for name, (description, _) in self.inputs.items()}
        return replace(self, lower=0, upper=0, inputs=empty)


class BulkHydrate(Protocol):
    """Evaluates histories that are too much for this process."""

    async def hydrate(self, history: History) -> None:
        """Write state, outputs and errors by compare-and-append, from `lower` to `upper`.

        A writer that lost a race changes nothing. Raises: Unavailable if nothing could be written;
        Exhausted if it takes more memory than it may.
        """
