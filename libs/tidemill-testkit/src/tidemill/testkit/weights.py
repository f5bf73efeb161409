"""Weights of files of tests: `python -m tidemill.testkit.weights JUNIT` writes them from a run.

A run of several processes begins with the heaviest files, so that no process is alone with one at
the end.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import msgspec.toml

RECORDED = Path(__file__).with_name("weights.toml")
LIGHT_S = 10.0
"""Seconds of a file that needs no record."""


@cache
def weights() -> dict[str, float]:
    """Seconds of each heavy file of tests, by its name without suffix."""
    return msgspec.toml.decode(RECORDED.read_bytes(), type=dict[str, float])


def measured(junit: str) -> dict[str, int]:
    """Seconds of the heavy files of a run, heaviest first; `junit` is its report as XML."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for test in ElementTree.fromstring(junit).iter("testcase"):
        seconds[test.attrib["classname"].rpartition(".")[2]] += float(test.attrib["time"])
    ordered = sorted(seconds.items(), key=lambda each: -each[1])
    return {name: round(s) for name, s in ordered if s >= LIGHT_S}


def main() -> None:
    """Write the weights of the run whose report is the file named first."""
    heavy = measured(Path(sys.argv[1]).read_text())
    RECORDED.write_text("".join(f"{name} = {seconds}\n" for name, seconds in heavy.items()))


if __name__ == "__main__":
    main()
