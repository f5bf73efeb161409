"""Rows of a body are those that a decoder finds at once, and so are its errors."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemill.errors import UsageError
from tidemill_query.web import objects

PARTS = st.sampled_from(
    (b"{}", b'{"a":1}', b'{"a":\n[1,\n2]}', b"\n", b" ", b"\r\n", b'{"a":"x\\ny"}', b"[]", b'{"a":')
)
ROWS_OF_ARRAYS = (
    b"{}", b'{"a":1}', b'{"a":[{},{"b":{}}]}', b'{"a":{"b":{}},"c":0}', b'{"a":"},{"}',
    b'{"a":"\\"},\xc3\xa4"}',
)  # fmt: skip
FAULTS = (b"", b" ", b",", b"]", b"[", b"}", b"1", b'{"a":', b'{"a":01}', b'{"a":"\xff"}', b'"},')


def outcome(body: bytes, decode: Any) -> object:
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeError) as error:
        return type(error), str(error)


def by_pieces(body: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    objects.decode_pieces(body, 1_000, rows)
    return rows


@given(st.lists(PARTS, max_size=30), st.integers(1, 12))
def test_objects_are_those_that_are_decoded_at_once(parts: list[bytes], piece: int) -> None:
    """Of a body that is wrong the place is the same, unless it ends early."""
    body = b"".join(parts)
    whole = objects.ARRAY.decode if body.lstrip()[:1] == b"[" else objects.LINES.decode_lines
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "_PIECE_BYTES", piece)
        assert outcome(body, by_pieces) == outcome(body, whole)


@given(
    st.lists(st.sampled_from(ROWS_OF_ARRAYS), max_size=12),
    st.sampled_from((b",", b" ,\n")),
    st.integers(0, 12),
    st.sampled_from(FAULTS),
    st.sampled_from((b"]", b"", b"]]", b"] x")),
    st.integers(1, 40),
)
@example([b"{}"], b",", 1, b"", b"]", 1)  # a comma behind the last row
def test_rows_of_an_array_are_those_that_are_decoded_at_once(
    rows: list[bytes], between: bytes, at: int, fault: bytes, close: bytes, piece: int
) -> None:
    """Each mistake in an array is told by the same words, row and byte."""
    rows[at:at] = [fault]
    body = b"[" + between.join(rows) + close
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "_PIECE_BYTES", piece)
        assert outcome(body, by_pieces) == outcome(body, objects.ARRAY.decode)


@pytest.mark.parametrize("array", [False, True])
def test_no_piece_of_many_rows_is_long(monkeypatch: pytest.MonkeyPatch, array: bool) -> None:
    """A body of a million empty objects held the interpreter, and the event loop, for its time."""
    sizes: list[int] = []
    whole = objects.ARRAY.decode if array else objects.LINES.decode_lines

    def seen(piece: bytes) -> list[dict[str, Any]]:
        sizes.append(len(piece))
        return whole(piece)

    class Seen:
        decode = decode_lines = staticmethod(seen)

    monkeypatch.setattr(objects, "ARRAY" if array else "LINES", Seen())
    between, ends = (b",\n", (b"[", b"]")) if array else (b"\n", (b"", b"\n"))
    body = ends[0] + between.join([b"{}"] * 300_000) + ends[1]
    rows: list[dict[str, Any]] = []
    objects.decode_objects(body, 1_000_000, rows)
    assert len(rows) == 300_000
    assert len(sizes) > len(body) / objects._PIECE_BYTES - 1  # the companion: there are many
    assert max(sizes) <= objects._PIECE_BYTES + 8
    sizes.clear()
    with pytest.raises(UsageError, match=r"limits.push_rows"):
        objects.decode_objects(body, 30_000, [])
    assert sum(sizes) < 250_000  # it is refused before the rest is read
