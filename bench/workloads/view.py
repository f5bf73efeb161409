"""A view of the language as the service keeps it: columns of whole numbers in, moves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bench.views import engine
from bench.views.engine import I64Array, Words, interval_rows, program, words_of
from tidemill.datalog.columns.column import Column
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.schema import words_of_column
from tidemill.datalog.inputs import ColumnType
from tidemill.datalog.logical.forms import Type

U64Array = npt.NDArray[np.uint64]


class View:
    """A program over relations, an instant a step; `told` are the answers that it gives.

    Inputs are relations with their number of columns, all of one kind.
    """

    def __init__(
        self, text: str, inputs: Mapping[str, int], told: Sequence[str], kind: ColumnType = "int"
    ) -> None:
        checked = program(text, {name: ("relation", n) for name, n in inputs.items()}, kind)
        self._engine = engine.View(checked, told).engine
        self._upper = 0

    @property
    def texts(self) -> Texts:
        """The numbers of texts."""
        return self._engine.texts

    def feed(self, name: str, columns: Sequence[Words], diffs: I64Array | int = 1) -> None:
        """Rows that come (1) or go (-1) at the next instant."""
        rows = interval_rows(self._engine.schemas[name], columns, self._upper, diffs=diffs)
        self._engine.feed(name, rows)

    def feed_texts(self, name: str, texts: Sequence[object]) -> None:
        """Rows of one text that come at the next instant; an Arrow column."""
        column = Column.of_arrow(Type.TEXT, texts, self.texts)
        assert column is not None
        self.feed(name, [words_of_column(column)])

    def step(self) -> Mapping[str, tuple[list[U64Array], I64Array]]:
        """Go on by one instant; the changed rows of each answer, as columns, and their diffs."""
        self._upper += 1
        found = {}
        for name, told in self._engine.step(self._upper).items():
            columns, diffs = words_of(told)
            found[name] = [column.view(np.uint64) for column in columns], diffs
        return found
