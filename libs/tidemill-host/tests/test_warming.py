"""Warming compiles every loop of the product, so that no process of it compiles one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import BuiltinFunctionType

from numba.core.dispatcher import Dispatcher

from tidemill.arrangement.kernels.ready import LOOPS
from tidemill.host.warming import missing, signatures, warm

ROOT = Path(__file__).resolve().parents[3]
DECORATED = re.compile(r"^@compiled$", re.MULTILINE)


def sources() -> dict[str, str]:
    """Text of all modules of the product, by name."""
    found = {}
    for member in (*ROOT.glob("libs/*/src"), *ROOT.glob("services/*/src")):
        for file in member.rglob("*.py"):
            found[".".join(file.relative_to(member).with_suffix("").parts)] = file.read_text()
    return found


def compiled_loops() -> set[tuple[str, str]]:
    """Module and name of each loop that is compiled by itself; imports their modules."""
    return {
        (module, name)
        for module, text in sources().items() if DECORATED.search(text)
        for name, loop in vars(import_module(module)).items()
        if isinstance(loop, BuiltinFunctionType | Dispatcher) and loop in LOOPS
        and LOOPS[loop][0].__module__ == module
        and not (isinstance(loop, Dispatcher) and loop.targetoptions.get("forceinline"))
    }  # fmt: skip


def test_every_compiled_loop_has_its_signatures() -> None:
    """A loop that is missing: call it in a test, then `make loops`."""
    assert compiled_loops() == {(each.module, each.loop) for each in signatures()}


def test_one_decorator_compiles_all_loops() -> None:
    users = {name for name, text in sources().items() if re.search(r"\bn?jit\b", text)}
    assert users == {"tidemill.arrangement.kernels.kept_code"}


def test_after_warming_no_signature_is_missing() -> None:
    warm()
    assert missing() == []
    assert warm() == 0


EVERY = 40
SOME = f"""
from tidemill.host.warming import compiling
some = list(compiling.signatures())[::{EVERY}]
compiling.signatures = lambda: iter(some)
compiling.warm()
print(len(some), compiling.missing(), compiling.warm())
"""


def test_loops_that_no_wheel_has_are_missing_until_they_are_warm() -> None:
    """Some of them: a run of all tests takes its loops from the module of ready ones."""
    plain = {**os.environ, "PYTHONPATH": ""}
    command = [sys.executable, "-c", SOME]
    done = subprocess.run(command, capture_output=True, text=True, env=plain, check=True)
    some = len(list(signatures())[::EVERY])
    assert some > 1
    assert done.stdout == f"{some} [] 0\n"
