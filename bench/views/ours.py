"""One run of our side of a job: python -m bench.views.ours JOB SIZES…, a JSON line as the
peers'.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import tidemill.host  # noqa: F401  # isort: skip  # before Arrow, as every process of ours

from bench.views.jobs import BATCHES, JOBS
from tidemill.runtime.lifecycle import collect_rarely, keep_freed_memory


def main() -> None:
    """Run the job named on the command line."""
    name, *sizes = sys.argv[1:]
    collect_rarely()  # as every process of ours
    keep_freed_memory()
    report = {**JOBS, **BATCHES}[name].ours(*map(int, sizes))
    sys.stdout.write(json.dumps(asdict(report)) + "\n")


if __name__ == "__main__":
    main()
