"""Sums of floats without rounding: whole numbers of one power of two, in two words.

A float is m * 2**e, with m below 2**53. Floats whose exponents lie near each other are whole
numbers of the least power among them, and so are their sums. A sum is rounded once, when it is
read. Words are `upper * 2**60 + lower`, of which `lower` is never negative.

Twin: tests/test_arrangement_float_sums.py, by fractions.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.interval_updates.rows import Word
from tidemill.arrangement.kernels.arrays import BoolArray, I64Array, compiled, inlined

F64Array: TypeAlias = npt.NDArray[np.float64]
LOWER_BITS = 60
_LOWER = (1 << LOWER_BITS) - 1
_FRACTION = (1 << 52) - 1
_ROOM = 68
"""Powers of two by which the exponents may lie apart, and bits of the number of floats, at most."""
_LEAST = 256
"""The least exponent whose multiples, and quotients of them, are no subnormal numbers."""
_GREATEST = 2_046 - 128
"""The greatest exponent of which as many numbers as there may be have a finite sum."""
_BIAS = 1_075
_DIGIT = 30
_DIGITS = 8
"""Digits of a sum that is divided: 122 bits of its own, and 90 behind them."""


def base_of(words: I64Array, nulls: BoolArray) -> int | None:
    """The exponent of which floats are whole numbers; None where they are too far apart for that.

    Cost: O(n).
    """
    known = words[~nulls]
    exponents = (known[(known << 1) != 0] >> 52) & 0x7FF
    if not len(exponents):
        return _LEAST
    least, greatest = int(exponents.min()), int(exponents.max())
    apart = min(LOWER_BITS - 1, _ROOM - len(words).bit_length())
    fits = least >= _LEAST and greatest <= min(_GREATEST, least + apart)
    return least if fits else None


@inlined
def upper_part(word: Word, base: Word) -> np.int64:
    """The upper word of a float."""
    return np.int64(_whole(word) >> (LOWER_BITS - _shift(word, base)))


@inlined
def lower_part(word: Word, base: Word) -> np.int64:
    """The lower word of a float."""
    return np.int64((_whole(word) << _shift(word, base)) & _LOWER)


@inlined
def _shift(word: Word, base: Word) -> np.int64:
    exponent = (word >> 52) & 0x7FF
    return np.int64(exponent - base) if exponent > 0 else np.int64(0)


@inlined
def _whole(word: Word) -> np.int64:
    """The digits of a float as a whole number with its sign; of no subnormal number."""
    if (word >> 52) & 0x7FF == 0:
        return np.int64(0)
    whole = np.int64((word & _FRACTION) | (_FRACTION + 1))
    return -whole if word < 0 else whole


@compiled
def _quotient(upper: int, lower: int, count: int, digits: I64Array) -> tuple[int, int]:
    """A sum that is not negative, divided: its first 60 bits or so and the power that they are of.

    The last bit says too whether anything follows. Shapes: `digits` (8,), of no use to the caller.
    """
    rest, mask, first = np.int64(0), np.int64((1 << _DIGIT) - 1), np.int64(-1)
    digits[:] = 0
    digits[0], digits[1], digits[2] = upper >> 60, (upper >> 30) & mask, upper & mask
    digits[3], digits[4] = lower >> 30, lower & mask
    for at in range(_DIGITS):
        carried = (rest << _DIGIT) | digits[at]
        digits[at] = carried // count
        rest = carried % count
        if first < 0 and digits[at] > 0:
            first = np.int64(at)
    if first < 0:
        return 0, 0
    found, bits, power = np.int64(0), np.int64(0), np.int64(0)
    more = rest != 0
    for at in range(first, _DIGITS):
        length = np.int64(_DIGIT)
        while at == first and (digits[at] >> (length - 1)) == 0:
            length -= np.int64(1)
        taken = min(length, 62 - bits)
        found = (found << taken) | (digits[at] >> (length - taken))
        more = more or (digits[at] & ((np.int64(1) << (length - taken)) - 1)) != 0
        bits += taken
        power += length - taken
    return int(found | np.int64(more)), int(power)


@compiled
def _rounded(
    counts: I64Array, upper: I64Array, lower: I64Array, mean: bool, found: F64Array,
    powers: I64Array,
) -> None:  # fmt: skip
    """Fill `found` with sums or means in units of a power of two of their own."""
    digits = np.empty(_DIGITS, np.int64)
    for row in range(counts.size):
        a, b = upper[row], lower[row]
        negative = a < 0
        if negative:
            a, b = (-a - 1, _LOWER + 1 - b) if b > 0 else (-a, b)
        top, power = _quotient(a, b, counts[row] if mean and counts[row] > 0 else 1, digits)
        found[row], powers[row] = np.float64(-top if negative else top), power


def rounded(counts: I64Array, upper: I64Array, lower: I64Array, base: int, mean: bool) -> F64Array:
    """Sums, or with `mean` their quotients by `counts`, each rounded once. Cost: O(n).

    The words of a sum are those of its floats added up, with carries from lower to upper.
    """
    found, powers = np.empty(len(counts)), np.empty(len(counts), np.int64)
    _rounded(counts, upper, lower, mean, found, powers)
    return np.ldexp(found, powers + (base - _BIAS - 3 * _DIGIT)) + 0.0
