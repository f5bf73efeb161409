"""The scope of a run of the demo: months of the year, cuts, and instants of questions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from tidemill_flights.prepare import DAY_MS


def instant(text: str) -> int:
    """An ISO 8601 instant in UTC as milliseconds."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def iso(at: int) -> str:
    """Milliseconds as an ISO 8601 instant in UTC, to the minute unless seconds matter."""
    moment = datetime.fromtimestamp(at / 1000, UTC)
    spec = "minutes" if at % 60_000 == 0 else "milliseconds"
    return moment.isoformat(timespec=spec).replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Scenario:
    """`months` of the year; records that arrive before `backlog_until` are in the log before the
    start.

    The rest is sent in pieces of `piece_ms`, at most `ahead_ms` ahead of the slowest view. The
    server is killed when it has come to `kill_at`. The three `instants` are asked, one before each
    of backlog's end, kill and end, and all are verified at the end. A backlog of `spark_rows` is
    Spark's.
    """

    name: str
    months: int
    begins: int
    backlog_until: int
    kill_at: int
    instants: tuple[int, int, int]
    broken_flights: int
    broken_weather: int
    spark_rows: int
    piece_ms: int
    ahead_ms: int


YEAR = Scenario(
    name="year",
    months=12,
    begins=instant("2013-01-01T05:00"),
    backlog_until=instant("2013-07-01T04:00"),
    kill_at=instant("2013-09-15T12:00"),
    instants=(
        instant("2013-02-21T01:54"),
        instant("2013-08-20T01:13"),
        instant("2013-11-05T02:28"),
    ),
    broken_flights=90,
    broken_weather=9,
    spark_rows=20_000,
    piece_ms=2 * DAY_MS,
    ahead_ms=16 * DAY_MS,
)

QUICK = Scenario(
    name="quick",
    months=1,
    begins=instant("2013-01-01T05:00"),
    backlog_until=instant("2013-01-12T05:00"),
    kill_at=instant("2013-01-19T12:00"),
    instants=(
        instant("2013-01-07T02:13"),
        instant("2013-01-19T01:27"),
        instant("2013-01-22T21:43"),
    ),
    broken_flights=9,
    broken_weather=3,
    spark_rows=5_000,
    piece_ms=DAY_MS // 2,
    ahead_ms=2 * DAY_MS,
)
