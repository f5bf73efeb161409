"""Bulk evaluation on columns: whole components of a program, where little in them fails.

What it does not take, the row engine does; the answers are equal. Importing it imports numba.
"""

from tidemill.datalog.columnar.bulk import Bulk
from tidemill.datalog.columnar.columns import Columns
from tidemill.datalog.columnar.tables import ColumnTable
from tidemill.datalog.columnar.window_columns import WindowColumns
from tidemill.datalog.columns.column import Column, Unsuited
from tidemill.datalog.columns.texts import Texts

__all__ = ["Bulk", "Column", "ColumnTable", "Columns", "Texts", "Unsuited", "WindowColumns"]
