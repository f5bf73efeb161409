"""The rows that a collection holds at an instant, by its updates up to there."""

from __future__ import annotations

import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME, consolidate
from tidemill.errors import Corrupt


def present_rows(updates: pa.Table) -> pa.Table:
    """Rows with their multiplicities, without times. Raises: Corrupt if one is negative."""
    at = pa.repeat(pa.scalar(0, pa.uint64()), updates.num_rows)
    index = updates.schema.get_field_index(TIME)
    present = consolidate(updates.set_column(index, TIME, at)).drop_columns([TIME])
    if bool((present.column(DIFF).to_numpy() < 0).any()):
        raise Corrupt("a row of an input is there a negative number of times")
    return present
