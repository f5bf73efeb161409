"""Rows of a body that has one object after the other are those that a decoder finds at once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import UsageError
from tidemill_query.web import commands

WHOLE = commands._LINES
PARTS = st.sampled_from(
    (b"{}", b'{"a":1}', b'{"a":\n[1,\n2]}', b"\n", b" ", b"\r\n", b'{"a":"x\\ny"}', b"[]", b'{"a":')
)


def outcome(decode: Any, body: bytes) -> object:
    try:
        return decode(body)
    except msgspec.DecodeError as error:
        return type(error), str(error)


@given(st.lists(PARTS, max_size=30), st.integers(1, 12))
def test_objects_are_those_that_are_decoded_at_once(parts: list[bytes], piece: int) -> None:
    """Of a body that is wrong the place is the same, unless it ends early."""
    body = b"".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "_PIECE_BYTES", piece)
        found = outcome(lambda each: commands._objects_of_lines(each, 1_000), body)
    assert found == outcome(WHOLE.decode_lines, body)


def test_no_piece_of_many_lines_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of a million empty objects held the interpreter, and the event loop, for its time."""
    sizes: list[int] = []

    class Seen:
        def decode_lines(self, piece: bytes) -> list[dict[str, Any]]:
            sizes.append(len(piece))
            return WHOLE.decode_lines(piece)

    monkeypatch.setattr(commands, "_LINES", Seen())
    assert len(commands._objects_of_lines(b"{}\n" * 300_000, 1_000_000)) == 300_000
    assert max(sizes) <= commands._PIECE_BYTES + 3
    sizes.clear()
    with pytest.raises(UsageError, match=r"limits.push_rows"):
        commands._objects_of_lines(b"{}\n" * 300_000, 30_000)
    assert sum(sizes) < 200_000  # it is refused before the rest is read
