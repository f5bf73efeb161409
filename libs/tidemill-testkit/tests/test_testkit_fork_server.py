"""The processes that tests start by a fork."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tidemill.testkit.fork_client import fork_server

LAST = Path("/proc/sys/kernel/ns_last_pid")
"""The kernel gives the next process the number behind this one."""
STAYS = "import time; time.sleep(60)"


@pytest.mark.skipif(not os.access(LAST, os.W_OK), reason="who may not say which number is next")
def test_a_process_is_not_taken_for_one_that_had_its_number_before(tmp_path: Path) -> None:
    server = fork_server()
    first = server.start(["--help"], tmp_path, tmp_path / "log")
    while server.status(first) is None:
        time.sleep(0.01)
    for _ in range(200):  # other processes take numbers meanwhile
        LAST.write_text(str(first - 1), encoding="utf-8")
        again = server.start([], tmp_path, tmp_path / "log", first=STAYS)
        status = server.status(again)
        os.kill(again, signal.SIGKILL)
        if again == first:
            assert status is None
            return
    pytest.skip("the number was never free")
