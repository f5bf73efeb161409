"""Decoding gives the same rows whole and one by one, and a reason for every bad record."""

from __future__ import annotations

import json
import pickle
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import UsageError
from tidemill.runtime.formats import (
    NESTING_MAX,
    Column,
    CsvFormat,
    JsonFormat,
    RecordFormat,
    RowDecoder,
    infer_columns,
)

COLUMNS = (
    Column("id", "int"),
    Column("share", "float", nullable=True),
    Column("name", "text", nullable=True),
    Column("late", "bool", nullable=True),
)
DECODER = RowDecoder(COLUMNS, JsonFormat())

documents = st.fixed_dictionaries(
    {"id": st.integers(-(1 << 63), (1 << 63) - 1)},
    optional={
        "share": st.none()
        | st.integers(-1000, 1000)
        | st.floats(allow_nan=False, allow_infinity=False),
        "name": st.none() | st.text(max_size=5),
        "late": st.none() | st.booleans(),
        "other": st.integers(),
    },
)
mistakes = st.sampled_from(
    [b"", b"{", b"[1]", b"7", b'{"id": "x"}', b'{"id": 1.5}', b'{"id": null}', b'{"id": true}',
     b'{"id": 9223372036854775808}', b'{"id": 1, "share": "x"}', b'{"id": 1, "late": 1}',
     b'{"id": 1, "name": 3}', b'{"id": 1} {"id": 2}', b"\xff", b'{"id": 1, "share": NaN}']
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(documents.map(lambda d: json.dumps(d).encode()) | mistakes, max_size=12))
def test_a_batch_decodes_as_its_records_do_one_by_one(values: list[bytes]) -> None:
    whole = DECODER.decode([3] * len(values), range(len(values)), values)
    single = [DECODER.decode([3], [index], [value]) for index, value in enumerate(values)]
    assert whole.rows.to_pylist() == [row for each in single for row in each.rows.to_pylist()]
    assert whole.letters.to_pylist() == [row for each in single for row in each.letters.to_pylist()]
    assert whole.rows.num_rows + whole.letters.num_rows == len(values)


@settings(max_examples=50, deadline=None)
@given(mistakes)
def test_a_bad_record_becomes_a_letter_with_its_place_and_text(value: bytes) -> None:
    decoded = DECODER.decode([2], [41], [value])
    assert decoded.rows.num_rows == 0
    letter = decoded.letters.to_pylist()[0]
    assert (letter["partition"], letter["offset"]) == (2, 41)
    assert letter["reason"]
    assert letter["raw"] == value.decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"share": 1}', "the column id is missing"),
        (b'{"id": null}', "the column id is null"),
        (b'{"id": "7"}', "the column id is text, not int"),
        (
            b'{"id": 9223372036854775808}',
            "the column id has more than 64 bits: 9223372036854775808",
        ),
        (b"[]", "not a JSON object"),
    ],
)
def test_the_reason_names_the_column(value: bytes, reason: str) -> None:
    assert DECODER.decode([0], [0], [value]).letters["reason"].to_pylist() == [reason]


def test_a_record_without_value_is_a_letter() -> None:
    letter = DECODER.decode([0], [0], [None]).letters.to_pylist()[0]
    assert letter["reason"] == "the record has no value"


def test_whole_numbers_widen_in_a_float_column_and_text_is_normalised() -> None:
    value = json.dumps({"id": 1, "share": 2, "name": "e\u0301"}).encode()
    row = DECODER.decode([0], [5], [value]).rows.to_pylist()[0]
    assert row == {
        "id": 1, "share": 2.0, "name": "\u00e9", "late": None, "_partition": 0, "_offset": 5,
    }  # fmt: skip


