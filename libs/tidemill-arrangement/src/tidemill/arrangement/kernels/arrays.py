"""Names of the arrays that kernels work on, and how loops over them are compiled."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from types import FunctionType
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.kernels.ready import digest_of, note, ready_loop, written
from tidemill.arrangement.machine_code import ready_loops
from tidemill.errors import UsageError

U64Array: TypeAlias = npt.NDArray[np.uint64]
I64Array: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

Loop = TypeVar("Loop", bound=Callable[..., object])


def compiled(loop: Loop) -> Loop:
    """The loop as machine code: that of the wheel if it is there, else compiled at the first call.

    Code that is compiled here is kept on disk. A later process uses it while the loop and all that
    it calls are the same (`kept_code`).
    """
    function = cast("FunctionType", loop)
    digest = digest_of(function)
    other = _Other(function)
    other.ready = made = ready_loop(function, digest, other)
    if made is None:
        made = _compiler(function).dispatcher(function)
    note(made, function, digest)
    return cast("Loop", made)


def inlined(loop: Loop) -> Loop:
    """A piece of a compiled loop with a name, put in its place by the back end of the compiler.

    Numba's own inlining would count the references to arrays again for each row. Ready loops have
    their pieces in them, which stay Python here.
    """
    function = cast("FunctionType", loop)
    digest = digest_of(function)
    made = function if ready_loops() else _compiler(function).piece(function)
    note(made, function, digest)
    return cast("Loop", made)


def _compiler(loop: FunctionType) -> Any:
    try:
        from tidemill.arrangement.kernels import kept_code
    except ModuleNotFoundError as missing:
        raise UsageError(
            f"no machine code of {loop.__module__}.{loop.__name__} came with this installation, "
            f"and {missing.name} is not here, which compiles it: install all distributions of "
            "tidemill in one version, or pip install 'tidemill[compiler]'",
            reason="no-compiler",
        ) from missing
    return kept_code


class _Other:
    """A ready loop for arguments of types that it was not compiled for.

    The compiler makes code for them, if it is here. Without it arrays with gaps are packed, since
    each loop that takes them so takes them packed as well. Those that it writes to are packed back.
    """

    ready: Any = None

    def __init__(self, loop: FunctionType) -> None:
        self._loop = loop

    def __call__(self, *arguments: Any) -> object:
        """The result of the loop. Raises: UsageError if nothing here can run it."""
        try:
            compiler = _compiler(self._loop)
        except UsageError:
            arrays = {id(a): a for a in arguments if isinstance(a, np.ndarray)}
            gaps = {key for key, array in arrays.items() if not array.flags.c_contiguous}
            ours = zip(arguments, written(self.ready), strict=False)
            targets = {id(argument) for argument, is_written in ours if is_written}
            if not gaps or _are_torn(arrays, gaps, targets):
                raise
            packed = {key: np.ascontiguousarray(arrays[key]) for key in gaps}
            for key, held in packed.items():
                held.flags.writeable = arrays[key].flags.writeable
            try:
                return self.ready(*(packed.get(id(a), a) for a in arguments))
            finally:
                for key in gaps & targets:
                    if arrays[key].flags.writeable:
                        arrays[key][...] = packed[key]
        return compiler.dispatcher(self._loop)(*arguments)


def _are_torn(arrays: dict[int, npt.NDArray[Any]], gaps: set[int], targets: set[int]) -> bool:
    """Whether a loop that gets copies of `gaps` would not see what it writes to `targets`."""
    return any(
        {one, other} & gaps
        and {one, other} & targets
        and np.shares_memory(arrays[one], arrays[other])
        for one, other in combinations(arrays, 2)
    )
