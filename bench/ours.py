"""One run of our side of a workload: python -m bench.ours NAME SEED, a JSON line as the peer's."""

from __future__ import annotations

import json
import sys

from bench.workloads import WORKLOADS
from tidemill.runtime.lifecycle import keep_freed_memory


def main() -> None:
    """Run the workload named on the command line, with the memory of a process of the service."""
    keep_freed_memory()
    name, seed = sys.argv[1], int(sys.argv[2])
    workload = WORKLOADS[name]
    report = workload.ours(seed, *workload.sizes)
    found = {"rows": report.rows, "digest": report.digest, "figures": report.figures}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
