"""Texts have equal numbers exactly if they are equal, whoever asks and however many there are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.datalog.columns import texts as module
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow import schema
from tidemill.datalog.dataflow.carried import NumberedValues
from tidemill.datalog.logical.forms import Type
from tidemill.datalog.records import Record
from tidemill.errors import Exhausted

SOME = st.none() | st.sampled_from(["", "a", "b", "ä", "a\x00", "\x00", "aaaaaaaa", "aaaaaaaab"])
ANY = SOME | st.text(max_size=20)


@given(st.lists(st.lists(ANY, max_size=90), max_size=5), st.integers(0, 5))
def test_numbers_are_those_of_a_dict(batches: list[list[str | None]], cut: int) -> None:
    texts, known = Texts(), dict[str, int]()
    for batch in batches:
        array = pa.array([*["before"] * cut, *batch], pa.string()).slice(cut)
        found = texts.numbers(pa.chunked_array([array, array]) if cut == 2 else array)
        wanted = [0 if text is None else known.setdefault(text, len(known)) for text in batch]
        assert found.tolist() == wanted * (2 if cut == 2 else 1)
        nulls = np.array([text is None for text in batch], np.bool_)
        numbers = found[: len(batch)]
        assert texts.arrow(numbers, nulls).to_pylist() == batch
        large = texts.large(numbers[~nulls])
        assert large.to_pylist() == [text for text in batch if text is not None]
        assert large.type == pa.large_string()
        assert texts.size(numbers[~nulls]) == sum(len(text.encode()) for text in large.to_pylist())
        assert texts.texts(numbers[~nulls]) == [text for text in batch if text is not None]
    assert [texts.number(text) for text in known] == list(known.values())
    assert len(texts) == len(known)


@given(st.lists(st.tuples(SOME, st.none() | st.integers(0, 3), SOME), max_size=30))
def test_rows_by_the_numbers_of_other_texts_are_the_rows_made_with_those(
    values: list[tuple[str | None, int | None, str | None]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "_TEXTS_A_PART", 8)
        mine, others, kinds = Texts(), Texts(), (Type.TEXT, Type.INT, Type.TEXT)
        others.numbers(pa.array(["aaaaaaaab", "other", "a"]))
        facts = schema.Schema("p", kinds, NumberedValues({}))
        records = [(Record("p", each), 1, 9, 1) for each in values]
        rows = schema.rows_of_records(facts, records, mine)
        found = schema.renumbered(facts, rows, mine, others)
        assert found.tolist() == schema.rows_of_records(facts, records, others).tolist()


def test_texts_that_no_array_holds_have_numbers_too() -> None:
    texts = Texts()
    assert texts.texts(np.array([texts.number("\ud800"), texts.number("")])) == ["\ud800", ""]


def test_many_texts_keep_their_numbers_while_the_table_grows() -> None:
    texts, drawn = Texts(), np.random.default_rng(3)
    known: dict[str, int] = {}
    for _ in range(6):
        batch = [f"text {n}" for n in drawn.integers(0, 60_000, 20_000)]
        wanted = [known.setdefault(text, len(known)) for text in batch]
        assert texts.numbers(pa.array(batch)).tolist() == wanted
    assert texts.texts(np.arange(len(known))) == list(known)


def test_threads_that_number_the_same_texts_agree() -> None:
    texts = Texts()
    arrays = [pa.array([f"{n * 7919 % 5_000}" for n in range(at, at + 5_000)]) for at in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(texts.numbers, arrays))
    assert len(texts) == 5_000
    for array, numbers in zip(arrays, found, strict=True):
        assert texts.arrow(numbers).equals(array)


def test_more_bytes_than_an_array_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = Texts()
    numbers = texts.numbers(pa.array(["abc", "d"]))
    monkeypatch.setattr(module, "_ARROW_BYTES_MAX", 3)
    with pytest.raises(Exhausted, match="do not fit into one array"):
        texts.arrow(numbers)
