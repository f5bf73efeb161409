"""Spark writes a backlog where it is faster: where its jobs have processors of their own."""

from __future__ import annotations

import pytest

from tidemill_reclock.part import SPARK_BACKLOG_ROWS, is_for_spark


@pytest.mark.parametrize(
    ("records", "least", "apart", "spark"),
    [
        (SPARK_BACKLOG_ROWS, None, True, True),
        (SPARK_BACKLOG_ROWS - 1, None, True, False),
        (100 * SPARK_BACKLOG_ROWS, None, False, False),
        (20, 20, False, True),
        (19, 20, True, False),
    ],
)
def test_a_backlog_is_for_spark_where_jobs_run_elsewhere_or_a_setting_says_so(
    records: int, least: int | None, apart: bool, spark: bool
) -> None:
    assert is_for_spark(records, least, apart) is spark
