"""`make chaos`: faults for as long as you like, a line for each round, a report, and an exit
code.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from tidemill.runtime.clock import SystemClock
from tidemill.testkit.faults.campaign import KINDS, Campaign


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign; 0 if no promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tidemill.testkit.faults", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=600, help="how long, at least a round of each kind"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first round; the next ones count on"
    )
    parser.add_argument("--only", choices=KINDS, help="rounds of this kind alone")
    asked = parser.parse_args(arguments)
    campaign = Campaign(asked.seed, SystemClock(), lambda line: print(line, flush=True))
    report = campaign.run(asked.seconds, (asked.only,) if asked.only else KINDS)
    print("\n".join(report.lines()))
    return 1 if report.violations else 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # the log of a killed server is not news here
    sys.exit(main())
