"""Rows that are objects of JSON, decoded piece by piece.

A decoder holds the interpreter until it has done all of its work: 16 MB of small objects for a
quarter of a second. Between two pieces other threads go on.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tidemill.arrangement.json_cells import numeral
from tidemill.arrangement.looks import look
from tidemill.errors import UsageError
from tidemill_query.push_tokens import refuse_many_rows

LINES = msgspec.json.Decoder(dict[str, Any], float_hook=numeral)
ARRAY = msgspec.json.Decoder(list[dict[str, Any]], float_hook=numeral)

_PIECE_BYTES = 64 << 10
_TRUNCATED = "truncated"
_BYTE, _ROW = re.compile(r"\(byte (\d+)\)"), re.compile(r"`\$\[(\d+)\]")
"""Places in the messages of the decoder."""
_BETWEEN = re.compile(rb"\}[ \t\r\n]*,")
"""Bytes between two objects of an array; a text or an inner object may have them as well."""
_BEFORE = b"[{}"
"""Stands for all rows of an array before a piece, which goes on with a comma."""


def decode_objects(body: bytes, rows_max: int, rows: list[dict[str, Any]]) -> None:
    """Append the objects of a body to `rows`: one after the other, or an array of them.

    One object is decoded at once, however long. Raises: UsageError for what is none, by its place,
    and as soon as there are too many. Cost: O(bytes).
    """
    try:
        decode_pieces(body, rows_max, rows)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        says = f"rows refused: the body is no objects of JSON: {error}"
        raise UsageError(says, reason="json") from None


def decode_pieces(body: bytes, rows_max: int, rows: list[dict[str, Any]]) -> None:
    """Append what one call of the decoder would find; its error is the same, places included."""
    array = body.lstrip()[:1] == b"["
    decode = ARRAY.decode if array else LINES.decode_lines
    start, size, before, ended = 0, _PIECE_BYTES, b"", False
    while not ended:
        look()
        end = _end(body, start + size, array)
        ended = end == len(body)
        piece = before + body[start:end] + (b"]" if array and not ended else b"")
        try:
            found = decode(piece)
        except msgspec.DecodeError as error:
            says = str(error)
            if not ended and _is_cut(says, len(piece) - 1):
                size *= 2
                continue
            moved = _moved(says, start - len(before), len(rows) - bool(before))
            raise type(error)(moved) from None
        rows += found[1:] if before else found
        refuse_many_rows(len(rows), rows_max)
        start, size, before = end, _PIECE_BYTES, _BEFORE if array else b""


def _end(body: bytes, least: int, array: bool) -> int:
    """The end of a piece of at least so many bytes: behind a line, or behind an object."""
    if not array:
        return body.find(b"\n", least) + 1 or len(body)
    between = _BETWEEN.search(body, least)
    return len(body) if between is None else between.end() - 1


def _is_cut(says: str, last: int) -> bool:
    """Whether the decoder refuses a piece for its end alone, which stands in the midst of a row."""
    at = _BYTE.search(says)
    return _TRUNCATED in says or (at is not None and int(at[1]) >= last)


def _moved(says: str, start: int, rows: int) -> str:
    """The message of the decoder about a piece, with the places of the whole body."""
    told = _BYTE.sub(lambda at: f"(byte {int(at[1]) + start})", says)
    return _ROW.sub(lambda at: f"`$[{int(at[1]) + rows}]", told)
