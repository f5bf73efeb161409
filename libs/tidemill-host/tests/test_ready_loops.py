"""Ready loops give what the compiler's give, and no process that calls them needs a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import types

from tidemill.host.warming.ahead import build, field_of
from tidemill.host.warming.compiling import Signature

LOOPS = """
import numpy as np
from tidemill.arrangement.kernels.arrays import compiled, inlined

STEP = 3
TABLE = np.arange(3)

@inlined
def stepped(number):
    return number + STEP

@compiled
def total(numbers, pair, flag, scale):
    found = 0
    for i in range(numbers.shape[0]):
        for j in range(numbers.shape[1]):
            found += numbers[i, j] * (i + 2 * j)
    return found * scale + stepped(pair[0]) - pair[1] if flag else -1.0

@compiled
def filled(numbers, value):
    for i in range(numbers.size):
        numbers[i] = value

@compiled
def copied(numbers):
    if numbers.size == 0:
        return numbers, np.int64(0), True
    made = np.zeros(numbers.size, np.uint64)
    for i in range(numbers.size):
        made[i] = numbers[i]
    return made, np.int64(made[0]), False

@compiled
def quotient(number, other):
    return number // other

@compiled
def distinct(numbers):
    seen = {np.int64(-1)}
    for number in numbers:
        seen.add(number)
    return len(seen) - 1

@compiled
def narrow(number, byte):
    return number + byte

@compiled
def added(sums, numbers):
    for i in range(sums.size):
        sums[i] += numbers[i]

@compiled
def head(numbers, count):
    return numbers[:count]

@compiled
def spread(count):
    return np.zeros(2 * count, np.int64)[::2]

@compiled
def tabled(size):
    return TABLE, np.zeros(size, np.int64)
"""
SIGNATURES = [
    ("total", "const int64[2A], (int64, int64), bool, float64"),
    ("total", "int64[2C], (int64, int64), bool, float64"),
    ("filled", "uint8[1C], int64"),
    ("filled", "bool[1C], bool"),
    ("copied", "uint64[1C]"),
    ("quotient", "int64, int64"),
    ("quotient", "uint64, uint64"),
    ("distinct", "int64[1C]"),
    ("narrow", "int32, int64"),
    ("added", "int64[1C], int64[1C]"),
    ("head", "uint64[1C], int64"),
    ("spread", "int64"),
    ("tabled", "int64"),
]
BLOCKED = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite"):
            raise ModuleNotFoundError(f"{name} is absent", name=name)

sys.meta_path.insert(0, Absent())
"""
ASKED = """
import gc, numpy as np, ready_probe as probe, resource, sys
READY = type(len)

def text(value):
    if isinstance(value, tuple):
        return [text(each) for each in value]
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.flags.writeable, value.tolist()]
    return [type(value).__name__, value]

def told(loop, *arguments):
    try:
        return text(loop(*arguments))
    except Exception as error:
        return [type(error).__name__, str(error)]

grid = np.arange(12).reshape(3, 4)
frozen = grid.copy()
frozen.flags.writeable = False
small = np.zeros(3, np.uint8)
bits = np.zeros(2, np.bool_)
words = np.array([2**63, 5], np.uint64)
none = np.zeros(0, np.uint64)
answers = [
    told(probe.total, grid, (1, 2), True, 0.5),
    told(probe.total, grid[::2, ::3], (1, np.int64(2)), np.bool_(True), np.float64(2)),
    told(probe.total, frozen, (1, 2), False, 2.0),
    told(probe.total, grid.T, (-7, 2), True, 2.0),
    told(probe.filled, small, 7), small.tolist(),
    told(probe.filled, bits, True), bits.tolist(),
    told(probe.copied, words), told(probe.copied, none), probe.copied(none)[0] is none,
    told(probe.quotient, -7, 2), told(probe.quotient, np.uint64(7), np.uint64(2)),
    told(probe.quotient, 7, 0),
    told(probe.distinct, np.array([3, 1, 3])),
    told(probe.narrow, np.int32(-2), 5),
    told(probe.head, words, 1), told(probe.head, words, 0), probe.head(words, 2) is words,
    np.shares_memory(probe.head(words, 1), words),
    told(probe.spread, 3),
]
"""
LEAKS = """
big = np.arange(1 << 17, dtype=np.uint64)
def hundred():
    before = sys.getrefcount(big)
    for _ in range(100):
        held, *_ = probe.copied(big)
        probe.total(grid, (1, 2), True, 0.5)
        probe.distinct(np.arange(1000))
    del held
    assert sys.getrefcount(big) == before
hundred()
most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(5):
    hundred()
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most
assert grown < 50_000, grown  # KiB; all that was made is 500 MiB
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the module `ready_probe` and its ready loops."""
    folder = tmp_path_factory.mktemp("ready")
    (folder / "ready_probe.py").write_text(LOOPS)
    wanted = [Signature("ready_probe", *each) for each in SIGNATURES]
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        patched.setenv("PYTHONPATH", str(folder))
        build(folder, wanted)
    return folder


