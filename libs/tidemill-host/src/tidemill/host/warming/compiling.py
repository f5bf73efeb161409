"""Loops of this install with all signatures that they are called with, and their compilation."""

from __future__ import annotations

import multiprocessing
import os
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any, NamedTuple

SIGNATURES = Path(__file__).parent / "signatures.toml"
"""By module and loop the types of arguments; `make loops` writes it."""


class Signature(NamedTuple):
    """Types of the arguments of one loop."""

    module: str
    loop: str
    arguments: str


def signatures() -> Iterator[Signature]:
    """All that loops are called with."""
    for module, loops in tomllib.loads(SIGNATURES.read_text()).items():
        for loop, texts in loops.items():
            for text in texts:
                yield Signature(module, loop, text)


def missing() -> list[Signature]:
    """Those whose machine code no folder has. Imports all modules with loops."""
    return [wanted for wanted in signatures() if not _is_kept(wanted)]


def warm() -> int:
    """Compile what is missing, on all processors; how many that was.

    Cost: some two minutes of a processor for all loops, two seconds if none is missing.
    """
    wanted = missing()
    if wanted:
        workers = min(len(wanted), os.cpu_count() or 1)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            list(pool.map(_compile, wanted))
    return len(wanted)


def loop_of(of: Signature) -> tuple[Any, Any]:
    """A loop and the types of its arguments. Any: numba has no types."""
    from tidemill.arrangement.kernels.signatures import signature_of  # the compiler

    return getattr(import_module(of.module), of.loop), signature_of(of.arguments)


def _is_kept(wanted: Signature) -> bool:
    if isinstance(getattr(import_module(wanted.module), wanted.loop), BuiltinFunctionType):
        return True  # it came with the wheel
    loop, arguments = loop_of(wanted)
    return loop._cache.kept(arguments, loop.targetctx.codegen().magic_tuple()) is not None


def _compile(wanted: Signature) -> None:
    loop, arguments = loop_of(wanted)
    loop.compile(arguments)
