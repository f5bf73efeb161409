"""Parquet files as rows of JSON: what a cell is, and what one costs that nobody has looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.arrangement.arrow_bytes import is_stored
from tidemill.catalog.origins.files import FileRows, unreadable
from tidemill.errors import TidemillError, UsageError
from tidemill.runtime.places import ANY_FILE, Files

CELLS_MAX = 10_000_000_000
"""A file that says it has more is not read: a few bytes of Parquet can say any number."""
BATCH_ROWS = 1_024
READ_BYTES_MAX = 16 * 1024 * 1024
"""So much of rows, as JSON, is given at a time; one row more than that if it is longer."""
CELL_BYTES_MAX = READ_BYTES_MAX
"""A list, map or record of more is not read; few bytes of Parquet can say a text many times."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """Rows of a file from `next` on, as it was when it had this stamp."""

    rows: Iterator[bytes]
    next: int
    stamp: tuple[int, int, int]


@dataclass(slots=True)
class ParquetFile:
    """A Parquet file, whose rows become JSON texts; it cannot grow, only be replaced.

    Rows are read in their order, BATCH_ROWS of one row group at a time, each read from the end of
    the last one on. A cell without a JSON form, as a day after the year 9999, becomes an object
    with the reason, which fits no column. Its row is a dead letter if the source has the column.
    """

    path: Path
    cells_max: int = CELLS_MAX
    files: Files = ANY_FILE
    _held: _Reading | None = None

    def check(self) -> None:
        """Columns have names in every row; a missing one makes that row a dead letter."""

    def count(self, now_ms: int) -> int:
        """All rows. Raises: Unavailable, UsageError if there are more cells than `cells_max`."""
        try:
            with _opened(self.path, self.files) as file:
                footer = pq.read_metadata(file)
        except TidemillError:
            raise
        except Exception as error:  # Arrow names what is wrong with a file in many ways
            raise unreadable(self.path, error) from error
        rows, columns = int(footer.num_rows), int(footer.num_columns)
        if rows < 0 or rows * columns > self.cells_max:
            raise UsageError(
                f"file {self.path} says it has {rows} rows of {columns} columns, of "
                f"{self.cells_max} cells at most (limits.parquet_cells_max)",
                reason="FileTooLarge",
            )
        return rows

    def read(self, first: int, stop: int) -> FileRows:
        """Raises: UsageError if the file is damaged, Unavailable if it has gone."""
        stamp = self._stamp()
        # Nobody else goes on with these rows meanwhile, nor after an error.
        held, self._held = self._held, None
        if held is None or (held.next, held.stamp) != (first, stamp):
            held = _Reading(_rows_of(self.path, self.files, first), first, stamp)
        values: list[bytes] = []
        size = 0
        for value in held.rows:
            values.append(value)
            size += len(value)
            if len(values) == stop - first or size >= READ_BYTES_MAX:
                break
        self._held = _Reading(held.rows, first + len(values), stamp)
        return FileRows(first, values)

    def _stamp(self) -> tuple[int, int, int]:
        """The identity of the file's contents: another file has another stamp."""
        try:
            told = self.files.stat(self.path)
        except OSError as error:
            raise unreadable(self.path, error) from error
        return told.st_ino, told.st_size, told.st_mtime_ns


def _opened(path: Path, files: Files) -> BinaryIO:
    try:
        return files.read(path)
    except OSError as error:
        raise unreadable(path, error) from error


def _rows_of(path: Path, files: Files, first: int) -> Iterator[bytes]:
    """The rows of a file from number `first` on. Raises: UsageError, Unavailable."""
    opened = _opened(path, files)
    try:
        with opened:
            footer = pq.read_metadata(opened)
            opened.seek(0)
            texts = _texts(footer)
            with pq.ParquetFile(opened, pre_buffer=False, read_dictionary=texts) as file:
                groups, skipped = _groups_from(footer, first)
                for group in groups:  # NB: Arrow joins no dictionaries of two groups within lists
                    for batch in file.iter_batches(BATCH_ROWS, [group], use_threads=False):
                        rows = batch.slice(min(skipped, batch.num_rows))
                        skipped = max(0, skipped - batch.num_rows)
                        yield from _as_json(rows)
    except Exception as error:  # as in `count`: the footer was whole, so the file is not
        raise UsageError(
            f"file {path} is damaged at some row from {first} on: {type(error).__name__}: {error}; "
            "write it anew",
            reason="FileDamaged",
        ) from error


def _groups_from(footer: pq.FileMetaData, first: int) -> tuple[list[int], int]:
    """The row groups from the one of row `first` on, and the rows of that one before it."""
    skipped = first
    for number in range(footer.num_row_groups):
        count = footer.row_group(number).num_rows
        if skipped < count:
            return list(range(number, footer.num_row_groups)), skipped
        skipped -= count
    return [], 0


