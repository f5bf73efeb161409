"""Sums without rounding: numbers of 64 bits as whole multiples of a power of two, added up in
limbs.

A number is m · 2**e with whole m. Over the least e of a column every number is a whole number of at
most `LIMBS` limbs of 32 bits, and limbs are added up by themselves: whole numbers of 64 bits hold
2**30 of them. Whole numbers need `WHOLE_LIMBS`. Sums of parts of a column are added up in the same
way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.kernels.arrays import BoolArray, I64Array, compiled, inlined

F64Array: TypeAlias = npt.NDArray[np.float64]

LIMBS = 5
WHOLE_LIMBS = 2
_SPREAD_MAX = 60
_NONE = 5_000
_BIAS = 1_075
"""What the exponent of a float is above that of its mantissa as a whole number."""


@inlined
def _exponent(bits: int) -> int:
    return (bits >> 52) & 0x7FF


@compiled
def _spread(bits: I64Array) -> tuple[int, int]:
    """The least and greatest exponent of the floats that are not zero."""
    least, greatest = _NONE, 0
    for i in range(bits.size):
        if bits[i] & 0x7FFF_FFFF_FFFF_FFFF:
            exponent = max(_exponent(bits[i]), 1)
            least = min(least, exponent)
            greatest = max(greatest, exponent)
    return least, greatest


@inlined
def _put(limbs: I64Array, group: int, number: np.uint64, shift: int, sign: int) -> None:
    """Add sign · number · 2**shift."""
    at = shift >> 5
    rest = np.uint64(shift & 31)
    mask = np.uint64(0xFFFF_FFFF)
    low = (number & mask) << rest
    high = (number >> np.uint64(32)) << rest
    limbs[group, at] += sign * np.int64(low & mask)
    limbs[group, at + 1] += sign * np.int64((low >> np.uint64(32)) + (high & mask))
    limbs[group, at + 2] += sign * np.int64(high >> np.uint64(32))


@compiled
def _add_whole(
    values: I64Array, known: BoolArray, groups: I64Array, signs: I64Array, limbs: I64Array, counts: I64Array
) -> None:  # fmt: skip
    for i in range(values.size):
        if not known[i]:
            continue
        group = groups[i]
        counts[group] += signs[i]
        value = values[i]
        magnitude = np.uint64(value) if value >= 0 else np.uint64(0) - np.uint64(value)
        sign = signs[i] if value >= 0 else -signs[i]
        limbs[group, 0] += sign * np.int64(magnitude & np.uint64(0xFFFF_FFFF))
        limbs[group, 1] += sign * np.int64(magnitude >> np.uint64(32))


@compiled
def _add_floats(
    bits: I64Array, known: BoolArray, groups: I64Array, signs: I64Array, least: int, limbs: I64Array, counts: I64Array
) -> None:  # fmt: skip
    for i in range(bits.size):
        if not known[i]:
            continue
        group = groups[i]
        counts[group] += signs[i]
        word = bits[i]
        if not word & 0x7FFF_FFFF_FFFF_FFFF:
            continue
        exponent = _exponent(word)
        number = np.uint64(word & 0xF_FFFF_FFFF_FFFF)
        if exponent:
            number |= np.uint64(1) << np.uint64(52)
        else:
            exponent = 1
        _put(limbs, group, number, exponent - least, signs[i] if word >= 0 else -signs[i])


@dataclass(frozen=True, slots=True)
class Sums:
    """Exact sums, one for each group: sum(limb[i] · 2**(32 · i)) · 2**exponent, of so many numbers.

    `exponents` are the least and the greatest that the floats have which are not zero, None for
    whole numbers and where there is no such float. Shapes: (n, k) limbs, n counts.
    """

    limbs: I64Array
    counts: I64Array
    exponents: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def exponent(self) -> int:
        """The power of two that the limbs count."""
        return 0 if self.exponents is None else self.exponents[0] - _BIAS

    def take(self, rows: I64Array) -> Sums:
        """The sums with these numbers."""
        return Sums(self.limbs[rows], self.counts[rows], self.exponents)


def add_up(
    values: I64Array | F64Array, known: BoolArray, groups: I64Array, signs: I64Array, count: int
) -> Sums | None:
    """Exact sums by group; None where exponents lie too far apart.

    Shapes: n values, their groups below `count`, and 1 or -1 for each, to add or take away; `count`
    sums. At most 2**30 values. Cost: O(n).
    """
    counts = np.zeros(count, np.int64)
    if values.dtype == np.int64:
        limbs = np.zeros((count, WHOLE_LIMBS), np.int64)
        _add_whole(values.view(np.int64), known, groups, signs, limbs, counts)
        return Sums(limbs, counts)
    bits = values.view(np.int64)
    least, greatest = _spread(bits)
    if greatest - least > _SPREAD_MAX and least != _NONE:
        return None
    limbs = np.zeros((count, LIMBS), np.int64)
    _add_floats(bits, known, groups, signs, least, limbs, counts)
    return Sums(limbs, counts, (least, greatest) if least != _NONE else None)


@compiled
def _add_sums(
    limbs: I64Array, counts: I64Array, rows: I64Array, groups: I64Array, signs: I64Array, out: I64Array, numbers: I64Array
) -> None:  # fmt: skip
    for i in range(rows.size):
        row, group, sign = rows[i], groups[i], signs[i]
        numbers[group] += sign * counts[row]
        for at in range(limbs.shape[1]):
            out[group, at] += sign * limbs[row, at]


def add_sums(sums: Sums, rows: I64Array, groups: I64Array, signs: I64Array, count: int) -> Sums:
    """The sums of some rows by group: `rows` are added to (1) or taken from (-1) the groups beside
    them.

    All of them together are sums of at most 2**30 numbers. Cost: O(rows).
    """
    limbs = np.zeros((count, sums.limbs.shape[1]), np.int64)
    counts = np.zeros(count, np.int64)
    _add_sums(sums.limbs, sums.counts, rows, groups, signs, limbs, counts)
    return Sums(limbs, counts, sums.exponents)


@compiled
def _lift(limbs: I64Array, bits: int) -> None:
    """Multiply by 2**bits, in place; what comes of it fits the limbs."""
    mask = np.int64(0xFFFF_FFFF)
    whole, rest = bits >> 5, bits & 31
    top = limbs.shape[1] - 1
    for row in range(limbs.shape[0]):
        for at in range(top):
            limbs[row, at + 1] += limbs[row, at] >> 32
            limbs[row, at] &= mask
        for at in range(top, -1, -1):
            limb = np.int64(0)
            if at >= whole:
                limb = (limbs[row, at - whole] & mask) << rest
                if rest and at > whole:
                    limb |= (limbs[row, at - whole - 1] & mask) >> (32 - rest)
            limbs[row, at] = limb & mask
        if limbs[row, top] >> 31:
            limbs[row, top] -= mask + 1


def stacked_sums(parts: Sequence[Sums]) -> Sums | None:
    """The sums of all parts, one after the other; None where exponents lie too far apart.

    Cost: O(n).
    """
    spreads = [part.exponents for part in parts if part.exponents is not None]
    counts = np.concatenate([part.counts for part in parts])
    limbs = np.concatenate([part.limbs for part in parts])
    if not spreads:
        return Sums(limbs, counts)
    least, greatest = min(low for low, _ in spreads), max(high for _, high in spreads)
    if greatest - least > _SPREAD_MAX:
        return None
    end = 0
    for part in parts:
        begin, end = end, end + len(part)
        if part.exponents is not None and part.exponents[0] > least:
            _lift(limbs[begin:end], part.exponents[0] - least)
    return Sums(limbs, counts, (least, greatest))


@compiled
def _sum_runs(limbs: I64Array, counts: I64Array, firsts: BoolArray) -> None:
    """Let each run hold what stands in the runs of its group up to it."""
    for i in range(1, counts.size):
        if not firsts[i]:
            counts[i] += counts[i - 1]
            for at in range(limbs.shape[1]):
                limbs[i, at] += limbs[i - 1, at]


def limbs_of(limbs: I64Array, counts: I64Array, firsts: BoolArray) -> None:
    """Turn changes at the runs of groups into what stands after each: running sums, in place."""
    _sum_runs(limbs, counts, firsts)


def total_of(limbs: Sequence[int]) -> int:
    """The whole number that the limbs stand for."""
    return sum(limb << (32 * at) for at, limb in enumerate(limbs))


@compiled
def _divide(
    limbs: I64Array, divisors: I64Array, exponent: int, out: F64Array, exact: BoolArray
) -> None:
    """Sum · 2**exponent / divisor, rounded to the nearest float, half to even; `exact` where that
    was possible.
    """
    limit = limbs.shape[1]
    wide = limit + 4
    mask = np.int64(0xFFFF_FFFF)
    digits = np.empty(wide, np.int64)
    for row in range(divisors.size):
        carry = np.int64(0)
        negative = False
        for turn in range(2):  # the second time with the sign changed, if it was negative
            carry = np.int64(0)
            for at in range(limit + 1):
                limb = limbs[row, at] if at < limit else np.int64(0)
                total = (-limb if turn else limb) + carry
                digits[at + 3] = total & mask
                carry = total >> 32
            negative = turn == 1
            if carry >= 0:
                break
        exact[row] = carry == 0 and divisors[row] <= mask
        if not exact[row]:
            continue
        digits[:3] = 0
        rest = np.uint64(0)
        divisor = np.uint64(divisors[row])
        top = -1
        for at in range(wide - 1, -1, -1):
            whole = (rest << np.uint64(32)) | np.uint64(digits[at])
            digits[at] = np.int64(whole // divisor)
            rest = whole % divisor
            if top < 0 and digits[at]:
                top = at
        if top < 0:
            out[row] = 0.0
            continue
        width = 0
        while digits[top] >> width:
            width += 1
        # The three limbs from the top hold at least 65 bits: 53 that are kept, and one to round by.
        second = digits[top - 1] if top >= 1 else np.int64(0)
        third = digits[top - 2] if top >= 2 else np.int64(0)
        head = (np.uint64(digits[top]) << np.uint64(32)) | np.uint64(second)
        if width < 32:
            head = (head << np.uint64(32 - width)) | (np.uint64(third) >> np.uint64(width))
            below = np.uint64(third) & ((np.uint64(1) << np.uint64(width)) - np.uint64(1))
        else:
            below = np.uint64(third)
        sticky = rest != 0 or below != 0
        for at in range(top - 2):
            sticky |= digits[at] != 0
        kept = np.int64(head >> np.uint64(11))
        half = np.int64(head & np.uint64(0x7FF))
        if half > 1024 or (half == 1024 and (sticky or kept & 1)):
            kept += 1
        power = 32 * top + width - 53 - 96 + exponent
        if power < -1020 or power > 900:
            exact[row] = False
            continue
        out[row] = -(float(kept) * 2.0**power) if negative else float(kept) * 2.0**power


def quotients(limbs: I64Array, divisors: I64Array, exponent: int) -> tuple[F64Array, BoolArray]:
    """Sums of multiples of 2**exponent divided and rounded once, and where that could be done in
    words.

    Shapes: (n, k) limbs, n divisors above zero. Cost: O(n).
    """
    found = np.zeros(len(divisors), np.float64)
    exact = np.zeros(len(divisors), np.bool_)
    _divide(limbs, divisors, exponent, found, exact)
    return found, exact
