"""Views beside their peers on the same input: python -m bench.views [--only NAME …] [--scale F].

Every side runs in a process of its own, in turn. Before a time is shown the digests of all results
are compared, and a difference stops the run. Medians and ratios go to bench/results and into
docs/reference/performance.md; `--only` replaces the lines of the jobs it names. A run at a scale
below one is quick, and keeps nothing unless told to. The error stream tells the present run and its
time. A side of which one run takes more than half a minute runs once.
"""

from __future__ import annotations

from bench.views.jobs import JOBS
from bench.views.measuring import arguments, measure
from bench.views.table import VIEWS


def main() -> None:
    """Prepare the peers, measure, write the results."""
    parser = arguments(__doc__, list(JOBS), repetitions=3)
    measure(parser.parse_args(), JOBS, VIEWS)


if __name__ == "__main__":
    main()
