"""The rows of an input within a window, cut to it once for all who look at them."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from tidemill.arrangement.relational import clipped, inside
from tidemill.datalog.columnar.columns import Columns, instant_word
from tidemill.datalog.columnar.deriving import merged
from tidemill.datalog.columnar.tables import ColumnTable
from tidemill.datalog.logical.forms import Type
from tidemill.datalog.presence import Instant
from tidemill.errors import UsageError


class WindowColumns:
    """The rows of an input that are present in a window: what one evaluation has made of them,
    another takes.

    `before` is the table of an earlier window if it is of the same rows, all of them facts of their
    own: what was put together by their columns stays. For any number of threads: the first who asks
    works it out, the others wait for it.
    """

    def __init__(self, columns: Columns, before: ColumnTable | None = None) -> None:
        self.columns = columns
        self._before = before
        self.made = 0
        """How many tables were made, however often one was asked for."""
        self._making = Lock()
        self._tables: dict[tuple[Instant, int], ColumnTable] = {}

    def within(self, lower: Instant, upper: int) -> ColumnTable:
        """The table of the window [lower, upper): rows cut to it, and those of one fact drawn
        together.
        """
        with self._making:
            table = self._tables.get((lower, upper))
            if table is None:
                table = self._tables[lower, upper] = _cut(self.columns, lower, upper, self._before)
                self.made += 1
            return table


def table_within(
    name: str,
    kinds: Sequence[Type],
    given: Columns | WindowColumns,
    lower: Instant,
    upper: int,
) -> ColumnTable:
    """Rows as a table of the window [lower, upper): cut to it, and those of one fact drawn
    together.

    Raises: UsageError where the columns are not of the kinds of the predicate.
    """
    columns = given.columns if isinstance(given, WindowColumns) else given
    found = [column.kind for column in columns.arguments]
    if found != kinds or columns.lattices:
        raise UsageError(
            f"columns of {name} refused: they are {found}, not {kinds}", reason="InvalidColumns"
        )
    if isinstance(given, WindowColumns):
        return given.within(lower, upper)
    return _cut(columns, lower, upper, None)


def _cut(columns: Columns, lower: Instant, upper: int, before: ColumnTable | None) -> ColumnTable:
    begin = instant_word(lower)
    if before is None and inside(columns.start, columns.stop, begin, upper):
        return ColumnTable(merged(columns))
    rows, start, stop = clipped(columns.start, columns.stop, begin, upper)
    if len(rows) < len(columns):
        return ColumnTable(merged(columns.at(rows, start, stop, columns.apart)))
    cut = columns.placed(start, stop, columns.apart)
    return ColumnTable(merged(cut)) if before is None else ColumnTable(cut, before)
