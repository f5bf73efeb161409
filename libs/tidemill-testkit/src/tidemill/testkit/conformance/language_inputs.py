"""The inputs of language cases: catalogues, presences, and the comparison of text lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.column_types import literal_type, unite
from tidemill.datalog.inputs import ColumnType, InputKind, InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import (
    Instant,
    Presence,
)
from tidemill.datalog.records import Record, Value, format_presence, parse_record
from tidemill.datalog.values import widen
from tidemill.testkit.conformance.language_reject import schema_inputs
from tidemill.testkit.conformance.values import CaseError, Json
from tidemill.testkit.row_presences import NegativeMultiplicity, row_presences
from tidemill.time import normal
from tidemill.time.typed import READ

Fed = Mapping[str, Sequence[tuple[Value, ...]]]  # rows by predicate, to see types
Delivery: TypeAlias = "tuple[Instant, Mapping[str, Sequence[Presence]]]"
"""A step of the input: everything below the instant is definite, then these facts are known."""


@dataclass(frozen=True, slots=True)
class InputError:
    """The input that is refused, by the row whose multiplicity goes below zero first."""

    predicate: str
    row: tuple[Value, ...]
    time: int


def only_keys(case: Mapping[str, Json], *allowed: str) -> None:
    """Raises: CaseError if the case has a key that its kind does not know."""
    known = {"id", "kind", "covers", "program", "res", "features", "schema", "strata", *allowed}
    unknown = [key for key in case if key not in known]
    if unknown:
        raise CaseError(f"unknown key {unknown[0]!r}")
    if "program" not in case:
        raise CaseError("the case has no program")


def only_fields(written: Mapping[str, Json], *allowed: str) -> None:
    """Raises: CaseError if a part of a case has a field that it must not have."""
    unknown = [field for field in written if field not in allowed]
    if unknown:
        raise CaseError(f"unknown field {unknown[0]!r}")


def value_of(written: Json) -> Value:
    """A value of a row as evaluation takes it. Raises: CaseError."""
    if isinstance(written, str):
        return normal(written)
    if written is None or isinstance(written, bool | int | float):
        return written
    raise CaseError(f"not a value: {written!r}")


def row_of(written: Json) -> tuple[Value, ...]:
    """A row as evaluation takes it. Raises: CaseError."""
    if not isinstance(written, list | tuple):
        raise CaseError(f"not a row: {written!r}")
    return tuple(map(value_of, written))


def record_of(written: Json) -> Record:
    """The record that a text writes. Raises: CaseError."""
    if not isinstance(written, str):
        raise CaseError(f"not a record: {written!r}")
    return parse_record(written)


def check_program(
    case: Mapping[str, Json], fed: Fed, kinds: Mapping[str, InputKind], default: InputKind
) -> CheckedProgram:
    """The case's program, checked against its schema or against what it feeds."""
    if "schema" in case:
        inputs = schema_inputs(case["schema"])
    else:
        schemas = {
            name: InputSchema(name, kinds.get(name, default), _columns(rows))
            for name, rows in fed.items()
            if rows
        }
        inputs = InputSchemas(schemas, closed=False, default_kind=default)
    return check(parse(case["program"]), inputs)


def _columns(rows: Sequence[tuple[Value, ...]]) -> tuple[tuple[str, ColumnType], ...]:
    arity = max(map(len, rows))
    return tuple(
        ("", _least_type([row[at] for row in rows if at < len(row)])) for at in range(arity)
    )


def _least_type(values: Iterable[Value]) -> ColumnType:
    """The least type that holds all values, `any` where only nulls are known."""
    kinds: set[ColumnType] = set()
    for value in values:
        if isinstance(value, bool):
            kinds.add("bool")
        elif isinstance(value, int):
            kinds.add("int")
        elif isinstance(value, float):
            kinds.add("int" if math.isinf(value) else "float")
        elif isinstance(value, str):
            kinds.add("text")
        elif value is not None:
            kinds.add(literal_type(value))
    least: ColumnType | None = "any"
    for kind in kinds:
        least = None if least is None else unite(least, kind)
    return least or "any"


def coerced(checked: CheckedProgram, predicate: str, row: tuple[Value, ...]) -> tuple[Value, ...]:
    """The row in the types of the predicate's columns; other types are written as texts."""
    kinds = [kind for _, kind in checked.columns.get(predicate, ())]
    return tuple(
        _coerced(value, kinds[at] if at < len(kinds) else "any") for at, value in enumerate(row)
    )


def _coerced(value: Value, kind: ColumnType) -> Value:
    if kind == "float":
        return widen(value)
    read = READ.get(kind.partition("(")[0])
    if read is None or not isinstance(value, str):
        return value
    found = read(value)
    if found is None:
        raise CaseError(f"not a {kind}: {value!r}")
    return found


