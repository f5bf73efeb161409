"""Rows of a collection: which column of words holds what of a fact."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import field
from operator import itemgetter
from typing import Any

import numpy as np

from tidemill.arrangement.interval_updates import BEGIN_WORD, END_WORD, Change
from tidemill.arrangement.kernels import I64Array
from tidemill.arrangement.looks import with_looks
from tidemill.datalog.columns.column import Column, Unsuited
from tidemill.datalog.columns.spelling import (
    MOMENTS,
    TEXTS,
    moment_of,
    read,
    spelled,
    word_of_moment,
)
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.carried import NumberedValues
from tidemill.datalog.lattices import observe_parafacts
from tidemill.datalog.logical.forms import TYPE_OF, Type
from tidemill.datalog.nodes import dataclass
from tidemill.datalog.presence import BEGINNING, END, Instant, Presence
from tidemill.datalog.records import Record
from tidemill.errors import UsageError

TIME = 0
"""The column of a fact's time; arguments follow."""
COLUMNS_MAX = 60
"""Columns of a row, so that a bit for each of them, and for the times of a match, is a word."""
_ROWS_A_PART = 2_000
"""Rows of Python objects that become one array in a millisecond or two."""
_TEXTS_A_PART = 1 << 16

KINDS = frozenset({Type.INT, Type.FLOAT, Type.BOOL}) | MOMENTS | TEXTS
NUMBERED = frozenset({Type.SET, Type.ANY})
"""Types whose values have a number in the place of a word."""


NUMBERS = NUMBERED | TEXTS
"""Types of which words are numbers that one engine has given."""


class NotInDataflow(UsageError):
    """The dataflow cannot evaluate a program, for want of `construct`."""

    def __init__(self, construct: str) -> None:
        super().__init__(f"refused: nothing can be kept with {construct}", reason="NotInDataflow")
        self.construct = construct


class OtherType(Exception):
    """A value does not fit the type of its column."""


_FOUND_ONCE = ("expiry", "nulls", "order", "age")
"""Columns of a schema that are found when it is made."""


@dataclass(frozen=True, slots=True)
class Schema:
    """Columns of a collection: time, arguments, expiry, values of lattices, order, age,
    nulls.

    A fact without a time has a null there, one without an expiry the greatest word. `lattices` are
    those that every fact carries besides, each with the type of what is seen of it. Facts that are
    `carrying` have a column with the number of all their parafacts instead. Facts of a recursion
    are `aged`: those that came first have the greatest age there, which no reader outside sees.
    Facts that are `ordered` carry one number, and a column says by a greater word which one wins.
    """

    name: str
    kinds: tuple[Type, ...]
    values: NumberedValues = field(compare=False, repr=False)
    lattices: tuple[tuple[str, Type], ...] = ()
    carrying: bool = False
    aged: bool = False
    ordered: bool = False

    expiry: int = field(init=False, compare=False, repr=False)
    """The column of the expiry."""
    nulls: int = field(init=False, compare=False, repr=False)
    """The column of the bits of nulls, the last one."""
    order: int = field(init=False, compare=False, repr=False)
    """The column of the word that is greatest for the best of alternative derivations."""
    age: int = field(init=False, compare=False, repr=False)
    """The column of the age, where facts are aged."""

    def __post_init__(self) -> None:
        expiry = 1 + len(self.kinds)
        beside = self.carrying + self.ordered + self.aged
        nulls = expiry + 1 + len(self.lattices) + beside
        order = expiry + 2 if self.ordered else expiry
        # Small changes ask for columns more often than for anything else.
        for name, column in zip(_FOUND_ONCE, (expiry, nulls, order, nulls - 1), strict=True):
            object.__setattr__(self, name, column)

    @property
    def carried(self) -> int:
        """The column of the parafacts, where facts are carrying."""
        return self.expiry + 1

    @property
    def numbered(self) -> list[int]:
        """The columns of numbers of values."""
        found = [at for at, kind in enumerate(self.kinds, 1) if kind in NUMBERED]
        return [*found, self.carried] if self.carrying else found

    @property
    def predicate(self) -> str:
        """The predicate of the program that this is or is a part of."""
        return self.name.rpartition(":")[2]

    @property
    def columns(self) -> int:
        """The number of columns."""
        return self.nulls + 1

    @property
    def key(self) -> tuple[int, ...]:
        """The columns that tell facts apart: time and arguments."""
        return tuple(range(self.expiry))

    def place(self, lattice: str) -> int | None:
        """The column of a lattice's value, None where facts do not carry it."""
        for at, (name, _) in enumerate(self.lattices):
            if name == lattice:
                return self.expiry + 1 + at
        return None

    def kind(self, column: int) -> Type:
        """The type of the values in a column."""
        if 1 <= column < self.expiry:
            return self.kinds[column - 1]
        if self.expiry < column <= self.expiry + len(self.lattices):
            return self.lattices[column - self.expiry - 1][1]
        return Type.INT


