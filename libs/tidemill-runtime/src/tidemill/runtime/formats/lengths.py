"""Limits on the length of a record and its row: a longer one is a dead letter, in any company."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.runtime.packed_values import UNREAD, lengths_of

RECORD_BYTES_MAX = 64 << 20
"""A record with more is not decoded; of a line of a file with more only the beginning is read."""
ROW_BYTES_MAX = 48 << 20
"""Bytes of a row at most, whatever a source states: a longer one could not be written."""
_CELL_BYTES = 8


UNREAD_REASON = (
    "records up to this one are in a batch that is compressed from more than 1 GiB, has a record of "
    f"more than {RECORD_BYTES_MAX:,} bytes, or is not compressed as it says"
)


def long_records(values: Sequence[bytes | None]) -> dict[int, str]:
    """Why records, or the batches they stand for, are too long to be decoded, by index.

    Cost: that of `lengths_of`.
    """
    lengths = lengths_of(values)
    long = np.flatnonzero(lengths > RECORD_BYTES_MAX).tolist()
    found = dict.fromkeys(long, f"the record has more than {RECORD_BYTES_MAX:,} bytes")
    marked = np.flatnonzero(lengths == len(UNREAD)).tolist()
    return found | {at: UNREAD_REASON for at in marked if values[at] == UNREAD}


def long_rows(rows: pa.Table, bytes_max: int) -> dict[int, str]:
    """Why rows are too long, by index: the bytes of their texts, and eight for each other cell.

    It follows from a row alone, not from how a batch of them is held. Cost: O(columns) where all
    together have no more, else a pass over the offsets of texts.
    """
    if rows.nbytes <= bytes_max or not rows.num_rows:
        return {}
    sizes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        if pa.types.is_string(column.type):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
        else:
            sizes += _CELL_BYTES
    return {
        int(at): too_long(int(sizes[at]), bytes_max) for at in np.flatnonzero(sizes > bytes_max)
    }


def too_long(size: int, bytes_max: int) -> str:
    """Says that a row is."""
    return f"its row has {size:,} bytes, more than {bytes_max:,} (limits.row_bytes)"
