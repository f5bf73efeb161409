"""What an evaluation on columns derived, as updates of a collection, without an object for each row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.datalog.columnar import Columns, column_changes
from tidemill.datalog.columnar.columns import END_WORD
from tidemill_compute.record_rows import PredicateShape


def column_updates(
    columns: Columns, shape: PredicateShape, seen: int, lower: int, upper: int
) -> pa.Table:
    """What begins or ends at instants in [lower, upper), for facts of a window from `seen` on.

    The same updates as `differences` of their rows, in another order. Cost: O(facts).
    """
    changes = column_changes(columns, seen, lower, upper)
    facts = changes.facts
    arrays = [column.to_arrow(facts.texts) for column in facts.arguments]
    if shape.timed:
        arrays.append(facts.time.to_arrow(facts.texts))
        arrays.append(pa.array(facts.expires, mask=np.asarray(facts.expires == END_WORD)))
    for name, _ in shape.lattices:
        known = facts.lattices.get(name)
        arrays.append(pa.nulls(len(facts)) if known is None else known.to_arrow(facts.texts))
    arrays = [array.cast(f.type) for array, f in zip(arrays, shape.schema, strict=True)]
    arrays += [pa.array(changes.times.astype(np.uint64)), pa.array(changes.diffs)]
    fields = [*shape.schema, pa.field(TIME, pa.uint64()), pa.field(DIFF, pa.int64())]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))
