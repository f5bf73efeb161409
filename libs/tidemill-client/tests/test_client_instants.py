"""Instants as people write and read them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidemill.client.instants import instant, shown, shown_duration, shown_frontier
from tidemill.errors import UsageError
from tidemill.time import frontier, is_fixed, read_at, unit_doubt


@pytest.mark.parametrize(
    ("written", "time"),
    [
        (None, None),
        ("latest", None),
        (0, 0),
        ("1357002000000", 1357002000000),
        ("2013-01-01", 1356998400000),
        ("2013-01-01T01:00:00", 1357002000000),
        ("2013-01-01T01:00:00Z", 1357002000000),
        ("2013-01-01T02:00:00.250+01:00", 1357002000250),
        (datetime(2013, 1, 1, 1, tzinfo=UTC), 1357002000000),
        ("2013-01-01T01:00:00.000999Z", 1357002000000),
    ],
)
def test_an_instant_is_milliseconds_or_iso_or_latest(written: str, time: int | None) -> None:
    assert instant(written) == time


@pytest.mark.parametrize(
    ("written", "time"), [("now", 3_600_000), ("now-1h", 0), ("now-59m59s", 1_000)]
)
def test_a_word_means_an_instant_of_the_clock(written: str, time: int) -> None:
    assert read_at(written, lambda: 3_600_000) == time
    assert not is_fixed(written)
    assert instant(written) != time


@pytest.mark.parametrize("written", ["now-", "now-5", "now-2h", "now+1h", "now-m", "Now"])
def test_a_word_that_names_no_duration_is_refused(written: str) -> None:
    with pytest.raises(UsageError):
        read_at(written, lambda: 3_600_000)


@pytest.mark.parametrize("written", ["yesterday", "-5", "2013-13-01", -1, 1 << 64, "1969-01-01"])
def test_what_is_no_instant_is_refused(written: str | int) -> None:
    with pytest.raises(UsageError):
        instant(written)


@pytest.mark.parametrize("written", ["--5", "\u00b2", "9" * 5_000, "1e3", 1.5, True, []])
def test_s2_what_python_takes_for_a_number_is_no_instant(written: object) -> None:
    """S2: these ended in errors of Python, or were taken for the instant 1."""
    with pytest.raises(UsageError, match="is no instant: write milliseconds"):
        instant(written)  # type: ignore[arg-type]


def test_times_show_their_date_only_where_they_have_one() -> None:
    assert shown(13) == "13"
    assert shown(1357002000000) == "1357002000000 (2013-01-01T01:00:00Z)"
    assert shown(1357002000250) == "1357002000250 (2013-01-01T01:00:00.250Z)"
    assert shown((1 << 64) - 1) == str((1 << 64) - 1)
    assert shown_frontier(frontier()) == "closed"
    assert shown_frontier(None) == "-"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(None, "-"), (0, "0ms"), (999, "999ms"), (61_000, "1m 1s"), (90_061_000, "1d 1h")],
)
def test_durations_show_their_two_largest_units(milliseconds: int | None, text: str) -> None:
    assert shown_duration(milliseconds) == text


NOW = 1_795_000_000_000


@pytest.mark.parametrize(
    ("at", "near", "says"),
    [
        (NOW // 1000, NOW, f"looks like seconds: instants are milliseconds, such as {NOW}"),
        (NOW * 1000, NOW, f"looks like microseconds: instants are milliseconds, such as {NOW}"),
        (NOW * 10**6, NOW, f"looks like nanoseconds: instants are milliseconds, such as {NOW}"),
        (NOW, NOW, None),
        (0, NOW, None),
        (NOW // 3000, NOW, None),
        (3, 3000, None),
        (3_000_000, 3000, None),
    ],
)
def test_an_instant_in_another_unit_is_doubted(at: int, near: int, says: str | None) -> None:
    """A timeline of counters has no unit."""
    for frontiers in (
        (frontier(near),),
        (frontier(0), frontier(near)),
        (frontier(near), frontier()),
    ):
        assert unit_doubt(at, *frontiers) == ("" if says is None else f"{at} {says}")
    assert unit_doubt(at) == ""
