"""Sums of decimal numbers as sums of whole numbers: two words for each, in units of 10**-18.

A number is `upper * 2**64 + lower`, and both words have a sign. A compiled loop adds up the upper
words and the lower words exactly, and these sums make the sum of the numbers.

Twin: tests/test_datalog_decimal_sums.py, by fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa

from tidemill.arrangement.interval_updates import SUM_WORDS, Change
from tidemill.arrangement.kernels import I64Array
from tidemill.arrangement.looks import with_looks
from tidemill.datalog.columns.spelling import spelled
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.logical.forms import Type
from tidemill.time.typed import DIGITS_MAX, EXACT, SCALE_MAX, fitting


def in_two_words(rows: Change, columns: Sequence[int], texts: Texts) -> Change:
    """Rows with the upper words of decimals in the place of their texts' numbers.

    The lower words stand in columns more, before the nulls, and are null where the upper ones are.
    Cost: O(rows), and a conversion of each different number.
    """
    nulls, more = rows.shape[1] - 4, len(columns)
    found = np.zeros((len(rows), rows.shape[1] + more), np.int64)
    found[:, :nulls], found[:, nulls + more :] = rows[:, :nulls], rows[:, nulls:]
    for beside, column in enumerate(columns, nulls):
        none = rows[:, nulls] >> column & 1
        some = none == 0
        known, of = np.unique(rows[some, column], return_inverse=True)
        found[some, column], found[some, beside] = _words(texts.large(known)).T[:, of]
        found[:, nulls + more] |= none << beside
    return found


def _words(texts: pa.Array) -> I64Array:
    """The upper and the lower word of each decimal. Shapes: (n, 2)."""
    numbers = texts.cast(pa.decimal128(DIGITS_MAX, SCALE_MAX))
    halves = np.frombuffer(numbers.buffers()[1], np.int64, 2 * len(numbers)).reshape(-1, 2)
    lower, upper = halves.T  # the lower half has no sign in Arrow
    found: I64Array = np.stack([upper + (lower < 0), lower], axis=1)
    return found


def sums_of(
    stretches: I64Array, upper: int, lower: int, mean: bool, texts: Texts
) -> I64Array | None:
    """Words of the sums, or with `mean` of the means, of whose words the sums stand at two places.

    A place has a count and the sums of halves (`Sums`). None where a sum has too many digits.
    Cost: O(stretches).
    """
    places = [*range(upper, upper + SUM_WORDS), *range(lower + 1, lower + SUM_WORDS)]
    words = np.zeros(len(stretches), np.int64)
    floats = words.view(np.float64)
    for row, (count, *halves) in enumerate(with_looks(stretches[:, places].tolist())):
        high, low = ((halves[at] << 32) + halves[at + 1] for at in (0, 2))
        total = (high << 64) + low
        if mean and count:
            floats[row] = total / (count * 10**SCALE_MAX)
        elif count:
            number = fitting(EXACT.scaleb(Decimal(total), -SCALE_MAX))
            if number is None:
                return None
            words[row] = texts.number(spelled(number, Type.DECIMAL))
    return words
