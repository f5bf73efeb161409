"""The chart of the demo: what it samples, and what can be told apart on any page."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from tidemill.rpc.messages import CollectionInfo
from tidemill.runtime.clock import ManualClock
from tidemill.time import frontier
from tidemill_flights.plot import COLOURS, DARK, LIGHT, Mark, Sample, Theme, draw_lags
from tidemill_flights.watch import Watch

NAMES = [f"collection {number}" for number in range(9)]


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_nine_lines_have_nine_colours_on_a_light_and_on_a_dark_page(
    theme: Theme, tmp_path: Path
) -> None:
    samples = [
        Sample(float(second), name, timeline, float(90 - second + 10 * number))
        for second in range(0, 100, 10)
        for number, name in enumerate(NAMES)
        for timeline in ("air", "system")
    ]
    path = tmp_path / "lag.png"
    draw_lags(samples, [Mark(40.0, "killed"), Mark(50.0, "restarted")], path, theme)
    seen = np.rint(matplotlib.image.imread(path)[..., :3] * 255).astype(np.int64)
    ground = _colour(theme.ground)
    assert (seen[0, 0] == ground).all()
    for colour in COLOURS[: len(NAMES)]:
        assert (seen == _colour(colour)).all(axis=2).any(), colour
        assert np.abs(_colour(colour) - ground).max() > 100, colour
    drawn = [_colour(colour) for colour in COLOURS[: len(NAMES)]]
    apart = [np.abs(a - b).sum() for at, a in enumerate(drawn) for b in drawn[:at]]
    assert min(apart) > 80


def _colour(code: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array([int(code[at : at + 2], 16) for at in (1, 3, 5)], dtype=np.int64)


def test_a_collection_that_nothing_was_written_to_has_no_lag() -> None:
    watch = Watch(ManualClock(1_790_000_000_000), 0, 0.0, ["flights"])
    info = {"kind": "source", "timeline": "system", "since": frontier(0)}
    begun = CollectionInfo(id="flights", upper=frontier(1_789_999_999_000), lag_ms=1_000, **info)
    empty = CollectionInfo(id="flights/raw", upper=frontier(0), lag_ms=1_790_000_000_000, **info)
    watch.observe([begun, empty])
    assert [(each.collection, each.lag_s) for each in watch.samples] == [("flights", 1.0)]
