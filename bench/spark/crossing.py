"""The cost of facts that cross between fragments: python -m bench.spark.crossing [--rows N].

A history is evaluated in ranges in this process, by the code of its tasks. Answers are compared
with those of one range. Seconds are those of a processor in which facts become bytes and come
back.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pyarrow as pa

from bench.spark.worlds import SCHEMAS, SPAN, World, come_and_go, parts_in, say
from tidemill.runtime.clock import SystemClock
from tidemill.testkit.twins.window_tasks import evaluate_here
from tidemill_compute.views import range_history
from tidemill_compute.views.bulk_spark import history_window
from tidemill_compute.views.windows.collecting import answer
from tidemill_compute.views.windows.spec import pack_window

RANGES = 4
PROGRAMS = {
    "sets that are keys": """
        basket(o) @set(i) := line(o, i, _);
        never(o) := line(o, 7, 7);
        alike(s, o) := basket(o) @set(s) ^ not never(o);
        many(s) @count(o) := alike(s, o);
    """,
    "facts with one value": """
        never(o) := line(o, 7, 7);
        first(o, c) @min(i) := line(o, i, c) ^ not never(o);
        closed(c) := line(_, 3, c);
        big(c, o, m) := first(o, c) @min(m) ^ not closed(c);
    """,
    "facts with three values, two of them passed on": """
        never(o) := line(o, 7, 7);
        first(o, c) @min(i) @max(i) @count(i) := line(o, i, c) ^ not never(o);
        closed(c) := line(_, 3, c);
        big(c, o) ~count := first(o, c) ^ not closed(c);
    """,
}


def lines(rows: int) -> pa.Table:
    """Lines of orders, three of each."""
    size, random = rows // 2, np.random.default_rng(7)
    orders, items = np.arange(size) // 3, random.integers(0, 50, size)
    return come_and_go([orders, items, orders * 7 % 10_000], SCHEMAS["line"], SPAN // 10)


class Crossing:
    """The seconds and the bytes of what crossed."""

    def __init__(self) -> None:
        self.told_s = self.fed_s = 0.0
        self.bytes = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count what crosses."""
        crossing, feed = range_history.RangeHistory.crossing, range_history.feed_told

        def told(*given: Any) -> Any:
            begun = time.process_time()
            found = crossing(*given)
            self.told_s += time.process_time() - begun
            self.bytes += sum(len(each.payload) for each in found)
            return found

        def fed(*given: Any) -> None:
            begun = time.process_time()
            feed(*given)
            self.fed_s += time.process_time() - begun

        with (
            patch.object(range_history.RangeHistory, "crossing", told),
            patch.object(range_history, "feed_told", fed),
        ):
            yield


async def measure(folder: Path, title: str, text: str, rows: int) -> None:
    """Evaluate in one range and in several, compare, print."""
    world = World(folder, text)
    await world.create()
    await world.feed({"line": lines(rows)}, SPAN + 1)
    history, wanted = await world.history(), dict[str, int]()
    for ranges in (1, RANGES):
        window = history_window(history, token_hex(8), SystemClock().now_ms())
        packed, found = pack_window(msgspec.structs.replace(window, ranges=ranges)), Crossing()
        with found.watched():
            told = await answer(packed, world.blob, None, evaluate_here)
        digests = await world.digests(history, parts_in(told))
        wanted = wanted or digests
        assert digests == wanted, title
    say(
        f"{title}: {history.rows:,} updates, {RANGES} ranges: {found.bytes / 1e6:.1f} MB cross, "
        f"{found.told_s:.2f} s of processor to tell, {found.fed_s:.2f} s to take in"
    )


def main() -> None:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for number, (title, text) in enumerate(PROGRAMS.items()):
            place = Path(name) / str(number)
            asyncio.run(partial(measure, place, title, text)(chosen.rows))


if __name__ == "__main__":
    main()
