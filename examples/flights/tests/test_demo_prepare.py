"""The preparation keeps every row, its time in UTC, and the bounds it promises."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from random import Random

import msgspec
import pyarrow.csv
import pyarrow.parquet
import pytest

from tidemill_flights.prepare import (
    SKEW_MS,
    Arrivals,
    Row,
    arrivals,
    flight_rows,
    weather_rows,
    write_reference,
)
from tidemill_flights.raw import RawFiles

FLIGHTS = """\
year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour
2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z
2013,1,1,NA,2100,NA,NA,2240,NA,AA,791,NA,LGA,DFW,NA,1389,21,0,2013-01-02T02:00:00Z
2013,7,1,2355,2359,-4,341,344,-3,B6,745,N789JB,JFK,PSE,200,1617,23,59,2013-07-02T03:00:00Z
2013,7,1,2230,2200,30,2345,2315,30,B6,1,N789JB,JFK,PHX,240,2153,22,0,2013-07-02T02:00:00Z
"""
WEATHER = """\
origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour
EWR,2013,1,1,1,39.02,26.06,59.37,270,10.3,NA,0,1012,10,2013-01-01T06:00:00Z
EWR,2013,7,1,2,NA,26.96,61.63,250,8.0,NA,0.1,NA,0.25,2013-07-01T06:00:00Z
"""
AIRPORTS = """\
faa,name,lat,lon,alt,tz,dst,tzone
IAH,George Bush Intercontinental,29.9,-95.3,97,-6,A,America/Chicago
DFW,Dallas Fort Worth Intl,32.8,-97.0,607,-6,A,America/Chicago
PHX,Phoenix Sky Harbor Intl,33.4,-112.0,1135,-7,N,America/Phoenix
"""
AIRLINES = "carrier,name\nUA,United Air Lines Inc.\n"
PLANES = """\
tailnum,year,type,manufacturer,model,engines,seats,speed,engine
N14228,1999,Fixed wing multi engine,BOEING,737-824,2,149,NA,Turbo-fan
"""


def millis(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.fixture
def raw(tmp_path: Path) -> RawFiles:
    texts = {
        "flights": FLIGHTS,
        "weather": WEATHER,
        "airports": AIRPORTS,
        "airlines": AIRLINES,
        "planes": PLANES,
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.csv").write_text(text)
    return RawFiles(**{name: tmp_path / f"{name}.csv" for name in texts})


def many(count: int) -> list[Row]:
    return [
        {"at": 1_000_000_000 + index * 60_000, "hour": 0, "origin": "EWR", "plane": f"N{index % 7}"}
        for index in range(count)
    ]


def arrive(rows: list[Row], broken: int, seed: int = 1) -> Arrivals:
    return arrivals("t", 4, rows, time="at", key="plane", broken=broken, rng=Random(seed))


def test_a_flight_carries_the_instants_at_which_it_left_and_landed(raw: RawFiles) -> None:
    rows = {row["flight"]: row for row in flight_rows(raw)}
    assert rows[1545] == {
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "dep_delay": 2,
        "arr_delay": 11,
        "hour": millis("2013-01-01T10:00Z"),
        "scheduled": millis("2013-01-01T10:15Z"),
        "departure": millis("2013-01-01T10:17Z"),
        "arrival": millis("2013-01-01T14:30Z"),
    }


def test_a_cancelled_flight_has_neither_and_may_have_no_plane(raw: RawFiles) -> None:
    rows = {row["flight"]: row for row in flight_rows(raw)}
    absent = [name for name in rows[791] if name != "scheduled" and rows[791][name] is None]
    assert absent == ["tailnum", "dep_delay", "arr_delay", "departure", "arrival"]


@pytest.mark.parametrize(
    ("flight", "arrival"),
    [(745, "2013-07-02T07:41Z"), (1, "2013-07-02T06:45Z")],
    ids=["puerto rico, the next day", "arizona keeps no summer time"],
)
def test_local_clocks_are_read_in_their_own_zone(raw: RawFiles, flight: int, arrival: str) -> None:
    rows = {row["flight"]: row for row in flight_rows(raw)}
    assert rows[flight]["arrival"] == millis(arrival)


def test_the_first_months_alone_are_kept(raw: RawFiles) -> None:
    assert {row["flight"] for row in flight_rows(raw, months=6)} == {1545, 791}
    assert len(weather_rows(raw, months=6)) == 1


def test_missing_weather_values_stay_missing(raw: RawFiles) -> None:
    assert weather_rows(raw)[1] == {
        "origin": "EWR",
        "hour": millis("2013-07-01T06:00Z"),
        "temp": None,
        "wind_speed": 8.0,
        "precip": 0.1,
        "visib": 0.25,
    }


def test_the_same_seed_gives_the_same_records() -> None:
    assert arrive(many(100), 7) == arrive(many(100), 7)
    assert arrive(many(100), 7) != arrive(many(100), 7, seed=2)


def test_every_row_arrives_once_beside_the_broken_ones() -> None:
    fed = arrive(many(100), 7)
    assert (len(fed), len(fed.broken)) == (107, 7)
    assert set(fed.broken) <= set(fed.values)
    read = []
    for value in fed.values:
        try:
            row = msgspec.json.decode(value)
        except msgspec.DecodeError:
            continue
        if "origin" in row and isinstance(row["hour"], int):
            read.append(row)
    assert sorted(read, key=lambda row: row["at"]) == many(100)


def test_rows_arrive_out_of_order_and_never_late() -> None:
    fed = arrive(many(500), 0)
    times = [msgspec.json.decode(value)["at"] for value in fed.values]
    assert times != sorted(times)
    latest = 0
    for time in times:
        assert time >= latest - SKEW_MS
        latest = max(latest, time)


def test_the_backlog_ends_where_arrivals_reach_an_instant() -> None:
    fed = arrive(many(50), 0)
    cut = fed.before(fed.at_ms[20])
    assert fed.at_ms[cut] == fed.at_ms[20]
    assert all(at < fed.at_ms[20] for at in fed.at_ms[:cut])


def test_reference_files_hold_the_named_columns(raw: RawFiles, tmp_path: Path) -> None:
    write_reference(raw, tmp_path / "data")
    assert pyarrow.csv.read_csv(tmp_path / "data" / "airlines.csv").to_pylist() == [
        {"carrier": "UA", "name": "United Air Lines Inc."}
    ]
    assert pyarrow.csv.read_csv(tmp_path / "data" / "airports.csv").column_names == ["faa", "name"]
    assert pyarrow.parquet.read_table(tmp_path / "data" / "planes.parquet").to_pylist() == [
        {"tailnum": "N14228", "manufacturer": "BOEING", "model": "737-824", "seats": 149}
    ]
