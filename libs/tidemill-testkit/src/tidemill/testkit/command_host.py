"""The command `tidemill` for shells of tests, without a second of imports at each call.

A host imports the client once and forks at each call. The words, the folder, the environment and
the three streams are those of the caller; what runs is `tidemill.client.command`, as in the
installed command. The caller is a script of a few lines that stands in the host's folder.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that a process gets when its parent ends."""
MESSAGE_BYTES_MAX = 1 << 18
"""Bytes of the words and the environment of one call."""
IMPORTED = (
    "tidemill.client.connection", "tidemill.client.rendering", "tidemill.client.listings",
    "typer._adapters",
)  # fmt: skip
"""Modules that most commands import when they run."""

_CALLER = """#!{python} -IS
import json, os, socket, sys
call = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as host:
    host.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, {bytes_max})
    host.connect({path!r})
    socket.send_fds(host, [call], [0, 1, 2])
    sys.exit((host.recv(1) or b"\\1")[0])
"""


@contextmanager
def command_host() -> Iterator[Path]:
    """A folder for the front of PATH with the command `tidemill`; the host ends with the block."""
    with TemporaryDirectory(prefix="tidemill-") as name:
        folder, path = Path(name), f"{name}/host"
        text = _CALLER.format(python=sys.executable, bytes_max=MESSAGE_BYTES_MAX, path=path)
        (folder / "tidemill").write_text(text)
        (folder / "tidemill").chmod(0o755)
        host = subprocess.Popen(
            [sys.executable, "-m", __name__, path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert host.stdout is not None
        try:
            assert host.stdout.readline() == b"ready\n", "the host of commands does not start"
            yield folder
        finally:
            host.kill()
            host.wait()
            host.stdout.close()


def serve(path: str) -> None:
    """Answer calls at a socket, each in a fork, until killed."""
    importlib.import_module("tidemill.client.command")
    for module in IMPORTED:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: they are never zombies
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        while True:
            caller, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _answer(caller)
            caller.close()


def _answer(caller: socket.socket) -> None:
    """Be the command of one call; never returns."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # no call outlives the host
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        message, streams, _, _ = socket.recv_fds(caller, MESSAGE_BYTES_MAX, 3)
        words, folder, environment = json.loads(message)
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        os.chdir(folder)
        os.environ.clear()  # noqa: TID251  it is the process of the caller from here on
        os.environ.update(environment)  # noqa: TID251
        importlib.import_module("tidemill.client.command").app(args=words, prog_name="tidemill")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # the outermost frame of the process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        caller.send(bytes([code]))
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
