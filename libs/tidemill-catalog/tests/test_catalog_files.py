"""Files as logs: rows keep their numbers while files grow, and half a line is no row."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemill.catalog.origins import files
from tidemill.catalog.origins.file_log import FileLog, OneFile
from tidemill.catalog.origins.files import SETTLED_MS, LineFile, csv_header
from tidemill.catalog.origins.parquet_files import ParquetFile
from tidemill.errors import Unavailable, UsageError
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.places import ANY_FILE, Files

NOW_MS = 1_000_000


def written(path: Path, text: str, changed_ms: int = NOW_MS) -> Path:
    path.write_text(text)
    os.utime(path, (changed_ms / 1000, changed_ms / 1000))
    return path


def rows(file: LineFile | ParquetFile, first: int, stop: int) -> list[str]:
    return [value.decode() for value in file.read(first, stop).values]


def test_a_last_line_without_its_end_counts_once_the_file_is_left_alone(tmp_path: Path) -> None:
    file = LineFile(written(tmp_path / "a.jsonl", "1\n2\n3"))
    assert file.count(NOW_MS + SETTLED_MS - 1) == 2
    assert file.count(NOW_MS + SETTLED_MS) == 3
    assert rows(file, 0, 3) == ["1", "2", "3"]


def test_a_half_written_line_is_read_whole_when_the_rest_has_come(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"n": 1}\n{"n"')
    file = LineFile(path)
    assert file.count(NOW_MS) == 1
    written(path, '{"n": 1}\n{"n": 2}\n')
    assert file.count(NOW_MS) == 2
    assert rows(file, 1, 2) == ['{"n": 2}']


def test_the_header_of_a_csv_file_is_no_row_and_quotes_hold_line_ends(tmp_path: Path) -> None:
    file = LineFile(
        written(tmp_path / "a.csv", 'name,note\r\na,"two\r\nlines, and a ""quote"""\r\nb,c\r\n'),
        ("name", "note"),
        quoted=True,
    )
    assert file.count(NOW_MS) == 2
    assert rows(file, 0, 2) == ['a,"two\r\nlines, and a ""quote"""', "b,c"]


def test_a_header_is_read_as_csv_and_waited_for_until_its_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbf"a;b" ; c\r\n1;2\r\n')
    assert csv_header(path, ";") == ["a;b", "c"]
    assert csv_header(written(tmp_path / "b.csv", "a,b"), ",") is None
    assert csv_header(written(tmp_path / "c.csv", ""), ",") is None
    with pytest.raises(Unavailable):
        csv_header(tmp_path / "none.csv", ",")


