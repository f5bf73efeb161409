"""The input of the demo: records for two topics of the log, and files of reference data.

Every row of the raw files becomes one JSON record. Event times are UTC: a flight happens at its
scheduled departure, a weather report at its hour. Records arrive out of order, each less than
`SKEW_MS` after its time, and a known number of broken ones is mixed in.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random  # noqa: TID251 - as a type; the caller seeds it
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from tidemill_flights.raw import RawFiles

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SKEW_MS = HOUR_MS
"""No record arrives this long after its time."""

NEW_YORK_HOURS = -5
SUMMER_2013 = (310, 1103)
"""Month and day at which summer time begins and ends, where it is kept."""

PUERTO_RICO = {"BQN", "PSE", "SJU", "STT"}
"""Destinations that the airports file does not know: UTC-4, no summer time."""

Row: TypeAlias = dict[str, Any]  # a JSON object: its values differ by column
Breakage: TypeAlias = Callable[[Row], bytes]
Whole: TypeAlias = npt.NDArray[np.int64]
Real: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The records of one topic in the order in which they arrive; `broken` cannot be read."""

    topic: str
    partitions: int
    at_ms: Sequence[int]
    keys: Sequence[bytes]
    values: Sequence[bytes]
    broken: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.at_ms)

    def before(self, at_ms: int) -> int:
        """Number of records that arrive before `at_ms`."""
        return bisect_left(self.at_ms, at_ms)


def _read(path: Path, columns: Mapping[str, pa.DataType]) -> pa.Table:
    return pyarrow.csv.read_csv(
        path,
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict(columns),
            include_columns=list(columns),
            null_values=["NA"],
            strings_can_be_null=True,
        ),
    )


def _whole(table: pa.Table, name: str) -> Whole:
    return np.asarray(table[name].to_numpy(), dtype=np.int64)


def _real(table: pa.Table, name: str) -> Real:
    return np.asarray(table[name].to_numpy(), dtype=np.float64)  # NaN where missing


def _texts(table: pa.Table, name: str) -> list[str]:
    return [str(text) for text in table[name].to_pylist()]


def _millis(table: pa.Table, name: str) -> Whole:
    times = table[name].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    return np.asarray(times.to_numpy(), dtype=np.int64)


def _minutes(hhmm: Real) -> Real:
    return hhmm // 100 * 60 + hhmm % 100


def hours_ahead_of_new_york(airports: pa.Table, dest: Sequence[str], day: Whole) -> Whole:
    """Hours by which the clock at `dest` is ahead of New York's, on a day written month * 100 +
    day.

    New York keeps summer time; a destination does if the airports file says `A`.
    """
    known = zip(
        _texts(airports, "faa"), _whole(airports, "tz"), _texts(airports, "dst"), strict=True
    )
    zones = {faa: (int(hours), dst == "A") for faa, hours, dst in known}
    zones |= dict.fromkeys(PUERTO_RICO, (-4, False))
    ahead = np.array([zones[name][0] - NEW_YORK_HOURS for name in dest], dtype=np.int64)
    keeps = np.array([zones[name][1] for name in dest], dtype=bool)
    summer = (day >= SUMMER_2013[0]) & (day < SUMMER_2013[1])
    return np.asarray(ahead - (summer & ~keeps), dtype=np.int64)


def _instants(times: Real) -> list[int | None]:
    return [None if at != at else int(at) for at in times.tolist()]


