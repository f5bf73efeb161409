"""The demo's comparison sees every difference."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from tidemill_flights.scenario import instant, iso
from tidemill_flights.verify import answer_rows, compare, describe_difference, fired_alarms


def test_equal_multisets_are_equal_in_any_order() -> None:
    comparison = compare("v", [(1, "a"), (2, None)], [(2, None), (1.0, "a")])
    assert comparison.equal
    assert (comparison.expected, comparison.found) == (2, 2)


def test_a_row_too_many_a_row_too_few_and_a_copy_are_differences() -> None:
    comparison = compare("v", [(1,), (2,)], [(1,), (1,), (3,)])
    assert not comparison.equal
    assert comparison.missing == ((2,),)
    assert comparison.surplus == ((1,), (3,))
    assert describe_difference(comparison) == "- (2,)\n+ (1,)\n+ (3,)"


def test_a_long_difference_is_cut_and_counted() -> None:
    comparison = compare("v", [(n,) for n in range(10)], [])
    assert describe_difference(comparison).splitlines()[-1] == "and 7 more"


def test_a_snapshot_gives_each_row_as_often_as_it_is_present() -> None:
    answer = pa.table({"a": ["x", "y"], "time": [1, 2], "_diff": [2, 1]})
    assert answer_rows(answer) == [("x", 1), ("x", 1), ("y", 2)]


def test_alarms_are_read_from_the_lines_of_the_action(tmp_path: Path) -> None:
    path = tmp_path / "alarms.jsonl"
    assert fired_alarms(path) == []
    path.write_text(json.dumps({"key": "k", "arguments": ["N1", 20], "time": 5}) + "\n")
    assert fired_alarms(path) == [("N1", 20, 5)]


def test_instants_are_utc_milliseconds() -> None:
    assert instant("2013-01-01T05:00") == 1_357_016_400_000
    assert iso(1_357_016_400_000) == "2013-01-01T05:00Z"
