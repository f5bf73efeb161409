"""Counts of breaches of each rule in each member: recorded ones, which may only fall."""

from __future__ import annotations

import subprocess
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tidemill.testkit.prose.rules import Breach, files, member_of, rules

RECORDED = Path(__file__).with_name("counts.toml")
SHOWN_MAX = 20
"""Breaches that one message lists."""

Breaches = Mapping[str, Mapping[str, list[Breach]]]
"""Rule → member → its breaches, in the order of the files."""
Counts = Mapping[str, Mapping[str, int]]
"""Member → rule → count; a count that is not there is zero."""

_HEAD = """\
# Breaches of the rules of prose (STYLE.md) in each member; a count that is not here is zero.
# A count may only fall: `make prose` writes the present ones, if no rule has more than before.
"""


def breaches(root: Path) -> Breaches:
    """All breaches in the tree; one pass over its files."""
    found: dict[str, dict[str, list[Breach]]] = {}
    checks = rules(root)
    for file in files(root):
        for rule, check in checks.items():
            if some := file.breaches(check(file)):
                found.setdefault(rule, {}).setdefault(member_of(file.path), []).extend(some)
    return {rule: found.get(rule, {}) for rule in checks}


def counted(found: Breaches) -> Counts:
    """The counts of these breaches."""
    counts: dict[str, dict[str, int]] = {}
    for rule, members in found.items():
        for member, some in members.items():
            counts.setdefault(member, {})[rule] = len(some)
    return counts


def recorded() -> Counts:
    """The counts of the file beside this module."""
    return tomllib.loads(RECORDED.read_text())


def text_of(counts: Counts) -> str:
    """The file of these counts: a table for each member, so that members change apart."""
    tables = (
        f'["{member}"]\n' + "".join(f"{rule} = {n}\n" for rule, n in sorted(of.items()))
        for member, of in sorted(counts.items())
    )
    return "\n".join([_HEAD, *tables])


def risen(before: Counts, now: Counts) -> dict[str, int]:
    """Rules with more breaches in the whole tree than before, and how many more."""
    totals = Counter[str]()
    for sign, counts in ((-1, before), (1, now)):
        for of in counts.values():
            for rule, n in of.items():
                totals[rule] += sign * n
    return {rule: n for rule, n in totals.items() if n > 0}


def differences(rule: str, found: Breaches, counts: Counts, changed: set[str]) -> list[str]:
    """A message for each member whose count of a rule is not the recorded one.

    Breaches in changed files come first: the new ones are likely to be there.
    """
    said = []
    for member in sorted({*found[rule], *(m for m, of in counts.items() if rule in of)}):
        some, wanted = found[rule].get(member, []), counts.get(member, {}).get(rule, 0)
        if len(some) < wanted:
            said.append(f"{member}: lower the recorded count of {rule} to {len(some)}: make prose")
        elif len(some) > wanted:
            places = sorted(some, key=lambda each: each.path not in changed)[:SHOWN_MAX]
            said.append(
                f"{member}: {len(some)} {rule}, {wanted} recorded: rewrite {len(some) - wanted},"
                " likely of these (make prose, if a file only moved here):\n  "
                + "\n  ".join(map(str, places))
            )
    return said


def changed_files(root: Path) -> set[str]:
    """Files that differ from the last commit but one, as paths from the root."""
    listed = subprocess.run(
        ["git", "diff", "--name-only", "HEAD~1"],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return set(listed.stdout.splitlines())
