"""Frames: the bytes of versions and rollups with a format number and a checksum in front."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.errors import Corrupt

FORMAT = 6
"""The newest format that this process reads."""

PLAIN, PACED, UNDER, CARRIED, LISTED, SEVERAL = 1, 2, 3, 4, 5, 6
"""Versions of the format. Writers use 2 where a pace is named: a reader of 1 would take upper for
less. They use 3 where groups follow under others: a writer of 2 would let these leave alone.
They use 4 where a write capability goes with a pace: a reader of 3 would leave it behind.
They use 5 where an object lists the parts of a batch: a reader of 4 would not see them.
They use 6 where several paces are named: a reader of 5 would see none of them.
"""

ENTRY = b"E"
ROLLUP = b"R"
REGISTER = b"V"
LIST = b"L"
PAGES = b"P"

_KIND = struct.Struct("<2scH")
_CHECKSUM = struct.Struct("<I")
_MAGIC = b"TM"


def framed(kind: bytes, payload: bytes, format_number: int = PLAIN) -> bytes:
    """`payload` with its header: magic, kind, format, and a CRC-32 of all that and the payload."""
    header = _KIND.pack(_MAGIC, kind, format_number)
    return header + _CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(header))) + payload


def unframed(kind: bytes, data: bytes, where: str) -> bytes:
    """The payload of a frame.

    Raises: Corrupt if a byte is not as it was written; if the format is newer than what this
    process reads, the message names both.
    """
    start = _KIND.size + _CHECKSUM.size
    if len(data) < start:
        raise Corrupt(f"{where} is cut off: {len(data)} bytes", object=where)
    magic, found, number = _KIND.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _KIND.size)
    payload = data[start:]
    computed = zlib.crc32(payload, zlib.crc32(data[: _KIND.size]))
    if magic != _MAGIC or found != kind or computed != checksum:
        raise Corrupt(f"{where} does not have the bytes that were written", object=where)
    if number > FORMAT:
        raise Corrupt(
            f"{where} has format {number}, this process reads up to {FORMAT}: use a newer one",
            object=where, found=number, supported=FORMAT,
        )  # fmt: skip
    return payload


@contextmanager
def decoding(says: str, where: str) -> Iterator[None]:
    """Turns every error of decoding into Corrupt: msgspec, Arrow and frontiers have different
    ones.
    """
    try:
        yield
    except Corrupt:
        raise
    except Exception as error:  # stored bytes, as said above
        raise Corrupt(f"{says}: {error!r}", object=where) from error
