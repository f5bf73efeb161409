"""Expressions over matches: columns at a time, and value by value for few matches or failures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tidemill.arrangement.interval_updates import END_WORD, Change
from tidemill.arrangement.kernels import BoolArray, I64Array
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.columns.calculator import Calculator
from tidemill.datalog.columns.column import Column, Unsuited
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.plan import MatchColumns
from tidemill.datalog.dataflow.schema import (
    NUMBERED,
    OtherType,
    column_of,
    value_of,
    word_of,
    words_of_column,
)
from tidemill.datalog.logical.expressions import Evaluate, TypeEnvironment, evaluating
from tidemill.datalog.logical.forms import Expression, Type, variables_of
from tidemill.datalog.presence import END
from tidemill.datalog.values import WRONG_TYPE, Failed

FEW = 8
"""Up to so many matches are looked at one by one: that is cheaper than a pass for each operator."""

Failures = list[tuple[int, str]]
"""Matches for which an expression fails, and why."""


class Expressions:
    """Evaluates the expressions of one rule over its matches; each is compiled once."""

    def __init__(
        self, columns: MatchColumns, scope: TypeEnvironment, texts: Texts, allowance: Allowance
    ) -> None:
        self.columns = columns
        self.texts = texts
        self._scope = scope
        self._allowance = allowance
        self._compiled: dict[int, tuple[Evaluate, frozenset[str]]] = {}

    def truth(self, expression: Expression, matches: Change) -> tuple[BoolArray, Failures]:
        """Flags of the matches with a true condition; null and failures count as false."""
        if len(matches) > FEW:
            try:
                calculator = self._calculator(matches)
                truth, failed = calculator.judged(expression)
            except Unsuited:
                pass
            else:
                return self._without(truth, failed, expression, matches)
        truth = np.zeros(len(matches), np.bool_)
        failures: Failures = []
        for row, value in self._each(expression, matches, range(len(matches)), failures):
            truth[row] = value is True
        return truth, failures

    def words(
        self, expression: Expression, kind: Type, matches: Change
    ) -> tuple[I64Array, BoolArray | None, Failures]:
        """The words of the values, where they are null (None: nowhere), and what fails.

        Infinity among whole numbers is the greatest word.
        """
        if len(matches) > FEW and kind not in NUMBERED:
            try:
                column, failed = self._calculator(matches).evaluated(expression, kind)
            except Unsuited:
                pass
            else:
                everything = np.ones(len(matches), np.bool_)
                sound, failures = self._without(everything, failed, expression, matches)
                words = words_of_column(column)
                return (words if not failures else words * sound), column.nulls, failures
        words = np.zeros(len(matches), np.int64)
        nulls = np.zeros(len(matches), np.bool_)
        failures = []
        for row, value in self._each(expression, matches, range(len(matches)), failures):
            if value == END and kind is Type.INT:
                words[row] = END_WORD
            else:
                try:
                    words[row], nulls[row] = word_of(value, kind, self.texts, self.columns.values)
                except OtherType:
                    failures.append((row, WRONG_TYPE))
        return words, nulls if nulls.any() else None, failures

    def endless(self, expression: Expression) -> bool:
        """Whether the value may be infinite, as an end of a fact is."""
        kinds = (self.columns.variables[name][1] for name in variables_of(expression))
        return any(kind is Type.ANY for kind in kinds)

    def value(self, expression: Expression, match: I64Array) -> Any:
        """The value for one match. Raises: Failed."""
        function, names = self._function(expression)
        words = match.tolist()
        return function({name: self._value(name, words) for name in names})

    def _without(
        self, kept: BoolArray, failed: BoolArray | None, expression: Expression, matches: Change
    ) -> tuple[BoolArray, Failures]:
        """Flags but for the rows that fail, with their reasons."""
        failures: Failures = []
        if failed is not None:
            rows = failed.nonzero()[0].tolist()
            for _ in self._each(expression, matches, rows, failures):
                pass
            kept = kept & ~failed
        return kept, failures

    def _each(
        self, expression: Expression, matches: Change, rows: Iterable[int], failures: Failures
    ) -> Iterator[tuple[int, Any]]:
        """The values match by match; what fails is noted instead."""
        function, names = self._function(expression)
        for row in rows:
            match = matches[row].tolist()
            try:
                yield row, function({name: self._value(name, match) for name in names})
            except Failed as failed:
                failures.append((row, failed.reason))

    def _value(self, name: str, match: list[int]) -> Any:
        column, kind = self.columns.variables[name]
        if match[self.columns.nulls] >> column & 1:
            return None
        if kind is Type.INT:
            return match[column]
        return value_of(match[column], kind, self.texts, self.columns.values)

    def _function(self, expression: Expression) -> tuple[Evaluate, frozenset[str]]:
        known = self._compiled.get(id(expression))
        if known is None:
            known = evaluating(expression, self._scope), variables_of(expression)
            self._compiled[id(expression)] = known
        return known

    def _calculator(self, matches: Change) -> Calculator:
        variables: Any = _Columns(self.columns, matches)
        return Calculator(self._scope, variables, len(matches), self.texts, self._allowance)


class _Columns(Mapping[str, Column]):
    """The variables of matches as columns, made when they are asked for."""

    def __init__(self, columns: MatchColumns, matches: Change) -> None:
        self._columns = columns
        self._matches = matches
        nulls = matches[:, columns.nulls]
        self._nulls = nulls if nulls.any() else None

    def __getitem__(self, name: str) -> Column:
        column, kind = self._columns.variables[name]
        nulls = None if self._nulls is None else (self._nulls >> column) & 1
        return column_of(self._matches[:, column], kind, nulls)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.variables)

    def __len__(self) -> int:
        return len(self._columns.variables)
