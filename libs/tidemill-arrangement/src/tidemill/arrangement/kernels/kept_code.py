"""Machine code of loops in files: one for each loop, signature and processor.

The name of a file has digests of the processor and of the sources. Sources are the loop, all loops
and constants that it names, and the compiler. The time of a file and the place of the library do
not count. Containers find the code that was compiled while their image was built.
"""

from __future__ import annotations

import pickle  # noqa: TID251  of folders that this process trusts as it trusts the library
import sys
from collections.abc import Hashable, Iterable, Iterator
from functools import cache, cached_property
from hashlib import sha256
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any, TypeAlias

import llvmlite
import llvmlite.binding as llvm
import numba
from numba import njit, types
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps
from numba.core.typing.typeof import typeof_impl

from tidemill.arrangement.kernels.ready import LOOPS, constant_text
from tidemill.arrangement.machine_code import FOLDERS, PORTABLE, CodeFolders, compiling_begins

Kind: TypeAlias = Any  # Any: numba has no types
Processor: TypeAlias = tuple[str, str, str]
"""System, name and features, as the compiler has them."""

COMPILER = f"{numba.__version__} {llvmlite.__version__} {sys.implementation.cache_tag}"


class KeptCode(_Cache):  # type: ignore[misc]  # numba has no types
    """Machine code of one loop. Files that are torn count as missing."""

    def __init__(self, loop: FunctionType, folders: CodeFolders = FOLDERS) -> None:
        self._loop = loop
        self._folders = folders

    @property
    def cache_path(self) -> str:
        """The folder that is written to."""
        return str(self._folders.written() or "")

    @cached_property
    def source(self) -> str:
        """The digest of the sources of the loop."""
        return source_digest(self._loop)

    def load_overload(self, sig: Kind, target_context: Kind) -> Kind:
        """The compiled loop for a signature; None if no folder has it, and it is compiled next."""
        rtsys.initialize(target_context)  # the registries of a compiler are not needed
        content = self.kept(_arguments(sig), target_context.codegen().magic_tuple())
        if content is None:
            compiling_begins()
            return None
        kept = pickle.loads(content)  # noqa: S301  as above
        return CompileResult._rebuild(target_context, *kept)

    def kept(self, arguments: tuple[Kind, ...], processor: Processor) -> bytes | None:
        """The code for arguments of these types, if a folder has it whole."""
        for which in _processors(processor):
            content = self._folders.read(self._name(arguments, which) + self.source)
            if content is not None:
                return content
        return None

    def save_overload(self, sig: Kind, data: Kind) -> None:
        """Keep a compiled loop, if there is a folder for it."""
        assert not data.library.has_dynamic_globals, f"{self._loop} uses what is of this process"
        name = self._name(_arguments(sig), data.codegen.magic_tuple())
        self._folders.write(name + self.source, dumps(data._reduce()), outdated=f"{name}*")

    def enable(self) -> None:
        """It always is."""

    def disable(self) -> None:
        """It never is."""

    def flush(self) -> None:
        """Sources that changed have other names."""

    def _name(self, arguments: Iterable[Kind], processor: Processor) -> str:
        which = f"{self._loop.__module__} {self._loop.__qualname__} {tuple(arguments)}"
        module = self._loop.__module__.rpartition(".")[2]
        words = (which, " ".join(processor))
        short = (sha256(word.encode()).hexdigest()[:12] for word in words)
        return "-".join([f"{module}.{self._loop.__name__}", *short, ""])


def _arguments(signature: Kind) -> tuple[Kind, ...]:
    return signature if isinstance(signature, tuple) else signature.args


def _processors(this: Processor) -> Iterator[Processor]:
    """This processor, and the portable one if this one can run its code."""
    yield this
    system = this[0]
    name, needed = PORTABLE.get(system.partition("-")[0], ("", ()))
    if name and name != this[1]:
        features = llvm.get_host_cpu_features()
        if all(features.get(feature) for feature in needed):
            yield (system, name, "")


@cache
def dispatcher(loop: FunctionType) -> Kind:
    """A loop that is compiled at its first call, and whose machine code is kept."""
    made = _made(loop)
    made._cache = KeptCode(loop)
    return made


@cache
def piece(loop: FunctionType) -> Kind:
    """A loop for other loops, which the back end puts in its place."""
    return _made(loop, forceinline=True)


def _made(loop: FunctionType, **options: bool) -> Kind:
    made = njit(nogil=True, _nrt=not options, **options)(loop)
    called = made.get_call_template

    def called_without_literals(args: tuple[Kind, ...], kws: dict[str, Kind]) -> object:
        """One compilation for all literals of a type; numba makes one for each of them."""
        plain = {name: types.unliteral(kind) for name, kind in kws.items()}
        return called(tuple(map(types.unliteral, args)), plain)

    made.get_call_template = called_without_literals
    return made


def _ready_as_compiled(value: Kind, _: object) -> Kind:
    """The type of a ready loop, or of a piece, that a loop calls which is compiled now."""
    if value not in LOOPS:
        return None
    make = piece if isinstance(value, FunctionType) else dispatcher
    return make(LOOPS[value][0])._numba_type_


for called in (FunctionType, BuiltinFunctionType):
    typeof_impl.register(called)(_ready_as_compiled)


def source_digest(loop: FunctionType) -> str:
    """A hash of the code of a loop, of all that it calls, of its constants, and of the compiler."""
    found = sha256(COMPILER.encode())
    for line in _sources(loop, set()):
        found.update(line.encode())
    return found.hexdigest()[:16]


def _sources(function: FunctionType, seen: set[FunctionType]) -> Iterator[str]:
    seen.add(function)
    names = set(function.__code__.co_names)
    yield f"{function.__module__}.{function.__qualname__}{function.__defaults__}"
    yield from _code(function.__code__)
    values = {name: function.__globals__[name] for name in names & function.__globals__.keys()}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        values[name] = cell.cell_contents
    for name in sorted(values):
        value = values[name]
        called = LOOPS[value][0] if isinstance(value, Hashable) and value in LOOPS else value
        if isinstance(called, FunctionType) and called.__module__.startswith("tidemill"):
            if called not in seen:
                yield from _sources(called, seen)
                yield f"{sorted(getattr(value, 'targetoptions', {}).items())}"
        else:
            yield f"{name}={constant_text(called)}"


def _code(code: CodeType) -> Iterator[str]:
    yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_exceptiontable.hex()}"
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _code(value)
        else:
            yield repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)


def compiled_for(content: bytes) -> tuple[str, str, tuple[Kind, ...]]:
    """Module and name of the loop in a file of machine code, and the types of its arguments."""
    _, description, _, signature, *_ = pickle.loads(content)  # noqa: S301  as above
    return description.modname, description.qualname, signature.args
