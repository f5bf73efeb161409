"""`python -m tidemill.testkit.mutants [RULE…] [--turn N]`: try the recorded mutants, say which
survive.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tidemill.testkit.mutants.recorded import Mutant, family_of, recorded, turn
from tidemill.testkit.mutants.trying import Trial, Verdict, trial

TURNS = 10


def main() -> int:
    """Print a line for each mutant; 1 if any is not killed, or a test fails without any."""
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument(
        "rules", nargs="*", help="only mutants of these rules, of a family such as K, too"
    )
    parser.add_argument("--turn", type=int, help=f"only every {TURNS}th, beginning with this one")
    asked = parser.parse_args()
    root = next(p for p in Path(__file__).resolve().parents if (p / "infra").is_dir())
    mutants = [
        m for m in recorded()
        if not asked.rules or m.rule in asked.rules or family_of(m.rule) in asked.rules
    ]  # fmt: skip
    if asked.turn is not None:
        mutants = turn(mutants, asked.turn, TURNS)
    with trial(root, os.environ) as tries:  # noqa: TID251  a process of its own
        return 1 if _all_killed(tries, mutants) else 0


def _all_killed(tries: Trial, mutants: list[Mutant]) -> int:
    """Number of mutants that survived; 1 if the tests fail without any."""
    tests = sorted({mutant.test for mutant in mutants})
    verdict, printed = tries.unchanged(tests)
    if verdict is not Verdict.SURVIVED:
        print(f"the tests do not pass on the code as it is\n{printed[-4000:]}")
        return 1
    print(f"{len(tests)} tests pass on the code as it is", flush=True)
    lived = 0
    for number, mutant in enumerate(mutants, 1):
        verdict, printed = tries.tried(mutant)
        lived += verdict is not Verdict.KILLED
        print(
            f"{number:3}/{len(mutants)} {verdict.value:8} {mutant.name}: {mutant.breaks}",
            flush=True,
        )
        if verdict is not Verdict.KILLED:
            print(f"{mutant.test}\n{printed[-2000:]}", flush=True)
    print(f"{len(mutants) - lived} mutants killed, {lived} not")
    return lived


if __name__ == "__main__":
    sys.exit(main())