def word_of(value: Any, kind: Type, texts: Texts, values: NumberedValues) -> tuple[int, bool]:
    """The word of a value in a column, and whether it is null. Cost: O(1).

    Raises: OtherType.
    """
    if value is None:
        return 0, True
    if kind is Type.INT and type(value) is int:
        return value, False
    if kind is Type.TEXT and type(value) is str:
        return texts.number(value), False
    if kind is Type.FLOAT and type(value) in (int, float):
        return int(np.float64(float(value) + 0.0).view(np.int64)), False
    if kind is Type.BOOL and type(value) is bool:
        return int(value), False
    if kind in NUMBERED:
        return values.number(value), False
    if TYPE_OF.get(type(value)) is kind:
        if kind in MOMENTS:
            return word_of_moment(value, kind), False
        return texts.number(spelled(value, kind)), False
    raise OtherType(f"{value!r} in a column of type {kind.value}")


def value_of(word: int, kind: Type, texts: Texts, values: NumberedValues) -> Any:
    """The value of a word that is no null."""
    if kind is Type.INT:
        return word
    if kind is Type.TEXT:
        return texts.texts(np.array([word]))[0]
    if kind is Type.FLOAT:
        return float(np.int64(word).view(np.float64))
    if kind in NUMBERED:
        return values.value(word)
    if kind in MOMENTS:
        return moment_of(word, kind)
    return read(texts.texts(np.array([word]))[0], kind) if kind in TEXTS else bool(word)


def instant_word(instant: Instant) -> int:
    """An instant as a word."""
    if instant == BEGINNING:
        return BEGIN_WORD
    return END_WORD if instant == END else int(instant)


def instant_of(word: int) -> Instant:
    """The instant of a word."""
    if word == BEGIN_WORD:
        return BEGINNING
    return END if word == END_WORD else word


def rows_of_presences(
    schema: Schema, presences: Sequence[Presence], texts: Texts, diff: int = 1
) -> Change:
    """Presences of records as a change.

    Raises: NotInDataflow for lattices that the collection does not carry.
    """
    found = ((p.record, instant_word(p.start), instant_word(p.end), diff) for p in presences)
    return rows_of_records(schema, found, texts)


