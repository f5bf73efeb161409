"""The backlog and the stream together bring every record once, in the order of arrival."""

from __future__ import annotations

from pathlib import Path

from tidemill.runtime.clock import ManualClock
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill_flights.feed import fill_backlog, pieces
from tidemill_flights.prepare import Arrivals


def feed(topic: str, partitions: int, at_ms: list[int]) -> Arrivals:
    keys = [b"k%d" % (at % 5) for at in at_ms]
    values = [b"%s-%d" % (topic.encode(), index) for index in range(len(at_ms))]
    return Arrivals(topic, partitions, at_ms, keys, values, broken=[])


FEEDS = (feed("flights", 3, [1, 2, 2, 5, 9, 12, 30]), feed("weather", 1, [0, 10, 20]))


async def test_the_backlog_holds_what_arrives_before_its_end(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path, ManualClock())
    assert await fill_backlog(log, FEEDS, until_ms=10) == 6
    values = set()
    for topic in ("flights", "weather"):
        reader = await log.reader(topic, dict.fromkeys(await log.bounds(topic), 0))
        values |= {record.value for record in await reader.poll(100, 0)}
    await log.close()
    assert values == {b"flights-%d" % n for n in range(5)} | {b"weather-0"}


def test_pieces_hold_the_rest_in_order() -> None:
    cut = list(pieces(FEEDS, from_ms=10, width_ms=8))
    assert [dict(piece.rows) for piece in cut] == [
        {"flights": [b"flights-5"], "weather": [b"weather-1"]},
        {"weather": [b"weather-2"]},
        {"flights": [b"flights-6"]},
    ]
    assert [piece.until_ms for piece in cut] == [18, 26, 31]
    assert sum(map(len, cut)) == 4


def test_nothing_is_left_when_the_backlog_is_all() -> None:
    assert list(pieces(FEEDS, from_ms=31, width_ms=8)) == []
