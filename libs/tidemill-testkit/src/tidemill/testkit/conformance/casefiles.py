"""Find and read case files: JSON for the core, YAML 1.2 for the language."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tidemill.testkit.conformance.values import Json


@dataclass(frozen=True, slots=True)
class FoundCase:
    """One case as its file has it, with the name it is reported by."""

    name: str
    case: Json
    covers: str | None = None  # language cases are reported at length, under what they cover


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A path that gives no cases; it counts as one failure."""

    name: str
    problem: str


def find_cases(paths: Iterable[Path]) -> Iterator[FoundCase | Unreadable]:
    """All cases of the files in `paths`; in folders of all files below that end as case files do.

    Files come in the order of their names; what cannot be read comes in its place.
    """
    for path in paths:
        if path.is_dir():
            below = [file for file in path.rglob("*") if file.suffix in (".json", ".yaml")]
            for file in sorted(file for file in below if file.is_file()):
                yield from _cases_of(file)
        else:
            yield from _cases_of(path)


def _cases_of(file: Path) -> Iterator[FoundCase | Unreadable]:
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix in (".yaml", ".yml"):
            yield from _language_cases(file, _read_yaml(text))
        else:
            yield from _core_cases(file, _read_json(text))
    except (OSError, ValueError, YAMLError, RecursionError) as error:
        yield Unreadable(str(file), f"cannot be read: {error}")


def _read_json(text: str) -> Json:
    # Decimal keeps a float from being taken for a whole number; cases have none.
    return json.loads(text, parse_float=Decimal)


def _read_yaml(text: str) -> Json:
    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 2)
    return reader.load(text)


def _core_cases(file: Path, content: Json) -> Iterator[FoundCase]:
    cases = content.get("cases") if isinstance(content, dict) else None
    if not isinstance(cases, list):
        raise ValueError('not an object with a list "cases"')
    for number, case in enumerate(cases, 1):
        yield FoundCase(_name(file, number, case), case)


def _language_cases(file: Path, content: Json) -> Iterator[FoundCase]:
    if not isinstance(content, list):
        raise ValueError("not a list of cases")
    for number, case in enumerate(content, 1):
        covers = case.get("covers", "") if isinstance(case, dict) else ""
        yield FoundCase(_name(file, number, case), case, str(covers))


def _name(file: Path, number: int, case: Json) -> str:
    name = case.get("id") if isinstance(case, dict) else None
    return name if isinstance(name, str) else f"{file}: case {number}"
