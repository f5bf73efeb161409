"""Parquet files: every ordinary type is read, a cell that has no JSON spoils its own row alone."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemill.catalog.origins import parquet_files
from tidemill.catalog.origins.parquet_files import ParquetFile
from tidemill.errors import UsageError
from tidemill.runtime.formats import Column, JsonFormat, RowDecoder
from tidemill.runtime.places import ANY_FILE, Files


def written(folder: Path, table: pa.Table, **options: Any) -> ParquetFile:
    path = folder / "rows.parquet"
    pq.write_table(table, path, **options)
    return ParquetFile(path)


def read(file: ParquetFile) -> list[dict[str, Any]]:
    count = file.count(0)
    rows = file.read(0, count).values if count else []
    return [json.loads(row) for row in rows]


def beyond(kind: pa.DataType, value: int) -> pa.Array:
    bits = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    return pa.array([0, value], bits).cast(kind)


NOON = dt.datetime(2013, 7, 4, 12, 0, 0, 5)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([NOON], pa.timestamp("ns")), "2013-07-04T12:00:00.000005"),
        (pa.array([NOON], pa.timestamp("ns", "UTC")), "2013-07-04T12:00:00.000005Z"),
        (pa.array([NOON], pa.timestamp("us", "No/Where")), "2013-07-04T12:00:00.000005Z"),
        (pa.array([1_500_000_001], pa.int64()).cast(pa.duration("ns")), "PT1.5S"),
        (pa.array([dt.time(1, 2, 3)], pa.time64("ns")), "01:02:03"),
        (pa.array([dt.date(2013, 7, 4)]), "2013-07-04"),
        (pa.array([Decimal("1.50")]), "1.50"),
        (pa.array(["a"]).dictionary_encode(), "a"),
        (pa.array([1.5], pa.float16()), 1.5),
    ],
    ids=lambda each: str(getattr(each, "type", each)),
)
def test_s3_types_that_other_tools_write_are_read(
    tmp_path: Path, column: pa.Array, expected: object
) -> None:
    assert read(written(tmp_path, pa.table({"v": column}))) == [{"v": expected}]


@pytest.mark.parametrize(
    "column",
    [
        beyond(pa.date32(), 2**31 - 1),
        beyond(pa.timestamp("us"), 2**62),
        beyond(pa.timestamp("ms", "UTC"), -(2**60)),
        beyond(pa.duration("ms"), 2**62),
        pa.Array.from_buffers(
            pa.string(),
            2,
            [None, pa.array([0, 1, 3], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff\xfe")],
        ),
    ],
    ids=["date", "instant", "zoned", "duration", "text"],
)
def test_s3_a_cell_that_has_no_name_is_a_letter_and_the_other_rows_are_rows(
    tmp_path: Path, column: pa.Array
) -> None:
    file = written(tmp_path, pa.table({"n": [1, 2], "v": column}), store_schema=True)
    values = file.read(0, 2).values
    with_it = RowDecoder([Column("n", "int"), Column("v", "text")], JsonFormat())
    rows, letters = with_it.decode([0, 0], [0, 1], values)
    assert (rows["n"].to_pylist(), letters["offset"].to_pylist()) == ([1], [1])
    assert "the column v is an object" in letters["reason"][0].as_py()
    assert "unreadable" in letters["raw"][0].as_py()
    without = RowDecoder([Column("n", "int")], JsonFormat())
    assert without.decode([0, 0], [0, 1], values)[0]["n"].to_pylist() == [1, 2]


def test_s8_rows_are_read_group_by_group_and_on_from_where_the_last_read_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    rows_of = parquet_files._rows_of

    def noted(path: str, files: Any, first: int) -> Any:
        begun.append(first)
        return rows_of(path, files, first)

    monkeypatch.setattr(parquet_files, "_rows_of", noted)
    file = written(tmp_path, pa.table({"n": range(10_000)}), row_group_size=3_000)
    found: list[int] = []
    while len(found) < 10_000:
        part = file.read(len(found), min(10_000, len(found) + 700)).values
        found += [json.loads(row)["n"] for row in part]
    assert found == list(range(10_000))
    assert begun == [0]
    assert [json.loads(row)["n"] for row in file.read(6_500, 6_502).values] == [6_500, 6_501]
    assert begun == [0, 6_500]


@pytest.mark.parametrize("sizes", [[500, 500, 100], [1, 0, 700, 3, 2, 900], [3, 3, 3], [0, 7, 0]])
def test_a_reader_that_begins_at_any_row_reads_that_row_and_all_behind_it(
    tmp_path: Path, sizes: list[int]
) -> None:
    """A process that began behind row 700 of 500, 500 and 100 left the last hundred out."""
    path = tmp_path / "rows.parquet"
    rows = pa.table({"n": pa.array(range(sum(sizes)))})
    with pq.ParquetWriter(path, rows.schema) as writer:
        for at, size in enumerate(sizes):
            writer.write_table(rows.slice(sum(sizes[:at]), size))
    assert pq.read_metadata(path).num_row_groups == len(sizes)
    ends = [sum(sizes[:at]) + off for at in range(len(sizes) + 1) for off in (-1, 0, 1, 200)]
    for first in sorted({at for at in ends if 0 <= at <= sum(sizes)}):
        found = ParquetFile(path).read(first, sum(sizes)).values
        assert [json.loads(row)["n"] for row in found] == list(range(first, sum(sizes))), first


def test_s8_long_rows_are_given_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files, "READ_BYTES_MAX", 10_000)
    file = written(tmp_path, pa.table({"t": ["x" * 3_000] * 20}))
    assert len(file.read(0, 20).values) == 4
    assert len(file.read(4, 20).values) == 4


def test_s8_a_footer_with_more_cells_than_the_setting_is_refused(tmp_path: Path) -> None:
    written(tmp_path, pa.table({"n": [1] * 1_000, "m": [1] * 1_000}))
    with pytest.raises(UsageError, match=r"1000 rows of 2 columns.*limits\.parquet_cells_max"):
        ParquetFile(tmp_path / "rows.parquet", cells_max=1_999).count(0)
    assert ParquetFile(tmp_path / "rows.parquet", cells_max=2_000).count(0) == 1_000


def test_a_damaged_file_says_so_and_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    file = written(
        tmp_path, pa.table({"n": range(50_000)}), compression="none", use_dictionary=False
    )
    assert file.count(0) == 50_000
    data = bytearray(file.path.read_bytes())
    data[4:200_000] = bytes(200_000 - 4)
    file.path.write_bytes(data)
    with pytest.raises(UsageError, match="is damaged at some row from 0 on"):
        file.read(0, 50_000)
    file.path.write_bytes(data[:-9])
    opened: list[BinaryIO] = []

    class Kept(Files):
        def read(self, path: Path) -> BinaryIO:
            opened.append(super().read(path))
            return opened[-1]

    with pytest.raises(UsageError, match="is damaged at some row from 0 on"):
        ParquetFile(file.path, files=Kept(ANY_FILE.setting)).read(0, 50_000)
    assert [each.closed for each in opened] == [True]
    pq.write_table(pa.table({"n": [7]}), file.path)
    assert [json.loads(row) for row in file.read(0, 1).values] == [{"n": 7}]


def test_a_text_that_a_column_has_often_is_held_once(tmp_path: Path) -> None:
    """300 bytes of Parquet were a gigabyte of one text, again after each restart."""
    numbers = pa.array([0, None, 0, 1] * 256, pa.int32())
    texts = pa.DictionaryArray.from_arrays(numbers, pa.array(["x" * (1 << 18), "y"]))
    file = written(
        tmp_path, pa.table({"a": texts}), compression="zstd", store_schema=False,
        dictionary_pagesize_limit=1 << 28,
    )  # fmt: skip
    assert file.path.stat().st_size < 2_000
    assert file.count(0) == 1_024
    before = pa.total_allocated_bytes()
    found, sizes = [], []
    while len(found) < 1_024:
        rows = file.read(len(found), 1_024).values
        sizes.append(sum(map(len, rows)))
        found += [None if b"null" in row else json.loads(row)["a"][0] for row in rows]
        assert pa.total_allocated_bytes() - before < 16 << 20
    assert found == ["x", None, "x", "y"] * 256
    assert max(sizes) < parquet_files.READ_BYTES_MAX + (1 << 20)


@pytest.mark.parametrize("within", ["list", "record", "map", "list of records"])
def test_a_text_that_lists_have_often_is_held_once(tmp_path: Path, within: str) -> None:
    """A list of one text a thousand times was as long in memory, in each of 1,024 rows."""
    many = {"list": 256, "record": 1, "map": 64, "list of records": 64}[within]
    numbers = pa.array(np.zeros(1_024 * many, np.int32))
    texts = pa.DictionaryArray.from_arrays(numbers, pa.array(["x" * (1 << 18)]))
    starts = pa.array(np.arange(0, 1_024 * many + 1, many, np.int32))
    cells: Any = pa.StructArray.from_arrays([texts], ["t"]) if "record" in within else texts
    if within == "map":
        cells = pa.MapArray.from_arrays(starts, pa.array(range(len(texts))), texts)
    elif "list" in within:
        cells = pa.ListArray.from_arrays(starts, cells)
    table = pa.table({"n": pa.array(range(1_024)), "v": cells})
    file = written(
        tmp_path, table, compression="zstd", store_schema=False, dictionary_pagesize_limit=1 << 28
    )
    before = pa.total_allocated_bytes()
    found: list[dict[str, Any]] = []
    while len(found) < 12:
        values = file.read(len(found), 1_024).values
        assert sum(map(len, values)) < 3 * parquet_files.READ_BYTES_MAX
        found += [json.loads(row) for row in values]
        assert pa.total_allocated_bytes() - before < 64 << 20
    assert [row["n"] for row in found] == list(range(len(found)))
    refused = {"unreadable": f"it takes {8 + many * (8 + (1 << 18))} bytes"}
    assert all((row["v"] == refused) == (within == "list") for row in found)


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"row_group_size": 300}])
def test_texts_and_bytes_are_those_that_were_written(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    rows = [
        {
            "few": f"k{at % 7}",
            "each": f"id{at}",
            "some": None if at % 3 else "é",
            "list": ["a", "b"],
        }
        for at in range(3_000)
    ]
    assert read(written(tmp_path, pa.Table.from_pylist(rows), **options)) == rows


def test_texts_of_lists_beyond_their_dictionary_are_those_that_were_written(
    tmp_path: Path,
) -> None:
    rows = [{"list": [f"text {at}", "b"], "n": at} for at in range(5_000)]
    options = {"dictionary_pagesize_limit": 20_000, "data_page_size": 10_000}
    assert read(written(tmp_path, pa.Table.from_pylist(rows), **options)) == rows


def test_nulls_beside_a_long_text_take_no_place(tmp_path: Path) -> None:
    cells = ["x" * 20_000, *[None] * 2_000]
    few = pa.DictionaryArray.from_arrays(
        pa.array([0, 127, None], pa.int8()), [*map(str, range(128))]
    )
    lists = pa.ListArray.from_arrays([0, 1, 2, 3], few)
    file = written(tmp_path, pa.table({"v": [cells, None, [None]], "w": lists}))
    rows = [json.loads(row) for row in file.read(0, 3).values]
    assert [row["v"] for row in rows] == [cells, None, [None]]
    assert [row["w"] for row in rows] == [["0"], ["127"], [None]]
