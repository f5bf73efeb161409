"""The reach of a step: state whose size has changed, and outputs that have something to
tell.

A step costs what it reaches, however many rules a program has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Protocol

from tidemill.arrangement.interval_updates import END_WORD, Change
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.dataflow.operators.output import Output

_STEPS, _TAKEN_BYTES = 32, 1 << 16
"""Small steps that are looked at together, and bytes that they take in at most."""


class StatePart(Protocol):
    """A part of the state."""

    @property
    def nbytes(self) -> int:
        """Its bytes, with room for more."""
        ...

    def compact(self, since: int) -> None:
        """Forget what has ended by an instant."""
        ...


class Holdings:
    """The bytes of all state. A part whose size may have changed is looked at once a step."""

    def __init__(self) -> None:
        self._reached: dict[StatePart, None] = {}
        self._known: dict[StatePart, int] = {}
        self._total = self._settled = 0
        self._steps = _STEPS

    def reach(self, parts: Iterable[StatePart]) -> None:
        """The size of some parts may change in this step."""
        for part in parts:
            self._reached[part] = None

    def finish(self, since: int, allowance: Allowance) -> None:
        """A step is done; the parts that it reached forget what has ended by an instant.

        Small steps are looked at together. Raises: as `Allowance.settle`. Cost: O(parts reached).
        """
        self._steps += 1
        if self._steps < _STEPS and allowance.held - self._settled < _TAKEN_BYTES:
            return
        self.compact(since)
        self._steps = 0
        allowance.settle(self.nbytes)
        self._settled = allowance.held

    def compact(self, since: int) -> None:
        """Make the parts that were reached forget what has ended by an instant."""
        for part in self._reached:
            part.compact(since)

    @property
    def nbytes(self) -> int:
        """The bytes of all parts. Cost: O(parts reached since it was asked)."""
        for part in self._reached:
            now = part.nbytes
            self._total += now - self._known.get(part, 0)
            self._known[part] = now
        self._reached.clear()
        return self._total


class Outputs:
    """The outputs of an engine by collection, and which of them have moves to tell."""

    def __init__(self, columns: Mapping[str, int]) -> None:
        """`columns` are the number of columns of each collection that is told."""
        self._outputs = {name: Output(each, of_set=True) for name, each in columns.items()}
        self._order = {name: at for at, name in enumerate(columns)}
        self._changed: dict[str, None] = {}
        self._later: list[tuple[int, str]] = []

    def take(self, name: str, change: Change, net: bool = False) -> None:
        """A collection has changed, which may be one that is not told; `net`: see `Output.take`."""
        output = self._outputs.get(name)
        if output is not None:
            output.take(change, net)
            self._changed[name] = None

    def due(self, upper: int) -> list[str]:
        """The collections that may have moves below an instant, always in the same order."""
        while self._later and self._later[0][0] < upper:
            self._changed[heappop(self._later)[1]] = None
        return sorted(self._changed, key=self._order.__getitem__)

    def tell(self, name: str, upper: int) -> I64Array:
        """The moves of a collection below an instant that were not told yet; see `Output.tell`."""
        output = self._outputs[name]
        moves = output.tell(upper)
        self._changed.pop(name, None)
        if output.soonest is not None:
            heappush(self._later, (output.soonest, name))
        return moves

    @property
    def soonest(self) -> int:
        """The first instant at which `tell` has left something for later, for all collections."""
        found = (output.soonest for output in self._outputs.values())
        return min((at for at in found if at is not None), default=END_WORD)

    def words(self, name: str, columns: Sequence[int]) -> set[int]:
        """The words in some columns of the moves to come of a collection, if it is told."""
        output = self._outputs.get(name)
        return set() if output is None else output.words(columns)
