"""Laws: words of values are equal, and in order, exactly as updates in Arrow say of the values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.columns import reductions
from tidemill.arrangement.columns.values import NULL, ValueCodes
from tidemill.arrangement.updates import consolidate
from tidemill.errors import UsageError

TEXTS = st.one_of(
    st.sampled_from(["", "a", "a\0", "ab", "seven77", "eight888", "eight889", "zzzzzzzzz", "ä"]),
    st.text(max_size=12),
)
INTEGERS = st.one_of(
    st.integers(-3, 3), st.integers(2**63 - 2**32 - 2, 2**63 - 2**32 + 2),
    st.integers(-(2**63), 2**63 - 1),
)  # fmt: skip
FLOATS = st.one_of(st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan]), st.floats())

COLUMNS = [
    (pa.string(), TEXTS),
    (pa.int64(), INTEGERS),
    (pa.float64(), FLOATS),
    (pa.bool_(), st.booleans()),
]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(COLUMNS))
def test_words_have_the_equality_and_the_order_of_values(data: st.DataObject, column: Any) -> None:
    kind, values = column
    codes = ValueCodes(kind)
    drawn = data.draw(st.lists(st.one_of(st.none(), values), max_size=30))
    first = codes.encode(pa.array(drawn[:10], kind))
    words = np.concatenate([first, codes.encode(pa.array(drawn[10:], kind))])
    given_rows = pa.table({"value": pa.array(drawn, kind), "_diff": pa.array([1] * len(drawn))})
    expected = consolidate(given_rows)
    order = np.argsort(codes.ranks(words), kind="stable")
    distinct = list(dict.fromkeys(words[order].tolist()))
    decoded = codes.decode(np.array(distinct, np.uint64))
    assert repr(decoded.to_pylist()) == repr(expected.column("value").to_pylist())
    assert [words.tolist().count(word) for word in distinct] == expected.column("_diff").to_pylist()
    assert [word == NULL for word in words.tolist()] == [value is None for value in drawn]


@pytest.mark.parametrize(("kind", "values"), [
    (pa.int64(), [3, -5, 2**62, None]), (pa.string(), ["b", "", "seven77"]),
    (pa.float64(), [1.5, -math.inf, math.nan]), (pa.bool_(), [True, False]),
])  # fmt: skip
def test_values_with_words_of_their_own_are_not_kept(kind: Any, values: list[Any]) -> None:
    codes = ValueCodes(kind)
    words = codes.encode(pa.array(values, kind))
    assert codes.interned == 0
    assert codes.ranks(words) is words


def test_slices_of_texts_are_encoded_as_their_copies() -> None:
    texts = pa.array(["first", None, "a long text, kept once", "x", "a long text, kept once"])
    codes = ValueCodes(pa.string())
    words = codes.encode(texts)
    assert codes.encode(texts.slice(2, 3)).tolist() == words[2:].tolist()
    assert codes.interned == 1
    assert codes.decode(words).to_pylist() == texts.to_pylist()


def test_thousands_of_long_texts_are_numbered_in_the_order_of_arrival() -> None:
    """Every table grows several times; some share all but their last byte, some their first eight."""
    texts = [f"a common beginning and {n % 4000:05}" for n in range(9000)]
    texts += [f"{n:08}, an own beginning" for n in range(3000)]
    codes = ValueCodes(pa.string())
    words = np.concatenate(
        [codes.encode(pa.array(texts[at : at + 777])) for at in range(0, 12000, 777)]
    )
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    assert (words - words.min()).tolist() == [numbers[text] for text in texts]
    assert codes.interned == len(numbers) == 7000
    assert codes.decode(words).to_pylist() == texts


@settings(deadline=None)
@given(st.lists(st.lists(st.text(alphabet="ab", min_size=8, max_size=18), max_size=40), max_size=5))
def test_long_texts_have_one_number_each(parts: list[list[str]]) -> None:
    codes = ValueCodes(pa.string())
    seen: dict[str, int] = {}
    for part in parts:
        words = codes.encode(pa.array(part, pa.string())).tolist()
        for text, word in zip(part, words, strict=True):
            assert seen.setdefault(text, word) == word
    assert len(set(seen.values())) == len(seen) == codes.interned


def test_the_least_text_is_found_among_kept_ones() -> None:
    codes = ValueCodes(pa.string())
    texts = ["zz", "middle of the road", "a beginning, a long one", "zz top of them all"]
    words = np.sort(codes.encode(pa.array(texts)))
    keys, ones = np.zeros(4, np.uint64), np.ones(4, np.int64)
    _, found, _ = codes.in_order(reductions.top(2))(keys, words, ones)
    assert codes.decode(found).to_pylist() == sorted(texts)[:2]


def test_types_without_words_and_mixed_types_are_refused() -> None:
    with pytest.raises(UsageError):
        ValueCodes(pa.list_(pa.int64()))
    with pytest.raises(UsageError):
        ValueCodes(pa.int64()).encode(pa.array(["text"]))
