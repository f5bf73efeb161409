"""Answers in notebooks: rows as text, the instant and the frontiers, and Arrow for other tools."""

from __future__ import annotations

from datetime import UTC, datetime
from xml.etree import ElementTree

import pyarrow as pa

from tidemill.client.showing import ROWS_MAX, ShownAnswer
from tidemill.time import frontier

ROWS = pa.table(
    {"name": ["<script>alert(1)</script>", None], "at": [datetime(2013, 1, 1, tzinfo=UTC)] * 2}
)


def test_an_answer_says_for_which_instant_it_is_exact() -> None:
    answer = ShownAnswer(ROWS, 1357002000000, frontier(0), frontier(1357002000001), "delays/late")
    drawn = answer._repr_html_()
    found = ElementTree.fromstring(f"<div>{drawn.replace('<br>', '<br/>')}</div>")
    cells = [cell.text for cell in found.iter("td")]
    assert cells == [
        "<script>alert(1)</script>",
        "2013-01-01T00:00:00Z",
        "null",
        "2013-01-01T00:00:00Z",
    ]
    assert not list(found.iter("script"))
    assert "exact as of 1357002000000 (2013-01-01T01:00:00Z)" in drawn
    assert "delays/late: since 0, upper 1357002000001" in drawn


def test_a_long_answer_is_cut_and_says_so() -> None:
    rows = pa.table({"n": range(ROWS_MAX + 7)})
    drawn = ShownAnswer(rows, 5, frontier(0), frontier(), "t")._repr_html_()
    assert drawn.count("<tr>") == ROWS_MAX + 1
    assert f"{ROWS_MAX + 7} rows, 7 of them not shown" in drawn
    assert "upper closed" in drawn


def test_other_tools_take_the_rows_as_arrow() -> None:
    answer = ShownAnswer(ROWS, 5, frontier(0), frontier(6), "t")
    assert pa.table(answer) == ROWS
