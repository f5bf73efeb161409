"""Speed, lag in records and time left of a source or view, from the reports of its parts."""

from __future__ import annotations

from tidemill_query.resource_status import progress_of, versions_health

REMAP = {"offsetsKnown": {"0": 900, "1": 300}, "arrivesPerSecond": 10.0}
RECLOCK = {"offsetsWritten": {"0": 700, "1": 300}, "writesPerSecond": 60.0, "backfilled": 0}


def test_a_source_is_behind_by_the_records_that_are_known_and_not_written() -> None:
    progress = progress_of({**REMAP, **RECLOCK})
    assert progress == {"records_per_s": 60.0, "records_behind": 200, "left_ms": 4_000}


def test_a_partition_that_is_not_read_yet_is_behind_as_a_whole() -> None:
    written = {**RECLOCK, "offsetsWritten": {"0": 900}}
    assert progress_of({**REMAP, **written})["records_behind"] == 300


def test_a_source_whose_log_grows_as_fast_as_it_writes_has_no_end() -> None:
    progress = progress_of({**REMAP, **RECLOCK, "arrivesPerSecond": 60.0})
    assert progress["left_ms"] is None


def test_a_view_is_behind_by_the_changes_of_its_inputs() -> None:
    progress = progress_of({"changesBehind": 5_000, "changesPerSecond": 500.0})
    assert progress == {"records_per_s": 500.0, "records_behind": 5_000, "left_ms": 10_000}


def test_nothing_is_said_of_other_resources_and_of_parts_that_do_not_report() -> None:
    assert progress_of({}) == progress_of(REMAP) == progress_of(RECLOCK) == {}


def test_a_new_version_says_what_it_waits_for() -> None:
    """On a stream that has gone quiet, time stands still, and nothing else would tell."""
    quiet = versions_health({"version": 1, "changing": {"to": 2, "upper": 39_000}})
    assert quiet is not None
    assert (quiet.ready, quiet.reason) == (True, "Running")
    assert "new version 2 takes over once time has passed its 39000" in quiet.message
    asks = versions_health({"version": 1, "changing": {"to": 2, "upper": 39_000, "waits": True}})
    assert asks is not None
    assert asks.message.endswith("is being evaluated, up to 39000; approve or abort")
    assert versions_health({"version": 2}) is None
