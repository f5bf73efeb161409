"""All loops as one module of machine code, compiled ahead of time: `tidemill.ready_loops`.

Each signature becomes an object file, and the C compiler links them behind `ready_loops.c`. The
module uses the stable interface of Python: one file serves every release from 3.11 on.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import re
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import distribution
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tidemill.arrangement.kernels.ready import LOOPS
from tidemill.arrangement.machine_code import PORTABLE
from tidemill.host.warming.compiling import Signature, loop_of, signatures
from tidemill.host.warming.wheels import Files, rewritten

Kind: TypeAlias = Any  # Any: numba has no types

SOURCE = Path(__file__).parent / "ready_loops.c"
PROVIDED = {
    "NRT_MemInfo_alloc_aligned", "NRT_MemInfo_new_varsize_dtor", "NRT_MemInfo_call_dtor",
    "NRT_MemInfo_varsize_alloc", "NRT_MemInfo_varsize_free",
    "memcpy", "memset", "memmove",
}  # fmt: skip
"""Functions that compiled code may call: those of `ready_loops.c` and of the C library."""
NEEDS_COMPILER = re.compile(r"^Requires-Dist: .*; extra == 'kernels'\n", re.M)
"""Lines of the metadata of a wheel that has no ready loops."""
LICENCE = "License-Expression: Apache-2.0\n"
LICENCES = "Apache-2.0 AND BSD-2-Clause"
"""Of a wheel with ready loops, which hold parts of the library of numba."""
PARTS_MAX = 8
"""Parts of a tuple, as in `ready_loops.c`."""
CODES = {
    "int64": "q", "uint64": "Q", "int32": "i", "uint32": "I", "uint8": "B", "bool": "b",
    "float64": "d", "none": "n",
}  # fmt: skip
WORDS = {
    "q": "int64_t", "Q": "int64_t", "i": "int32_t", "I": "int32_t", "B": "int8_t", "b": "int8_t",
    "d": "double",
}  # fmt: skip
"""Type in C of one value, by its code."""
IN_LLVM = {"int64_t": "i64", "int32_t": "i32", "int8_t": "i8", "void *": "ptr", "double": "double"}


class Emitted(NamedTuple):
    """One signature of a loop: what the module says of it, and its object file."""

    number: int
    module: str
    loop: str
    digest: str
    fields: tuple[str, ...]
    returned: str
    code: bytes

    @property
    def looseness(self) -> int:
        """Arguments that may be other than one layout that can be written."""
        return sum(field[1:2] in ("A", "G", "a", "c") for field in self.fields)


def build(folder: Path, wanted: Iterable[Signature] | None = None) -> Path:
    """Compile all loops and link them to a module in the folder `tidemill` below a folder.

    Needs a C compiler, and the headers of Python and numpy. Code is for the portable processor:
    NUMBA_CPU_NAME has to name it before the first import of the compiler.
    Raises: CalledProcessError if the C compiler fails; TypeError for a signature that the module
    cannot take. Cost: some 90 seconds of a processor.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count() or 1, context, load_nothing) as pool:
        emitted = list(pool.map(emit, enumerate(wanted or signatures()), chunksize=8))
    emitted.sort(key=lambda each: (each.module, each.loop, each.looseness, each.fields))
    made = folder / "tidemill" / "ready_loops.abi3.so"
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for each in emitted:
            Path(place, f"{each.number}.o").write_bytes(each.code)
        Path(place, "loops.h").write_text(header(emitted))
        includes = (place, sysconfig.get_path("include"), np.get_include())
        # By the C compiler of the system; the code of Python itself is not in it.
        command = [
            "cc", "-shared", "-fPIC", "-O2", "-Wall", "-fvisibility=hidden", "-s",
            *(f"-I{folder}" for folder in includes),
            str(SOURCE), *map(str, sorted(Path(place).glob("*.o"))), "-lm", "-o", str(made),
        ]  # fmt: skip
        subprocess.run(command, check=True)
    return made


def wheel_with(module: Path, wheel: Path, out: Path) -> Path:
    """A wheel of tidemill-arrangement for this platform from the one for all, with ready loops.

    It requires no compiler, and names the licence of the parts of numba in it. Its name says the
    oldest C library that the module works with.
    """
    asked = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", module.read_bytes())]
    platform_tag = f"manylinux_2_{max(17, *asked)}_{platform.machine()}"
    name = wheel.name.replace("-py3-none-any.whl", f"-cp311-abi3-{platform_tag}.whl")

    def change(folder: str, files: Files) -> Files:
        told, dropped = NEEDS_COMPILER.subn("", files[f"{folder}/METADATA"].decode())
        assert dropped, f"{wheel.name} requires no compiler"
        assert LICENCE in told, f"{wheel.name} states its licence otherwise"
        both = f"License-Expression: {LICENCES}\nLicense-File: LICENSE.numba\n"
        told = told.replace(LICENCE, both)
        tags = f"Root-Is-Purelib: false\nTag: cp311-abi3-{platform_tag}\n"
        kind = files[f"{folder}/WHEEL"].decode().partition("Root-Is-Purelib")[0]
        return {
            "tidemill/ready_loops.abi3.so": module.read_bytes(),
            f"{folder}/licenses/LICENSE.numba": _licence_of_numba(),
            f"{folder}/METADATA": told.encode(),
            f"{folder}/WHEEL": (kind + tags).encode(),
        }

    rewritten(wheel, out / name, change)
    return out / name


