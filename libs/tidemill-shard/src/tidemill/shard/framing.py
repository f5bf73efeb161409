"""Frames: the bytes of versions and rollups with a format number and a checksum in front."""

from __future__ import annotations

import struct
import zlib

from tidemill.time import Corrupt

FORMAT = 1
"""The newest format that this process reads, and the one it writes."""

ENTRY = b"E"
ROLLUP = b"R"

_HEADER = struct.Struct("<2scHI")
_MAGIC = b"TM"


def framed(kind: bytes, payload: bytes, format_number: int = FORMAT) -> bytes:
    """`payload` with its header: magic, kind, format, CRC-32."""
    return _HEADER.pack(_MAGIC, kind, format_number, zlib.crc32(payload)) + payload


def unframed(kind: bytes, data: bytes, where: str) -> bytes:
    """The payload of a frame.

    Raises: Corrupt if a byte is not as it was written; if the format is newer than what this process
    reads, the message names both.
    """
    if len(data) < _HEADER.size:
        raise Corrupt(f"{where} is cut off: {len(data)} bytes", object=where)
    magic, found, number, checksum = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if magic != _MAGIC or found != kind or zlib.crc32(payload) != checksum:
        raise Corrupt(f"{where} does not have the bytes that were written", object=where)
    if number > FORMAT:
        raise Corrupt(
            f"{where} has format {number}, this process reads up to {FORMAT}: use a newer one",
            object=where, found=number, supported=FORMAT,
        )  # fmt: skip
    return payload
