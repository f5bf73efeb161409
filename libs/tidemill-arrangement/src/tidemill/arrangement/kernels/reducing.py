"""Reductions of groups: rows of one key that stand together, each value with its multiplicity."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled
from tidemill.arrangement.kernels.consolidating import overflow
from tidemill.arrangement.kernels.products import product_fits

COUNT, SUM, LEAST, GREATEST, DISTINCT, TOP = range(6)
"""What a group becomes; the meanings are those of tidemill.testkit.partial_orders.reductions."""


@compiled
def _reduce_groups(
    keys: U64Array, vals: U64Array, diffs: I64Array, kind: int, limit: int, offset: np.uint64,
    out_keys: U64Array, out_vals: U64Array, out_diffs: I64Array,
) -> int:  # fmt: skip
    n, start, rows = 0, 0, keys.size
    while start < rows:
        key, end = keys[start], start
        total, left = np.int64(0), np.int64(limit)
        greatest, wraps = -1, 0
        while end < rows and keys[end] == key:
            val, diff = vals[end], diffs[end]
            if kind <= SUM:
                term = diff
                if kind == SUM:
                    value = np.int64(val - offset)
                    term = value * diff
                    if diff != 1 and not product_fits(value, diff):
                        return -1
                summed = total + term
                if ((total ^ summed) & (term ^ summed)) < 0:
                    wraps += 1 if term > 0 else -1
                total = summed
            elif diff > 0 and kind == GREATEST:
                greatest = end
            elif diff > 0 and left > 0:
                taken = min(diff, left) if kind == TOP else np.int64(1)
                out_keys[n], out_vals[n], out_diffs[n] = key, val, taken
                n += 1
                left -= 0 if kind == DISTINCT else (left if kind == LEAST else taken)
            end += 1
        if wraps:
            return -1
        if kind <= SUM:
            word = np.uint64(total)
            out_keys[n], out_diffs[n] = key, 1
            out_vals[n] = word + offset if kind == SUM else word
            n += 1
        elif greatest >= 0:
            out_keys[n], out_vals[n], out_diffs[n] = key, vals[greatest], 1
            n += 1
        start = end
    return n


def reduce_groups(
    keys: U64Array, vals: U64Array, diffs: I64Array, kind: int, limit: int = 1, offset: int = 0
) -> tuple[U64Array, U64Array, I64Array]:
    """What each group reduces to: keys, results and multiplicities, sorted as the rows were.

    Rows are sorted by (key, val), consolidated, diff not zero. `COUNT` sums diffs, as a word in
    two's complement. `SUM` sums value times diff, where the value is `val - offset` in two's
    complement, and the result has the offset again. `TOP` takes `limit` least.

    Raises: UsageError if a sum does not fit in 64 bits.
    Cost: O(n).
    """
    out_keys, out_vals = np.empty_like(keys), np.empty_like(vals)
    out_diffs = np.empty_like(diffs)
    n = _reduce_groups(
        keys, vals, diffs, kind, limit, np.uint64(offset), out_keys, out_vals, out_diffs
    )
    if n < 0:
        raise overflow()
    return out_keys[:n], out_vals[:n], out_diffs[:n]