def _licence_of_numba() -> bytes:
    """Ready loops hold parts of its library."""
    files = distribution("numba").files or []
    return next(each for each in files if each.name == "LICENSE").read_binary()


def emit(wanted: tuple[int, Signature]) -> Emitted:
    """Compile a signature to an object file that has one function, `loop_NUMBER`.

    Raises: TypeError if the module cannot take it.
    """
    import llvmlite.binding as llvm

    number, signature = wanted
    loop, arguments = loop_of(signature)
    _forget_kept_code()
    loop.compile(arguments)
    done = loop.overloads[arguments]
    code = done.library._final_module.clone()
    entry = code.get_function(done.fndesc.llvm_func_name)
    for function in code.functions:
        if not function.is_declaration:
            function.linkage = "external" if function.name == entry.name else "internal"
    entry.name = f"loop_{number}"
    fields = [field_of(argument) for argument in arguments]
    words = "".join(f", {IN_LLVM[kind]}" for field in fields for kind, _ in words_of(field))
    if str(entry.global_value_type) != f"i32 (ptr, ptr{words})":
        raise TypeError(f"{signature}: the compiler calls loops by {entry.global_value_type}")
    for at in _written(loop, arguments, [list(word.attributes) for word in entry.arguments]):
        fields[at] = fields[at].translate(str.maketrans("CA", "WG"))
    triple = llvm.get_process_triple()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=PORTABLE[platform.machine()][0], opt=3, reloc="pic", codemodel="default"
    )
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    tuning = llvm.create_pipeline_tuning_options()
    passes.run(code, llvm.create_pass_builder(machine, tuning))
    others = {each.name for each in code.functions if each.is_declaration} - PROVIDED
    if others := {name for name in others if not name.startswith("llvm.")}:
        raise TypeError(f"{signature} calls {', '.join(sorted(others))}: ready_loops.c lacks it")
    return Emitted(
        number, signature.module, signature.loop, LOOPS[loop][1],
        tuple(fields), field_of(done.signature.return_type, is_returned=True),
        machine.emit_object(code),
    )  # fmt: skip


def load_nothing() -> None:
    """Keep the compiler from making code that this process could call.

    Code for the module is emitted apart. To emit it for this process as well, and to wrap it for
    calls from Python, was a third of the work.
    """
    from numba.core import codegen, compiler, cpu, dispatcher

    def customize(_compiler: object, flags: compiler.Flags) -> compiler.Flags:
        flags.no_cpython_wrapper = True
        return flags

    def executable(_context: object, library: Any, *_: object) -> object:  # Any: as below
        library._ensure_finalized()
        return [].append  # the compiler knows the loop by it: a function of no other list

    dispatchers: Any = dispatcher  # as below
    dispatchers._FunctionCompiler._customize_flags = customize
    cpu.CPUContext.get_executable = executable
    codegen.JITCodeLibrary._finalize_specific = lambda _: None


def _forget_kept_code() -> None:
    """Code that was kept has no module of LLVM any more."""
    from numba.core.caching import NullCache

    for loop in LOOPS:
        if hasattr(loop, "_cache"):
            loop._cache = NullCache()


def _written(
    loop: Any, arguments: tuple[Kind, ...], attributes: list[list[bytes]]
) -> Iterator[int]:
    """Arguments that the loop writes to: arrays for which the compiler refuses read-only ones.

    `attributes` are those of each word of the compiled loop. It is not compiled again for an array
    whose data it provably only reads. Any: numba has no types.
    """
    from numba import types

    begin = 2  # behind the result and what is raised
    for at, kind in enumerate(arguments):
        data = begin + 4
        begin += len(list(words_of(field_of(kind))))
        if not (isinstance(kind, types.Array) and kind.mutable):
            continue
        if {b"readonly", b"readnone"} & set(attributes[data]):
            continue
        if not _is_typed(loop, (*arguments[:at], kind.copy(readonly=True), *arguments[at + 1 :])):
            yield at


def _is_typed(loop: Any, arguments: tuple[Kind, ...]) -> bool:
    """Whether a loop takes arguments of these types. Any: numba has no types."""
    from numba.core.errors import NumbaError

    with _types_alone():
        try:
            _returned(loop, arguments)
        except NumbaError:
            return False
    return True