def ran(program: str, *folders: Path) -> str:
    """The output of a process that finds modules in these folders too."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ready_loops_give_what_the_compilers_give(place: Path, tmp_path: Path) -> None:
    """Values, types, what is raised, and arrays that come back, without a compiler."""
    (tmp_path / "ready_probe.py").write_text(LOOPS)
    ready = f"{BLOCKED}{ASKED}assert type(probe.total) is READY\nprint(answers)\n{LEAKS}"
    compiled = f"{ASKED}assert type(probe.total) is not READY\nprint(answers)"
    assert ran(ready, place) == ran(compiled, tmp_path)


def test_arguments_of_other_types_are_compiled_or_refused_with_what_to_install(place: Path) -> None:
    asked = "probe.distinct(np.array([3, 1, 3], np.uint32))"
    assert ran(f"{ASKED}print({asked})", place) == "2\n"
    done = ran(f"{BLOCKED}{ASKED}print(told(lambda: {asked}))", place)
    assert "pip install 'tidemill[compiler]'" in done
    assert "UsageError" in done


def test_arrays_with_gaps_or_for_reading_need_no_compiler(place: Path) -> None:
    """Loops of which only whole arrays for writing were recorded; a twin is Python."""
    program = f"""{BLOCKED}{ASKED}
wide = np.zeros(6, np.uint8)
probe.filled(wide[::2], 7)
print(wide.tolist())
numbers = np.array([3, 1, 3, 9])
numbers.flags.writeable = False
print(probe.distinct(numbers), probe.distinct(numbers[::2]))
words.flags.writeable = False
print(probe.copied(words)[0].tolist() == words.tolist(), probe.head(words, 1).flags.writeable)
sums = np.zeros(4, np.int64)
probe.added(sums, numbers)
print(sums.tolist())
"""
    assert ran(program, place) == "[7, 0, 7, 0, 7, 0]\n3 1\nTrue False\n[3, 1, 3, 9]\n"


def test_no_loop_writes_to_an_array_that_cannot_be_written(place: Path) -> None:
    program = f"""{BLOCKED}{ASKED}
held = bytes(6)
kept = np.frombuffer(held, np.uint8)
print(told(probe.filled, kept, 7)[0], told(probe.filled, kept[::2], 7)[0], held == bytes(6))
"""
    assert ran(program, place) == "UsageError UsageError True\n"
    assert ran(program.removeprefix(BLOCKED), place) == "TypingError TypingError True\n"


def test_packed_arrays_give_what_arrays_in_place_give(place: Path) -> None:
    """One array twice is one copy, what is read is left alone, shared memory is refused."""
    program = f"""{BLOCKED}{ASKED}
class Watched(np.ndarray):
    def __setitem__(self, at, value):
        raise AssertionError("it is only read")

numbers = np.arange(8)
probe.added(numbers[1::2], numbers[::2].view(Watched))
print(numbers.tolist())
column = numbers[::4]
probe.added(column, column)
print(numbers.tolist())
for pair in ((numbers[:4], numbers[::2]), (numbers[::2], numbers[2::2]), (numbers[::2], numbers)):
    print(told(probe.added, *pair)[0], numbers.tolist() == [0, 1, 2, 5, 8, 9, 6, 13])
"""
    refused = "UsageError True\n"
    assert ran(program, place) == (
        f"[0, 1, 2, 5, 4, 9, 6, 13]\n[0, 1, 2, 5, 8, 9, 6, 13]\n{3 * refused}"
    )


def test_what_a_loop_made_is_let_go_if_another_part_of_its_result_is_refused(place: Path) -> None:
    program = f"""{BLOCKED}{ASKED}
def hundred():
    for _ in range(100):
        assert told(probe.tabled, 1 << 17)[0] == "SystemError"
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
most = hundred()
print(hundred() - most < 50_000)  # KiB; all that was made is 100 MiB
"""
    assert ran(program, place) == "True\n"


def test_tuples_that_the_module_cannot_read_are_refused_when_it_is_built() -> None:
    pair = types.UniTuple(types.int64, 2)
    array = types.Array(types.int64, 1, "C")
    assert field_of(types.Tuple((array, types.int64)), is_returned=True) == "(1Cqq)"
    for refused in (types.Tuple((array, types.int64)), types.Tuple((pair, types.int64))):
        with pytest.raises(TypeError, match="take no"):
            field_of(refused)
    with pytest.raises(TypeError, match="take no"):
        field_of(types.Tuple((pair, array)), is_returned=True)


@pytest.mark.parametrize("absent", ["numba", "llvmlite"])
def test_half_a_compiler_runs_no_loops(absent: str) -> None:
    program = f"""{BLOCKED.replace('("numba", "llvmlite")', f'("{absent}",)')}
from tidemill.arrangement.machine_code import has_loops
print(has_loops())
"""
    assert ran(program) == "False\n"


def test_a_loop_that_is_compiled_now_calls_ready_ones(place: Path) -> None:
    """A ready loop and a piece of one, neither of which the compiler has made."""
    program = f"""{ASKED}
from tidemill.arrangement.kernels.arrays import compiled
from ready_probe import quotient, stepped
@compiled
def both(number):
    return quotient(number, 2) + stepped(number)
print(both(8), type(quotient) is READY)
"""
    assert ran(program, place) == "15 True\n"


@pytest.mark.parametrize("change", [("STEP = 3", "STEP = 4"), ("+ STEP", "- STEP")])
def test_a_loop_of_another_source_is_not_taken(
    place: Path, tmp_path: Path, change: tuple[str, str]
) -> None:
    (tmp_path / "ready_probe.py").write_text(LOOPS.replace(*change))
    program = f"{ASKED}print(type(probe.total) is READY, probe.narrow(np.int32(1), 1))"
    assert ran(program, tmp_path, place) == "False 2\n"
