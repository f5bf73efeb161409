"""Runs of pytest in forks of a process that has imported what tests import beside the product.

A line of JSON starts one and says where its output goes; its exit code is the answer, null after a
timeout.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from types import FrameType

PROFILE = "mutants"
"""The profile `ci`, but failing examples are not made small."""
PRELOADED = (
    "grpc.aio",
    "hypothesis.strategies",
    "jsonschema",
    "lark",
    "msgspec.toml",
    "numba.core.dispatcher",
    "numpy",
    "obstore",
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pytest",
    "pytest_asyncio.plugin",
    "sqlite3",
    "structlog",
    "yaml",
)


def serve() -> None:
    """Answer each line of standard input, one after the other."""
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"  # noqa: TID251  as tidemill.testkit.servers
    for name in PRELOADED:
        importlib.import_module(name)
    hypothesis = sys.modules["hypothesis"]
    searching = (hypothesis.Phase.explicit, hypothesis.Phase.generate)  # nobody reads the example
    hypothesis.settings.register_profile(
        PROFILE, hypothesis.settings.get_profile("ci"), phases=searching
    )
    for line in sys.stdin:
        wanted = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(wanted["arguments"], wanted["output"])
        print(json.dumps(_code_of(pid, wanted["timeout_s"])), flush=True)


def _code_of(pid: int, timeout_s: int) -> int | None:
    """The exit code of a fork, which is killed with all that it started once its time is over."""
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(timeout_s)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except TimeoutError:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return None
    finally:
        signal.alarm(0)


def _too_late(number: int, frame: FrameType | None) -> None:
    raise TimeoutError


def _become(arguments: list[str], output: str) -> None:
    """Run pytest in this process, on sources as they are now; never returns."""
    code = 70
    try:
        os.setpgid(0, 0)
        written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, written), (2, written)):
            os.dup2(source, target)
        for name in [name for name in sys.modules if name.partition(".")[0].startswith("tidemill")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        code = int(sys.modules["pytest"].main(arguments))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