def rows_of_records(
    schema: Schema, records: Iterable[tuple[Record, int, int, int]], texts: Texts
) -> Change:
    """Records with their starts, ends and diffs as a change; see `rows_of_presences`."""
    names, rows = {name for name, _ in schema.lattices}, []
    parts, width = [np.empty((0, schema.columns + 3), np.int64)], schema.columns + 3
    for record, start, end, diff in with_looks(records):
        if not schema.carrying and (names or record.parafacts):
            _refuse_lattices(schema, record, names)
        row, nulls = [record.time or 0], int(record.time is None)
        for value, kind in zip(record.arguments, schema.kinds, strict=True):
            word, null = word_of(value, kind, texts, schema.values)
            nulls |= null << len(row)
            row.append(word)
        row.append(END_WORD if record.expires is None else record.expires)
        if schema.carrying:
            row.append(schema.values.given(record))
        else:
            for (_, value), (_, kind) in zip(record.parafacts, schema.lattices, strict=True):
                word, null = word_of(value, kind, texts, schema.values)
                nulls |= null << len(row)
                row.append(word)
        row += [nulls, start, end, diff]
        rows.append(row)
        if len(rows) == _ROWS_A_PART:  # to make an array of many rows is one long call
            parts.append(np.array(rows, np.int64))
            rows = []
    parts.append(np.array(rows, np.int64).reshape(-1, width))
    return np.concatenate(parts)


def _refuse_lattices(schema: Schema, record: Record, names: Collection[str]) -> None:
    if {name for name, _ in record.parafacts} != names:
        raise NotInDataflow(f"facts of {schema.name} that carry lattices")


def renumbered(schema: Schema, rows: Change, texts: Texts, others: Texts) -> Change:
    """Rows with the numbers that other texts have, in the place of those of `texts`.

    Cost: O(bytes of the texts), some 100 ns for each; 65,536 rows at a time are texts.
    """
    found = rows.copy()
    for at, kind in enumerate(schema.kinds, 1):
        for first in range(0, len(rows) if kind in TEXTS else 0, _TEXTS_A_PART):
            part = rows[first : first + _TEXTS_A_PART]
            null = part[:, schema.nulls] >> at & 1 == 1
            known = texts.arrow(part[:, at], null)
            found[first : first + _TEXTS_A_PART, at] = others.numbers(known)
    return found


def record_of(schema: Schema, row: Sequence[int], texts: Texts) -> Record:
    """The record of a row. Cost: O(columns)."""
    expiry, nulls, values = schema.expiry, row[schema.nulls], schema.values
    arguments = tuple(
        [
            None if nulls >> at & 1
            else row[at] if kind is Type.INT
            else value_of(row[at], kind, texts, values)
            for at, kind in enumerate(schema.kinds, 1)
        ]
    )  # fmt: skip
    seen: list[tuple[str, Any]] = []
    if schema.carrying:
        parafacts = values.value(row[expiry + 1])
        seen = sorted(observe_parafacts(parafacts, values.lattices), key=itemgetter(0))
    elif schema.lattices:
        for at, (name, kind) in enumerate(schema.lattices, expiry + 1):
            null = nulls >> at & 1
            seen.append((name, None if null else value_of(row[at], kind, texts, values)))
        seen.sort(key=itemgetter(0))
    expires = None if row[expiry] == END_WORD else row[expiry]
    time = None if nulls & 1 else row[TIME]
    return Record(schema.name, arguments, time, expires, tuple(seen))


def column_of(words: I64Array, kind: Type, nulls: I64Array | None) -> Column:
    """A column of words as expressions take it; `nulls` are bits, None where there are none."""
    values: Any = words
    if kind in NUMBERED:
        raise Unsuited
    if kind is Type.FLOAT:
        values = np.ascontiguousarray(words).view(np.float64)
    elif kind is Type.BOOL:
        values = words != 0
    return Column(kind, values, None if nulls is None else nulls != 0)


def words_of_column(column: Column) -> I64Array:
    """The words of a column; those of nulls are 0."""
    values = column.values
    if column.kind is Type.FLOAT:
        words: I64Array = (values + 0.0).view(np.int64)
    else:
        words = values.astype(np.int64, copy=False)
    return words if column.nulls is None else np.where(column.nulls, 0, words)


__all__ = [
    "COLUMNS_MAX", "KINDS", "NUMBERED", "NUMBERS", "TIME", "NotInDataflow", "Schema", "column_of", "instant_of",
    "instant_word", "record_of", "renumbered", "rows_of_presences", "rows_of_records", "value_of", "word_of", "words_of_column",
]  # fmt: skip