def _texts(footer: pq.FileMetaData) -> list[str]:
    """The columns of texts and bytes, which are read as numbers of different values.

    A file of 300 bytes may say a thousand times that a cell is its only text, of a megabyte.
    """
    columns = [footer.schema.column(at) for at in range(footer.num_columns)]
    return [each.path for each in columns if each.physical_type == "BYTE_ARRAY"]


def _as_json(rows: pa.RecordBatch) -> Iterator[bytes]:
    """Each row as a JSON object; of columns of one name the last one counts."""
    rows.validate()
    names = [str(name) for name in rows.schema.names]
    for run in _runs(rows):
        columns = [_cells(column) for column in run.columns]
        for cells in zip(*columns, strict=True):
            yield _encoded(dict(zip(names, cells, strict=True)))


def _runs(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in runs whose nested cells take READ_BYTES_MAX together, or a row alone more."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        if pa.types.is_nested(column.type):
            sizes += np.minimum(_sizes(column), READ_BYTES_MAX)
    ends, first = np.cumsum(sizes), 0
    while first < rows.num_rows:
        before = int(ends[first - 1]) if first else 0
        stop = int(np.searchsorted(ends, before + READ_BYTES_MAX, "right"))
        stop = max(stop, first + 1)
        yield rows.slice(first, stop - first)
        first = stop


def _sizes(column: Any) -> npt.NDArray[np.int64]:  # an array of any type
    """Bytes of each value: those of its texts, and eight for each number and container in it."""
    kind = column.type
    found: npt.NDArray[np.int64]
    if pa.types.is_dictionary(kind):
        lengths = _sizes(column.dictionary)
        places = column.indices.cast(pa.int64()).fill_null(len(lengths)).to_numpy()
        found = np.append(lengths, 8)[places]
        return found
    if pa.types.is_struct(kind):
        inner = [_sizes(column.field(at)) for at in range(kind.num_fields)]
        return 8 + sum(inner, np.zeros(len(column), np.int64))
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = [column.keys, column.items] if pa.types.is_map(kind) else [column.values]
        ends = np.append(0, np.cumsum(sum(_sizes(each) for each in inner)))
        found = 8 + np.diff(ends[column.offsets.to_numpy()])
        return found
    if pa.types.is_fixed_size_list(kind):
        values = column.values.slice(column.offset * kind.list_size, len(column) * kind.list_size)
        found = 8 + _sizes(values).reshape(len(column), kind.list_size).sum(1)
        return found
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        found = 8 + pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        return found.astype(np.int64)
    return np.full(len(column), 8, np.int64)


def _encoded(row: dict[str, object]) -> bytes:
    try:
        return msgspec.json.encode(row, enc_hook=str)
    except Exception:  # of one cell, such as a text with half a character
        told = {}
        for name, cell in row.items():
            try:
                told[name] = msgspec.Raw(msgspec.json.encode(cell, enc_hook=str))
            except Exception as error:
                told[name] = msgspec.Raw(msgspec.json.encode(_without_json(error)))
        return msgspec.json.encode(told)


def _cells(column: Any) -> list[object]:  # an array of any type
    """The values of a column as Python has them; instants and durations in microseconds.

    Cells of a dictionary that are the same are the same object.
    """
    if pa.types.is_dictionary(column.type):
        used = column.indices.unique().drop_null()
        told = dict(zip(used.to_pylist(), _cells(column.dictionary.take(used)), strict=True))
        return [told.get(number) for number in column.indices.to_pylist()]
    column = _in_micros(column)
    if (
        pa.types.is_nested(column.type)
        and (sizes := _sizes(column)).max(initial=0) > CELL_BYTES_MAX
    ):
        return [
            _cell(scalar) if size <= CELL_BYTES_MAX else _unreadable(f"it takes {size} bytes")
            for scalar, size in zip(column, sizes.tolist(), strict=True)
        ]
    try:
        found: list[object] = column.to_pylist()
        return found
    except Exception:  # of one value, that Python cannot name
        return [_cell(scalar) for scalar in column]


def _in_micros(column: Any) -> Any:  # an array of any type
    """Nanoseconds cut to microseconds; a zone that nobody knows as UTC, which instants are kept
    in.
    """
    kind = column.type
    if pa.types.is_timestamp(kind) and (kind.unit == "ns" or not is_stored(kind)):
        zone = kind.tz if is_stored(kind) or kind.tz is None else "UTC"
        return column.cast(pa.timestamp("us" if kind.unit == "ns" else kind.unit, zone), safe=False)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return column.cast(pa.duration("us"), safe=False)
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return column.cast(pa.time64("us"), safe=False)
    return column


def _cell(scalar: Any) -> object:  # a scalar of any type
    try:
        return scalar.as_py()
    except Exception as error:  # as in `_cells`
        return _without_json(error)


def _without_json(error: Exception) -> dict[str, str]:
    return _unreadable(f"{type(error).__name__}: {error}")


def _unreadable(reason: str) -> dict[str, str]:
    return {"unreadable": reason}
