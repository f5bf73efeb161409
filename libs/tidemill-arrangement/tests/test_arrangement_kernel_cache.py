"""Machine code is made once: a second process finds it, wherever the library is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import types

import tidemill.arrangement.kernels as kernels
from tidemill.arrangement.kernels.arrays import compiled

PROGRAM = """
import numpy as np, sys
sys.path.insert(0, sys.argv[1])
from copied.arrays import compiled
from copied import loops
assert loops.total(np.arange(4, dtype=np.int64)) == 6
stats = loops.total.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()), loops.total._cache.cache_path)
"""
LOOP = """
from copied.arrays import I64Array, compiled

@compiled
def total(numbers: I64Array) -> int:
    found = 0
    for number in numbers:
        found += number
    return found
"""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A library elsewhere with the decorator and one loop of the kernels."""
    source = Path(kernels.__file__).parent
    package = tmp_path / "site" / "copied"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(source / "arrays.py", package)
    (package / "loops.py").write_text(LOOP)
    return package


def first_call(package: Path, tmp_path: Path) -> tuple[int, int, str]:
    """Of a new process: loops found on disk, loops compiled, and where they are kept."""
    environment = {**os.environ, "HOME": str(tmp_path / "home"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("XDG_CACHE_HOME", None)
    environment.pop("NUMBA_CACHE_DIR", None)
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(package.parent)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    hits, misses, place = found.stdout.split()
    return int(hits), int(misses), place


def test_a_second_process_compiles_nothing(copied: Path, tmp_path: Path) -> None:
    assert first_call(copied, tmp_path)[:2] == (0, 1)
    hits, misses, place = first_call(copied, tmp_path)
    assert (hits, misses, Path(place).parent) == (1, 0, copied)


ARRANGING = """
import sys
import numpy as np
from numba.core.dispatcher import Dispatcher
from tidemill.arrangement.interval_updates import END_WORD, Merged

merged = Merged(4, (0, 1), 2)
for time in range(3):
    merged.take(np.array([[0, key, END_WORD, 0, time, END_WORD, 1] for key in range(5)]))
merged.facts.index((1,))
merged.compact(3)
assert len(merged.facts) == 5
loops = {
    id(loop): loop
    for name, module in list(sys.modules.items()) if name.startswith("tidemill.")
    for loop in vars(module).values() if isinstance(loop, Dispatcher)
}
counts = [
    sum(sum(getattr(loop.stats, kind).values()) for loop in loops.values())
    for kind in ("cache_hits", "cache_misses")
]
print(*counts)
"""


def test_a_second_process_arranges_rows_and_compiles_nothing(tmp_path: Path) -> None:
    """All loops of the library, by what the compiler says of each: found on disk, or compiled."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    found = []
    for _ in range(2):
        said = subprocess.run(
            [sys.executable, "-c", ARRANGING],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        found.append([int(word) for word in said.stdout.split()])
    (_, compiled_first), (hits, compiled_again) = found
    assert compiled_first >= hits > 0
    assert compiled_again == 0


@compiled
def plus(number: int, negated: bool) -> int:
    return -number if negated else number


def test_a_loop_is_compiled_once_for_all_literals() -> None:
    """Another loop that calls it asks numba for it in this way."""
    loop: Any = plus  # numba has no types
    for number, negated in ((1, False), (2, True), (3, False)):
        loop.get_call_template((types.literal(number), types.literal(negated)), {})
    assert loop.signatures == [(types.int64, types.boolean)]
    assert plus(4, True) == -4


def test_where_the_library_cannot_be_written_the_cache_of_the_user_serves(
    copied: Path, tmp_path: Path
) -> None:
    # NB: permissions bind no superuser; a file where the cache would be binds everybody.
    (copied / "__pycache__").touch()
    assert first_call(copied, tmp_path)[:2] == (0, 1)
    hits, misses, place = first_call(copied, tmp_path)
    assert (hits, misses) == (1, 0)
    assert (tmp_path / "home") in Path(place).parents


def test_where_nothing_can_be_written_loops_are_compiled_and_run(
    copied: Path, tmp_path: Path
) -> None:
    (copied / "__pycache__").touch()
    (tmp_path / "home").touch()
    environment = {**os.environ, "HOME": str(tmp_path / "home"), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("._cache.cache_path", ".stats.cache_path"), str(copied.parent)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip


def test_a_change_in_any_module_beside_a_loop_compiles_it_again(
    copied: Path, tmp_path: Path
) -> None:
    """A loop contains what it calls, and the library that compiles it looks at its own file only."""
    first_call(copied, tmp_path)
    (copied / "other.py").write_text("# called by the loop, perhaps\n")
    assert first_call(copied, tmp_path)[:2] == (0, 1)


def test_who_does_not_use_kernels_does_not_wait_for_their_compiler() -> None:
    program = """
import sys
import tidemill.testkit.partial_orders, tidemill.arrangement.trace, tidemill.arrangement.updates
import tidemill.client, tidemill.datalog, tidemill.reclock, tidemill.shard
print("numba" in sys.modules)
"""
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "False"
