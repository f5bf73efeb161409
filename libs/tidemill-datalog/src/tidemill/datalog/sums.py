"""Sums and averages that are exact inside, so that every engine gives the same digits.

Source: language.md 5.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import timedelta
from decimal import Decimal

from tidemill.datalog.values import OVERFLOW, WRONG_TYPE, Failed, Value, decimal, whole
from tidemill.time.typed import EXACT, SCALE_MAX, SPAN_MAX, micros_of_span


class Wide(int):
    """A whole number among floats that is no float: its sum is one, and does not round it."""


def among_floats(value: Value) -> Value:
    """Contribution of a value to a sum of floats: a float if it is one exactly."""
    if type(value) is not int:
        return value
    nearest = float(value)
    return nearest if int(nearest) == value else Wide(value)


class ExactSum:
    """The exact sum of the numbers added and not removed again, and how many they are.

    Every finite float is a whole number of 2**-shift, so the total is one whole number and removal
    leaves no residue. Nulls are skipped. While something is in it that cannot be added up, infinity
    or what is no number, the sum fails. Cost: O(1) per number for numbers of like size.
    """

    __slots__ = (
        "_decimals",
        "_exact",
        "_floats",
        "_shift",
        "_spans",
        "_total",
        "_unsummed",
        "count",
    )

    def __init__(self) -> None:
        self.count = 0
        self._floats = 0
        self._shift = 0
        self._total = 0
        self._decimals = self._spans = 0
        self._exact = 0  # of decimals in units of their last digit, of durations in microseconds
        self._unsummed: dict[str, int] = {}

    def add(self, value: Value, sign: int = 1) -> None:
        """Add a number, or take one away again with sign -1."""
        if value is None:
            return
        self.count += sign
        if type(value) is int:
            self._total += sign * (value << self._shift)
            return
        if type(value) is Wide:
            self._floats += sign
            self._total += sign * (int(value) << self._shift)
            return
        if isinstance(value, Decimal):
            self._decimals += sign
            self._exact += sign * int(EXACT.scaleb(value, SCALE_MAX))
            return
        if isinstance(value, timedelta):
            self._spans += sign
            self._exact += sign * micros_of_span(value)
            return
        if type(value) is not float or not math.isfinite(value):
            reason = OVERFLOW if type(value) is float else WRONG_TYPE
            self._unsummed[reason] = self._unsummed.get(reason, 0) + sign
            return
        numerator, denominator = value.as_integer_ratio()
        self._floats += sign
        shift = denominator.bit_length() - 1
        if shift > self._shift:
            self._total <<= shift - self._shift
            self._shift = shift
        self._total += sign * (numerator << (self._shift - shift))

    def sum(self) -> int | float | Decimal | timedelta | None:
        """The sum, rounded once if any number is a float; null for none. Raises: Failed."""
        self._refuse_unsummed()
        if self.count == 0:
            return None
        if self._decimals:
            return decimal(EXACT.scaleb(Decimal(self._exact), -SCALE_MAX))
        if self._spans:
            if abs(self._exact) > SPAN_MAX:
                raise Failed(OVERFLOW)
            return timedelta(microseconds=self._exact)
        if self._floats == 0:
            return whole(self._total >> self._shift)
        return self._quotient(1)

    def average(self) -> float | None:
        """The exact quotient of the exact sum, rounded once; null for none. Raises: Failed."""
        self._refuse_unsummed()
        if self._decimals:
            mean: float = self._exact / (self.count * 10**SCALE_MAX)
            return mean
        return self._quotient(self.count) if self.count else None

    def _refuse_unsummed(self) -> None:
        for reason, count in self._unsummed.items():
            if count:
                raise Failed(reason)
        if self._decimals not in (0, self.count) or self._spans not in (0, self.count):
            raise Failed(WRONG_TYPE)

    def _quotient(self, divisor: int) -> float:
        try:
            return self._total / (divisor << self._shift)
        except OverflowError:
            raise Failed(OVERFLOW) from None


def exact_sum(values: Iterable[Value]) -> int | float | Decimal | timedelta | None:
    """The sum of the numbers, exact inside; null for none that is not null."""
    total = ExactSum()
    for value in values:
        total.add(value)
    return total.sum()


def exact_average(values: Iterable[Value]) -> float | None:
    """The average of the numbers, exact inside; null for none that is not null."""
    total = ExactSum()
    for value in values:
        total.add(value)
    return total.average()
