"""Numbers of values that some row still has: those of all others are given again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidemill.arrangement.interval_updates import RowsAsOf
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.dataflow.carried import NumberedValues
from tidemill.datalog.dataflow.holdings import Outputs
from tidemill.datalog.dataflow.operators.blending import Blended
from tidemill.datalog.dataflow.operators.opening import Opening
from tidemill.datalog.dataflow.operators.regrouping import words_in
from tidemill.datalog.dataflow.plan import RulePlan
from tidemill.datalog.dataflow.rule_state import RuleState
from tidemill.datalog.dataflow.schema import NUMBERED, Schema
from tidemill.datalog.dataflow.sharing import Derivations

_VALUES_MIN = 1 << 10
"""Values of lattices that are kept in any case."""


class Forgetting:
    """Lets go of values of lattices, sets and the like that no row of an engine has any more."""

    def __init__(
        self,
        values: NumberedValues,
        schemas: Mapping[str, Schema],
        merged: Mapping[str, Derivations],
        outputs: Outputs,
        rules: Sequence[RuleState],
        openings: Mapping[str, Opening],
    ) -> None:
        """Values that have a number by now are of literals, and kept for ever."""
        self._values = values
        self._literals = {*range(len(values))}
        self._schemas = schemas
        self._merged = merged
        self._outputs = outputs
        self._rules = rules
        self._openings = openings
        self._kept = 0

    @property
    def due(self) -> bool:
        """True if half of the values may be without a row."""
        return len(self._values) > 2 * self._kept + _VALUES_MIN

    def forget(self, held: Iterable[tuple[Schema, I64Array]]) -> None:
        """Forget what no row has any more. `held` are rows that somebody has in hand.

        Cost: O(rows with such values).
        """
        needed = set(self._literals)
        for schema, rows in held:
            if schema.numbered:
                needed.update(words_in(rows, schema.numbered))
        for name, schema in self._schemas.items():
            if schema.numbered:
                needed |= self._of_collection(name, schema.numbered)
        for rule in self._rules:
            needed |= _of_rule(rule, numbered_in(rule.plan, self._schemas))
        self._values.keep_only(needed)
        self._kept = len(self._values)

    def _of_collection(self, name: str, columns: Sequence[int]) -> set[int]:
        merged = self._merged[name]
        assert not isinstance(merged, RowsAsOf)  # it has no such columns
        needed = self._outputs.words(name, columns)
        if name in self._openings:
            needed |= self._openings[name].words(columns)
        needed.update(words_in(merged.facts.rows[: len(merged.facts)], columns))
        if isinstance(merged, Blended):
            needed |= merged.numbers()
        else:
            needed.update(words_in(merged.spare.rows[: len(merged.spare)], columns))
        return needed


def _of_rule(rule: RuleState, columns: Sequence[int]) -> set[int]:
    """The words that may be numbers in what a rule keeps."""
    needed = rule.matches.words()
    needed |= rule.told_words(columns)
    if rule.reduction is not None:
        needed |= rule.reduction.numbers()
    if columns:
        if rule.latch is not None:
            needed |= rule.latch.words(columns)
        for moves in (rule.open, rule.sampled):
            needed |= moves.words(columns) if moves is not None else set()
    return needed


def numbered_in(plan: RulePlan, schemas: Mapping[str, Schema]) -> list[int]:
    """The columns of a rule's matches that hold numbers of values."""
    found = {column for column, kind in plan.columns.variables.values() if kind in NUMBERED}
    for atom, columns in zip(plan.form.atoms, plan.columns.facts, strict=True):
        for at, column in enumerate(columns if not atom.is_clock else ()):
            if column >= 0 and schemas[atom.predicate].kind(at) in NUMBERED:
                found.add(column)
    if plan.head.passes is not None:
        found.add(plan.head.passes.into)
    return sorted(found)
