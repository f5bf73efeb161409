"""Names of the arrays that kernels work on, and how loops over them are compiled."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.kernels.ready import digest_of, note, ready_loop
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
            f"and {missing.name} is not here, which compiles it: pip install 'tidemill[compiler]'",
            reason="no-compiler",
        ) from missing
    return kept_code


class _Other:
    """A ready loop for arguments of types that it was not compiled for.

    The compiler makes code for them, if it is here. Without it arrays with gaps are packed, and
    packed back, since each loop that takes them so takes them packed as well.
    """

    ready: Any = None

    def __init__(self, loop: FunctionType) -> None:
        self._loop = loop

    def __call__(self, *arguments: Any) -> object:
        """The result of the loop. Raises: UsageError if nothing here can run it."""
        try:
            compiler = _compiler(self._loop)
        except UsageError:
            packed = [np.ascontiguousarray(a) if _has_gaps(a) else a for a in arguments]
            if not any(map(_has_gaps, arguments)):
                raise
            result = self.ready(*packed)
            for given, held in zip(arguments, packed, strict=True):
                if held is not given and given.flags.writeable:
                    given[...] = held
            return result
        return compiler.dispatcher(self._loop)(*arguments)


def _has_gaps(argument: object) -> bool:
    return isinstance(argument, np.ndarray) and not argument.flags.c_contiguous
