"""Results of an evaluation, as updates of the collections of a view."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, TypeAlias

import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.catalog.record_rows import table_of
from tidemill.datalog.state import StateRow
from tidemill.shard.parts import Part
from tidemill_compute.views.input_rows import Row
from tidemill_compute.views.input_state import InputState

RowChange: TypeAlias = "tuple[Row, int, int]"


@dataclass(slots=True)
class ViewProgress:
    """Progress of the view: for status and metrics."""

    lower: int = 0
    taken: int = 0
    """About the number of changes of the inputs that steps took in."""
    inputs: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    changes: int = 0
    seconds: float = 0.0
    held: tuple[int, int] = (0, 0)
    """Bytes in memory by its own count, and rows of inputs and outputs, after the last step."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start of a maintainer: everything before `lower` is written.

    `fresh`: nothing is written, and the inputs begin with their contents at `lower`. Otherwise
    `state` and `contents` (rows by collection, only if asked for) are those just before it.
    """

    lower: int
    fresh: bool
    state: frozenset[StateRow] = frozenset()
    contents: Mapping[str, Sequence[Row]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredUpdates:
    """Updates that are in Blob, as parts that nobody has named yet."""

    parts: tuple[Part, ...]

    @property
    def num_rows(self) -> int:
        """Number of updates."""
        return sum(part.rows for part in self.parts)


Updates: TypeAlias = "pa.Table | StoredUpdates"


@dataclass(frozen=True, slots=True)
class Step:
    """The updates of one step, up to `upper`: the state's first, then outputs and errors.

    With `state` those of the state are what it makes, once, on any thread.
    """

    upper: int
    updates: Sequence[tuple[str, Updates]]
    state: Callable[[], tuple[str, Updates]] | None = None

    def made(self) -> list[tuple[str, Updates]]:
        """All updates, the state's first. For any thread, once."""
        return [*([] if self.state is None else [self.state()]), *self.updates]


class Maintainer(Protocol):
    """Finds out what the changes of the inputs change.

    Knows of no store; not for several threads.
    """

    def begin(self, start: Start, inputs: Mapping[str, InputState]) -> None:
        """Go on from a start; the inputs stand at it."""

    def step(self, lower: int, common: int, half_written: int | None) -> Step:
        """The next step from `lower` to `common` at most, or exactly to `half_written`."""

    def call_off(self) -> None:
        """End a step that is under way soon, with an error: nobody waits for it."""

    def fewer(self) -> bool:
        """Shrink steps after one ran out of memory; whether that is possible.

        After it the maintainer begins again.
        """

    reads_present: bool
    """Whether it begins with all rows that the inputs hold."""

    @property
    def reads_max(self) -> int | None:
        """Changes of one input that are read before they are taken in; None for no bound."""

    @property
    def held(self) -> tuple[int, int]:
        """About the bytes that it holds in memory, and the rows that the view has."""

    @property
    def outdated(self) -> bool:
        """Whether it has to begin again before the next step."""

    def go_on(self, start: Start) -> bool:
        """Begin again where the last step ended, with rows that it has; whether it can.

        The inputs stay as they are.
        """


def update_table(changes: Sequence[RowChange], schema: pa.Schema) -> pa.Table:
    """Changes as updates of a collection."""
    return _updates(changes, schema) if changes else _nothing(schema.serialize().to_pybytes())


@lru_cache(256)
def _nothing(schema: bytes) -> pa.Table:
    """No updates: most steps have none of their state, and none of errors.

    NB: of the bytes of a schema, since schemas are equal whatever metadata their fields have.
    """
    return _updates([], pa.ipc.read_schema(pa.py_buffer(schema)))


def _updates(changes: Sequence[RowChange], schema: pa.Schema) -> pa.Table:
    rows = table_of([row for row, _, _ in changes], schema)
    times = pa.array([time for _, time, _ in changes], pa.uint64())
    diffs = pa.array([diff for _, _, diff in changes], pa.int64())
    return rows.append_column(TIME, times).append_column(DIFF, diffs)


def moved_rows(gone: Iterable[Row], come: Iterable[Row], time: int) -> list[RowChange]:
    """Rows that leave and rows that come, all at one instant."""
    return [(row, time, -1) for row in gone] + [(row, time, 1) for row in come]
