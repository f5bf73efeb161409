"""Loops over columns of numbers; no Python object for a row below this line.

Importing it loads loops: callers that may not need it import it where they do.
"""

from tidemill.arrangement.kernels.arrays import (
    BoolArray,
    I64Array,
    U64Array,
    compiled,
    inlined,
)

__all__ = ["BoolArray", "I64Array", "U64Array", "compiled", "inlined"]
