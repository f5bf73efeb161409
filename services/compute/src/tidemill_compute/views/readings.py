"""Choice between the part of an input that a view needs, and all of it, which others read."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.catalog.record_rows import PredicateShape
from tidemill.datalog.logical.scans import Scan
from tidemill.datalog.pushdown import EVERYTHING, Reading, reading_of, share_of
from tidemill.shard.parts import Part

SHARE_MIN = 0.25
"""A view that needs a smaller share of the rows keeps them for itself."""
MOVED_MAX = 10_000
"""A view with more rows of an input goes over to those of others at its next start."""


def all_of(shape: PredicateShape) -> Scan:
    """The scan of all rows and columns."""
    return Scan("", tuple(range(1, shape.arguments + 1)))


def reading_for(scan: Scan | None, shape: PredicateShape) -> Reading:
    """Reading of the store for a scan; None: all rows and columns."""
    return EVERYTHING if scan is None else reading_of(scan, shape.schema, shape.arguments)


def is_near(scan: Scan | None, shape: PredicateShape, parts: Sequence[Part]) -> bool:
    """Whether a view that needs a scan, and not all of the input, keeps nearly as much.

    The rows that another view keeps then cost it no memory, and little when it looks for some of
    them. So it is for most of the columns, and a large share of the rows. The store's least and
    greatest values tell the share. Cost: O(parts).
    """
    if scan is None or scan.nameless == all_of(shape) or 2 * len(scan.columns) <= shape.arguments:
        return False
    names, rows = shape.schema.names, sum(part.rows for part in parts)
    time = next((name for name in names[shape.arguments :] if name == "time"), None)
    if not rows:
        return share_of(scan.wanted, names, {}) >= SHARE_MIN
    passing = sum(part.rows * share_of(scan.wanted, names, part.bounds, time) for part in parts)
    return passing >= SHARE_MIN * rows
