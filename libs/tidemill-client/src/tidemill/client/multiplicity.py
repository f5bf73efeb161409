"""Answers as plain rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import UsageError

DIFF = "_diff"
COPIES_MAX = 10_000_000
"""So many plain rows are made of fewer; one record of a table may come two thousand million times.
"""


def plain_rows(table: pa.Table) -> pa.Table:
    """Each row as often as its multiplicity says, without the column `_diff`.

    Raises: UsageError for a negative multiplicity, which has no plain form, and for more than
    COPIES_MAX rows.
    """
    if DIFF not in table.column_names:
        return table
    diffs = table[DIFF]
    rows = table.drop_columns([DIFF])
    if table.num_rows == 0 or pc.all(pc.equal(diffs, pa.scalar(1, pa.int64()))).as_py():
        return rows
    if pc.min(diffs).as_py() < 0:
        raise UsageError("some multiplicities are negative: these rows have no plain form")
    if _copies(table) > COPIES_MAX:
        raise UsageError(
            f"{table.num_rows} rows with their multiplicities are {_copies(table)} plain rows, of "
            f"{COPIES_MAX} at most: read them with their multiplicities"
        )
    copies = np.repeat(np.arange(table.num_rows), diffs.to_numpy())
    if not rows.num_columns:  # a fact without arguments has no column to repeat
        return table
    return rows.take(copies)


def _copies(table: pa.Table) -> int:
    """Number of rows beyond the first copy of each."""
    return int(np.sum(np.asarray(table[DIFF], np.float64))) - int(table.num_rows)


def shown_rows(table: pa.Table) -> pa.Table:
    """Plain rows where that loses nothing and is no flood, else the table with its
    multiplicities.
    """
    if DIFF in table.column_names:
        if table.num_columns == 1:
            return table
        if table.num_rows and pc.min(table[DIFF]).as_py() < 0:
            return table
        if pc.max(table[DIFF]).as_py() != 1 and _copies(table) > COPIES_MAX:
            return table
    return plain_rows(table)
