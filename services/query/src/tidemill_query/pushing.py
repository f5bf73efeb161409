"""Lines of pushed bodies."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.looks import with_looks
from tidemill.rpc.turns import beside
from tidemill_query.push_tokens import refuse_many_rows

PIECE_BYTES = 1 << 18
"""Bytes that are looked through in a tenth of a millisecond."""

LINE_FEED, CARRIAGE_RETURN = b"\n"[0], b"\r"[0]


def line_ends(body: bytes, piece_bytes: int = PIECE_BYTES) -> int:
    """Line ends of a body, counted in pieces without the interpreter: other threads go on."""
    whole = np.frombuffer(body, np.uint8)
    found = 0
    for start in range(0, len(whole), piece_bytes):
        piece = whole[start : start + piece_bytes + 1]
        feeds, returns = piece == LINE_FEED, piece == CARRIAGE_RETURN
        for ends in (feeds[:piece_bytes], returns[:piece_bytes]):
            found += int(np.count_nonzero(ends))
        found -= int(np.count_nonzero(returns[:-1] & feeds[1:]))
    return found


async def rows_of(body: bytes, rows_max: int) -> list[bytes]:
    """The lines of a body that are not empty; those of a long one are found beside the event loop.

    Raises: Exhausted.
    """

    def rows() -> list[bytes]:
        # NB: counted before they are cut: as texts they take a hundred times the room of the body.
        refuse_many_rows(line_ends(body), rows_max)
        return [line for line in with_looks(body.splitlines()) if line.strip()]

    return await beside(len(body), rows)
