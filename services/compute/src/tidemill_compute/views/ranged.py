"""The rows of one range of a view: those of each input whose key has a hash in it."""

from __future__ import annotations

import pyarrow as pa

from tidemill.catalog.record_rows import PredicateShape
from tidemill_compute.views.view_target import RangeOf


def rows_of_range(part: RangeOf, shape: PredicateShape, rows: pa.Table) -> pa.Table:
    """The updates of an input that belong to a range, in their order; all of one in all ranges.

    Cost: O(rows), a hash of each; a text that is there several times is hashed once.
    """
    positions = part.places[shape.predicate]
    if not positions or not rows.num_rows:
        return rows
    from tidemill.datalog.placement import Place  # loads loops
    from tidemill.datalog.placement.column_hashes import ranges_of_columns
    from tidemill_compute.views.range_history import key_of

    found = ranges_of_columns(key_of(shape, Place(positions), rows), part.ranges)
    return rows.filter(pa.array(found == part.number))
