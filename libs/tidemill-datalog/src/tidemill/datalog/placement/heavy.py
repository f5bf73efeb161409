"""Keys that more facts have than a range has on average.

A key is known by its spot, so that values that a join calls equal are one. Which keys are thought
to be heavy changes where facts are, and no answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from tidemill.datalog.logical.plan import LogicalPlan
from tidemill.datalog.placement.division import columns_of, head_keys
from tidemill.datalog.placement.places import HeavyKey

Spots: TypeAlias = "Mapping[int, HeavyKey]"


class HeavyKeys:
    """The heavy keys of inputs, and of what rules derive with the same variable.

    Heads that aggregate, or have one column, have no heavy keys: they are one fact, however many
    matches they have.
    """

    def __init__(self, plan: LogicalPlan, known: Iterable[HeavyKey]) -> None:
        self._of: dict[tuple[str, int], dict[int, HeavyKey]] = {}
        for key in known:
            self._of.setdefault((key.predicate, key.column), {})[key.spot] = key
        for component in plan.components:
            for rule in component.rules if self._of else ():
                if rule.head.aggregates or (len(rule.head.terms) < 2 and not rule.head.time):
                    continue
                names = {name: at for at, name in head_keys(rule).items()}
                for atom in rule.atoms:
                    for name, at in () if atom.is_clock else columns_of(atom):
                        if name in names:
                            self._hand_on(rule.head.predicate, names[name], atom.predicate, at)

    def of(self, predicate: str, column: int) -> Spots:
        """The heavy keys of a column by their spots; of a part of a rule those of its head."""
        names = predicate, predicate.rpartition(":")[2]
        return next((found for n in names if (found := self._of.get((n, column)))), {})

    def _hand_on(self, predicate: str, column: int, source: str, at: int) -> None:
        for spot, key in self.of(source, at).items():
            mine = self._of.setdefault((predicate, column), {})
            if spot not in mine or mine[spot].rows < key.rows:
                mine[spot] = replace(key, predicate=predicate, column=column)


def heavy_keys(
    predicate: str, columns: Mapping[str, int], values: Mapping[str, Mapping[Any, int]],
    least: int,
) -> Iterable[HeavyKey]:  # fmt: skip
    """The values of some `columns` that more than `least` rows of a predicate have.

    `columns` gives the place of each by its name in a collection, from 1 on. `values` are counts
    by column, as `tidemill.shard.heavy_values.heavy_over` has them.
    """
    for name, found in values.items():
        if name in columns:
            for value, rows in found.items():
                if rows > least:
                    yield HeavyKey(predicate, columns[name], value, rows)
