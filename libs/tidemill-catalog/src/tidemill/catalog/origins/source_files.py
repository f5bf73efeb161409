"""Files of sources: the files that a path stands for, and the names in their first lines."""

from __future__ import annotations

from pathlib import Path

from tidemill.catalog.origins.file_log import FileLog, FileRegistry, OneFile
from tidemill.catalog.origins.files import (
    LineFile,
    RowFile,
    csv_header,
)
from tidemill.catalog.origins.parquet_files import ParquetFile
from tidemill.catalog.store import Stored
from tidemill.errors import Unavailable, UsageError
from tidemill.runtime.clock import Clock
from tidemill.runtime.places import Files
from tidemill.runtime.places.files import names_many
from tidemill.runtime.resources import SourceSpec
from tidemill.runtime.resources.decoding import delimiter_of, has_header


def file_origin(
    stored: Stored, files: Files, clock: Clock, cells_max: int, registry: FileRegistry | None = None
) -> FileLog:
    """The files of a source as a log; several of them with a registry, else the first alone.

    A row group of Parquet has at most `cells_max` cells.
    """
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    assert spec.file is not None
    kind, delimiter = spec.file.format, delimiter_of(spec)
    columns = tuple(stored.resolved.get("header") or header_of(stored, files))

    def open_file(path: Path) -> RowFile:
        if kind == "parquet":
            return ParquetFile(path, cells_max, files)
        return LineFile(path, columns, delimiter, quoted=kind == "csv", files=files)

    path = spec.file.path
    if registry is not None and names_many(path):
        return FileLog(path, registry, open_file, clock, files)
    return FileLog(path, OneFile(first_file(path, files)), open_file, clock, files)


def first_file(path: str, files: Files) -> str:
    """The first file that a path stands for; the path itself if there is none."""
    found = files.matching(path)
    return found[0] if found else path


def header_of(stored: Stored, files: Files) -> list[str]:
    """The names in the first line of a CSV file; none for other sources. Raises: UsageError."""
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    if spec.file is None or not has_header(spec):
        return []
    path = Path(first_file(spec.file.path, files))
    try:
        names = csv_header(path, delimiter_of(spec), files)
    except Unavailable as error:
        raise UsageError(f"{stored.resource}: {error}", reason="FileMissing") from error
    if names is None:
        raise UsageError(
            f"{stored.resource}: the file {path} has no first line yet to name its columns",
            reason="NoHeader",
        )
    missing = [column.name for column in spec.columns if column.name not in names]
    if missing:
        raise UsageError(
            f"{stored.resource}: the file {spec.file.path} has the columns {', '.join(names)}, "
            f"not {', '.join(missing)}",
            reason="ColumnsMissing",
        )
    return names
