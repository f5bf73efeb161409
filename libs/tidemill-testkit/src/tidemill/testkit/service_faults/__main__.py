"""`make chaos-services`: the whole system under faults for as long as you like, a report, and an exit code."""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tidemill.testkit.service_faults.run import run


def main(arguments: Sequence[str] | None = None) -> int:
    """One run; 0 if no promise was broken. The logs of all processes are kept if one was."""
    parser = argparse.ArgumentParser(
        prog="python -m tidemill.testkit.service_faults", description=__doc__
    )
    parser.add_argument("--seconds", type=float, default=600, help="how long storms and rests last")
    parser.add_argument("--seed", type=int, default=1, help="of what goes wrong, and of the load")
    asked = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # what a killed server leaves to say is not news here
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-services-{asked.seed}-"))
    outcome = asyncio.run(run(folder, asked.seed, asked.seconds, say=partial(print, flush=True)))
    print("\n".join(outcome.lines()))
    if outcome.violations:
        print(
            f"logs: {folder}\nreplay: make chaos-services SEED={asked.seed} SECONDS={asked.seconds:g}"
        )
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