def test_csv_fields_are_read_by_the_types_of_their_columns() -> None:
    decoder = RowDecoder(COLUMNS, CsvFormat(delimiter=";"))
    values = [b'1;2.5;"a;b";true', b"2;;;", b"x;1;a;true", b"3;nan;a;true", b"4;1;a"]
    decoded = decoder.decode([0] * 5, range(5), values)
    assert decoded.rows.select(["id", "share", "name", "late"]).to_pylist() == [
        {"id": 1, "share": 2.5, "name": "a;b", "late": True},
        {"id": 2, "share": None, "name": None, "late": None},
    ]
    assert decoded.letters["reason"].to_pylist() == [
        "the column id is not int: 'x'",
        "the column share is not a finite number: nan",
        "3 fields, not 4",
    ]


def test_a_decoder_travels_to_other_processes() -> None:
    copy = pickle.loads(pickle.dumps(DECODER))  # noqa: S301  # as in closures of Spark
    assert copy.decode([0], [0], [b'{"id": 1}']).rows.equals(
        DECODER.decode([0], [0], [b'{"id": 1}']).rows
    )


def test_inference_takes_the_least_type_that_holds_the_sample() -> None:
    sample = [b'{"a": 1, "b": null, "c": true}', b'{"a": 1.5, "d": "x"}', b"broken"]
    assert infer_columns(sample, JsonFormat()) == (
        Column("a", "float", True),
        Column("b", "text", True),
        Column("c", "bool", True),
        Column("d", "text", True),
    )
    lines = [b"1,x,", b"2.5,y,3"]
    assert [column.kind for column in infer_columns(lines, CsvFormat())] == ["float", "text", "int"]


def test_a_sample_without_rows_is_refused() -> None:
    with pytest.raises(UsageError):
        infer_columns([b"broken"], JsonFormat())


POISON = [
    b"", b"null", b"{" * 100_000, b'{"x":' + b"[" * 5_000 + b"]" * 5_000 + b', "id": 1}',
    b'{"id": 1, "name": "\xff"}', b'{"id": 1, "\xff": 1}', b'{"id": 1, "x": "\\ud800"}',
    b'{"id": 1, "x": 1e999}', b'{"id": 1, "share": 1e999}', b'{"id": 1, "share": ' + b"9" * 400 + b"}",
    b'{"id": ' + b"9" * 5_000 + b"}", b'{"id": 1, "share": -0.0}', b'{"id": 1, "id": 2}',
    b'{"id": 1.0}', b'\xef\xbb\xbf{"id": 1}', b'{"id": 1}\r\n', b'{"id": 1, "name": "a\\u0000"}',
    b"1,2,3,true", b"1,-0,x,1", b" 1 , 2 , x , TRUE ", b"+1,.5,,", b"1_0,1,x,1", b"0x10,1,x,1",
    b"1,inf,x,1", b"1,1e999,x,1", b'1,1,"x', b'1,1,"x"y,1', b'1,1,"x\ny",1', b"1,1,x,1\n2,2,y,0",
    b"1,1,x\ry,1", b"1,1," + b"x" * 200_000 + b",1", b"1,1,e\xcc\x81,1", b"1,1,\xff,1", b",,,",
    b"9" * 5_000 + b",1,x,1", "\u0665,1,x,1".encode(), b"\xef\xbb\xbf1,1,x,1", b"1,1,a\0b,1",
]  # fmt: skip

plain_fields = st.text("0123456789+-.eEx_ \t,trufalsn\u00e9", max_size=14).map(str.encode)


def check_fate(record_format: RecordFormat, value: bytes) -> None:
    """A record is the same row or letter alone and beside one that sends the batch the slow way."""
    decoder = RowDecoder(COLUMNS, record_format)
    alone = decoder.decode([0], [0], [value])
    assert alone.rows.num_rows + alone.letters.num_rows == 1
    beside_a_bad_one = decoder.decode([0, 0], [0, 1], [value, b'"{'])
    assert beside_a_bad_one.letters.num_rows == alone.letters.num_rows + 1
    assert beside_a_bad_one.rows.equals(alone.rows)
    assert beside_a_bad_one.letters.slice(0, alone.letters.num_rows).equals(alone.letters)
    assert all(str(cell) != "-0.0" for cell in alone.rows["share"].to_pylist())


