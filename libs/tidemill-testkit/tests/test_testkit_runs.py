"""Tests of one process do not meet each other's traces, and processes share their work."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidemill.testkit.file_locks import alone
from tidemill.testkit.runs import (
    compiled_once,
    compiling_alone,
    heaviest_first,
    left_behind,
    shared_state,
    unit_of,
)
from tidemill.testkit.weights import LIGHT_S, measured, weights

ROOT = Path(__file__).resolve().parents[3]


def disabled() -> Callable[[], None]:
    logging.disable(logging.CRITICAL)
    return lambda: logging.disable(logging.NOTSET)


def ignored() -> Callable[[], None]:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    return lambda: signal.signal(signal.SIGUSR1, before) and None


def moved() -> Callable[[], None]:
    before = Path.cwd()
    os.chdir("/")
    return lambda: os.chdir(before)


def told() -> Callable[[], None]:
    os.environ["TIDEMILL_LEFT"] = "1"
    return lambda: os.environ.__delitem__("TIDEMILL_LEFT")


def imported() -> Callable[[], None]:
    sys.path.append("/absent")
    return lambda: sys.path.remove("/absent")


def switched() -> Callable[[], None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(before * 2)
    return lambda: sys.setswitchinterval(before)


def unmasked() -> Callable[[], None]:
    before = os.umask(0o012)
    return lambda: os.umask(before) and None


@pytest.mark.parametrize(
    ("leave", "said"),
    [
        (disabled, "logging.disable"),
        (ignored, "handlers of signals"),
        (moved, "the working directory"),
        (told, "the environment"),
        (imported, "sys.path"),
        (switched, "sys.getswitchinterval"),
        (unmasked, "the umask"),
    ],
)
def test_a_change_of_the_process_is_named(
    leave: Callable[[], Callable[[], None]], said: str
) -> None:
    before = shared_state()
    restore = leave()
    try:
        found = left_behind(before, shared_state())
    finally:
        restore()
    assert [line.split(":")[0] for line in found] == [said]
    assert left_behind(before, shared_state()) == []


def test_a_test_that_leaves_a_change_fails(tmp_path: Path) -> None:
    (tmp_path / "test_leaving.py").write_text(
        "import logging\n\ndef test_one():\n    logging.disable(logging.CRITICAL)\n"
    )
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tidemill.testkit.runs", *options],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    assert "the test left behind: logging.disable: 0 became 50" in said
    assert "1 passed, 1 error" in said


def test_files_that_take_longest_begin_first_and_stay_whole() -> None:
    items = [
        SimpleNamespace(path=Path(f"{file}.py"), name=name)
        for file, name in [("a", 1), ("b", 1), ("b", 2), ("c", 1), ("d", 1), ("a", 2)]
    ]
    ordered = heaviest_first(items, {"c": 90.0, "b": 12.0})  # type: ignore[arg-type]
    assert [(i.path.stem, i.name) for i in ordered] == [
        ("c", 1), ("b", 1), ("b", 2), ("a", 1), ("d", 1), ("a", 2),
    ]  # type: ignore[attr-defined]  # fmt: skip


def test_files_that_look_at_the_whole_process_begin_before_all_others(tmp_path: Path) -> None:
    (tmp_path / "looks.py").write_text("hold_again()\n")
    items = [SimpleNamespace(path=tmp_path / f"{file}.py") for file in ("heavy", "light", "looks")]
    ordered = heaviest_first(items, {"heavy": 90.0})  # type: ignore[arg-type]
    assert [item.path.stem for item in ordered] == ["looks", "heavy", "light"]


def test_files_that_take_the_session_of_spark_are_one_unit() -> None:
    files = [
        ROOT / "libs" / "tidemill-spark" / "tests" / name
        for name in ("test_spark_kafka.py", "test_spark_backfill.py")
    ]
    assert [unit_of(file) for file in files] == ["spark", "spark"]
    assert unit_of(Path(__file__)) == __file__


def test_weights_are_of_files_that_are_there() -> None:
    there = {
        file.stem
        for members in ("libs", "services", "examples")
        for file in (ROOT / members).glob("*/tests/test_*.py")
    } | {file.stem for file in (ROOT / "bench").glob("*/test_*.py")}
    assert set(weights()) - there == set()


def test_weights_are_read_from_the_report_of_a_run() -> None:
    report = """<testsuites><testsuite>
        <testcase classname="libs.tidemill-a.tests.test_light" name="x" time="9.9" />
        <testcase classname="libs.tidemill-a.tests.test_b" name="x" time="5.1" />
        <testcase classname="libs.tidemill-a.tests.test_b" name="y" time="5.2" />
        <testcase classname="services.c.tests.test_c" name="x" time="31.0" />
    </testsuite></testsuites>"""
    assert LIGHT_S == 10
    assert list(measured(report).items()) == [("test_c", 31), ("test_b", 10)]


def held(folder: Path) -> bool:
    """Whether a process is in a block of any name."""
    for file in folder.iterdir():
        with file.open() as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def test_one_process_at_a_time_is_in_a_block_of_a_name(tmp_path: Path) -> None:
    with alone(tmp_path, "a name"):
        assert held(tmp_path)
        with alone(tmp_path, "another"):
            pass
        assert held(tmp_path)
    assert not held(tmp_path)


def test_a_loop_is_compiled_by_one_process_also_where_it_needs_itself(tmp_path: Path) -> None:
    def compile_loop(dispatcher: object, signature: object) -> str:
        kept.append(held(tmp_path))
        return "again" if signature == "inner" else str(compile_alone(dispatcher, "inner"))

    kept: list[bool] = []
    compile_alone = compiled_once(compile_loop, tmp_path)
    loop = SimpleNamespace(py_func=held, _cache=object())
    assert compile_alone(loop, "outer") == "again"
    assert kept == [True, True]
    assert not held(tmp_path)


def test_a_file_of_tests_is_compiled_by_one_process_of_a_run(tmp_path: Path) -> None:
    """Also in a run of two processes, whose files wait for nobody once they are compiled."""
    file, locks = tmp_path / "test_one.py", tmp_path / ".state" / "loops"
    file.write_text("def test_it():\n    pass\n")
    locks.mkdir(parents=True)
    with compiling_alone(locks, file):
        assert held(locks)
    plugins = ["-p", "tidemill.testkit.runs", "-p", "no:cacheprovider", "-n", "2"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "--rootdir", str(tmp_path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    assert "1 passed" in said
    assert list(tmp_path.glob("__pycache__/test_one.*-pytest-*.pyc"))
    with compiling_alone(locks, file):
        assert not held(locks)


def test_the_collector_does_not_look_at_what_stays() -> None:
    assert gc.isenabled()  # again, since all tests are found
    assert gc.get_freeze_count() > 10_000
    assert gc.get_threshold()[1] * gc.get_threshold()[2] >= 10_000
