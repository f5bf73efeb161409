"""Texts as MessagePack, beside the library's."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.datalog.columns.packed_texts import packed_texts

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=20)


@given(st.lists(TEXTS, max_size=3), st.integers(0, 3))
def test_texts_are_packed_as_the_library_packs_them(parts: list[list[str]], skipped: int) -> None:
    arrays = [pa.array(["before"] * skipped + part, pa.string()).slice(skipped) for part in parts]
    expected = msgspec.msgpack.encode([text for part in parts for text in part])
    assert packed_texts(arrays) == expected


@pytest.mark.parametrize("size", [31, 32, 255, 256, 65_535, 65_536])
def test_each_length_has_its_head(size: int) -> None:
    texts = ["é" * (size // 2) + "a" * (size % 2), "b"]
    assert packed_texts([pa.array(texts)]) == msgspec.msgpack.encode(texts)


@pytest.mark.parametrize("count", [0, 15, 16, 65_535, 65_536])
def test_each_count_has_its_head(count: int) -> None:
    texts = ["x"] * count
    assert packed_texts([pa.array(texts, pa.string())]) == msgspec.msgpack.encode(texts)
