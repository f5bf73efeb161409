"""`make fuzz`: every parser and decoder under INPUTS random inputs, a report, and an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tidemill.testkit.fuzzing.planted import PLANTED
from tidemill.testkit.fuzzing.running import Outcome, Target, given, run
from tidemill.testkit.fuzzing.targets import targets


def main(arguments: Sequence[str] | None = None) -> int:
    """One run; 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tidemill.testkit.fuzzing", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=1, help="of all inputs")
    parser.add_argument("--only", action="append", help="names of targets; those of --planted too")
    parser.add_argument("--at", type=int, help="give this one input alone, of the target of --only")
    parser.add_argument("--planted", action="store_true", help="targets that are known to fail")
    asked = parser.parse_args(arguments)
    known = {target.name: target for target in (*targets(), *PLANTED)}
    unknown = [name for name in asked.only or () if name not in known]
    if unknown:
        parser.error(f"no target {unknown[0]}; there are {', '.join(known)}")
    chosen = [known[name] for name in asked.only or ()] or [
        *(PLANTED if asked.planted else targets())
    ]
    if asked.at is not None:
        return _again(chosen[0], asked.seed, asked.at)
    found = 0
    for target in chosen:
        part = target.share / sum(each.share for each in chosen)
        outcome = run(target, asked.seed, max(1, round(asked.inputs * part)))
        print(_line(outcome), flush=True)
        for finding in outcome.findings:
            found += 1
            print("\n".join(finding.lines(asked.seed)), flush=True)
    return 1 if found else 0


def _again(target: Target, seed: int, number: int) -> int:
    found = given(target, seed, number)
    print("nothing was found" if found is None else "\n".join(found.lines(seed)))
    return 0 if found is None else 1


def _line(outcome: Outcome) -> str:
    return (
        f"{outcome.target}: {outcome.given} inputs, {outcome.refused} refused, "
        f"{len(outcome.findings)} findings, {outcome.seconds:.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
