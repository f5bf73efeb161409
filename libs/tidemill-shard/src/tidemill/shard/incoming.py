"""Values of clients in the form of the language: finite floats, zero without sign, normal form
C.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import UsageError
from tidemill.time import normal


def normal_rows(rows: pa.Table, collection: str) -> pa.Table:
    """The rows with each float and text in the form in which programs, questions and SQL know it.

    Columns of types that the language lacks stay as they are. Raises: UsageError as
    `normal_column`. Cost: O(bytes).
    """
    columns = [
        normal_column(rows[name].combine_chunks(), name, collection) for name in rows.column_names
    ]
    # NB: without columns a table would lose how many rows it has.
    return pa.Table.from_arrays(columns, schema=rows.schema) if columns else rows


def normal_column(array: pa.Array, name: str, collection: str) -> pa.Array:
    """The values of a column in that form.

    Raises: UsageError naming the column: a float that is not finite, a text with too many marks.
    Cost: O(bytes); for texts beyond ASCII a call for each different one.
    """
    if array.type == pa.float64():
        return _finite(array, name, collection)
    return _normal(array, name, collection) if array.type == pa.string() else array


def refused(collection: str, name: str, says: str) -> UsageError:
    """The error for a column of rows that a client wants to write."""
    return UsageError(f"rows for {collection}: the column {name} {says}", reason="Rows")


def _finite(array: pa.Array, name: str, collection: str) -> pa.Array:
    finite = pc.is_finite(array)
    if pc.all(finite).as_py() is False:
        at = pc.index(finite, False).as_py()
        raise refused(collection, name, f"is not a finite number in row {at + 1}: {array[at]}")
    return pc.add(array, 0.0)  # no negative zero


def _normal(array: pa.Array, name: str, collection: str) -> pa.Array:
    if pc.all(pc.string_is_ascii(array)).as_py() in (True, None):
        return array
    coded = array.dictionary_encode()
    try:
        texts = [normal(text) for text in coded.dictionary.to_pylist()]
    except UsageError as error:
        raise UsageError(
            f"rows for {collection}: {name}: {error}", reason="CombiningMarks"
        ) from error
    return pa.array(texts, pa.string()).take(coded.indices)