@pytest.mark.parametrize("record_format", [JsonFormat(), CsvFormat()])
def test_no_record_is_poison(record_format: RecordFormat) -> None:
    for value in POISON:
        check_fate(record_format, value)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([JsonFormat(), CsvFormat()]), st.binary(max_size=12) | plain_fields)
def test_the_fate_of_a_record_is_the_same_in_any_company(
    record_format: RecordFormat, value: bytes
) -> None:
    check_fate(record_format, value)


lines = st.tuples(
    st.integers(-(1 << 63), (1 << 63) - 1).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.just(""),
    st.text(max_size=5).filter(lambda text: not set(text) & set(',"\n\r')),
    st.sampled_from(["true", "False", "1", "0", ""]),
).map(lambda fields: ",".join(fields).encode())


@settings(max_examples=100, deadline=None)
@given(st.lists(lines, min_size=1, max_size=8))
def test_plain_lines_decode_whole_as_they_do_one_by_one(values: list[bytes]) -> None:
    decoder = RowDecoder(COLUMNS, CsvFormat())
    offsets = range(len(values))
    whole = decoder.decode([0] * len(values), offsets, values)
    slow = decoder.decode([0] * (len(values) + 1), range(len(values) + 1), [*values, b'"{'])
    assert whole.rows.equals(slow.rows)
    assert whole.letters.num_rows == 0


def test_depth_is_counted_outside_of_strings() -> None:
    deep = b"[" * NESTING_MAX + b"]" * NESTING_MAX
    fits = b'{"id": 1, "x": ' + deep[1:-1] + b', "y": "' + b"[{" * 500 + b'\\""}'
    too_deep = b'{"id": 1, "x": ' + deep + b"}"
    decoded = DECODER.decode([0, 0], [0, 1], [fits, too_deep])
    assert decoded.rows["id"].to_pylist() == [1]
    assert decoded.letters["reason"].to_pylist() == ["nested more than 100 levels deep"]


samples = st.lists(
    st.fixed_dictionaries(
        {},
        optional={"a": st.integers(-5, 5), "b": st.floats(-5, 5) | st.integers(), "c": st.text()},
    ).map(lambda d: json.dumps(d).encode()),
    min_size=1,
    max_size=6,
).filter(lambda sample: any(value != b"{}" for value in sample))


@settings(max_examples=50, deadline=None)
@given(samples)
def test_inferred_columns_hold_the_sample_if_each_member_has_one_kind(sample: list[bytes]) -> None:
    decoder = RowDecoder(infer_columns(sample, JsonFormat()), JsonFormat())
    decoded = decoder.decode([0] * len(sample), range(len(sample)), sample)
    assert decoded.letters.num_rows == 0


def test_members_that_fit_no_column_are_left_out() -> None:
    sample = [b'{"a": [1], "b": {"c": 1}, "d": 9223372036854775808, "e": 1}', b"[" * 5_000]
    assert infer_columns(sample, JsonFormat()) == (
        Column("d", "float", True),
        Column("e", "int", True),
    )


@pytest.mark.parametrize("record_format", [JsonFormat(), CsvFormat()], ids=["json", "csv"])
def test_s1_a_row_of_combining_marks_is_a_letter_at_once(record_format: RecordFormat) -> None:
    decoder = RowDecoder((Column("x", "text"),), record_format)
    hostile = "a" + "\u0301\u0316" * 70_000
    written = (
        json.dumps({"x": hostile}, ensure_ascii=False) if record_format == JsonFormat() else hostile
    )
    honest = b'{"x": "\xc3\xa9"}' if record_format == JsonFormat() else b"\xc3\xa9"
    begun = time.process_time()
    decoded = decoder.decode([0, 0], [0, 1], [written.encode(), honest])
    assert time.process_time() - begun < 2  # normalising the row takes three and more
    assert decoded.rows.column("x").to_pylist() == ["é"]
    assert "the column x has more than 30 combining marks in a row" in str(
        decoded.letters.to_pylist()
    )
