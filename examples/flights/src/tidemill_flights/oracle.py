"""The contents of the demo's views, recomputed by DuckDB from the raw files.

No code of Tidemill takes part: for one instant the queries state the meaning of the programs in
`examples/flights/resources/views.yaml`. `$at` is the instant. A flight is present from its
scheduled departure for a day, a weather report from its hour for an hour.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import duckdb

Cell: TypeAlias = Any  # a value of a row: text, whole number, float or None
Rows: TypeAlias = list[tuple[Cell, ...]]

FRAMES = """
create table airports as select * from read_csv($airports, nullstr = 'NA');
create table airlines as select * from read_csv($airlines, nullstr = 'NA');
create table planes as select * from read_csv($planes, nullstr = 'NA');
create table weather as
  select *, epoch_ms(time_hour) as hour_ms
  from read_csv($weather, nullstr = 'NA') where month <= $months;
create table flights as
  with raw as (
    select *, epoch_ms(time_hour) as hour_ms, epoch_ms(time_hour) + minute * 60000 as scheduled,
      make_date(2013, month, day) >= date '2013-03-10'
        and make_date(2013, month, day) < date '2013-11-03' as summer
    from read_csv($flights, nullstr = 'NA') where month <= $months),
  clocks as (
    select r.*,
      coalesce(a.tz, -4) + case when summer and a.dst = 'A' then 1 else 0 end
        - (-5 + case when summer then 1 else 0 end) as ahead
    from raw r left join airports a on a.faa = r.dest),
  flown as (
    select *, scheduled + dep_delay * 60000 as departure,
      ((arr_time // 100 * 60 + arr_time % 100) - (dep_time // 100 * 60 + dep_time % 100)
        - 60 * ahead + 2880) % 1440 as minutes
    from clocks)
  select *, departure + minutes * 60000 as arrival from flown;
"""

IN_WEATHER = """
select f.carrier, f.flight, f.origin, f.dest, f.dep_delay, w.temp, w.wind_speed, w.visib,
  f.scheduled as time, w.hour_ms + 3600000 as expires
from flights f join weather w on w.origin = f.origin and w.hour_ms = f.hour_ms
where f.scheduled <= $at and $at < w.hour_ms + 3600000
"""

UNREPORTED = """
select f.carrier, f.flight, f.origin, f.scheduled as time, f.scheduled + 86400000 as expires
from flights f
where f.scheduled <= $at and $at < f.scheduled + 86400000
  and not exists (from weather w where w.origin = f.origin and w.hour_ms = f.hour_ms)
"""

MEAN_DELAY = """
select a.name, f.hour_ms as time, f.hour_ms + 90000000 as expires,
  avg(f.dep_delay) as average, count(f.dep_delay) as count
from flights f join airlines a using (carrier)
where f.hour_ms + 3600000 <= $at and $at < f.hour_ms + 90000000
group by a.name, f.hour_ms
"""

LATE = """
with landed as (
  select tailnum, dest, arr_delay, greatest(arrival, scheduled) as starts, arrival
  from flights where arr_delay >= 15 and arrival < scheduled + 86400000),
left_late as (
  select tailnum, carrier, flight, origin, dep_delay, departure
  from flights where dep_delay >= 15 and departure < scheduled + 86400000)
"""

KNOCK_ON = f"""
{LATE}
select a.tailnum, p.name, a.arr_delay, d.carrier, d.flight, d.origin, d.dep_delay,
  d.departure as time, d.departure + 86400000 as expires
from landed a
join left_late d on d.tailnum is not distinct from a.tailnum
  and a.starts <= d.departure and d.departure < a.arrival + 7200000
join airports p on p.faa = a.dest
"""

UNREGISTERED = f"""
{LATE}
select tailnum, arr_delay, arrival as time, arrival + 7200000 as expires
from landed
where starts <= $at and $at < arrival + 7200000
  and not exists (from planes p where p.tailnum is not distinct from landed.tailnum)
"""

REACH = """
with recursive recent as (
  select origin, dest, scheduled >= $at - $at % 86400000 as today
  from flights
  where dep_delay is not null and scheduled <= $at
    and scheduled >= $at - $at % 86400000 - 86400000),
steps as (
  select origin as a, dest as b, today from recent
  union select dest, origin, today from recent),
reached(home, airport, today) as (
  select origin, dest, today from recent
  union
  select r.home, s.b, r.today and s.today from reached r join steps s on s.a = r.airport)
select home, airport, 0 as time,
  $at - $at % 86400000 + case when bool_or(today) then 172800000 else 86400000 end as expires
from reached group by home, airport
"""

QUERIES = {
    "weather-at-departure/in_weather": IN_WEATHER,
    "weather-at-departure/unreported": UNREPORTED,
    "punctuality/mean_delay": MEAN_DELAY,
    "knock-ons/knock_on": f"{KNOCK_ON} where d.departure <= $at and $at < d.departure + 86400000",
    "knock-ons/unregistered": UNREGISTERED,
    "network/reach": REACH,
}
"""For each collection of the views its rows at `$at`: columns, then time, expires, other lattices.
"""


@dataclass(frozen=True, slots=True)
class Oracle:
    """Answers over the raw files of one directory, limited to the first `months` of the year."""

    connection: duckdb.DuckDBPyConnection

    @classmethod
    def over(cls, directory: Path, months: int = 12) -> Oracle:
        """Read the five raw files of `directory`; takes about a second for the whole year."""
        connection = duckdb.connect(":memory:", config={"threads": 2})
        for statement in FRAMES.split(";"):
            if not statement.strip():
                continue
            bound: dict[str, object] = {
                name: str(directory / f"{name}.csv")
                for name in ("airports", "airlines", "planes", "weather", "flights")
                if f"${name}" in statement
            }
            if "$months" in statement:
                bound["months"] = months
            connection.execute(statement, bound)
        return cls(connection)

    def rows(self, collection: str, at: int) -> Rows:
        """The rows of a view's collection at the instant `at`, sorted."""
        answer = self.connection.execute(QUERIES[collection], {"at": at}).fetchall()
        return sorted(answer, key=repr)

    def alarms(self, upper: int) -> Rows:
        """Every knock-on whose presence begins below `upper`: its columns and its time, sorted."""
        text = f"select * exclude (expires) from ({KNOCK_ON}) where time < $upper"
        return sorted(self.connection.execute(text, {"upper": upper}).fetchall(), key=repr)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.connection.close()
