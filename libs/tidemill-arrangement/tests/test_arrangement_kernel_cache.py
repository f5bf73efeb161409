"""Machine code is made once, and code of other sources, users or processors is never loaded."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from numba import types

from tidemill.arrangement.kernels.arrays import compiled
from tidemill.arrangement.machine_code import PORTABLE, CodeFolders

CHOSEN = """
import sys
from pathlib import Path
from tidemill.arrangement import machine_code
machine_code.FOLDERS = machine_code.CodeFolders(*map(Path, sys.argv[1:]))
"""
PROGRAM = f"""{CHOSEN}
sys.path.insert(0, str(Path(sys.argv[1]).parent.parent))
import numpy as np
from tidemill_copied import total
assert total(np.arange(4)) == 6
print(sum(total.stats.cache_hits.values()), sum(total.stats.cache_misses.values()))
"""
TELLING = f"""{CHOSEN}
sys.path.insert(0, str(Path(sys.argv[1]).parent.parent))
import numpy as np
from tidemill_copied import total
told = []
with machine_code.told_of_compiling(lambda: told.append(sum(total.stats.cache_misses.values()))):
    total(np.arange(4))
    total(np.arange(4.0))
total(np.arange(4, dtype=np.uint8))
print(len(told), *told, sum(total.stats.cache_misses.values()))
"""
LOOPS = """
import numpy as np
from tidemill.arrangement.kernels.arrays import compiled, inlined

@inlined
def plus(number: int) -> int:
    return number + 0

@compiled
def total(numbers: np.ndarray) -> int:
    found = 0
    for number in numbers:
        found += plus(number)
    return found
"""
HIT, COMPILED = (1, 0), (0, 1)
COMPILING = {**os.environ, "PYTHONPATH": ""}
"""Of a process without ready loops, which a run of all tests has on that path."""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The folder of machine code beside a library elsewhere, which has one loop."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "tidemill_copied.py").write_text(LOOPS)
    return tmp_path / "site" / "__pycache__" / "machine-code"


WARMED = """
import json, os, sys, traceback
import numba, numpy

