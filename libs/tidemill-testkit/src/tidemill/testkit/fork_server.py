"""The fork server: `tidemill up` in processes that share the imports of their parent.

A line of JSON starts a process, and its pid is the answer. Another line asks for its exit status. A
start costs a fork instead of seconds of imports, so that tests may kill many processes.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from itertools import count
from types import FrameType

import pyarrow as pa

from tidemill.client.plugins import function_command
from tidemill.datalog.check import check
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.runtime.clock import SystemClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.testkit.command_host import PR_SET_PDEATHSIG
from tidemill.testkit.held import Held
from tidemill.time import frontier
from tidemill_compute.service import load_engine
from tidemill_server.services import services_of
from tidemill_server.settings import ServerSettings
from tidemill_server.up import up

LATER = ("tidemill.shard.consensus_redis", "tidemill_compute.actions.sink_redis", "typer._adapters")
"""Modules that are loaded by those who use them; a command line needs 0.2 s for the last one."""
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
PROGRAM = """
    p(x, n) := q(x, n) ^ r(x, _) if n > 1;
    few(x) @count(n) := p(x, n);
    lone(x) := q(x, _) ^ not r(x, _);
"""


def warm() -> None:
    """Build the grammar, load the engine, the kernels and all services once, before the first fork.

    A process that keeps views saves half a second of processor by it.
    """
    services_of(ServerSettings())
    load_engine()
    for name in LATER:
        import_module(name)
    columns = (("a", "text"), ("b", "int"))
    inputs = {name: InputSchema(name, "relation", columns) for name in ("q", "r")}
    held = Held(check(parse(PROGRAM, "warm"), InputSchemas(inputs)))
    for name in inputs:
        held.feed({name: [Presence(Record(name, ("a", n)), 0, 9) for n in range(5)]})
    held.step(5)
    held.step(12)

    async def write_and_read() -> None:
        unique = map(str, count())
        stores = MemoryConsensus(), MemoryBlob()
        collections = Collections(*stores, SystemClock(), unique.__next__)
        read, _ = await collections.create("c", Description(SCHEMA))
        rows = [{"a": n, "b": str(n), "_time": 1, "_diff": 1} for n in range(50)]
        table = pa.Table.from_pylist(rows, Description(SCHEMA).update_schema())
        await collections.compare_and_append("c", frontier(0), frontier(2), table, writer="w")
        await collections.snapshot(read, 1)
        await collections.changes(read, 1, 2)

    asyncio.run(write_and_read())


def serve() -> None:
    """Answer each line of standard input.

    {"arguments", "folder", "log", "first", "environment"} starts a process: its pid.
    {"status": pid}: its exit status, null while it runs.
    """
    warm()
    ended: dict[int, int] = {}

    def reap(number: int, frame: FrameType | None) -> None:
        """Keep the exit status of each child that has ended: none stays a zombie."""
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                ended[found[0]] = os.waitstatus_to_exitcode(found[1])

    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        wanted = json.loads(line)
        if "status" in wanted:
            answer = ended.get(wanted["status"])
        else:
            # A number is used again: the end of the process that had it before is not its end.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            answer = os.fork()
            ended.pop(answer, None)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            if answer == 0:
                os.environ.clear()  # noqa: TID251  it is a process of the caller from here on
                os.environ.update(wanted["environment"])  # noqa: TID251
                _become(wanted["arguments"], wanted["folder"], wanted["log"], wanted["first"])
        print(json.dumps(answer), flush=True)


def _become(arguments: list[str], folder: str, log: str, first: str) -> None:
    """Run the command in this process; never returns."""
    code = 1
    try:
        # This process ends with its parent, also when a run of tests is killed.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.chdir(folder)
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, written), (2, written)):
            os.dup2(source, target)
        exec(compile(first, "<first>", "exec"), {})
        function_command(up).main(args=arguments, prog_name="up", standalone_mode=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # the outermost frame of the process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
