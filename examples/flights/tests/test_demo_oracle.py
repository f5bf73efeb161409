"""The oracle agrees with a twin that loops over the raw rows as the programs read."""

from __future__ import annotations

import csv
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tidemill_flights import raw
from tidemill_flights.oracle import QUERIES, Oracle

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
DAYS = {("1", str(day)) for day in range(1, 5)}


def millis(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def whole(text: str) -> int | None:
    return None if text == "NA" else int(text)


def real(text: str) -> float | None:
    return None if text == "NA" else float(text)


def sliced(source: Path, target: Path) -> None:
    """The first days of the year of one raw file; the other files whole."""
    with source.open() as lines, target.open("w", newline="") as out:
        rows = csv.DictReader(lines)
        assert rows.fieldnames is not None
        writer = csv.DictWriter(out, rows.fieldnames)
        writer.writeheader()
        dated = "month" in rows.fieldnames
        writer.writerows(row for row in rows if not dated or (row["month"], row["day"]) in DAYS)


@pytest.fixture(scope="module")
def slice_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    whole_year = raw.unpack(tmp_path_factory.mktemp("year"))
    few_days = tmp_path_factory.mktemp("days")
    for name in ("flights", "weather", "airports", "airlines", "planes"):
        sliced(getattr(whole_year, name), few_days / f"{name}.csv")
    return few_days


class Twin:
    """Loops over the rows; obvious, slow, sharing nothing with the queries."""

    def __init__(self, directory: Path) -> None:
        def rows(name: str) -> list[dict[str, str]]:
            with (directory / f"{name}.csv").open() as lines:
                return list(csv.DictReader(lines))

        self.airports = {row["faa"]: row for row in rows("airports")}
        self.airlines = {row["carrier"]: row["name"] for row in rows("airlines")}
        self.planes = {row["tailnum"] for row in rows("planes")}
        self.weather = [row | {"at": millis(row["time_hour"])} for row in rows("weather")]
        self.reported = {(row["origin"], row["at"]) for row in self.weather}
        self.flights = [self.flight(row) for row in rows("flights")]

    def flight(self, row: dict[str, str]) -> dict[str, Any]:
        flight: dict[str, Any] = dict(row)
        flight["hour"] = millis(row["time_hour"])
        flight["at"] = flight["hour"] + int(row["minute"]) * MINUTE
        flight["late_out"], flight["late_in"] = whole(row["dep_delay"]), whole(row["arr_delay"])
        flight["plane"] = None if row["tailnum"] == "NA" else row["tailnum"]
        flight["left"] = flight["landed"] = None
        if flight["late_out"] is not None:
            flight["left"] = flight["at"] + flight["late_out"] * MINUTE
        if flight["left"] is not None and row["arr_time"] != "NA":
            zone = self.airports.get(row["dest"], {"tz": "-4"})["tz"]  # winter: no summer time yet
            clock = {
                name: int(row[name][:-2] or 0) * 60 + int(row[name][-2:])
                for name in ("dep_time", "arr_time")
            }
            utc_minutes = clock["arr_time"] - int(zone) * 60 - (clock["dep_time"] + 5 * 60)
            flight["landed"] = flight["left"] + utc_minutes % 1440 * MINUTE
        return flight

    def present(self, at: int) -> list[dict[str, Any]]:
        return [flight for flight in self.flights if flight["at"] <= at < flight["at"] + DAY]

    def in_weather(self, at: int) -> set[tuple[Any, ...]]:
        return {
            (
                flight["carrier"], int(flight["flight"]), flight["origin"], flight["dest"],
                flight["late_out"], real(report["temp"]), real(report["wind_speed"]),
                real(report["visib"]), max(flight["at"], report["at"]), report["at"] + HOUR,
            )
            for flight in self.present(at)
            for report in self.weather
            if report["at"] <= at < report["at"] + HOUR
            and (report["origin"], report["at"]) == (flight["origin"], flight["hour"])
        }  # fmt: skip

    def unreported(self, at: int) -> set[tuple[Any, ...]]:
        return {
            (
                flight["carrier"], int(flight["flight"]), flight["origin"],
                flight["at"], flight["at"] + DAY,
            )
            for flight in self.present(at)
            if (flight["origin"], flight["hour"]) not in self.reported
        }  # fmt: skip

    def mean_delay(self, at: int) -> set[tuple[Any, ...]]:
        groups: dict[tuple[str, int], list[int | None]] = defaultdict(list)
        for flight in self.flights:
            tick = flight["at"] // HOUR * HOUR + HOUR
            if tick <= at < tick + DAY:
                groups[self.airlines[flight["carrier"]], tick].append(flight["late_out"])
        rows = set()
        for (airline, tick), delays in groups.items():
            known = [delay for delay in delays if delay is not None]
            mean = sum(known) / len(known) if known else None
            rows.add((airline, tick - HOUR, tick + DAY, mean, len(known)))
        return rows

    def knock_on(self, at: int) -> set[tuple[Any, ...]]:
        return {row for row in self.knock_ons() if row[-2] <= at < row[-1]}

    def knock_ons(self) -> set[tuple[Any, ...]]:
        landings = [flight for flight in self.flights if (flight["late_in"] or 0) >= 15]
        return {
            (
                before["plane"], self.airports[before["dest"]]["name"], before["late_in"],
                after["carrier"], int(after["flight"]), after["origin"], after["late_out"],
                after["left"], after["left"] + DAY,
            )
            for before in landings
            for after in self.flights
            if after["plane"] == before["plane"]
            and (after["late_out"] or 0) >= 15
            and before["landed"] <= after["left"] < before["landed"] + 2 * HOUR
            and before["landed"] < before["at"] + DAY
            and after["left"] < after["at"] + DAY
            and before["dest"] in self.airports
        }  # fmt: skip

    def unregistered(self, at: int) -> set[tuple[Any, ...]]:
        return {
            (flight["plane"], flight["late_in"], flight["landed"], flight["landed"] + 2 * HOUR)
            for flight in self.flights
            if (flight["late_in"] or 0) >= 15
            and flight["landed"] <= at < flight["landed"] + 2 * HOUR
            and flight["landed"] < flight["at"] + DAY
            and flight["plane"] not in self.planes
        }

    def reach(self, at: int) -> set[tuple[Any, ...]]:
        """The widest path between two airports: the end of a path is the least end of its
        routes.
        """
        ends: dict[tuple[str, str], int] = {}
        for flight in self.flights:
            end = flight["at"] // DAY * DAY + 2 * DAY
            if flight["left"] is not None and flight["at"] <= at < end:
                route = (flight["origin"], flight["dest"])
                ends[route] = max(end, ends.get(route, 0))
        best = dict(ends)
        changed = True
        while changed:
            changed = False
            for (home, here), so_far in list(best.items()):
                for route, end in ends.items():
                    if here not in route:
                        continue
                    there = route[1] if here == route[0] else route[0]
                    if min(so_far, end) > best.get((home, there), 0):
                        best[home, there], changed = min(so_far, end), True
        return {(home, airport, 0, end) for (home, airport), end in best.items()}


INSTANTS = [
    millis("2013-01-01T12:00:00Z"),
    millis("2013-01-02T00:00:00Z"),
    millis("2013-01-02T23:17:23Z"),
    millis("2013-01-03T11:00:00Z"),
    millis("2013-01-04T20:59:59.999Z"),
]


@pytest.mark.parametrize("collection", list(QUERIES))
def test_every_view_agrees_with_its_twin_at_every_instant(
    slice_directory: Path, collection: str
) -> None:
    twin = Twin(slice_directory)
    found = 0
    with Oracle.over(slice_directory) as oracle:
        for at in INSTANTS:
            rows = oracle.rows(collection, at)
            assert set(rows) == getattr(twin, collection.split("/")[1])(at)
            assert len(set(rows)) == len(rows)
            found += len(rows)
    assert found > 0


def test_the_alarms_are_the_knock_ons_that_begin_below_the_upper(slice_directory: Path) -> None:
    every = Twin(slice_directory).knock_ons()
    with Oracle.over(slice_directory) as oracle:
        assert set(oracle.alarms(INSTANTS[-1])) == {
            row[:-1] for row in every if row[-2] < INSTANTS[-1]
        }
        assert oracle.alarms(0) == []


def test_no_flight_is_shorter_than_its_time_in_the_air(slice_directory: Path) -> None:
    with Oracle.over(slice_directory) as oracle:
        taxi = oracle.connection.execute(
            "select min(minutes - air_time), max(minutes - air_time) from flights"
        ).fetchone()
    assert taxi is not None
    assert 0 < taxi[0] <= taxi[1] < 240
