"""Refusal of environment variables that no command knows: a misspelt setting never counts as unset.

`variables.txt` has every name that some command reads. `make reference` writes it from the
settings.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

PREFIX = "TIDEMILL_"
KNOWN = Path(__file__).with_name("variables.txt")
STATUS = 2
"""Exit status of a command that is refused before it begins."""
_SERVICE_LINK = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)$"
)
"""End of a variable that Kubernetes sets in each pod beside a service, here one with our name."""


def unknown_variables(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Variables with our prefix that no command knows, each with the nearest known name.

    Variables of Kubernetes for services (`TIDEMILL_SERVICE_HOST`) are left out. Cost: nothing is
    read where no variable has the prefix.
    """
    given = sorted(name for name in environment if name.startswith(PREFIX))
    known = KNOWN.read_text().split() if given else []
    return {
        name: _nearest(name, known)
        for name in given
        if name not in known and not _SERVICE_LINK.search(name)
    }


def refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    """Say which variables no command knows. Raises: SystemExit with `STATUS` if there are any."""
    unknown = unknown_variables(environment)
    for name, nearest in unknown.items():
        print(
            f"tidemill: no command knows the environment variable {name}; did you mean {nearest}?",
            file=sys.stderr,
        )
    if unknown:
        raise SystemExit(STATUS)


def _nearest(name: str, known: list[str]) -> str:
    import difflib  # a command with known variables does without it

    return difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
