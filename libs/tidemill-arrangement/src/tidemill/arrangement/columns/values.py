"""Values of all types of the language as words: equal words for equal values, in their order.

Equality and order are those of `tidemill.arrangement.updates`: nulls equal nulls and come last, NaN
equals NaN and comes before them, negative zero is zero, text is in the order of code points.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.columns.reductions import GroupReduction, GroupRows
from tidemill.arrangement.columns.texts import KeptTexts
from tidemill.arrangement.kernels import BoolArray, I64Array, U64Array
from tidemill.arrangement.kernels.texts import SHORT, texts_of_words, words_of_texts
from tidemill.errors import UsageError
from tidemill.time import U64_MAX

Values: TypeAlias = "pa.Array[pa.Scalar[pa.DataType]]"

NULL = U64_MAX
"""The word of null."""

INTERNED = 0xFFFF_FFFF_0000_0000
"""From here on words are numbers of values that have no word of their own, in order of arrival."""

_SIGN = np.uint64(1 << 63)
_NAN = np.uint64(0xFFF8_0000_0000_0000)


class ValueCodes:
    """The words of one column's values: of whole numbers, floats, booleans or texts, or null.

    Booleans, floats, whole numbers below 2^63 − 2^32 and texts of up to seven bytes have words of
    their own, in their order. Other values are kept once and numbered; `ranks` orders those.
    """

    def __init__(self, kind: pa.DataType) -> None:
        """Raises: UsageError if the language has no such type."""
        known = (pa.types.is_int64, pa.types.is_float64, pa.types.is_boolean, pa.types.is_string)
        if not any(is_kind(kind) for is_kind in known):
            raise UsageError(f"values of type {kind} have no words")
        self._kind = kind
        self._kept: list[int] = []
        self._numbers: dict[int, int] = {}
        self._texts = KeptTexts()

    @property
    def interned(self) -> int:
        """How many values are kept."""
        return len(self._kept) + len(self._texts)

    def encode(self, values: Values) -> U64Array:
        """The word of each value.

        Raises: UsageError if the values are of another type, or too many had to be kept.
        Cost: O(n); that of a dictionary for values without a word of their own.
        """
        if values.type != self._kind:
            raise UsageError(f"values of type {values.type} in a column of {self._kind}")
        present = values.fill_null(_blank(self._kind))
        if pa.types.is_string(self._kind):
            words = self._words_of_texts(present)
        elif pa.types.is_boolean(self._kind):
            words = np.asarray(present.to_numpy(zero_copy_only=False), np.uint64)
        elif pa.types.is_int64(self._kind):
            words = self._words_of_integers(present.to_numpy())
        else:
            words = _words_of_floats(present.to_numpy())
        if values.null_count:
            words[values.is_null().to_numpy(zero_copy_only=False)] = NULL
        return words

    def decode(self, words: U64Array) -> Values:
        """The value of each word that `encode` gave. Cost: O(n)."""
        null, kept = words == NULL, (words >= INTERNED) & (words != NULL)
        plain = np.where(null | kept, np.uint64(0), words)
        found: Values
        if pa.types.is_string(self._kind):
            found = _texts(plain)
        elif pa.types.is_boolean(self._kind):
            found = pa.array(plain != 0)
        elif pa.types.is_int64(self._kind):
            found = pa.array((plain ^ _SIGN).view(np.int64))
        else:
            found = pa.array(_floats(plain))
        if kept.any():
            numbers = (words[kept] - np.uint64(INTERNED)).astype(np.int64)
            if pa.types.is_string(self._kind):
                values = self._texts.texts(numbers).cast(pa.string())
            else:
                values = pa.array([self._kept[number] for number in numbers.tolist()], self._kind)
            found = pc.replace_with_mask(found, pa.array(kept), values)
        if null.any():
            found = pc.if_else(pa.array(null), pa.scalar(None, self._kind), found)
        return found

    def ranks(self, words: U64Array) -> U64Array:
        """Words in the order of the values, equal where those are equal; only for these `words`.

        Cost: nothing where all have words of their own; else a sort of the distinct values.
        """
        if not ((words >= INTERNED) & (words != NULL)).any():
            return words
        distinct, places = np.unique(words, return_inverse=True)
        order = pc.sort_indices(self.decode(distinct)).to_numpy()  # nulls come last
        ranks = np.empty(len(distinct), np.uint64)
        ranks[order] = np.arange(len(distinct), dtype=np.uint64)
        return ranks[places]

    def in_order(self, reduction: GroupReduction) -> GroupReduction:
        """A reduction that depends on the order of vals, over words that may not have it.

        The results are among the vals. Cost: that of `ranks`, and a sort if any are out of order.
        """

        def ordered(keys: U64Array, vals: U64Array, diffs: I64Array) -> GroupRows:
            ranks = self.ranks(vals)
            if ranks is vals:
                return reduction(keys, vals, diffs)
            order = np.lexsort((ranks, keys))
            keys, results, kept = reduction(keys[order], ranks[order], diffs[order])
            by_rank = np.empty(int(ranks.max()) + 1, np.uint64)
            by_rank[ranks] = vals
            return keys, by_rank[results], kept

        return ordered

    def _words_of_texts(self, texts: Values) -> U64Array:
        large = texts.cast(pa.large_string())
        _, offsets, data = large.buffers()
        n = len(large)
        # NB: read-only both, as buffers of Arrow are: loops are compiled for that.
        starts = np.frombuffer(offsets, np.int64)[large.offset : large.offset + n + 1]
        content = np.frombuffer(data if data else b"\0", np.uint8)
        words, long = np.empty(n, np.uint64), np.empty(n, np.int64)
        longer = words_of_texts(content, starts, words, long)
        if longer:
            places = long[:longer]
            words[places] = self._texts.number(content, starts, places) + np.uint64(INTERNED)
            self._check_room()
        return words

    def _words_of_integers(self, numbers: I64Array) -> U64Array:
        words: U64Array = numbers.view(np.uint64) ^ _SIGN
        large: BoolArray = words >= INTERNED
        if large.any():
            words[large] = np.array(self._intern(numbers[large].tolist()), np.uint64)
        return words

    def _intern(self, values: list[int]) -> list[int]:
        """The words of whole numbers that have none of their own; there are few."""
        found = []
        for value in values:
            number = self._numbers.setdefault(value, len(self._kept))
            if number == len(self._kept):
                self._kept.append(value)
            found.append(INTERNED + number)
        self._check_room()
        return found

    def _check_room(self) -> None:
        if self.interned >= U64_MAX - INTERNED:
            raise UsageError("too many values without a word of their own")


def _blank(kind: pa.DataType) -> Any:  # Any: a scalar of `kind`
    return pa.scalar("") if pa.types.is_string(kind) else pa.scalar(0).cast(kind)


def _words_of_floats(numbers: Any) -> U64Array:  # Any: an array of float64
    bits = (numbers + 0.0).view(np.uint64)  # negative zero becomes zero
    words: U64Array = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    words[np.isnan(numbers)] = _NAN
    return words


def _floats(words: U64Array) -> Any:  # Any: an array of float64
    return np.where(words & _SIGN, words ^ _SIGN, ~words).view(np.float64)


def _texts(words: U64Array) -> Values:
    data, offsets = np.empty(SHORT * len(words), np.uint8), np.empty(len(words) + 1, np.int64)
    texts_of_words(words, data, offsets)
    size = int(offsets[-1])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[:size])]
    return pa.Array.from_buffers(pa.large_string(), len(words), buffers).cast(pa.string())
