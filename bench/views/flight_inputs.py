"""The views of the demo and one month of their inputs, as an engine takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
from ruamel.yaml import YAML

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import ColumnType, InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record
from tidemill_flights.prepare import DAY_MS, HOUR_MS, flight_rows, weather_rows
from tidemill_flights.raw import unpack

EXAMPLES = Path("examples/flights/resources")
REFERENCE: Mapping[str, tuple[str, ...]] = {
    "airlines": ("carrier", "name"),
    "airports": ("faa", "name"),
    "planes": ("tailnum", "manufacturer", "model", "seats"),
}
Inputs = Mapping[str, Sequence[Presence]]


def schemas() -> dict[str, InputSchema]:
    """The columns of the sources."""
    columns: dict[str, InputSchema] = {}
    for source in YAML(typ="safe").load_all(EXAMPLES / "sources.yaml"):
        name, spec = source["metadata"]["name"], source["spec"]
        kinds: list[tuple[str, ColumnType]] = [(c["name"], c["type"]) for c in spec["columns"]]
        kind = "events" if "eventTime" in spec else "relation"
        columns[name] = InputSchema(name, kind, tuple(kinds))  # type: ignore[arg-type]
    return columns


def programs() -> dict[str, CheckedProgram]:
    """The views by name, checked against their sources."""
    columns = schemas()
    return {
        view["metadata"]["name"]: check(parse(view["spec"]["program"]), InputSchemas(columns))
        for view in YAML(typ="safe").load_all(EXAMPLES / "views.yaml")
    }


def inputs(directory: Path, months: int) -> Inputs:
    """Presences of flights and weather, and the reference data from just before the first of
    them.
    """
    raw = unpack(directory)
    found: dict[str, list[Presence]] = {"flights": [], "weather": []}
    columns = schemas()
    for name, rows, at, life in (
        ("flights", flight_rows(raw, months), "scheduled", DAY_MS),
        ("weather", weather_rows(raw, months), "hour", HOUR_MS),
    ):
        for row in rows:
            time = row[at]
            values = tuple(value_of(row[c], kind) for c, kind in columns[name].columns)
            record = Record(name, values, time, time + life)
            found[name].append(Presence(record, time, time + life))
    begin = min(presence.start for presence in found["flights"]) - HOUR_MS
    options = pa.csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    for name, names in REFERENCE.items():
        table = pyarrow.csv.read_csv(directory / f"{name}.csv", convert_options=options)
        rows_ = zip(*(table[column].to_pylist() for column in names), strict=True)
        found[name] = [Presence(Record(name, row), begin, END) for row in rows_]
    return found


def value_of(value: object, kind: ColumnType) -> Any:
    """A value in the type of its column."""
    return float(value) if kind == "float" and isinstance(value, int) else value
