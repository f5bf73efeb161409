"""Lattices of matched facts: what is seen of them, and what a match passes on."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidemill.arrangement.interval_updates import END_WORD, Change
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.carried import NumberedValues
from tidemill.datalog.dataflow.plan import VALUE, MatchColumns, Passes, See
from tidemill.datalog.dataflow.schema import NUMBERED, value_of, word_of
from tidemill.datalog.logical.forms import TYPE_OF, Type
from tidemill.datalog.presence import END
from tidemill.datalog.values import Failed, equal, widen

_UNEQUAL = 1, True
"""In the place of a value that an atom to come is compared with, and never has: no null either."""


def see(step: See, matches: Change, columns: MatchColumns, texts: Texts) -> Change:
    """The matches whose fact carries a lattice, with what is seen of it in their columns.

    The matches are written to. Cost: O(matches).
    """
    if step.source < 0:
        return matches[:0]
    values = columns.values
    known: dict[int, tuple[Any, ...] | None] = {}
    for number in np.unique(matches[:, step.source]).tolist():
        if step.lattice == "expires":
            known[number] = (END if number == END_WORD else number,)
        elif step.lattice == VALUE:
            known[number] = (values.value(number),)
        else:
            known[number] = values.seen(number, step.lattice)
    rows = []
    for row, number in enumerate(matches[:, step.source].tolist()):
        seen = known[number]
        if seen is not None and _written(step, matches, row, seen, columns, texts):
            rows.append(row)
    return matches[rows]


def _written(
    step: See, matches: Change, row: int, seen: tuple[Any, ...], columns: MatchColumns, texts: Texts
) -> bool:
    """Write what is seen into a match; whether it agrees with what is there."""
    for (column, kind, bound), each in zip(step.terms, seen, strict=True):
        if column < 0:
            continue
        nulls, bit = int(matches[row, columns.nulls]), 1 << column
        value = widen(each) if kind is Type.FLOAT else each
        fits = value is None or kind in NUMBERED or TYPE_OF.get(type(value)) is kind
        if bound:
            if (int(matches[row, column]), bool(nulls & bit)) == _UNEQUAL and not fits:
                continue
            mine = None
            if not nulls & bit:
                mine = value_of(int(matches[row, column]), kind, texts, columns.values)
            if not equal(mine, value):
                return False
            continue
        word, null = _UNEQUAL
        if fits:
            word, null = word_of(value, kind, texts, columns.values)
        matches[row, column] = word
        matches[row, columns.nulls] = (nulls & ~bit) | (bit if null else 0)
    return True


def pass_on(passes: Passes, matches: Change, values: NumberedValues) -> list[tuple[int, str]]:
    """Write the merge of what facts pass on into the matches; those for which it fails, and why.

    Cost: O(matches), and the values of those that differ.
    """
    sources = [(matches[:, column].tolist(), names) for column, names in passes.sources]
    failures: list[tuple[int, str]] = []
    found = np.zeros(len(matches), np.int64)
    for row in range(len(matches)):
        try:
            found[row] = values.merged(
                values.without(numbers[row], names) for numbers, names in sources
            )
        except Failed as failed:
            failures.append((row, failed.reason))
    matches[:, passes.into] = found
    return failures
