"""Both sides of every workload, interleaved: python -m bench [--only NAME ...] [--seed S].

Medians of the repetitions and their ratios go to bench/results and into
docs/reference/performance.md. A workload that is measured alone replaces its own lines only, and
`--only` without a name just writes the tables again. Views as the service keeps them follow, in
batches, beside differential dataflow. All sides have one and the same processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from bench.table import about_this_run, write_results, write_table
from bench.views.jobs import BATCHES
from bench.views.measuring import SidesDiffer, arguments, measure
from bench.views.table import BATCHES as BATCHES_PLACE
from bench.workloads import WORKLOADS, Workload

PEERS = Path("bench/peers")
BINARIES = {"differential": "tidemill-bench-peer", "dbsp": "tidemill-bench-dbsp"}


def one_run(command: list[str]) -> Any:
    """The last line of a run."""
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(said.stdout.splitlines()[-1])


def measured(name: str, workload: Workload, seed: int, repetitions: int) -> list[dict[str, Any]]:
    """The rows of one workload. Raises: SidesDiffer."""
    sizes = [str(size) for size in workload.sizes]
    binary = PEERS / workload.crate / "target/release" / BINARIES[workload.crate]
    theirs_by = [str(binary), workload.peer, str(seed), *sizes]
    ours_by = [sys.executable, "-m", "bench.ours", name, str(seed)]
    one_run(ours_by)  # compiles what was never compiled here, and is not counted
    theirs, ours = [], []
    for _ in range(repetitions):
        theirs.append(one_run(theirs_by))
        ours.append(one_run(ours_by))
        for run in (theirs[-1], ours[-1]):
            if (run["digest"], run["rows"]) != (theirs[0]["digest"], theirs[0]["rows"]):
                raise SidesDiffer(f"{name}: {theirs[-1]['digest']} and {ours[-1]['digest']}")
    found = []
    for row in workload.rows:
        peer, own = ([row.of(run["figures"]) for run in runs] for runs in (theirs, ours))
        found.append({
            "workload": name, "row": row.title, "unit": row.unit, "work": row.work,
            "theirs": median(peer), "ours": median(own), "ratio": median(peer) / median(own),
            "reach": row.reach, "all_theirs": peer, "all_ours": own, "seed": seed,
            "sizes": workload.sizes, "digest": theirs[0]["digest"],
        })  # fmt: skip
        print(f"{row.title}: {median(peer):.6g} and {median(own):.6g}: {found[-1]['ratio']:.2f}")
    return found


def main() -> None:
    """Build the peer, measure, write the results."""
    parser = arguments(__doc__, [*WORKLOADS, *BATCHES], repetitions=5)
    parser.add_argument("--seed", type=int, default=7)
    chosen = parser.parse_args()
    crates = {WORKLOADS[name].crate for name in chosen.only if name in WORKLOADS}
    for crate in sorted({*crates, "differential"} if BATCHES.keys() & chosen.only else crates):
        build = ["cargo", "build", "--release"]
        subprocess.run(build, cwd=PEERS / crate, check=True)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name in chosen.only:
        if name in WORKLOADS:
            rows = measured(name, WORKLOADS[name], chosen.seed, chosen.repetitions)
            write_results(name, rows, about_this_run(chosen.seed))
            write_table(WORKLOADS)
    write_table(WORKLOADS)
    measure(chosen, BATCHES, BATCHES_PLACE)


if __name__ == "__main__":
    main()
