"""Bulk evaluation on columns: whole components of a program, where nothing in them fails.

What it does not take, the row engine does; the answers are equal. Importing it imports numba.
"""

from tidemill.datalog.columnar.bulk import Bulk
from tidemill.datalog.columnar.changing import (
    ChangedFacts,
    ColumnChanges,
    RecordChanges,
    column_changes,
)
from tidemill.datalog.columnar.columns import Column, Columns, Texts, Unsuited
from tidemill.datalog.columnar.tables import ColumnTable
from tidemill.datalog.columnar.windows import ColumnWindows, WindowChanges, WindowColumns

__all__ = [
    "Bulk", "ChangedFacts", "Column", "ColumnChanges", "ColumnTable", "ColumnWindows", "Columns", "RecordChanges", "Texts",
    "Unsuited", "WindowChanges", "WindowColumns", "column_changes",
]  # fmt: skip
