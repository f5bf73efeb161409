"""Names of the arrays that kernels work on, and how loops over them are compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit, types

U64Array: TypeAlias = npt.NDArray[np.uint64]
I64Array: TypeAlias = npt.NDArray[np.int64]
DiffArray: TypeAlias = npt.NDArray[np.int8] | npt.NDArray[np.int64]
"""Diffs at rest: one for each row, or one for all rows."""
BoolArray: TypeAlias = npt.NDArray[np.bool_]

Loop = TypeVar("Loop", bound=Callable[..., object])


def compiled(loop: Loop) -> Loop:
    """Compiled at the first call with arguments of these types; machine code is kept on disk.

    Beside the source if that place can be written, else where numba keeps the user's cache, else
    nowhere. It is used again while no source in the folder of the loop, or in this one, has
    changed. A loop contains those that it calls.
    """
    return _kept(loop, inline="never")


def inlined(loop: Loop) -> Loop:
    """A piece of a compiled loop with a name."""
    return _kept(loop, inline="always")


def _kept(loop: Loop, inline: str) -> Loop:
    try:
        made: Any = njit(cache=True, nogil=True, inline=inline)(loop)  # Any: numba has no types
    except RuntimeError:  # no place for machine code can be written
        return cast("Loop", njit(nogil=True, inline=inline)(loop))
    index = made._cache._cache_file
    folder = Path(loop.__code__.co_filename).parent
    index._source_stamp = (index._source_stamp, _sources(folder), _sources(Path(__file__).parent))
    called = made.get_call_template

    def called_without_literals(args: tuple[Any, ...], kws: dict[str, Any]) -> object:
        """One compilation for all literals of a type; numba makes one for each of them."""
        plain = {name: types.unliteral(kind) for name, kind in kws.items()}
        return called(tuple(map(types.unliteral, args)), plain)

    made.get_call_template = called_without_literals
    return cast("Loop", made)


@lru_cache
def _sources(folder: Path) -> str:
    """A hash of all modules in a folder."""
    modules = sorted(folder.glob("*.py"))
    return sha256(b"".join(module.read_bytes() for module in modules)).hexdigest()
