"""Products of whole numbers of 64 bits."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import compiled

_LEAST = np.int64(-(2**63))


@compiled
def product_fits(x: np.int64, y: np.int64) -> bool:
    """Whether the product fits in 64 bits as well."""
    if x == 0 or x == -1:
        return bool(x == 0 or y != _LEAST)
    # Whole numbers without a sign wrap; of signed ones the compiler believes that they never do.
    product = np.int64(np.uint64(x) * np.uint64(y))
    return bool(product // x == y and product % x == 0)
