"""Recursion on columns: rounds in which one recursive atom of each rule reads only what the last
round added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tidemill.arrangement.kernels import I64Array
from tidemill.arrangement.relational import Groups
from tidemill.datalog.columnar.columns import Columns, aligned_words
from tidemill.datalog.columnar.deriving import merged
from tidemill.datalog.columnar.established import EstablishedColumns
from tidemill.datalog.columnar.grouping import stacked
from tidemill.datalog.columnar.joining import wideness
from tidemill.datalog.columns.column import Column, Unsuited
from tidemill.datalog.logical.forms import RuleForm, Type
from tidemill.datalog.logical.plan import reads_any

_PASS_US, _ROW_US = 2_000.0, 0.5
"""What one rule costs in a round, and each row that there is."""
_FACT_US, _PATIENCE_US = 20.0, 100_000.0
"""What the row engine takes for a fact, and what may be lost before it is asked."""


class Rules(Protocol):
    """What evaluates one rule over tables as they are; `fresh` stand for the facts of single atoms."""

    def derived(
        self,
        form: RuleForm,
        established: dict[int, EstablishedColumns],
        fresh: Mapping[int, Columns] | None = None,
    ) -> Sequence[Columns]:
        """What the rule derives, alternative derivations side by side. Raises: Unsuited."""
        ...

    def show(self, predicate: str, columns: Columns) -> None:
        """From now on these are the facts of a predicate."""
        ...


class TooDeep(Unsuited):
    """So many rounds that bring so little are done sooner row by row."""


class RecursionLimits(Protocol):
    """Rounds, and rows of one predicate, from which on the row engine is to say what was passed."""

    @property
    def rounds(self) -> int:
        """Of one fixed point."""
        ...

    @property
    def rows(self) -> int:
        """Of one predicate."""
        ...


def fixed_point(
    rules: Rules,
    predicates: Sequence[str],
    forms: Sequence[RuleForm],
    established: dict[int, EstablishedColumns],
    limits: RecursionLimits,
) -> dict[str, Columns]:
    """The facts of predicates that read each other; those without any are left out.

    Raises: Unsuited.

    Rules inside the recursion neither group nor establish. Cost: of a round O(facts so far +
    matches).
    """
    inside = [form for form in forms if reads_any(form, predicates)]
    if any(form.outlives or form.head.aggregates or form.head.lattices for form in inside):
        raise Unsuited
    found: dict[str, list[Columns]] = {}
    for form in forms:
        if form not in inside:
            parts = rules.derived(form, established)
            found.setdefault(form.head.predicate, []).extend(parts)
    facts: dict[str, Columns] = {}
    fresh = _grown(rules, facts, found, limits)
    rounds, lost = 0, 0.0
    while fresh:
        rounds += 1
        if rounds > limits.rounds:
            raise Unsuited
        found, passes = {}, 0
        for form in inside:
            for i, atom in enumerate(form.atoms):
                if atom.predicate in fresh and not atom.is_clock:
                    passes += 1
                    parts = rules.derived(form, established, {i: fresh[atom.predicate]})
                    found.setdefault(form.head.predicate, []).extend(parts)
        fresh = _grown(rules, facts, found, limits)
        size = sum(map(len, facts.values()))
        lost += passes * _PASS_US + size * _ROW_US
        if lost > 2 * size * _FACT_US + _PATIENCE_US:
            raise TooDeep
    return facts


def _grown(
    rules: Rules,
    facts: dict[str, Columns],
    found: Mapping[str, Sequence[Columns]],
    limits: RecursionLimits,
) -> dict[str, Columns]:
    """Add what a round has derived to the facts; what of it is new. Raises: Unsuited."""
    fresh = {}
    for predicate, parts in found.items():
        parts = [part for part in parts if len(part)]
        if not parts:
            continue
        if any(part.lattices for part in parts):
            raise Unsuited
        derived = merged(stacked(parts) if len(parts) > 1 else parts[0])
        known = facts.get(predicate)
        if known is None:
            facts[predicate] = new = derived
        else:
            new = _apart_from(known, derived)
            if len(new):
                facts[predicate] = merged(stacked([known, new]))
                new = _apart_from(known, facts[predicate])
        if len(new):
            fresh[predicate] = new
        if len(facts[predicate]) > limits.rows:
            raise Unsuited
    for predicate in fresh:
        rules.show(predicate, facts[predicate])
    return fresh


def _apart_from(known: Columns, rows: Columns) -> Columns:
    """The rows that are not among the known ones as they are, with start, stop and expiry."""
    left, right = _all_columns(known), _all_columns(rows)
    wide = wideness(left, right)
    groups = Groups.of(aligned_words(left, wide), len(known))
    new = groups.find(aligned_words(right, wide), len(rows)) < 0
    return rows if new.all() else rows.take(new.nonzero()[0])


def _all_columns(rows: Columns) -> tuple[Column, ...]:
    instants: tuple[I64Array, ...] = (rows.start, rows.stop, rows.expires)
    return (*rows.keys, *(Column(Type.INT, words) for words in instants))


__all__ = ["RecursionLimits", "Rules", "TooDeep", "fixed_point"]