numba.njit(lambda numbers: numbers.sum())(numpy.arange(2))
for line in sys.stdin:
    program, folders, output = json.loads(line)
    child = os.fork()
    if not child:
        code = 1
        try:
            sys.argv[1:] = folders
            with open(output, "w") as sys.stdout:
                exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Forks of a process that has loaded the compiler, and nothing that is compiled."""


@pytest.fixture(scope="module")
def warmed() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-B", "-c", WARMED]
    with subprocess.Popen(
        command, env=COMPILING, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        yield parent
        parent.communicate()
    assert parent.returncode == 0


Forked = Callable[..., tuple[int, ...]]


@pytest.fixture
def forked(warmed: subprocess.Popen[str], tmp_path: Path) -> Forked:
    """The numbers of `process`, without the second that the compiler takes to load."""

    def numbers(program: str, *folders: Path) -> tuple[int, ...]:
        assert warmed.stdin is not None
        assert warmed.stdout is not None
        output = tmp_path / "printed"
        asked = json.dumps([program, [str(each) for each in folders], str(output)])
        warmed.stdin.write(f"{asked}\n")
        warmed.stdin.flush()
        assert warmed.stdout.readline() == "0\n"
        return tuple(map(int, output.read_text().split()))

    return numbers


def process(program: str, *folders: Path, **environment: str) -> tuple[int, ...]:
    """The numbers that a new process prints: loops found on disk, and loops compiled."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", program, *map(str, folders)],
        env={**COMPILING, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return tuple(map(int, done.stdout.split()))


def only_file(folder: Path) -> Path:
    """The file of machine code in a folder, which has one for each of two loops at most."""
    (file,) = folder.glob("*.total-*")
    return file


def test_a_second_process_compiles_nothing(installed: Path) -> None:
    assert process(PROGRAM, installed) == COMPILED
    assert process(PROGRAM, installed) == HIT


def test_torn_machine_code_is_passed_over_and_replaced(installed: Path, forked: Forked) -> None:
    forked(PROGRAM, installed)
    file = only_file(installed)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert forked(PROGRAM, installed) == COMPILED
    assert forked(PROGRAM, installed) == HIT


def test_a_change_of_a_loop_that_a_loop_calls_compiles_it_again(
    installed: Path, forked: Forked
) -> None:
    forked(PROGRAM, installed)
    before = only_file(installed)
    source = installed.parent.parent / "tidemill_copied.py"
    source.write_text(LOOPS.replace("number + 0", "number - 0"))
    assert forked(PROGRAM, installed) == COMPILED
    assert only_file(installed) != before


def test_a_change_of_a_comment_compiles_nothing(installed: Path, forked: Forked) -> None:
    forked(PROGRAM, installed)
    source = installed.parent.parent / "tidemill_copied.py"
    source.write_text(f"# a line above\n{LOOPS}")
    assert forked(PROGRAM, installed) == HIT


def test_machine_code_of_another_processor_is_not_loaded(installed: Path) -> None:
    assert process(PROGRAM, installed) == COMPILED
    other = {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": ""}
    assert process(PROGRAM, installed, **other) == COMPILED
    assert process(PROGRAM, installed, **other) == HIT
    assert process(PROGRAM, installed) == HIT


def test_portable_machine_code_is_loaded_by_this_processor(installed: Path) -> None:
    portable = {"NUMBA_CPU_NAME": PORTABLE[platform.machine()][0], "NUMBA_CPU_FEATURES": ""}
    assert process(PROGRAM, installed, **portable) == COMPILED
    assert process(PROGRAM, installed) == HIT


def test_where_the_library_cannot_be_written_another_folder_serves(
    installed: Path, tmp_path: Path, forked: Forked
) -> None:
    # NB: permissions bind no superuser; a file where the folder would be binds everybody.
    installed.parent.touch()
    assert forked(PROGRAM, installed, tmp_path / "own") == COMPILED
    assert forked(PROGRAM, installed, tmp_path / "own") == HIT
    assert only_file(tmp_path / "own")


def test_where_nothing_can_be_written_loops_are_compiled_and_run(
    installed: Path, forked: Forked
) -> None:
    installed.parent.touch()
    assert forked(PROGRAM, installed) == COMPILED
    assert forked(PROGRAM, installed) == COMPILED


@pytest.fixture
def folders(installed: Path) -> CodeFolders:
    """Folders with one file, `name`."""
    made = CodeFolders(installed)
    made.write("name", b"code", outdated="name*")
    assert made.read("name") == b"code"
    return made


def test_a_file_under_another_name_is_passed_over(folders: CodeFolders, installed: Path) -> None:
    (installed / "name").rename(installed / "other")
    assert folders.read("other") is None


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_is_passed_over(
    folders: CodeFolders, installed: Path, mode: int
) -> None:
    (installed / "name").chmod(mode)
    assert folders.read("name") is None
    folders.write("name", b"code", outdated="name*")
    assert folders.read("name") == b"code"


def test_a_folder_that_others_may_write_is_passed_over(
    folders: CodeFolders, installed: Path
) -> None:
    installed.chmod(0o777)
    assert folders.read("name") is None
    assert CodeFolders(installed).written() is None


def test_a_link_is_passed_over(folders: CodeFolders, installed: Path, tmp_path: Path) -> None:
    (installed / "name").rename(tmp_path / "elsewhere")
    (installed / "name").symlink_to(tmp_path / "elsewhere")
    assert folders.read("name") is None


def test_a_file_of_another_user_is_passed_over(
    folders: CodeFolders, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = os.stat_result([*(installed / "name").stat()[:4], 4_242, *[0] * 5])
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", lambda _: found)
        assert folders.read("name") is None
    assert folders.read("name") == b"code"


def test_writers_at_once_leave_one_whole_file(installed: Path) -> None:
    contents = [bytes([number]) * 100_000 for number in range(8)]

    def write(content: bytes) -> bytes | None:
        mine = CodeFolders(installed)
        for _ in range(20):
            mine.write("name", content, outdated="name*")
            assert mine.read("name") in contents
        return mine.read("name")

    with ThreadPoolExecutor(len(contents)) as pool:
        assert set(pool.map(write, contents)) <= set(contents)
    assert [file.name for file in installed.iterdir()] == ["name"]


def test_two_processes_that_compile_at_once_leave_code_for_a_third(installed: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: process(PROGRAM, installed), range(2)))
    assert process(PROGRAM, installed) == HIT


ARRANGING = f"""{CHOSEN}
import numpy as np
from numba.core.dispatcher import Dispatcher
from tidemill.arrangement.interval_updates import END_WORD, Merged

merged = Merged(4, (0, 1), 2)
for time in range(3):
    merged.take(np.array([[0, key, END_WORD, 0, time, END_WORD, 1] for key in range(5)]))
merged.facts.index((1,))
merged.compact(3)
assert len(merged.facts) == 5
loops = {{
    id(loop): loop
    for name, module in list(sys.modules.items()) if name.startswith("tidemill.")
    for loop in vars(module).values() if isinstance(loop, Dispatcher)
}}
counts = [
    sum(sum(getattr(loop.stats, kind).values()) for loop in loops.values())
    for kind in ("cache_hits", "cache_misses")
]
print(*counts)
"""


def test_a_second_process_arranges_rows_and_compiles_nothing(
    installed: Path, forked: Forked
) -> None:
    """All loops of the library, by the compiler's own counts: found on disk, or compiled."""
    _, compiled_first = forked(ARRANGING, installed)
    hits, compiled_again = forked(ARRANGING, installed)
    assert compiled_first >= hits > 0
    assert compiled_again == 0


@compiled
def negated(number: int, is_negated: bool) -> int:
    return -number if is_negated else number


def test_a_loop_is_compiled_once_for_all_literals() -> None:
    """Another loop that calls it asks numba for it in this way."""
    loop: Any = negated  # numba has no types
    for number, flag in ((1, False), (2, True), (3, False)):
        loop.get_call_template((types.literal(number), types.literal(flag)), {})
    assert loop.signatures == [(types.int64, types.boolean)]
    assert negated(4, True) == -4


def test_a_process_without_kernels_does_not_wait_for_their_compiler() -> None:
    program = """
import sys
import tidemill.testkit.partial_orders, tidemill.arrangement.trace, tidemill.arrangement.updates
import tidemill.client, tidemill.datalog, tidemill.reclock, tidemill.shard
print(int("numba" in sys.modules))
"""
    assert process(program) == (0,)


def test_who_waits_for_compiled_loops_is_told_once_before_the_first_one(
    installed: Path, forked: Forked
) -> None:
    assert forked(TELLING, installed) == (1, 0, 3)  # before any of the three
    assert forked(TELLING, installed) == (0, 0)  # the companion: all are found
