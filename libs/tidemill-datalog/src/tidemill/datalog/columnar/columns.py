"""The facts of a predicate as columns of numbers: every value a word of 64 bits, texts by their
number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.kernels import BoolArray, I64Array
from tidemill.datalog.columns.column import Column, Unsuited, words_of
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.lattices import TALLIES, Parafacts, Tally
from tidemill.datalog.logical.forms import Type
from tidemill.datalog.logical.ranges import UNBOUNDED
from tidemill.datalog.presence import BEGINNING, END, Instant
from tidemill.datalog.tables import EXPIRES, FIRST, PARAFACTS, START, STOP, TIME, Row

Values: TypeAlias = "npt.NDArray[Any]"  # Any: int64, float64 or bool, by the kind of the column

BEGIN_WORD, END_WORD = -(1 << 63), (1 << 63) - 1
"""The beginning and the end of all instants as words."""
_INSTANT_MAX = 1 << 53
_PYTHON = {Type.INT: int, Type.FLOAT: float, Type.TEXT: str, Type.BOOL: bool}
_DTYPES: Mapping[Type, type] = {
    Type.INT: np.int64, Type.FLOAT: np.float64, Type.TEXT: np.int64, Type.BOOL: np.bool_,
}  # fmt: skip
_ARROW = {
    Type.INT: (pa.int64(),), Type.FLOAT: (pa.float64(), pa.int64()), Type.BOOL: (pa.bool_(),),
}  # fmt: skip
LATTICES_SEEN = frozenset({"min", "max", "earliest", "latest"}) | TALLIES
"""Lattices of which a column holds all that is ever asked for: one number."""


_SHARED_ROWS = 1 << 16
_ZEROS = np.zeros(_SHARED_ROWS, np.int64)
_ENDS = np.full(_SHARED_ROWS, END_WORD, np.int64)
_TRUE = np.ones(_SHARED_ROWS, np.bool_)


def all_true(rows: int) -> BoolArray:
    """A flag for each row. Those of up to 65,536 rows share memory."""
    return _TRUE[:rows] if rows <= _SHARED_ROWS else np.ones(rows, np.bool_)


def absent_times(rows: int) -> Column:
    """The time of facts that have none.

    As nobody writes to columns, those of up to 65,536 rows share memory.
    """
    if rows <= _SHARED_ROWS:
        return Column(Type.INT, _ZEROS[:rows], _TRUE[:rows])
    return Column(Type.INT, np.zeros(rows, np.int64), all_true(rows))


def no_ends(rows: int) -> I64Array:
    """The expiry of facts that have none. Those of up to 65,536 rows share memory."""
    return _ENDS[:rows] if rows <= _SHARED_ROWS else np.full(rows, END_WORD, np.int64)


def surely_absent(time: Column) -> bool:
    """Whether a column was made by `absent_times` and is of rows that share memory."""
    return time.values.base is _ZEROS and time.nulls is not None and time.nulls.base is _TRUE


def surely_endless(expires: I64Array) -> bool:
    """Whether expiries were made by `no_ends` and are of rows that share memory."""
    return expires.base is _ENDS


def gathered_time(time: Column, rows: I64Array | slice) -> Column:
    """The times of some rows."""
    if surely_absent(time) and not isinstance(rows, slice) and len(rows) <= _SHARED_ROWS:
        return absent_times(len(rows))
    return time.take(rows)


def gathered_ends(expires: I64Array, rows: I64Array | slice) -> I64Array:
    """The expiries of some rows."""
    if expires.base is _ENDS and not isinstance(rows, slice) and len(rows) <= _SHARED_ROWS:
        return _ENDS[: len(rows)]
    return expires[rows]


def joined_ends(parts: Sequence[I64Array]) -> I64Array:
    """The expiries of all parts, one after the other."""
    if all(map(surely_endless, parts)):
        return no_ends(sum(map(len, parts)))
    return np.concatenate(parts)


def concatenated(columns: Sequence[Column]) -> Column:
    """The rows of all columns, one after the other."""
    kind = columns[0].kind
    if not [None for column in columns if column.nulls is not None]:
        return Column(kind, np.concatenate([column.values for column in columns]))
    if kind is Type.INT and all(map(surely_absent, columns)):
        return absent_times(sum(map(len, columns)))
    nulls = np.concatenate([~column.known for column in columns])
    values = np.concatenate([column.values for column in columns])
    return Column(kind, values, nulls)


def aligned_words(columns: Sequence[Column], wide: Sequence[bool]) -> list[I64Array]:
    """Words with a flag for nulls just where `wide` says so: comparable between relations."""
    if True not in wide:
        return words_of(columns)
    return words_of(
        Column(column.kind, column.values, ~column.known) if flagged else column
        for column, flagged in zip(columns, wide, strict=True)
    )


@dataclass(slots=True, eq=False)  # as columns
class Columns:
    """Rows (start, stop, expires, time, arguments, lattices) of a predicate, by column.

    `time` is null for timeless facts. `lattices` hold what is seen of those that are one number.
    `apart` is set where no two rows are known to be of one fact; what is made of other rows does
    not have it. Never changed.
    """

    start: I64Array
    stop: I64Array
    expires: I64Array
    time: Column
    arguments: tuple[Column, ...]
    texts: Texts
    lattices: Mapping[str, Column] = field(default_factory=dict)
    apart: bool = False

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: I64Array | slice) -> Columns:
        """The rows with these numbers."""
        return self.at(rows, self.start[rows], self.stop[rows])

    def at(
        self, rows: I64Array | slice, start: I64Array, stop: I64Array, apart: bool = False
    ) -> Columns:
        """The facts of the rows with these numbers, present as given."""
        lattices = self.lattices
        if lattices:
            lattices = {name: column.take(rows) for name, column in lattices.items()}
        return Columns(
            start, stop, gathered_ends(self.expires, rows), gathered_time(self.time, rows),
            tuple([column.take(rows) for column in self.arguments]), self.texts, lattices, apart,
        )  # fmt: skip

    def placed(self, start: I64Array, stop: I64Array, apart: bool) -> Columns:
        """The same facts, present as given."""
        return Columns(
            start, stop, self.expires, self.time, self.arguments, self.texts, self.lattices, apart
        )

    def kept(self, rows: I64Array) -> Columns:
        """The rows with these ascending numbers, none of them twice; what is known of all of them
        stays known.
        """
        if len(rows) == len(self):
            return self
        return self.at(rows, self.start[rows], self.stop[rows], self.apart)

    def renumbered(self, texts: Texts) -> Columns:
        """The same rows with other numbers for texts."""

        def moved(column: Column) -> Column:
            if column.kind is not Type.TEXT:
                return column
            return Column.of_values(column.kind, column.python(self.texts), texts)

        return Columns(
            self.start, self.stop, self.expires, self.time, tuple(map(moved, self.arguments)), texts,
            {name: moved(column) for name, column in self.lattices.items()},
        )  # fmt: skip

    def part(self, first: int, last: int) -> Columns:
        """The rows of a stretch, sharing memory."""
        return self.take(slice(first, last))

    @property
    def keys(self) -> tuple[Column, ...]:
        """The columns that tell facts apart: the time, then the arguments."""
        return (self.time, *self.arguments)

    @property
    def telling(self) -> tuple[Column, ...]:
        """As `keys`, without a time that no fact has."""
        return self.arguments if surely_absent(self.time) else (self.time, *self.arguments)

    def key(self, position: int) -> Column:
        """One of them."""
        return self.arguments[position - 1] if position else self.time

    @classmethod
    def of_rows(
        cls, rows: Sequence[Row], kinds: Sequence[Type], texts: Texts, lattices: Sequence[str]
    ) -> Columns:
        """The columns of rows as the row engine has them. Raises: Unsuited."""
        fields: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * (
            FIRST + len(kinds)
        )
        if len(fields) != FIRST + len(kinds):
            raise Unsuited
        seen = _seen_of(fields[PARAFACTS], lattices)
        return cls(
            start=instants_of(fields[START]),
            stop=instants_of(fields[STOP]),
            expires=instants_of(fields[EXPIRES]),
            time=Column.of_values(Type.INT, fields[TIME], texts),
            arguments=tuple(
                Column.of_values(kind, values, texts)
                for kind, values in zip(kinds, fields[FIRST:], strict=True)
            ),
            texts=texts,
            lattices={
                name: Column.of_values(_kind_of(values), values, texts)
                for name, values in seen.items()
            },
        )

    def to_rows(self) -> list[Row]:
        """The rows as the row engine has them."""
        texts = self.texts
        parafacts: list[Parafacts] = [None] * len(self)
        if self.lattices:
            names = sorted(self.lattices)
            seen = zip(*(self.lattices[name].python(texts) for name in names), strict=True)
            inner = [_inner(name) for name in names]
            parafacts = [
                tuple(
                    (name, make(value))
                    for name, make, value in zip(names, inner, each, strict=True)
                )
                for each in seen
            ]
        return list(
            zip(
                python_instants(self.start), python_instants(self.stop),
                python_instants(self.expires), parafacts, self.time.python(texts),
                *(column.python(texts) for column in self.arguments), strict=True,
            )
        )  # fmt: skip


def instants_of(values: Sequence[Instant]) -> I64Array:
    """Instants as words. Raises: Unsuited for one that a float cannot tell from its neighbours."""
    floats = np.array(values, np.float64)
    finite = np.isfinite(floats)
    if not finite.all():
        words = np.where(finite, floats, 0.0).astype(np.int64)
        words[floats == END] = END_WORD
        words[floats == BEGINNING] = BEGIN_WORD
        floats = floats[finite]
    else:
        words = floats.astype(np.int64)
    if len(floats) and not -_INSTANT_MAX < floats.min() <= floats.max() < _INSTANT_MAX:
        raise Unsuited
    return words


def python_instants(words: I64Array) -> list[Instant]:
    """Words as instants."""
    instants: list[Instant] = words.tolist()
    for at in (words == END_WORD).nonzero()[0].tolist():
        instants[at] = END
    for at in (words == BEGIN_WORD).nonzero()[0].tolist():
        instants[at] = BEGINNING
    return instants


def instant_word(instant: Instant) -> int:
    """An instant as a word."""
    if instant == END:
        return END_WORD
    return BEGIN_WORD if instant == BEGINNING else int(instant)


def _kind_of(values: Sequence[Any]) -> Type:
    found = {type(value) for value in values} - {type(None)}
    kinds = [kind for kind, python in _PYTHON.items() if found <= {python}]
    if not kinds:
        raise Unsuited
    return kinds[0]


def _seen_of(parafacts: Sequence[Parafacts], names: Sequence[str]) -> dict[str, list[Any]]:
    """What is seen of each lattice.

    Raises: Unsuited where rows carry others, or not all of them.
    """
    if not any(each is not None for each in parafacts):
        return {}
    if not names or not LATTICES_SEEN.issuperset(names):
        raise Unsuited
    seen: dict[str, list[Any]] = {name: [] for name in names}
    for each in parafacts:
        if each is None or len(each) != len(names):
            raise Unsuited
        for name, inner in each:
            if name not in seen:
                raise Unsuited
            seen[name].append(inner.value if type(inner) is Tally else inner)
    return seen


def _inner(name: str) -> Callable[[Any], Any]:
    if name in TALLIES:
        return lambda value: Tally(name, value, _no_contributions)
    return lambda value: value


def _no_contributions() -> Mapping[Any, Any]:
    raise AssertionError("two tallies met that the program keeps apart")


__all__ = [
    "BEGIN_WORD", "END_WORD", "LATTICES_SEEN", "UNBOUNDED", "Column", "Columns", "Texts", "Unsuited",
    "absent_times", "aligned_words", "concatenated", "gathered_ends", "gathered_time", "instant_word", "instants_of", "joined_ends", "no_ends", "surely_absent", "surely_endless", "python_instants", "words_of",
]  # fmt: skip
