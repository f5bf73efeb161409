"""Values of one type as a column of words: every value 64 bits, texts by their number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.kernels import BoolArray, I64Array
from tidemill.datalog.columns.spelling import (
    MOMENTS,
    SPELLED,
    TEXTS,
    arrow_of,
    moment_of,
    read,
    words_of_arrow,
    words_of_values,
)
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.logical.forms import TYPE_OF, Type

Values: TypeAlias = "npt.NDArray[Any]"  # Any: int64, float64 or bool, by the kind of the column

_PYTHON: Mapping[Type, type] = {kind: of for of, kind in TYPE_OF.items() if kind is not Type.SET}
_DTYPES: Mapping[Type, type] = {
    Type.INT: np.int64, Type.FLOAT: np.float64, Type.BOOL: np.bool_,
}  # fmt: skip
_ARROW = {
    Type.INT: (pa.int64(),), Type.FLOAT: (pa.float64(), pa.int64()), Type.BOOL: (pa.bool_(),),
}  # fmt: skip
_WORDS = frozenset({Type.INT, Type.TEXT}) | MOMENTS | SPELLED


class Unsuited(Exception):
    """Columns cannot hold or compute this; value by value it is done.

    Never leaves the library.
    """


# NB: not frozen, though nobody changes one: to make a frozen one takes three times as long.
@dataclass(slots=True, eq=False)
class Column:
    """Values of one type; `nulls` says where there is none, and is None where every row has one.

    A null has the value 0 (0.0, False), so equal columns have equal words and flags. Never changed.
    """

    kind: Type
    values: Values
    nulls: BoolArray | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: I64Array | slice) -> Column:
        """The values of the rows."""
        nulls = None if self.nulls is None else self.nulls[rows]
        return Column(self.kind, self.values[rows], nulls)

    @property
    def known(self) -> BoolArray:
        """Flags of the rows with a value; as columns, never written to."""
        return np.ones(len(self.values), np.bool_) if self.nulls is None else ~self.nulls

    def words(self) -> list[I64Array]:
        """Words that are equal where the values are: one column, and one more for nulls."""
        values = self.values
        if self.kind is Type.FLOAT:
            values = (values + 0.0).view(np.int64)  # minus zero is zero
        elif values.dtype != np.int64:
            values = values.astype(np.int64)
        return [values] if self.nulls is None else [values, self.nulls.astype(np.int64)]

    def python(self, texts: Texts) -> list[Any]:
        """The values as the language has them."""
        if self.kind in TEXTS:
            known: list[Any] = [None] * len(self)
            rows = self.known.nonzero()[0]
            for at, text in zip(rows.tolist(), texts.texts(self.values[rows]), strict=True):
                known[at] = text if self.kind is Type.TEXT else read(text, self.kind)
            return known
        known = self.values.tolist()
        if self.kind in MOMENTS:
            known = [moment_of(word, self.kind) for word in known]
        if self.nulls is not None:
            for at in self.nulls.nonzero()[0].tolist():
                known[at] = None
        return known

    @classmethod
    def of_values(cls, kind: Type, values: Sequence[Any], texts: Texts) -> Column:
        """A column of values as the language has them.

        Raises: Unsuited where one is of another type.
        """
        wanted = _PYTHON.get(kind)
        found = set(map(type, values))
        if wanted is None or not found <= {wanted, type(None)}:
            raise Unsuited
        nulls = None
        if type(None) in found:
            nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
        if kind in MOMENTS:
            return cls(kind, words_of_values(values, kind), nulls)
        if kind in TEXTS:
            values = values if kind is Type.TEXT else words_of_values(values, kind)
            if nulls is not None:
                return cls(kind, texts.numbers(pa.array(values, pa.string())) * ~nulls, nulls)
            return cls(kind, texts.numbers(pa.array(values, pa.string())))
        if nulls is not None:
            values = [0 if value is None else value for value in values]
        return cls(kind, np.array(values, _DTYPES[kind]), nulls)

    def to_arrow(self, texts: Texts) -> pa.Array:
        """The column as Arrow has it."""
        if self.kind in TEXTS:
            found = texts.arrow(self.values, self.nulls)
            return found if self.kind is Type.TEXT else arrow_of(found, self.kind, None)
        if self.kind in MOMENTS:
            return arrow_of(self.values, self.kind, self.nulls)
        return pa.array(self.values, mask=self.nulls)

    @classmethod
    def of_arrow(cls, kind: Type, array: pa.Array, texts: Texts) -> Column:
        """A column of values as Arrow has them, whole numbers widened for floats.

        Raises: Unsuited.
        """
        nulls = None
        if array.null_count:
            nulls = array.is_null().to_numpy(zero_copy_only=False)
        if kind is Type.TEXT and array.type == pa.string():
            numbers = texts.numbers(array)
            return cls(kind, numbers if nulls is None else numbers * ~nulls, nulls)
        if kind in MOMENTS or kind in SPELLED:
            words = words_of_arrow(array, kind)
            if words is None:
                raise Unsuited
            if kind in MOMENTS:
                return cls(kind, words.fill_null(0).to_numpy(zero_copy_only=False), nulls)
            numbers = texts.numbers(words)
            return cls(kind, numbers if nulls is None else numbers * ~nulls, nulls)
        wanted = _ARROW.get(kind)
        if wanted is None or array.type not in wanted:
            raise Unsuited
        if nulls is not None:
            array = array.fill_null(pa.scalar(0).cast(array.type))
        values = array.to_numpy(zero_copy_only=False).astype(_DTYPES[kind], copy=False)
        return cls(kind, values, nulls)


def constant(column: Column) -> bool:
    """Whether one value stands for all rows."""
    return column.nulls is None and column.values.strides == (0,)


def words_of(columns: Iterable[Column]) -> list[I64Array]:
    """Columns of words that are equal where all columns are."""
    found = []
    for column in columns:
        if column.nulls is None and column.kind in _WORDS:
            found.append(column.values)
        else:
            found += column.words()
    return found