@contextmanager
def _types_alone() -> Iterator[None]:
    """A block in which no loop that another one calls is compiled: its types are found."""
    from numba.core.typing import signature

    def typed(loop: Any, arguments: tuple[Kind, ...]) -> None:  # Any: numba has no types
        found = signature(_returned(loop, arguments), *arguments)
        loop.overloads[arguments] = SimpleNamespace(signature=found, objectmode=False)

    loops = [each for each in LOOPS if hasattr(each, "overloads")]
    kept = [dict(each.overloads) for each in loops]
    for each in loops:
        each.compile = partial(typed, each)
    try:
        yield
    finally:
        for each, overloads in zip(loops, kept, strict=True):
            del each.compile
            each.overloads.clear()
            each.overloads.update(overloads)


@cache
def _returned(loop: Any, arguments: tuple[Kind, ...]) -> Kind:
    """The type that a loop returns, by the part of the compiler that finds types.

    Raises: NumbaError if the loop does not take these arguments. Any: numba has no types.
    """
    from numba.core import compiler, typed_passes

    class Typing(compiler.PassManager):  # type: ignore[misc]  # as above
        def run(self, state: Any) -> None:
            super().run(state)
            raise compiler._EarlyPipelineCompletion(state.return_type)

    class Typed(compiler.CompilerBase):  # type: ignore[misc]  # as above
        def define_pipelines(self) -> list[Typing]:
            passes = Typing("types")
            passes.passes += compiler.DefaultPassBuilder.define_untyped_pipeline(self.state).passes
            passes.add_pass(typed_passes.NopythonTypeInference, "types of all values")
            passes.finalize()
            return [passes]

    target, flags = loop._compiler.targetdescr, compiler.Flags()
    target.options.parse_as_flags(flags, loop.targetoptions)
    return compiler.compile_extra(
        target.typing_context, target.target_context, loop.py_func, arguments, None, flags, {},
        pipeline_class=Typed,
    )  # fmt: skip


def field_of(kind: Kind, *, is_returned: bool = False) -> str:
    """A type as the module reads it: `q`, `(qb)`, `2Cq`; read-only arrays are `1cq`.

    Parts of a tuple are numbers, of one that is returned arrays as well.
    Raises: TypeError for a type that has no such text.
    """
    from numba import types

    if isinstance(kind, types.BaseTuple) and len(kind.types) <= PARTS_MAX:
        fields = [field_of(part, is_returned=is_returned) for part in kind.types]
        if any(f[0] in "(n" or (f[0].isdigit() and not is_returned) for f in fields):
            raise TypeError(f"ready loops take no {kind}")
        return f"({''.join(fields)})"
    is_array = isinstance(kind, types.Array)
    code = CODES.get(str(kind.dtype if is_array else kind))
    if code is None or (is_array and kind.layout not in "CA"):
        raise TypeError(f"ready loops take no {kind}")
    if not is_array:
        return code
    return f"{kind.ndim}{kind.layout if kind.mutable else kind.layout.lower()}{code}"


def words_of(field: str) -> Iterator[tuple[str, str]]:
    """(type in C, member of a word) of each word that a field is handed on by."""
    if field[0].isdigit():
        yield from [("void *", "p")] * 2 + [("int64_t", "i")] * 2 + [("void *", "p")]
        yield from [("int64_t", "i")] * (2 * int(field[0]))
    else:
        for code in field.strip("()"):
            yield WORDS[code], "d" if code == "d" else "i"


def header(emitted: list[Emitted]) -> str:
    """The text of `loops.h`: a function for each signature, and the tables of all of them."""
    functions, table, loops, first = [], [], [], 0
    words_max = 1
    for (module, name, digest), found in groupby(emitted, lambda each: each[1:4]):
        held = list(found)
        for each in held:
            words = [word for field in each.fields for word in words_of(field)]
            words_max = max(words_max, len(words))
            types = "".join(f", {kind}" for kind, _ in words)
            given = "".join(f", ({kind})w[{at}].{of}" for at, (kind, of) in enumerate(words))
            functions.append(
                f"extern int loop_{each.number}(void *, void **{types});\n"
                f"static int run_{each.number}(void *out, void **raised, const Word *w)\n"
                f"{{ return loop_{each.number}(out, raised{given}); }}\n"
            )
            table.append(f'{{"{"".join(each.fields)}", "{each.returned}", run_{each.number}}},\n')
        count = len(held[0].fields)
        loops.append(f'{{"{module}", "{name}", "{digest}", {count}, {first}, {len(held)}}},\n')
        first += len(held)
    return (
        f"#define WORDS_MAX {words_max}\n{''.join(functions)}"
        f"static const Signature SIGNATURES[] = {{\n{''.join(table)}}};\n"
        f"static const Loop LOOPS[] = {{\n{''.join(loops)}}};\n"
    )
