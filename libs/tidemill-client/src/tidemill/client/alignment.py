"""Columns of text side by side, as fast as they are read: an answer may have a million rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

GAP = "  "


def printable(text: str) -> str:
    """The text on one line; what would move the cursor or colour the terminal is written out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def aligned(columns: Sequence[Sequence[str]], right: Sequence[bool]) -> Iterator[str]:
    """A line per row; column i to the right if `right[i]`. All columns have the same length.

    Cost: two passes over the cells, O(1) memory beyond them and one line.
    """
    widths = [max(map(_width, column), default=0) for column in columns]
    last = len(columns) - 1
    for row in zip(*columns, strict=True):
        cells = []
        for index, (text, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - _width(text))
            if right[index]:
                cells.append(space + text)
            else:
                cells.append(text if index == last else text + space)
        yield GAP.join(cells)


def _width(text: str) -> int:
    """Columns of the terminal; signs of East Asia have two."""
    return len(text) if text.isascii() else cell_len(text)
