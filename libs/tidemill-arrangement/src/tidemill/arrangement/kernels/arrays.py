"""Names of the arrays that kernels work on, and how loops over them are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit, types

from tidemill.arrangement.kernels.kept_code import KeptCode

U64Array: TypeAlias = npt.NDArray[np.uint64]
I64Array: TypeAlias = npt.NDArray[np.int64]
DiffArray: TypeAlias = npt.NDArray[np.int8] | npt.NDArray[np.int64]
"""Diffs at rest: one for each row, or one for all rows."""
BoolArray: TypeAlias = npt.NDArray[np.bool_]

Loop = TypeVar("Loop", bound=Callable[..., object])


def compiled(loop: Loop) -> Loop:
    """Compiled at the first call with arguments of these types; machine code is kept on disk.

    A later process uses it while the loop and all that it calls are the same (`kept_code`).
    """
    return _kept(loop, inline="never")


def inlined(loop: Loop) -> Loop:
    """A piece of a compiled loop with a name."""
    return _kept(loop, inline="always")


def _kept(loop: Loop, inline: str) -> Loop:
    made: Any = njit(nogil=True, inline=inline)(loop)  # Any: numba has no types
    made._cache = KeptCode(made.py_func)
    called = made.get_call_template

    def called_without_literals(args: tuple[Any, ...], kws: dict[str, Any]) -> object:
        """One compilation for all literals of a type; numba makes one for each of them."""
        plain = {name: types.unliteral(kind) for name, kind in kws.items()}
        return called(tuple(map(types.unliteral, args)), plain)

    made.get_call_template = called_without_literals
    return cast("Loop", made)
