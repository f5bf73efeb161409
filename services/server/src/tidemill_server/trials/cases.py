"""Case files: given rows, and what views and actions make of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tidemill.catalog.apply.check import CASE_ENDING
from tidemill.errors import UsageError
from tidemill.runtime.documents import Document, parse_yaml
from tidemill.runtime.problems import FieldPath, Position, text_of
from tidemill.runtime.resources import Resource, load_resources
from tidemill_server.trials.row_texts import number_of


class Strict(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A mapping of a case file: keys that nobody knows are refused."""


class Absent(Strict, frozen=True, kw_only=True):
    """A record that is not there, and the cause of one of its reasons, if the case names one."""

    record: str
    as_of: int
    because: str = ""


class Expected(Strict, frozen=True, kw_only=True):
    """Expectations of a case; a part that is left out is not compared.

    `as_of` maps an instant to goals with all of their records.
    """

    as_of: dict[str, dict[str, list[str]]] = {}
    fires: dict[str, list[str]] = {}
    corrections: dict[str, list[str]] = {}
    refused: dict[str, list[dict[str, Any]]] = {}
    absent: list[Absent] = []


class Case(Strict, frozen=True, kw_only=True):
    """Rows by source or table, in the order of their arrival, and the answers."""

    name: str
    given: dict[str, list[dict[str, Any]]]
    expect: Expected


class CaseDocument(Strict, frozen=True, kw_only=True):
    """One case file; `resources` are paths relative to it."""

    resources: list[str] = []
    cases: list[Case]


@dataclass(frozen=True, slots=True)
class CaseFile:
    """A case file with its resources read."""

    path: Path
    resources: Sequence[Resource]
    cases: Sequence[tuple[Position, Case]]


def case_files(paths: Sequence[Path]) -> list[Path]:
    """Case files as they are named, and those in folders. Raises: UsageError if there is none."""
    found: list[Path] = []
    for path in paths:
        found += sorted(path.rglob(f"*{CASE_ENDING}")) if path.is_dir() else [path]
    if not found:
        raise UsageError(
            f"there is no case file: write one whose name ends in {CASE_ENDING}", reason="file"
        )
    return found


def load_cases(path: Path) -> CaseFile:
    """Cases and resources of one file. Raises: UsageError with the place of the mistake."""
    documents, problems = parse_yaml(text_of(path), str(path), floats=number_of)
    if problems:
        raise UsageError("\n".join(map(str, problems)), reason="yaml")
    if len(documents) != 1:
        raise UsageError(f"{path}: a case file is one document", reason="yaml")
    (document,) = documents
    try:
        told = msgspec.convert(document.value, CaseDocument)
    except msgspec.ValidationError as error:
        raise _refusal(document, error) from None
    places = [document.position(("cases", n, "name")) for n in range(len(told.cases))]
    cases = tuple(zip(places, told.cases, strict=True))
    return CaseFile(path, tuple(_resources(path, told.resources)), cases)


def _resources(path: Path, named: Sequence[str]) -> Iterator[Resource]:
    """Resources that a file names; without names those beside it that are no case files."""
    files = [path.parent / name for name in named] or [
        file for file in sorted(path.parent.glob("*.y*ml")) if not file.name.endswith(CASE_ENDING)
    ]
    for file in files:
        yield from load_resources(text_of(file), str(file))


_STEP = re.compile(r"\.(\w+)|\[(\d+)\]|\[\.\.\.\]")


def _refusal(document: Document, error: msgspec.ValidationError) -> UsageError:
    says, _, where = str(error).partition(" - at `$")
    path: FieldPath = tuple(
        name or int(number) for name, number in _STEP.findall(where) if name or number
    )
    return UsageError(f"{document.position(path)}: {says}", reason="case")


def wrapped(row: Mapping[str, Any], columns: Sequence[str]) -> bool:
    """Whether a row is written as {row: {…}, from: T, until: T, partition: N}."""
    return set(row) <= {"row", "from", "until", "partition"} and "row" in row and (
        "row" not in columns and isinstance(row["row"], Mapping)
    )  # fmt: skip
