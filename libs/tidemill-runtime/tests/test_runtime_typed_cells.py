"""Cells of times, decimal numbers, bytes, UUIDs and JSON, in records of JSON and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.arrangement.column_types import arrow_type
from tidemill.runtime.formats import Column, CsvFormat, JsonFormat, RowDecoder, typed_cells
from tidemill.runtime.formats.typed_cells import typed_cell
from tidemill.runtime.formats.typed_columns import typed_array

MOMENT = datetime(2026, 1, 1, 12, tzinfo=UTC)
UUID_BYTES = bytes.fromhex("6f9619ff8b86d011b42d00c04fc964ff")
READ = [
    ("timestamp", '"2026-01-01T13:00:00+01:00"', "2026-01-01T13:00:00+01:00", MOMENT),
    ("timestamp", '"2026-01-01 12:00"', "2026-01-01 12:00", MOMENT),
    ("date", '"2026-01-01"', "2026-01-01", date(2026, 1, 1)),
    ("duration", '"PT1.5S"', "1s500ms", timedelta(seconds=1.5)),
    (
        "decimal(20,2)",
        "12345678901234567.89",
        "12345678901234567.89",
        Decimal("12345678901234567.89"),
    ),
    ("decimal(4,2)", '"12.5"', "12.5", Decimal("12.50")),
    ("decimal(2,2)", "0", "-0.0", Decimal("0.00")),
    ("decimal(2,2)", '"-.25"', "-.25", Decimal("-0.25")),
    ("bytes", '"AP8="', "AP8=", b"\0\xff"),
    (
        "uuid",
        '"6F9619FF8B86D011B42D00C04FC964FF"',
        "6f9619ff-8b86-d011-b42d-00c04fc964ff",
        UUID_BYTES,
    ),
    ("uuid", '"b5YZ/4uG0BG0LQDAT8lk/w=="', "b5YZ/4uG0BG0LQDAT8lk/w==", UUID_BYTES),
    ("json", '{"b": [1.0], "a": null}', '{"b": [1.0], "a": null}', '{"a":null,"b":[1]}'),
]
REFUSED = [
    ("timestamp", "1767268800000"), ("timestamp", '"now"'), ("date", '"2026-02-30"'), ("duration", "5"),
    ("decimal(4,2)", "12.505"), ("decimal(4,2)", "100"), ("decimal(4,2)", "true"), ("decimal(2,2)", "1"),
    ("bytes", '"?"'),
    ("uuid", '"1"'), ("timestamp", "{}"), ("uuid", '"????????????????????????"'),
    ("uuid", '"??????????????????????=="'), ("uuid", '"AAAAAAAAAAAAAAAAAAAA===="'),
    ("uuid", '"b5YZ/4uG0BG0LQDAT8lk/x=="'), ("bytes", '"AAAA="'), ("bytes", '"AAAA===="'),
    ("bytes", '"AB=="'), ("bytes", '"AAB="'),
]  # fmt: skip


def cells(kind: str, value: bytes, form: Any) -> Any:
    """The cell of one record alone, and among many others; or why it is none."""
    found = []
    for company in (1, 100):
        columns = [Column("x", kind), Column("n", "int", True)]
        rows, letters = RowDecoder(columns, form).decode(
            [0] * company, range(company), [value] * company
        )
        told = letters["reason"] if letters.num_rows else rows["x"]
        assert len(told) == company
        found += told.to_pylist()[:1]
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize(("kind", "written", "csv", "cell"), READ)
def test_a_record_of_json_and_one_of_csv_have_one_cell(
    kind: str, written: str, csv: str, cell: object
) -> None:
    assert cells(kind, f'{{"x": {written}}}'.encode(), JsonFormat()) == cell
    quoted = csv.replace('"', '""')
    assert cells(kind, f'"{quoted}",1'.encode(), CsvFormat(",")) == cell


@pytest.mark.parametrize(("kind", "written"), REFUSED)
def test_what_is_none_of_a_type_is_a_letter(kind: str, written: str) -> None:
    assert cells(kind, f'{{"x": {written}}}'.encode(), JsonFormat()) == (
        f"the column x is not {kind}: {written}"
    )


@pytest.mark.parametrize("form", [JsonFormat(), CsvFormat(",")])
def test_a_cell_that_arrow_refuses_makes_a_letter_of_its_record(
    form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(typed_cells._READ, "uuid", str.encode)  # type: ignore[arg-type]
    texts = [b"0123456789abcdef", b"short", b"fedcba9876543210"]
    values = [b'{"x": "%b"}' % each if form == JsonFormat() else each for each in texts]
    rows, letters = RowDecoder([Column("x", "uuid")], form).decode([0] * 3, range(3), values)
    assert rows["x"].to_pylist() == texts[::2]
    assert rows["_offset"].to_pylist() == [0, 2]
    assert letters["offset"].to_pylist() == [1]
    assert "the column x cannot hold it" in letters["reason"][0].as_py()


KINDS = (
    "timestamp", "date", "duration", "decimal(6,2)", "decimal(38,0)", "decimal(38,18)", "decimal(2,2)",
    "bytes", "uuid", "json",
)  # fmt: skip
WRITTEN = st.sampled_from([written for _, written, *_ in READ + REFUSED]) | st.one_of(*map(st.from_regex, (
    r'\A"[0-9]{4}-[01][0-9]-[0-3][0-9]"\Z',
    r'\A"[012][0-9]{3}-0[1-9]-[0-3][0-9][T ][0-2][0-9]:[0-5][0-9]:[0-6][0-9](\.[0-9]{1,7})?(Z|[+-][0-2][0-9]:?[0-6][0-9])?"\Z',
    r'\A-?(0|[1-9][0-9]{0,4}|[1-9][0-9]{16,24})(\.[0-9]{1,4}|\.[0-9]{16,20})?\Z',
    r'\A"[+-]?[0-9]{1,5}(\.[0-9]{0,3})?"\Z', r'\A"([A-D+/]{4}){4,5}[A-D=]{4}"\Z',
)))  # fmt: skip


@given(st.sampled_from(KINDS), st.booleans(), st.lists(WRITTEN | st.just("null"), max_size=4))
def test_cells_of_a_column_are_those_of_each(
    kind: str, nullable: bool, written: Sequence[str]
) -> None:
    values = [msgspec.Raw(each.encode()) for each in written]
    nulls = [each == "null" and (nullable or kind != "json") for each in written]
    cells = [None if null else typed_cell(v, kind) for v, null in zip(values, nulls, strict=True)]
    refused = cells.count(None) > (nulls.count(True) if nullable else 0)
    found = typed_array(values, kind, nullable)
    assert (found is None) is refused
    if found is not None:
        assert found.equals(pa.array(cells, arrow_type(kind)))


@pytest.mark.parametrize("kind", ["timestamp", "date", "decimal(6,2)"])
def test_plain_times_and_numbers_are_read_at_once(kind: str, monkeypatch: Any) -> None:
    values = {"timestamp": '"2026-01-01T13:00:00.5+01:00"', "date": '"2026-01-01"'}
    plain = msgspec.Raw(values.get(kind, "12.5").encode())
    monkeypatch.delattr("tidemill.runtime.formats.typed_columns.typed_cell")
    assert typed_array([plain, None], kind, True).null_count == 1


def test_null_is_null_where_it_may_be_and_a_value_of_json_where_it_may_not() -> None:
    for nullable in (True, False):
        columns = [Column("j", "json", nullable), Column("t", "date", True)]
        rows, _ = RowDecoder(columns, JsonFormat()).decode([0], [0], [b'{"j": null, "t": null}'])
        assert rows["j"].to_pylist() == [None if nullable else "null"]
        assert rows["t"].to_pylist() == [None]
    rows, letters = RowDecoder([Column("t", "date")], JsonFormat()).decode(
        [0], [0], [b'{"t": null}']
    )
    assert letters["reason"].to_pylist() == ["the column t is null"]


def test_a_heartbeat_has_values_of_every_type() -> None:
    columns = [Column(f"c{at}", kind) for at, (kind, *_) in enumerate(READ)]
    rows, letters = RowDecoder(columns, JsonFormat(), heartbeats=True).decode(
        [0], [0], [b"tidemill-heartbeat: 5"]
    )
    assert (rows.num_rows, letters.num_rows) == (1, 0)
    assert all(rows[column.name][0].is_valid for column in columns)
