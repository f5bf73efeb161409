"""Answers as notebooks show them: a table with the instant for which it is exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

import pyarrow as pa

from tidemill.client.instants import shown, shown_frontier
from tidemill.rpc.messages import Answer
from tidemill.time import Frontier

ROWS_MAX = 50
"""Rows that a notebook shows of an answer."""


@dataclass(frozen=True, slots=True)
class ShownAnswer(Answer):
    """An answer that notebooks draw."""

    def _repr_html_(self) -> str:
        return html_of(self.table, self.as_of, {self.collection: (self.since, self.upper)})


def html_of(
    table: pa.Table, as_of: int | None, frontiers: Mapping[str, tuple[Frontier, Frontier]]
) -> str:
    """A table of HTML with the first rows, and below them since, instant and upper.

    Every value is text: none of it is markup, whatever rows hold.
    """
    from tidemill.client.rendering import cell  # imports rich

    first = table.slice(0, ROWS_MAX)
    columns = [[cell(value) for value in column.to_pylist()] for column in first.columns]
    head = "".join(f"<th>{escape(name)}</th>" for name in table.column_names)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(value)}</td>' for value in row)}</tr>"
        for row in zip(*columns, strict=True)
    )
    more = table.num_rows - first.num_rows
    told = [f"{table.num_rows:,} rows" + (f", {more:,} of them not shown" if more else "")]
    told += [] if as_of is None else [f"exact as of {shown(as_of)}"]
    told += [
        f"{name}: since {shown_frontier(since)}, upper {shown_frontier(upper)}"
        for name, (since, upper) in frontiers.items()
    ]
    below = "<br>".join(map(escape, told))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><p>{below}</p>"
