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
BoolArray: TypeAlias = npt.NDArray[np.bool_]

Loop = TypeVar("Loop", bound=Callable[..., object])


def compiled(loop: Loop) -> Loop:
    """Compiled at the first call with arguments of these types; machine code is kept on disk.

    A later process uses it while the loop and all that it calls are the same (`kept_code`).
    """
    made = _made(loop)
    made._cache = KeptCode(made.py_func)
    return cast("Loop", made)


def inlined(loop: Loop) -> Loop:
    """A piece of a compiled loop with a name, put in its place by the back end of the compiler.

    Numba's own inlining would count the references to arrays again for each row.
    """
    return cast("Loop", _made(loop, forceinline=True))


def _made(loop: Loop, **options: bool) -> Any:
    made: Any = njit(nogil=True, _nrt=not options, **options)(loop)  # Any: numba has no types
    called = made.get_call_template

    def called_without_literals(args: tuple[Any, ...], kws: dict[str, Any]) -> object:
        """One compilation for all literals of a type; numba makes one for each of them."""
        plain = {name: types.unliteral(kind) for name, kind in kws.items()}
        return called(tuple(map(types.unliteral, args)), plain)

    made.get_call_template = called_without_literals
    return made
