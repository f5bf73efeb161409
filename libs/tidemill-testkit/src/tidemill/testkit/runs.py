"""The processes of a test run, as a pytest plugin.

Heavy files begin first if several processes share a run. Garbage is collected as
rarely as the server does. Each module and each loop is compiled by one process. A test that
changes the state of its process fails.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
import tracemalloc
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import structlog

from tidemill.runtime.lifecycle import collect_rarely, keep_freed_memory, keep_loaded
from tidemill.testkit.file_locks import alone
from tidemill.testkit.weights import weights

SET_BY_OTHERS = ("PYTEST_", "SPARK_", "PYSPARK_")
"""Prefixes of variables that pytest and the first session of Spark set."""
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGCHLD", "SIGPIPE", "SIGUSR1", "SIGXFSZ")
_SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A job of a test is over before the second compiler of the JVM has paid for its work."""
_CLASSES = Path(sys.prefix, ".classes", "spark.jsa")
"""The classes of Spark in an archive of infra/classes.sh: a JVM maps them and loads none."""
_MAPPED = f"{_SHORT} -XX:SharedArchiveFile={_CLASSES} -Xlog:disable"
_IN_CHILDREN = {
    "SPARK_SUBMIT_OPTS": _MAPPED if _CLASSES.exists() else _SHORT,
    "SPARK_LAUNCHER_OPTS": _SHORT,
}
os.environ.update(_IN_CHILDREN)  # noqa: TID251  for all processes that tests start


def heaviest_first(items: list[pytest.Item], weight: Mapping[str, float]) -> list[pytest.Item]:
    """The tests by the weights of their files; a file stays whole, and light files keep places.

    Before them come those that have the collector look at the whole process, while it is small.
    """
    return sorted(items, key=lambda i: (not looks_at_all(i.path), -weight.get(i.path.stem, 0.0)))


@cache
def looks_at_all(file: Path) -> bool:
    """Whether tests of a file hold again what stays: a full look, of a second or more later on."""
    return file.exists() and "hold_again()" in file.read_text()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the heavy files in each process of several: none is left alone at the end."""
    if hasattr(config, "workerinput"):
        items[:] = heaviest_first(items, weights())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give all tests in the JVM of Spark to one process of a run: no two can share it."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(config.rootpath / nodeid.partition("::")[0])

    return Files(config, log) if config.getvalue("dist") == "loadfile" else None


@cache
def unit_of(file: Path) -> str:
    """Tests of one unit run in one process: those of a file, or of all that take the session."""
    return "spark" if _SESSION in file.read_text() else str(file)


_SESSION = "spark: SparkSession"
"""Parameter of tests that take the session of the run."""


def pytest_collection_finish() -> None:
    """Run tests on the collector's and the allocator's settings of the server.

    The modules and tests of a run stay until its end: the collector does not look at them again.
    """
    gc.enable()
    collect_rarely()
    keep_freed_memory()
    keep_loaded()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Compile a file of tests, and what it is the first to import, in one process of several."""
    if not isinstance(collector, pytest.Module) or not hasattr(collector.config, "workerinput"):
        return (yield)
    with compiling_alone(collector.config.rootpath / ".state" / "loops", collector.path):
        return (yield)


def compiling_alone(folder: Path, file: Path) -> AbstractContextManager[None]:
    """A block for one process at a time while the file has no compiled module.

    In a new checkout all processes of a run import the same files at the same time. Each of them
    would compile the tests, the product and its libraries.
    """
    tag = f"{sys.implementation.cache_tag}-pytest-{pytest.__version__}"
    kept = file.parent / "__pycache__" / f"{file.stem}.{tag}.pyc"
    wanted = not kept.exists() and not sys.dont_write_bytecode
    return alone(folder, str(file)) if wanted else nullcontext()


def compiled_once(compile_loop: Callable[..., object], folder: Path) -> Callable[..., object]:
    """The method `compile_loop` of numba's dispatcher, for one process at a time.

    The machine code of the process before is found on disk. A loop waits for those that it calls
    and none for a caller, so that no two processes wait for each other.
    """
    from numba.core.caching import NullCache
    from numba.core.compiler_lock import global_compiler_lock

    held: set[str] = set()

    def compile_alone(dispatcher: Any, signature: Any) -> object:  # Any: numba has no types
        code = dispatcher.py_func.__code__
        name = f"{code.co_filename}:{code.co_firstlineno}"
        # NB: the lock of this process comes first, else two of its threads wait for each other.
        with global_compiler_lock:
            if isinstance(dispatcher._cache, NullCache) or name in held:
                return compile_loop(dispatcher, signature)
            with alone(folder, name):
                held.add(name)
                try:
                    return compile_loop(dispatcher, signature)
                finally:
                    held.remove(name)

    return compile_alone


def pytest_configure(config: pytest.Config) -> None:
    """Make processes of a run wait for each other's machine code, not compile it again.

    Tracebacks in logs are plain: to colour the code around a hundred of them takes half a minute.
    The garbage collector rests until all tests are found. Modules are no garbage, and its looks at
    them were a quarter of the work of each process until then.
    """
    gc.disable()
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])
    if hasattr(config, "workerinput"):
        from numba.core.dispatcher import Dispatcher

        folder = config.rootpath / ".state" / "loops"
        setattr(Dispatcher, "compile", compiled_once(Dispatcher.compile, folder))  # noqa: B010


def shared_state() -> dict[str, object]:
    """State that a test shares with the tests after it and no fixture of pytest restores."""
    root = logging.getLogger()
    mask = os.umask(0o077)
    os.umask(mask)
    return {
        "logging.disable": logging.root.manager.disable,
        "the level of the root logger": root.level,
        "the working directory": str(Path.cwd()),
        "the umask": mask,
        "handlers of signals": {name: signal.getsignal(signal.Signals[name]) for name in SIGNALS},
        "sys.path": tuple(sys.path),
        "sys.getswitchinterval": sys.getswitchinterval(),
        "sys.getrecursionlimit": sys.getrecursionlimit(),
        "gc.isenabled": gc.isenabled(),
        "gc.get_threshold": gc.get_threshold(),
        "tracemalloc.is_tracing": tracemalloc.is_tracing(),
        "open files at most": resource.getrlimit(resource.RLIMIT_NOFILE),
        "bytes of a file at most": resource.getrlimit(resource.RLIMIT_FSIZE),
        "the environment": {
            name: value
            for name, value in os.environ.items()  # noqa: TID251  tests must leave it alone
            if not name.startswith(SET_BY_OTHERS)
        },
    }  # fmt: skip


def left_behind(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """One line for each difference: what differs, the value before and the value after."""
    return [
        f"{name}: {value!r} became {after[name]!r}"
        for name, value in before.items()
        if after[name] != value
    ]


@pytest.fixture(autouse=True)
def state_kept() -> Iterator[None]:
    """A test fails if its process is not as before: the next test must not depend on it."""
    before = shared_state()
    yield
    differences = left_behind(before, shared_state())
    if differences:
        pytest.fail("the test left behind: " + "; ".join(differences), pytrace=False)


def hold_again() -> None:
    """Hold what stays from the collector again, after a test that has let it go.

    Cost: a full look at all objects of the process.
    """
    gc.unfreeze()
    gc.collect()
    keep_loaded()