def test_a3_of_a_row_that_is_too_long_a_beginning_is_read_and_the_others_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A3: it is longer than a record may be, so that it becomes a letter; one of the greatest
    length is not.
    """
    for name, most in (
        ("RECORD_BYTES_MAX", 1_000),
        ("_HELD_BYTES_MAX", 1_002),
        ("ROWS_BYTES_MAX", 900),
    ):
        monkeypatch.setattr(files, name, most)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n" + b"x" * 50_000 + b"\n" + b"y" * 1_000 + b"\n2\n")
    file = LineFile(path)
    assert file.count(NOW_MS) == 4
    values = [value for first in range(4) for value in file.read(first, first + 1).values]
    assert [values[0], values[2], values[3]] == [b"1", b"y" * 1_000, b"2"]
    assert 1_000 < len(values[1]) < 1_010
    assert len(file.read(0, 4).values) == 2  # so much at once


def test_a3_a_quote_that_nobody_closes_takes_a_pass_over_the_file(tmp_path: Path) -> None:
    """A3: what follows is one row, found in seconds; lines were once put together in quadratic
    time.
    """
    path = tmp_path / "a.csv"
    path.write_bytes(b'1,a\n2,"b\n' + b"3,c\n" * 200_000)
    os.utime(path, (NOW_MS / 1000, NOW_MS / 1000))
    file = LineFile(path, quoted=True)
    assert file.count(NOW_MS + SETTLED_MS) == 2
    assert len(file.read(1, 2).values[0]) == 800_004


def test_a_mark_before_the_first_row_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbf1,2\n3,4\n")
    file = LineFile(path)
    assert file.count(NOW_MS) == 2
    assert rows(file, 0, 2) == ["1,2", "3,4"]


def test_a_file_with_other_columns_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "")
    file = LineFile(path, ("a", "b"), quoted=True)
    assert file.count(NOW_MS) == 0
    written(path, "b,c\n1,2\n")
    with pytest.raises(UsageError) as other:
        file.count(NOW_MS)
    assert other.value.reason == "OtherColumns"
    assert "has the columns b, c, the source has a, b" in str(other.value)
    written(path, "a,b\n1,2\n")
    assert file.count(NOW_MS) == 1


def test_columns_may_stand_in_another_order_in_each_file(tmp_path: Path) -> None:
    text = 'b,a,c\n1,"x,y",3\n,"say ""hi""\nthere", \n1,2\n4,"p\nq",5\n'
    file = LineFile(written(tmp_path / "a.csv", text), ("a", "b", "c"), quoted=True)
    assert file.count(NOW_MS) == 4
    assert rows(file, 0, 4) == ['"x,y",1,3', '"say ""hi""\nthere",, ', "1,2", '"p\nq",4,5']


def test_a_file_that_became_shorter_is_not_what_it_was(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", "1\n2\n3\n")
    file = LineFile(path)
    file.count(NOW_MS)
    written(path, "1\n")
    with pytest.raises(UsageError) as shorter:
        file.count(NOW_MS)
    assert shorter.value.reason == "FileShrank"


def test_reading_far_into_a_long_file_gives_the_same_rows(tmp_path: Path) -> None:
    lines = [f"{n:06d}" + "x" * 200 for n in range(20_000)]
    file = LineFile(written(tmp_path / "a.jsonl", "\n".join(lines) + "\n"))
    assert file.count(NOW_MS) == 20_000
    assert len(file._marks) > 2
    for first in (0, 1, 7_777, 19_990):
        assert rows(file, first, first + 10) == lines[first : first + 10]


def test_rows_of_a_parquet_file_are_json(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1, None], "t": ["ä", "b"]}), path)
    file = ParquetFile(path)
    assert file.count(NOW_MS) == 2
    assert rows(file, 0, 2) == ['{"n":1,"t":"ä"}', '{"n":null,"t":"b"}']


async def test_a_file_is_a_log_of_one_partition_that_grows(tmp_path: Path) -> None:
    path, clock = written(tmp_path / "a.jsonl", "0\n1\n2\n"), ManualClock(NOW_MS)
    log = FileLog(str(path), OneFile(str(path)), LineFile, clock)
    assert await log.bounds("a") == {0: (0, 3)}
    reader = await log.reader("a", {0: 1})
    found = await reader.poll(10, 0.0)
    assert [(r.partition, r.offset, r.value) for r in found] == [(0, 1, b"1"), (0, 2, b"2")]
    assert await reader.poll(10, 0.0) == []
    with path.open("a") as file:
        file.write("3\n")
    assert await reader.poll(10, 0.0) == []
    assert await log.bounds("a") == {0: (0, 4)}
    assert [r.value for r in await reader.poll(10, 0.0)] == [b"3"]
    assert reader.positions() == {0: 4}


class Remembered:
    """A registry in memory."""

    def __init__(self) -> None:
        self.known: list[str] = []

    async def paths(self) -> list[str]:
        return list(self.known)

    async def add(self, paths: list[str]) -> list[str]:
        self.known += paths
        return list(self.known)


async def test_a_new_file_of_a_folder_gets_the_next_partition(tmp_path: Path) -> None:
    folder, registry = tmp_path / "in", Remembered()
    folder.mkdir()
    written(folder / "b.jsonl", "b0\n")
    log = FileLog(str(folder), registry, LineFile, ManualClock(NOW_MS))
    assert await log.bounds("in") == {0: (0, 1)}
    written(folder / "a.jsonl", "a0\na1\n")
    assert await log.bounds("in") == {0: (0, 1), 1: (0, 2)}
    again = FileLog(str(folder), registry, LineFile, ManualClock(NOW_MS))
    assert await again.bounds("in") == {0: (0, 1), 1: (0, 2)}
    reader = await again.reader("in", {0: 0, 1: 0})
    read = [record for _ in range(4) for record in await reader.poll(1, 0.0)]
    assert sorted((r.partition, r.offset, r.value) for r in read) == [
        (0, 0, b"b0"),
        (1, 0, b"a0"),
        (1, 1, b"a1"),
    ]


async def test_a_file_with_other_columns_gets_no_partition(tmp_path: Path) -> None:
    folder, registry = tmp_path / "in", Remembered()
    folder.mkdir()
    written(folder / "a.csv", "a,b\n1,2\n")

    def opened(path: Path) -> LineFile:
        return LineFile(path, ("a", "b"), quoted=True)

    log = FileLog(str(folder), registry, opened, ManualClock(NOW_MS))
    assert await log.bounds("in") == {0: (0, 1)}
    wrong = written(folder / "b.csv", "b,c\n1,2\n")
    with pytest.raises(UsageError):
        await log.bounds("in")
    wrong.unlink()
    assert await log.bounds("in") == {0: (0, 1)}


async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "none.csv")
    log = FileLog(path, Remembered(), LineFile, ManualClock(NOW_MS))
    with pytest.raises(UsageError) as missing:
        await log.bounds("none")
    assert "none.csv" in str(missing.value)


def test_a_path_names_a_file_a_pattern_or_a_folder(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.txt"):
        written(tmp_path / name, "")
    assert [Path(p).name for p in ANY_FILE.matching(str(tmp_path))] == ["a.csv", "b.csv", "c.txt"]
    assert [Path(p).name for p in ANY_FILE.matching(str(tmp_path / "*.csv"))] == ["a.csv", "b.csv"]
    assert [Path(p).name for p in ANY_FILE.matching(str(tmp_path / "c.txt"))] == ["c.txt"]
    assert ANY_FILE.matching(str(tmp_path / "d.txt")) == []


@pytest.mark.parametrize("header", ["a\rb,c", ",".join(f"c{number}" for number in range(20_000))])
def test_a1_a_first_line_that_names_no_columns_is_refused(tmp_path: Path, header: str) -> None:
    """A1: an end of a line within it was an error outside of the tree, from a file that anybody may
    write.
    """
    file = tmp_path / "a.csv"
    file.write_bytes(f"{header}\n1\n".encode())
    with pytest.raises(UsageError, match=r"the first line of the file .* names"):
        csv_header(file, ",")


class Name(str):
    """A path that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class Known:
    """Files that have their partitions already."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    async def paths(self) -> list[str]:
        return self.names

    async def add(self, paths: Sequence[str]) -> list[str]:
        raise AssertionError(paths)


async def test_a3_a_folder_of_many_files_is_looked_through_in_linear_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A3: each name was compared with all before it, at each probe, on the event loop."""
    names: list[str] = [Name(tmp_path / f"{number:04}.jsonl") for number in range(2_000)]
    monkeypatch.setattr(Files, "matching", lambda self, pattern: list(map(Name, names)))
    log = FileLog(str(tmp_path), Known(names), LineFile, ManualClock(NOW_MS))
    await (await log.reader("", {})).close()
    assert Name.compared < 10_000
