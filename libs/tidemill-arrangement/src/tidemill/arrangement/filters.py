"""Filters that are made of many tests, as trees that are not deep: Arrow goes down them on its stack.

A chain of ten thousand tests, each joined to those before it, ends the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import and_, or_

import pyarrow.compute as pc


def every(tests: Iterable[pc.Expression]) -> pc.Expression | None:
    """What is true where each of the tests is; None if there are none. Depth: logarithmic in their number."""
    return _joined(and_, list(tests))


def either(tests: Iterable[pc.Expression]) -> pc.Expression | None:
    """What is true where one of the tests is; None if there are none. Depth: logarithmic in their number."""
    return _joined(or_, list(tests))


def _joined(
    join: Callable[[pc.Expression, pc.Expression], pc.Expression], tests: list[pc.Expression]
) -> pc.Expression | None:
    while len(tests) > 1:
        pairs = [join(*tests[at : at + 2]) for at in range(0, len(tests) - 1, 2)]
        tests = [*pairs, *tests[2 * len(pairs) :]]
    return tests[0] if tests else None