class Updates:
    """The `updates` of a case: relations with exact instants, event streams with records."""

    def __init__(self, written: Mapping[str, Json], schema: Mapping[str, Json] | None) -> None:
        self.kinds: dict[str, InputKind] = {}
        self._rows: dict[str, list[tuple[tuple[Value, ...], int, int]]] = {}
        self._records: dict[str, list[Record]] = {}
        for name, entries in written.items():
            declared = (schema or {}).get(name, {}).get("kind")
            if declared == "events" or any(isinstance(entry, str) for entry in entries):
                self.kinds[name] = "events"
                self._records[name] = [self._record(name, entry) for entry in entries]
            else:
                self.kinds[name] = "relation"
                self._rows[name] = [self._update(entry) for entry in entries]

    @staticmethod
    def _record(name: str, entry: Json) -> Record:
        record = record_of(entry)
        if record.predicate != name or record.time is None:
            raise CaseError(f"not an event of {name}: {entry!r}")
        return record

    @staticmethod
    def _update(entry: Json) -> tuple[tuple[Value, ...], int, int]:
        if not isinstance(entry, list | tuple) or len(entry) != 3:
            raise CaseError(f"not a [row, time, diff]: {entry!r}")
        return row_of(entry[0]), int(entry[1]), int(entry[2])

    @property
    def fed(self) -> Fed:
        """All rows, to see the types of columns."""
        rows = {name: [row for row, _, _ in updates] for name, updates in self._rows.items()}
        return rows | {
            name: [record.arguments for record in records]
            for name, records in self._records.items()
        }

    def presences(
        self, checked: CheckedProgram, upper: float
    ) -> dict[str, list[Presence]] | InputError:
        """When every input fact is present, or the first input that is refused."""
        found: dict[str, list[Presence]] = {}
        wrong: InputError | None = None
        for name, updates in self._rows.items():
            typed = [(coerced(checked, name, row), time, diff) for row, time, diff in updates]
            stretches = row_presences(typed, upper)
            if isinstance(stretches, NegativeMultiplicity):
                if wrong is None or stretches.time < wrong.time:
                    wrong = InputError(name, stretches.row, stretches.time)  # type: ignore[arg-type]
                continue
            found[name] = [
                Presence(Record(name, row), start, end)  # type: ignore[arg-type]
                for row, intervals in stretches.items()
                for start, end in intervals
            ]
        for name, records in self._records.items():
            found[name] = [_of_event(record) for record in records]
        return found if wrong is None else wrong


def _of_event(record: Record) -> Presence:
    assert record.time is not None
    end = math.inf if record.expires is None else record.expires
    return Presence(record, record.time, end)


def known_inputs(
    checked: CheckedProgram, presences: Mapping[str, list[Presence]]
) -> dict[str, list[Presence]]:
    """The presences of predicates that the program knows; a case may feed others."""
    return {name: found for name, found in presences.items() if name in checked.columns}


def presence_lines(presences: Iterable[Presence]) -> list[str]:
    """Presences as cases write them."""
    return [format_presence(p.record, p.start, p.end) for p in presences]


def compare_sets(field: str, expected: Iterable[str], found: Iterable[str]) -> list[str]:
    """Lines expected and missing (`- `), present and not expected (`+ `); order has no meaning."""
    wanted, got = set(expected), set(found)
    if wanted == got:
        return []
    return [
        f"{field}:",
        *(f"- {line}" for line in sorted(wanted - got)),
        *(f"+ {line}" for line in sorted(got - wanted)),
    ]


def compare_lists(field: str, expected: Sequence[Any], found: Sequence[Any]) -> list[str]:
    """Differences of fields whose order has a meaning; else as `compare_sets` gives them."""
    if list(expected) == list(found):
        return []
    return [
        f"{field}:",
        *(f"- {line}" for line in expected if line not in found),
        *(f"+ {line}" for line in found if line not in expected),
        *([f"- {list(expected)}", f"+ {list(found)}"] if _same(expected, found) else []),
    ]


def _same(expected: Sequence[Any], found: Sequence[Any]) -> bool:
    """Whether only order or number differ."""
    return all(line in found for line in expected) and all(line in expected for line in found)


def strata_differences(case: Mapping[str, Json], checked: CheckedProgram) -> list[str]:
    """Expected strata that the program does not have."""
    return [
        line
        for predicate, wanted in case.get("strata", {}).items()
        for line in compare_lists(
            f"strata.{predicate}", [wanted], [checked.strata.get(predicate, 0)]
        )
    ]
