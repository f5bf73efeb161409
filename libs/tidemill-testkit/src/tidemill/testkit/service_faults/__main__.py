"""`make chaos-services`: the whole system under faults for as long as you like, a report, and an
exit code.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tidemill.testkit.service_faults.run import run

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """One run; 0 if no promise was broken. The logs of all processes are kept if one was."""
    parser = argparse.ArgumentParser(
        prog="python -m tidemill.testkit.service_faults", description=__doc__
    )
    parser.add_argument("--seconds", type=float, default=600, help="how long storms and rests last")
    parser.add_argument("--seed", type=int, default=1, help="of what goes wrong, and of the load")
    asked = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-services-{asked.seed}-"))
    say = partial(print, flush=True)
    try:
        outcome = asyncio.run(end_by_signals(run(folder, asked.seed, asked.seconds, say=say)))
    except (asyncio.CancelledError, KeyboardInterrupt):
        print(f"ended by a signal; logs: {folder}")
        return 128 + signal.SIGTERM
    print("\n".join(outcome.lines()))
    if outcome.violations:
        print(
            f"logs: {folder}\nreplay: make chaos-services SEED={asked.seed} SECONDS={asked.seconds:g}"
        )
        return 1
    shutil.rmtree(folder)
    return 0


async def end_by_signals(work: Coroutine[Any, Any, T]) -> T:
    """The result of the work; SIGTERM cancels it, so that it ends its servers and processes."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # the log of a killed server is not news here
    sys.exit(main())
