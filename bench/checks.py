"""Share of a run that validation and limits take: `python -m bench.checks COMMAND…`.

Every process of the command looks at the stacks of its threads a hundred times a second. A look at
a thread that does not wait counts as work, and as a check if one of its functions is one of CHECKS.
There is no switch that turns checks off, so that a run without them cannot be measured.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

LOOK_S = 0.01
FOLDER = "BENCH_CHECKS"
"""The variable that names the folder for the counts of a process."""

CHECKS = {
    "allowance.py": None,
    "arrow_bytes.py": {"check_columns", "checked"},
    "absent.py": {"refuse_absent"},
    "admission.py": {"admitted", "throttle_rows", "throttle_bytes", "_refuse_beyond"},
    "columns.py": {"_normal", "check_nesting"},
    "conforming.py": None,
    "incoming.py": None,
    "looks.py": {"look"},
    "parts.py": {"check_blocks", "check_rows"},
    "reading.py": {"_refuse_negative"},
    "time/texts.py": None,
    "transitions.py": {"check_since", "check_readable"},
    "validation.py": None,
}
"""Functions that validate or keep a limit, by the file of the product; None for all of a file.

A name that several files have stands with its folder.
"""

WAITS = {
    "selectors.py": {"select"}, "threading.py": {"wait", "_wait_for_tstate_lock", "join"},
    "thread.py": {"_worker"}, "queue.py": {"get"}, "subprocess.py": {"_try_wait", "wait"},
    "connection.py": {"poll", "wait", "_recv"}, "socket.py": {"readinto", "accept"},
}  # fmt: skip


def check_of(frame: FrameType | None) -> str | None:
    """The check that a stack is in, None if it works on something else, empty if it waits."""
    if frame is not None:
        name, function = Path(frame.f_code.co_filename).name, frame.f_code.co_name
        if function in WAITS.get(name, ()):
            return ""
    while frame is not None:
        path, function = Path(frame.f_code.co_filename), frame.f_code.co_name
        name = next((n for n in (path.name, "/".join(path.parts[-2:])) if n in CHECKS), None)
        if name is not None and "tidemill" in str(path):
            chosen = CHECKS[name]
            if chosen is None or function in chosen:
                return f"{path.stem}.{function}"
        frame = frame.f_back
    return None


def look_forever(counts: Counter[str]) -> None:
    """Count looks by check; work on anything else is counted as `work`."""
    while True:
        time.sleep(LOOK_S)
        for thread, frame in sys._current_frames().items():
            if thread != threading.get_ident() and (found := check_of(frame)) != "":
                counts[found or "work"] += 1


def begin() -> None:
    """Look at this process until it ends, and write its counts then."""
    counts: Counter[str] = Counter()

    def write() -> None:
        told = Path(os.environ[FOLDER]) / f"{os.getpid()}.json"
        told.write_text(json.dumps(counts))

    atexit.register(write)
    threading.Thread(target=look_forever, args=(counts,), daemon=True).start()


def main() -> None:
    """Run the command, and print the share of each check."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text("from bench.checks import begin\nbegin()\n")
        path = os.pathsep.join((name, str(Path(__file__).parent.parent)))
        ran = subprocess.run(sys.argv[1:], env={**os.environ, "PYTHONPATH": path, FOLDER: name})
        total: Counter[str] = Counter()
        for told in folder.glob("*.json"):
            total.update(json.loads(told.read_text()))
    looks = total.total() or 1
    print(f"exit {ran.returncode}, {looks:,} looks at threads that work")
    print(f"checks: {100 * (looks - total.pop('work', 0)) / looks:.1f} %")
    for check, count in total.most_common():
        print(f"  {check}: {100 * count / looks:.2f} %")


if __name__ == "__main__":
    main()
