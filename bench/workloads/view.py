"""A view of the language as the service keeps it: columns of whole numbers in, moves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.interval_updates import END_WORD
from tidemill.datalog.check import check
from tidemill.datalog.columns.column import Column
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow import DataflowEngine
from tidemill.datalog.dataflow.schema import words_of_column
from tidemill.datalog.inputs import ColumnType, InputSchema, InputSchemas
from tidemill.datalog.limits import Limits
from tidemill.datalog.logical.forms import Type
from tidemill.datalog.parser import parse

I64Array = npt.NDArray[np.int64]
U64Array = npt.NDArray[np.uint64]
Words = npt.NDArray[np.int64] | npt.NDArray[np.uint64]

LIMITS = Limits(rows=1 << 40)


class View:
    """A program over relations, by the engine of the service; `told` are the answers that it gives.

    Inputs are relations with their number of columns, all of one kind.
    """

    def __init__(
        self, text: str, inputs: Mapping[str, int], told: Sequence[str], kind: ColumnType = "int"
    ) -> None:
        schemas = {
            name: InputSchema(name, "relation", tuple((f"c{i}", kind) for i in range(arity)))
            for name, arity in inputs.items()
        }
        program = check(parse(text), InputSchemas(schemas))
        self.engine = DataflowEngine(program, limits=LIMITS, told=told)

    @property
    def texts(self) -> Texts:
        """The numbers of texts."""
        return self.engine.texts

    def feed(self, name: str, columns: Sequence[Words], diffs: I64Array | int = 1) -> None:
        """Rows that come (1) or go (-1) at the next instant."""
        schema = self.engine.schemas[name]
        rows = np.zeros((len(columns[0]), schema.columns + 3), np.int64)
        for place, column in enumerate(columns, 1):
            rows[:, place] = column.view(np.int64)
        rows[:, schema.expiry] = rows[:, -2] = END_WORD
        rows[:, schema.nulls] = 1
        rows[:, -3] = max(0, self._upper)
        rows[:, -1] = diffs
        self.engine.feed(name, rows)

    def feed_texts(self, name: str, texts: Sequence[object]) -> None:
        """Rows of one text that come at the next instant; an Arrow column."""
        column = Column.of_arrow(Type.TEXT, texts, self.texts)
        assert column is not None
        self.feed(name, [words_of_column(column)])

    def step(self) -> Mapping[str, tuple[list[U64Array], I64Array]]:
        """Go on by one instant; the rows that changed of each answer, as columns, and their diffs."""
        found = {}
        for name, told in self.engine.step(max(0, self._upper) + 1).items():
            moves = told.moves[:, 1 : told.schema.expiry]
            first = told.schema.expiry + 1
            lattices = range(first, first + len(told.schema.lattices))
            columns = [*moves.T, *(told.moves[:, place] for place in lattices)]
            found[name] = [column.view(np.uint64) for column in columns], told.moves[:, -1]
        return found

    @property
    def _upper(self) -> int:
        upper = self.engine.upper
        return -1 if upper == float("-inf") else int(upper)
