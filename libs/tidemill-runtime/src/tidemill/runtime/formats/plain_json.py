"""Plain JSON records as columns, by compiled loops that let other threads compute.

A record is plain if it is one object of numbers, words and ASCII texts without escapes. It names
each column once at most, and has all that must be there. Whether it is plain follows from its bytes
and the columns alone. `rows.RowDecoder` reads the others one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.column_types import arrow_type
from tidemill.arrangement.kernels import BoolArray, I64Array, compiled
from tidemill.runtime.formats.columns import Column
from tidemill.runtime.packed_values import Bytes, PackedValues, lengths_of

COLUMNS_MAX = 64
"""Columns of a record at most: one bit each says which were seen."""
BYTES_MAX = (1 << 31) - 1
"""Bytes of all records at most: the texts of one column have offsets of 32 bits."""

_INT, _FLOAT, _TEXT, _BOOL = range(4)
_KINDS = {"int": _INT, "float": _FLOAT, "text": _TEXT, "bool": _BOOL}
_DIGITS_MAX = 18
_EXACT_MAX = 1 << 53
_TENS = 10.0 ** np.arange(_DIGITS_MAX + 1)
"""Each is exact, so a quotient of an exact number by it is the nearest number."""
_QUOTE, _ESCAPE, _COMMA, _COLON, _OPEN, _CLOSE = (ord(c) for c in '"\\,:{}')
_MINUS, _DOT, _ZERO, _NINE, _BIG_E, _SMALL_E = (ord(c) for c in "-.09Ee")
_A, _T, _N = (ord(c) for c in "atn")

LENGTH_BITS = 32
"""The word of a text is the place of its first byte, and its length in so many bits."""
_LENGTH_MAX = (1 << LENGTH_BITS) - 1


class PlainRows(NamedTuple):
    """`arrays`: the cells of the plain records, by column. `plain`: which records are plain."""

    arrays: list[Any]  # pyarrow has no common type
    plain: BoolArray


class PlainJson:
    """Reads plain records of these columns."""

    def __init__(self, columns: Sequence[Column]) -> None:
        """Of more than `COLUMNS_MAX` columns no record is plain.

        Records without spaces whose names are those of the columns, in their order, take half the
        time of others.
        """
        names = [column.name.encode() for column in columns]
        leads = [b'%c"%s":' % (_COMMA if at else _OPEN, name) for at, name in enumerate(names)]
        self._columns = tuple(columns)
        self._names, self._stops = _joined(names)
        self._leads, self._lead_stops = _joined(leads)
        self._kinds = np.array([_KINDS[column.kind] for column in columns], np.int64)
        self._nullable = np.array([column.nullable for column in columns], np.bool_)

    def read(self, values: Sequence[bytes | None]) -> PlainRows:
        """The plain ones of the records; none of those with more than `BYTES_MAX` bytes together.

        Cost: O(bytes), some 150 ns a record of four columns; another thread may compute meanwhile.
        """
        packed = packed_values(values)
        shape = (len(self._columns), len(values))
        words, nulls = np.zeros(shape, np.int64), np.ones(shape, np.bool_)
        plain = np.zeros(len(values), np.bool_)
        if packed is not None and len(self._columns) <= COLUMNS_MAX:
            _read_records(
                packed.data, packed.starts, packed.stops, self._names, self._stops, self._leads, self._lead_stops, self._kinds,
                self._nullable, words, nulls, plain,
            )  # fmt: skip
        return rows_of_words(self._columns, packed, words, nulls, plain)


def packed_values(values: Sequence[bytes | None]) -> PackedValues | None:
    """All records as bytes; None of more than `BYTES_MAX` together."""
    if np.maximum(lengths_of(values), 0).sum() > BYTES_MAX:
        return None
    packed = PackedValues.of(values)
    return packed if packed.data.size <= BYTES_MAX else None


def rows_of_words(
    columns: Sequence[Column],
    packed: PackedValues | None,
    words: I64Array,
    nulls: BoolArray,
    plain: BoolArray,
) -> PlainRows:
    """The plain ones of some records, from a word for each cell; texts lie in the bytes of all."""
    if not plain.all():
        words, nulls = words[:, plain], nulls[:, plain]
    data = packed.data if packed is not None else np.zeros(1, np.uint8)
    arrays = [_array(column, data, words[at], nulls[at]) for at, column in enumerate(columns)]
    return PlainRows(arrays, plain)


def _joined(texts: Sequence[bytes]) -> tuple[Bytes, I64Array]:
    """Texts behind each other, and where each ends."""
    stops = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return np.frombuffer(b"".join(texts) or b"\0", np.uint8), stops


def _array(column: Column, data: Bytes, words: I64Array, nulls: BoolArray) -> Any:
    """The cells of one column."""
    mask = nulls if column.nullable else None
    if column.kind != "text":
        cells = {"float": words.view(np.float64), "bool": words != 0}.get(column.kind, words)
        return pa.array(cells, arrow_type(column.kind), mask=mask)
    stops = np.zeros(len(words) + 1, np.int32)
    np.cumsum(words & _LENGTH_MAX, out=stops[1:])
    copied = np.empty(int(stops[-1]), np.uint8)
    _copy(data, words >> LENGTH_BITS, stops, copied)
    valid = None if mask is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.StringArray.from_buffers(len(words), pa.py_buffer(stops), pa.py_buffer(copied), valid)


@compiled
def _copy(data: Bytes, places: I64Array, stops: npt.NDArray[np.int32], copied: Bytes) -> None:
    """The texts at these places of `data`, one behind the other."""
    for row in range(places.size):
        place = places[row] - stops[row]
        for at in range(stops[row], stops[row + 1]):
            copied[at] = data[place + at]


@compiled
def _after_space(data: Bytes, at: int, stop: int) -> int:
    """The first place from `at` on that is no space."""
    while at < stop and (data[at] == 32 or data[at] == 10 or data[at] == 13 or data[at] == 9):
        at += 1
    return at


@compiled
def _quote_after(data: Bytes, at: int, stop: int) -> int:
    """The place of the quote that ends the text at `at`; −1 if the text is not plain."""
    while at < stop:
        byte = data[at]
        if byte == _QUOTE:
            return at
        if byte < 32 or byte == _ESCAPE or byte >= 128:
            return -1
        at += 1
    return -1


@compiled
def _number(data: Bytes, at: int, stop: int) -> tuple[int, int | np.int64, int]:
    """End, digits and decimal places of the number at `at`.

    The end is −1 if the number is not plain; a whole number has −1 places.
    """
    negative = data[at] == _MINUS
    at += negative
    first, value, dot = at, np.int64(0), -1
    while at < stop:
        byte = data[at]
        if byte == _DOT and dot < 0 and at > first:
            dot = at
        elif _ZERO <= byte <= _NINE and at - first <= _DIGITS_MAX:
            value = 10 * value + np.int64(byte - _ZERO)
        else:
            break
        at += 1
    whole_stop = at if dot < 0 else dot
    follows = at < stop and (
        data[at] == _DOT or data[at] == _BIG_E or data[at] == _SMALL_E
        or _ZERO <= data[at] <= _NINE
    )  # fmt: skip
    leads = whole_stop > first + 1 and data[first] == _ZERO
    digits = at - first - (dot >= 0)
    if whole_stop == first or dot == at - 1 or leads or follows or digits > _DIGITS_MAX:
        return -1, 0, 0
    return at, -value if negative else value, -1 if dot < 0 else at - dot - 1


@compiled
def _word_end(data: Bytes, at: int, stop: int) -> int:
    """The end of `true`, `false` or `null` at `at`; −1 if it is none of them."""
    for word in (b"true", b"false", b"null"):
        if at + len(word) <= stop:
            same = True
            for i in range(len(word)):
                same = same and data[at + i] == word[i]
            if same:
                return at + len(word)
    return -1


@compiled
def _column_at(
    data: Bytes, at: int, stop: int, names: Bytes, name_stops: I64Array, guess: int
) -> int:
    """The column that this name is of, looked for from `guess` on; −1 if there is none."""
    count = name_stops.size - 1
    for step in range(count):
        column = guess + step if guess + step < count else guess + step - count
        first = name_stops[column]
        if name_stops[column + 1] - first == stop - at:
            same = True
            for i in range(stop - at):
                if names[first + i] != data[at + i]:
                    same = False
                    break
            if same:
                return column
    return -1


@compiled
def _read_value(data: Bytes, at: int, stop: int, kind: int) -> tuple[int, int | np.int64, bool]:
    """End, word and whether it is null, of the value at `at`.

    The end is −1 if the value is not plain, or not one of this kind; −1 stands for any kind.
    """
    byte = data[at]
    if byte == _QUOTE:
        end = _quote_after(data, at + 1, stop)
        if end < 0 or (kind != _TEXT and kind >= 0):
            return -1, 0, False
        return end + 1, ((at + 1) << LENGTH_BITS) | (end - at - 1), False
    if byte >= _A:
        end = _word_end(data, at, stop)
        if byte != _N and kind != _BOOL and kind >= 0:
            end = -1
        return end, np.int64(byte == _T), bool(byte == _N)
    end, digits, places = _number(data, at, stop)
    if kind >= _TEXT or (kind == _INT and places >= 0):
        end = -1
    if kind != _FLOAT or end < 0:
        return end, digits, False
    if not -_EXACT_MAX <= digits <= _EXACT_MAX:
        return -1, 0, False
    number = np.float64(digits / _TENS[max(places, 0)])
    return end, number.view(np.int64), False


@compiled
def _read_digits(data: Bytes, at: int, stop: int) -> tuple[int, np.int64]:
    """End and value of the whole number at `at`; the end is −1 unless a value surely ends there."""
    negative = data[at] == _MINUS
    first = at + negative
    at, value, last = first, np.int64(0), min(stop, first + _DIGITS_MAX)
    while at < last and _ZERO <= data[at] <= _NINE:
        value = 10 * value + np.int64(data[at] - _ZERO)
        at += 1
    if at == first or at >= stop or (data[first] == _ZERO and at > first + 1):
        return -1, value
    if data[at] != _COMMA and data[at] != _CLOSE:
        return -1, value
    return at, -value if negative else value


@compiled
def _read_expected(
    data: Bytes,
    at: int,
    stop: int,
    leads: Bytes,
    lead_stops: I64Array,
    kinds: I64Array,
    words: I64Array,
    nulls: BoolArray,
) -> bool:
    """Fill in the cells of a record that has each column in its order and no spaces.

    Whether it is such a record; if not, cells may have been written.
    """
    for column in range(kinds.size):
        first = lead_stops[column]
        size = lead_stops[column + 1] - first
        if at + size >= stop:
            return False
        for i in range(size):
            if data[at + i] != leads[first + i]:
                return False
        at += size
        if kinds[column] == _TEXT and data[at] == _QUOTE:
            end = _quote_after(data, at + 1, stop)
            words[column], nulls[column] = ((at + 1) << LENGTH_BITS) | (end - at - 1), False
            at = end + 1 if end >= 0 else -1
        elif kinds[column] == _INT:
            at, words[column] = _read_digits(data, at, stop)
            nulls[column] = False
        else:
            at, words[column], nulls[column] = _read_value(data, at, stop, kinds[column])
        if at < 0:
            return False
    return at + 1 == stop and data[at] == _CLOSE


@compiled
def _read_record(
    data: Bytes,
    at: int,
    stop: int,
    names: Bytes,
    name_stops: I64Array,
    kinds: I64Array,
    words: I64Array,
    nulls: BoolArray,
) -> bool:
    """Fill in the cells that the record between `at` and `stop` names; whether it is plain."""
    at = _after_space(data, at, stop)
    if at >= stop or data[at] != _OPEN:
        return False
    at = _after_space(data, at + 1, stop)
    if at < stop and data[at] == _CLOSE:
        return _after_space(data, at + 1, stop) == stop
    seen, guess, more = np.uint64(0), 0, True
    while more:
        end = _quote_after(data, at + 1, stop) if at < stop and data[at] == _QUOTE else -1
        colon = _after_space(data, end + 1, stop) if end >= 0 else stop
        if colon >= stop or data[colon] != _COLON:
            return False
        column = _column_at(data, at + 1, end, names, name_stops, guess)
        at = _after_space(data, colon + 1, stop)
        if at >= stop:
            return False
        at, word, null = _read_value(data, at, stop, kinds[column] if column >= 0 else -1)
        if column >= 0:
            bit = np.uint64(1) << np.uint64(column)
            if seen & bit:
                return False
            seen |= bit
            guess = column + 1
            words[column] = word
            nulls[column] = null
        at = _after_space(data, at, stop) if at >= 0 else stop
        if at >= stop or (data[at] != _COMMA and data[at] != _CLOSE):
            return False
        more = data[at] == _COMMA
        at = _after_space(data, at + 1, stop)
    return at == stop


@compiled
def _read_records(
    data: Bytes,
    starts: I64Array,
    stops: I64Array,
    names: Bytes,
    name_stops: I64Array,
    leads: Bytes,
    lead_stops: I64Array,
    kinds: I64Array,
    nullable: BoolArray,
    words: I64Array,
    nulls: BoolArray,
    plain: BoolArray,
) -> None:
    """Fill in the cells of each record that is plain, and say which are. Cost: O(bytes)."""
    word, null = np.zeros(kinds.size, np.int64), np.ones(kinds.size, np.bool_)
    for row in range(plain.size):
        at, stop = starts[row], stops[row]
        good = _read_expected(data, at, stop, leads, lead_stops, kinds, word, null)
        if not good:
            null[:] = True
            good = _read_record(data, at, stop, names, name_stops, kinds, word, null)
        for column in range(kinds.size):
            good = good and (nullable[column] or not null[column])
        plain[row] = good
        if good:  # else the cells are of whatever was read before the record broke off
            for column in range(kinds.size):
                words[column, row] = 0 if null[column] else word[column]
                nulls[column, row] = null[column]
