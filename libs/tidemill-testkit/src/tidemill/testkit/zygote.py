"""`tidemill up` in processes that share what they have imported: a line of JSON starts one, its pid is the answer.

Starting a process costs a fork instead of seconds of imports, so that tests may kill many.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback

from tidemill.client.plugins import function_command
from tidemill_embedded.up import up


def serve() -> None:
    """Start a process for each line of standard input: {"arguments", "folder", "log"}."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: they are never zombies
    for line in sys.stdin:
        wanted = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(wanted["arguments"], wanted["folder"], wanted["log"])
        print(pid, flush=True)


def _become(arguments: list[str], folder: str, log: str) -> None:
    """Run the command in this process; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.chdir(folder)
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, written), (2, written)):
            os.dup2(source, target)
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
