"""About how many rows predicates have, to choose which of them are in all ranges."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.datalog.logical.plan import LogicalPlan

RANGE_ROWS = 1_000_000
"""Updates of the inputs for which there is a range more."""
RANGES_MAX = 256
_ROW, _COLUMN = 24, 8
"""Bytes of a row in an exchange: its instant, diff and expiry, and each column."""


def bytes_of(rows: int, columns: int) -> int:
    """About how many bytes rows take in an exchange."""
    return rows * (_ROW + _COLUMN * columns)


def ranges_for(rows: int, tasks: int) -> int:
    """Ranges for so many updates, a power of two: at least one for each task that can run."""
    wanted = min(RANGES_MAX, max(2, tasks, -(-rows // RANGE_ROWS)))
    return 1 << (wanted - 1).bit_length()


class Sizes:
    """Rows of inputs as somebody has counted them; one of each where nobody has.

    A derived predicate counts as much as the largest that its rules read.
    """

    def __init__(self, plan: LogicalPlan, rows: Mapping[str, int]) -> None:
        self.counted = bool(rows)
        """Whether somebody has counted the rows of inputs."""
        self._rows = dict(rows)
        for component in plan.components:
            if component.rules:
                read = {name for rule in component.rules for name in rule.reads}
                most = max((self.of(name) for name in read), default=1)
                self._rows.update(dict.fromkeys(component.predicates, most))

    def of(self, predicate: str) -> int:
        """About how many rows a predicate has."""
        known = self._rows.get(predicate)
        return self._rows.get(predicate.rpartition(":")[2], 1) if known is None else known