def flight_rows(raw: RawFiles, months: int = 12) -> list[Row]:
    """The flights of the first `months`, by scheduled departure; left and landed in UTC too."""
    whole, text, time = pa.int64(), pa.string(), pa.timestamp("s", "UTC")
    table = _read(
        raw.flights,
        {
            "month": whole, "day": whole, "dep_time": whole, "dep_delay": whole, "arr_time": whole,
            "arr_delay": whole, "carrier": text, "flight": whole, "tailnum": text, "origin": text,
            "dest": text, "minute": whole, "time_hour": time,
        },
    ).filter(pc.field("month") <= months)  # fmt: skip
    airports = _read(raw.airports, {"faa": text, "tz": whole, "dst": text})
    hour = _millis(table, "time_hour")
    scheduled = hour + _whole(table, "minute") * 60_000
    day = _whole(table, "month") * 100 + _whole(table, "day")
    ahead = hours_ahead_of_new_york(airports, _texts(table, "dest"), day)
    clocks = _minutes(_real(table, "arr_time")) - _minutes(_real(table, "dep_time"))
    departure = scheduled + _real(table, "dep_delay") * 60_000
    arrival = departure + (clocks - 60 * ahead) % (24 * 60) * 60_000
    columns: dict[str, list[Any]] = {  # values of several types
        name: table[name].to_pylist()
        for name in ("carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay")
    }
    columns["hour"] = hour.tolist()
    columns["scheduled"] = scheduled.tolist()
    columns["departure"] = _instants(departure)
    columns["arrival"] = _instants(arrival)
    names = tuple(columns)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    rows.sort(key=lambda row: (row["scheduled"], row["carrier"], row["flight"]))
    return rows


def weather_rows(raw: RawFiles, months: int = 12) -> list[Row]:
    """The hourly weather of the first `months` at the three airports, by hour."""
    whole, real, text = pa.int64(), pa.float64(), pa.string()
    table = _read(
        raw.weather,
        {
            "origin": text, "month": whole, "temp": real, "wind_speed": real, "precip": real,
            "visib": real, "time_hour": pa.timestamp("s", "UTC"),
        },
    ).filter(pc.field("month") <= months)  # fmt: skip
    hours = pa.array(_millis(table, "time_hour"))
    table = table.drop_columns(["month", "time_hour"]).append_column("hour", hours)
    rows: list[Row] = table.sort_by([("hour", "ascending"), ("origin", "ascending")]).to_pylist()
    return rows


def _cut_short(row: Row) -> bytes:
    return msgspec.json.encode(row)[:-7]


def _of_wrong_type(row: Row) -> bytes:
    return msgspec.json.encode(row | {"hour": "about noon"})


def _without_origin(row: Row) -> bytes:
    return msgspec.json.encode({name: value for name, value in row.items() if name != "origin"})


BREAKAGES: tuple[Breakage, ...] = (_cut_short, _of_wrong_type, _without_origin)


def arrivals(
    topic: str,
    partitions: int,
    rows: Iterable[Row],
    *,
    time: str,
    key: str,
    broken: int,
    rng: Random,
) -> Arrivals:
    """Each row as a record that arrives less than `SKEW_MS` after its time, and `broken` more.

    The broken records cannot be read. They are copies of rows: cut short, with a text for a whole
    number, or without their column `origin`, in turn. The same `rng` gives the same records.
    """
    encode = msgspec.json.encode
    arriving: list[tuple[int, bytes, bytes]] = []
    unreadable: list[bytes] = []
    kept = list(rows)
    for row in kept:
        at = row[time] + int(rng.random() * SKEW_MS)
        arriving.append((at, (row[key] or "").encode(), encode(row)))
    for index in range(broken if kept else 0):
        row = kept[rng.randrange(len(kept))]
        at = row[time] + int(rng.random() * SKEW_MS)
        unreadable.append(BREAKAGES[index % len(BREAKAGES)](row))
        arriving.append((at, (row[key] or "").encode(), unreadable[-1]))
    arriving.sort()
    return Arrivals(
        topic=topic,
        partitions=partitions,
        at_ms=[at for at, _, _ in arriving],
        keys=[key for _, key, _ in arriving],
        values=[value for _, _, value in arriving],
        broken=unreadable,
    )


def write_reference(raw: RawFiles, directory: Path) -> None:
    """Write airlines.csv, airports.csv and planes.parquet: the columns that the resources name."""
    directory.mkdir(parents=True, exist_ok=True)
    text, whole = pa.string(), pa.int64()
    airlines = _read(raw.airlines, {"carrier": text, "name": text})
    airports = _read(raw.airports, {"faa": text, "name": text})
    planes = _read(
        raw.planes, {"tailnum": text, "manufacturer": text, "model": text, "seats": whole}
    )
    pyarrow.csv.write_csv(airlines, directory / "airlines.csv")
    pyarrow.csv.write_csv(airports, directory / "airports.csv")
    pyarrow.parquet.write_table(planes, directory / "planes.parquet")
