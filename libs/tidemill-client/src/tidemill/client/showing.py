"""Answers as notebooks show them: tables with the instant for which they are exact, and proofs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import chain

import pyarrow as pa

from tidemill.client.instants import shown, shown_frontier
from tidemill.rpc.messages import Answer, Explanation, Json
from tidemill.time import Frontier, unit_doubt

ROWS_MAX = 50
"""Rows that a notebook shows of an answer."""
PARTS_MAX = 500
"""Parts that a notebook shows of a proof."""


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
    from tidemill.client.rendering import cell, values  # imports rich

    first = table.slice(0, ROWS_MAX)
    columns = [[cell(value) for value in values(column)] for column in first.columns]
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
    told += [] if as_of is None else filter(None, [unit_doubt(as_of, *chain(*frontiers.values()))])
    below = "<br>".join(map(escape, told))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><p>{below}</p>"


@dataclass(frozen=True, slots=True)
class ShownExplanation(Explanation):
    """A proof, or the reasons of an absence, that notebooks draw as a tree whose parts open."""

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return "".join(_pieces(self.text, self.tree))


def _pieces(text: str, tree: Json) -> Iterator[str]:
    """Pieces of HTML: the first parts of the tree, or its text where it has none.

    Every fact is text: none of it is markup. Nothing recurses: a proof may be deeper than a stack.
    """
    if not isinstance(tree, dict):
        yield f"<pre>{escape(text)}</pre>"
        return
    first = text.partition("\n")[0]
    if not first.startswith(str(tree.get("fact"))):
        yield f"<p>{escape(first)}</p>"
    pending: list[Json | tuple[str]] = [tree]
    shown = 0
    while pending:
        part = pending.pop()
        if isinstance(part, tuple):
            yield part[0]
        elif isinstance(part, dict) and shown < PARTS_MAX:
            shown += 1
            children = part.get("children") or []
            assert isinstance(children, list)
            label = (
                f"<b>{escape(str(part.get('fact', '')))}</b> {escape(str(part.get('text') or ''))}"
            )
            if children:
                yield f"<details open><summary>{label}</summary><ul>"
                pending += [("</ul></details>",), *reversed(children)]
            else:
                yield f"<li>{label} <i>{escape(str(part.get('kind') or ''))}</i></li>"
    if shown == PARTS_MAX:
        yield "<p>… more parts, in <code>text</code></p>"
