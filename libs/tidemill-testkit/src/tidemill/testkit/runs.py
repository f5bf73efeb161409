"""The processes of a test run, as a pytest plugin.

Heavy files begin first if several processes share a run. Garbage is collected as
rarely as the server does. Each loop is compiled by one process. A test that changes the state of
its process fails.
"""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import resource
import signal
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tidemill.runtime.lifecycle import collect_rarely, keep_freed_memory
from tidemill.testkit.weights import weights

SET_BY_OTHERS = ("PYTEST_", "SPARK_", "PYSPARK_")
"""Prefixes of variables that pytest and the first session of Spark set."""
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGCHLD", "SIGPIPE", "SIGUSR1", "SIGXFSZ")
_IN_CHILDREN = {
    # A job of a test is over before the second compiler of the JVM has paid for its work.
    "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
os.environ.update(_IN_CHILDREN)  # noqa: TID251  for all processes that tests start


def heaviest_first(items: list[pytest.Item], weight: Mapping[str, float]) -> list[pytest.Item]:
    """The tests by the weights of their files; a file stays whole, and light files keep places."""
    return sorted(items, key=lambda item: -weight.get(item.path.stem, 0.0))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the heavy files in each process of several: none is left alone at the end."""
    if hasattr(config, "workerinput"):
        items[:] = heaviest_first(items, weights())


def pytest_collection_finish() -> None:
    """Run tests on the collector's and the allocator's settings of the server.

    The modules and tests of a run stay until its end: the collector does not look at them again.
    """
    collect_rarely()
    keep_freed_memory()
    gc.freeze()


@contextmanager
def alone(folder: Path, name: str) -> Iterator[None]:
    """Wait until no other process is in a block of this name."""
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / sha256(name.encode()).hexdigest()[:32], os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


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
    """Make processes of a run wait for each other's machine code, not compile it again."""
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
