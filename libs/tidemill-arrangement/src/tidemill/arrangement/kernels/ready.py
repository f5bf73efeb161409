"""Machine code of loops that came with the wheel: the module `tidemill.ready_loops`, if it is here.

A loop is taken from there if its source is the one that was compiled, and this processor can run
it. The source is that of its module, of the loops that it calls, and the constants that it names.
No digest of it depends on the release of Python: one module serves all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from tidemill.arrangement.machine_code import ready_loops

LOOPS: dict[Any, tuple[FunctionType, str]] = {}
"""By what a name of a loop is bound to: the function in Python, and the digest of its source."""


def ready_loop(loop: FunctionType, digest: str, other: Callable[..., object]) -> Any:
    """The ready loop, which hands arguments of other types to `other`; None if there is none."""
    found = ready_loops()
    return found and found.take(loop.__module__, loop.__qualname__, digest, other)


def written(loop: Any) -> tuple[bool, ...]:
    """Of each argument of a ready loop, whether the loop writes to it."""
    found = ready_loops()
    return found.written(loop) if found else ()


def digest_of(loop: FunctionType) -> str:
    """A hash of the source of a loop, of loops that it calls, and of constants above it."""
    told = sha256(_text(loop.__code__.co_filename) + loop.__qualname__.encode())
    cells = zip(loop.__code__.co_freevars, loop.__closure__ or (), strict=True)
    names = {name: cell.cell_contents for name, cell in cells}
    for name in loop.__code__.co_names:
        if name in loop.__globals__:
            names[name] = loop.__globals__[name]
    for name, value in sorted(names.items()):
        known = LOOPS.get(value) if isinstance(value, Hashable) else None
        told.update(f"{name}={known[1] if known else constant_text(value)}\n".encode())
    return told.hexdigest()[:32]


def note(loop: Any, function: FunctionType, digest: str) -> None:
    """Remember what a name of a loop is bound to."""
    LOOPS[loop] = function, digest


@cache
def _text(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError:  # modules in an archive have no source that could differ from what is compiled
        return file.encode()


def constant_text(value: object) -> str:
    """A constant as text. Raises: TypeError for one whose text does not say all of it."""
    match value:
        case np.ndarray():
            return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
        case ModuleType():
            return value.__name__
        case type() | FunctionType() | BuiltinFunctionType() | np.ufunc():
            return f"{getattr(value, '__module__', '')}.{value.__name__}"
        case int() | float() | str() | bytes() | None | tuple() | np.generic() | np.dtype():
            return repr(value)
        case _ if "numba" in type(value).__module__:
            return repr(value)
    raise TypeError(f"a loop uses {value!r}, of which no process knows whether it changed")
