"""Appending and reading many records looks now and then, so that calls of users go first."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from tidemill.arrangement.looks import LOOK, THINGS_A_LOOK
from tidemill.runtime.log import Entry, LogRecord, check_entries, columns_of
from tidemill.runtime.log_frames import decode_frame, encode_frame, header_at

COUNT = 20 * THINGS_A_LOOK
ENTRIES = [Entry(None, b"%d" % number, 0) for number in range(COUNT)]


def read() -> list[LogRecord]:
    """The entries as records of one frame."""
    data = encode_frame(ENTRIES, 0, 0, 0)
    header = header_at(memoryview(data), 0)
    assert header is not None
    return decode_frame(pa.py_buffer(data), 0, header).to_records(0)


RECORDS = read()

WORK: dict[str, Callable[[], object]] = {
    "checks of entries": lambda: check_entries("t", ENTRIES, 1),
    "records of a frame": read,
    "columns of records": lambda: columns_of(RECORDS),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK.keys())
def test_a3_many_records_are_gone_through_with_looks(work: Callable[[], object]) -> None:
    looks: list[int] = []
    token = LOOK.set(lambda: looks.append(1))
    try:
        work()
    finally:
        LOOK.reset(token)
    assert len(looks) >= COUNT // THINGS_A_LOOK
