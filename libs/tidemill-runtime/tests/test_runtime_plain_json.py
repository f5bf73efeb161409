"""Plain records are read by compiled loops, and have the cells that a decoder of one gives them."""

from __future__ import annotations

import json
import random
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemill.runtime.formats import plain_json
from tidemill.runtime.formats.columns import Column
from tidemill.runtime.formats.kinds import JsonFormat
from tidemill.runtime.formats.plain_json import PlainJson
from tidemill.runtime.formats.rows import PLAIN_RECORDS_MIN, RowDecoder

COLUMNS = [
    Column("n", "int"),
    Column("ratio", "float", nullable=True),
    Column("name", "text", nullable=True),
    Column("open", "bool", nullable=True),
    Column("na", "text", nullable=True),
]
PLAIN = b'{"n": 7, "ratio": 0.1, "name": "a b", "open": true}'
TOKENS = [
    b"{", b"}", b":", b",", b" ", b"\n", b'"n"', b'"ratio"', b'"name"', b'"open"', b'"na"', b'"x"',
    b'"tide\\u006dill"', b'"\xc3\xa4"', b'"', b"true", b"false", b"null", b"tru", b"[1]", b"{}",
    b"0", b"-0", b"01", b"7", b"-12", b"1.5", b"1.", b".5", b"-", b"1e3", b"0.1", b"-0.0", b"nan",
    b"9223372036854775807", b"9223372036854775808", b"123456789012345678", b"9007199254740993",
    b"0.30000000000000004", b"1234567890123456789012345", b"\x00", b"\xff", b"\x01", b'"a\tb"',
]  # fmt: skip


def json_bytes(value: object) -> bytes:
    return json.dumps(value).encode()


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
objects = st.dictionaries(st.sampled_from(["n", "ratio", "name", "open", "na", "x"]), scalars)
written = objects.map(json_bytes)
loose = st.lists(st.sampled_from(TOKENS), max_size=14).map(b"".join)
members = st.lists(
    st.tuples(st.sampled_from(TOKENS[6:14]), st.sampled_from(TOKENS[12:])), max_size=5
).map(lambda found: b"{" + b",".join(name + b":" + value for name, value in found) + b"}")
expected = st.tuples(*(st.sampled_from(TOKENS[12:]) | scalars.map(json_bytes) for _ in COLUMNS)).map(
    lambda cells: b"{%s}" % b",".join(
        b'"%s":%s' % (column.name.encode(), cell)
        for column, cell in zip(COLUMNS, cells, strict=True)
    )
)  # fmt: skip
"""Records with all columns in their order and no spaces, mostly with values that are not theirs."""


def rows_of(decoder: RowDecoder, records: list[bytes | None]) -> dict[int, tuple[object, ...]]:
    """The row or the letter of each record, with the very bits of numbers."""
    found: dict[int, tuple[object, ...]] = {}
    numbers = range(len(records))
    rows, letters = decoder.decode([0] * len(records), numbers, records)
    for row in rows.to_pylist():
        cells = [struct.pack("d", c) if isinstance(c, float) else c for c in row.values()]
        found[row["_offset"]] = tuple(cells[:-2]) + tuple(cells[-1:] if "_heartbeat" in row else ())
    for letter in letters.to_pylist():
        found[letter["offset"]] = ("letter", letter["reason"], letter["raw"])
    assert len(found) == len(records) == rows.num_rows + letters.num_rows
    return found


@settings(max_examples=300, deadline=None)
@given(
    st.lists(written | loose | members | expected | st.none(), min_size=1, max_size=20),
    st.booleans(),
)
@example([b'{"n":1,"n":2}', b'{"n":1,"n":null}', b' {"n":1} ', b"", b"{}", b'{"n":1}x'], False)
@example([b'{"n":-7,"ratio":0.1,"name":"a","open":true,"na":null}'], False)
@example([b'{"n":1,"ratio":2,"name":"a","open":true,"na":"x"', b'{"n":-'], False)
@example([b"tidemill-heartbeat: 1000", b"tidemill-heartbeat: x", b'{"n":1}'], True)
def test_a_record_is_the_same_row_among_plain_ones_and_alone(
    records: list[bytes | None], beats: bool
) -> None:
    decoder = RowDecoder(COLUMNS, JsonFormat(), heartbeats=beats)
    many = rows_of(decoder, [*records, *[PLAIN] * PLAIN_RECORDS_MIN])
    for number, record in enumerate(records):
        (alone,) = rows_of(decoder, [record]).values()
        company = many[number]
        assert company[: len(alone)] == alone


def test_ordinary_records_are_plain_and_no_decoder_of_one_sees_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    alone = RowDecoder._read_alone
    monkeypatch.setattr(
        RowDecoder, "_read_alone", lambda own, values, places: asked.append(len(values)) or alone(own, values, places)
    )  # fmt: skip
    decoder = RowDecoder(COLUMNS, JsonFormat(), heartbeats=True)
    picked = random.Random(7)
    records = [
        json.dumps({"n": picked.randrange(-(10**17), 10**17), "ratio": picked.randrange(10**6) / 100,
                    "name": f"n{number}", "open": number % 2 == 0, "more": None}).encode()
        for number in range(1_000)
    ]  # fmt: skip
    rows, letters = decoder.decode([1] * 1_000, range(1_000), records)
    assert (rows.num_rows, letters.num_rows, asked) == (1_000, 0, [])
    assert [row["name"] for row in rows.to_pylist()] == [f"n{number}" for number in range(1_000)]
    decoder.decode([1] * 1_000, range(1_000), [*records[:-1], b'{"n": 1.5}'])
    assert asked == [1]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_plain_decimal_is_the_nearest_number(number: float) -> None:
    text = repr(number).encode()
    (found,), plain = PlainJson([Column("x", "float")]).read([b'{"x": ' + text + b"}"])
    if plain[0]:
        assert struct.pack("d", found[0].as_py()) == struct.pack("d", float(text) + 0.0)


def test_too_many_columns_or_bytes_are_not_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [Column(f"c{at}", "int", nullable=True) for at in range(plain_json.COLUMNS_MAX + 1)]
    assert not PlainJson(many).read([b"{}"]).plain.any()
    assert PlainJson(many[:-1]).read([b"{}"]).plain.all()
    monkeypatch.setattr(plain_json, "BYTES_MAX", 1)
    assert not PlainJson(many[:-1]).read([b"{}"]).plain.any()
