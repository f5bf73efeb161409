"""The mutants that are kept with the code, as data: TOML files beside this module."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from tidemill.errors import UsageError


def family_of(rule: str) -> str:
    """The letters of a rule id."""
    return rule.rstrip("abc0123456789")


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One small change of the product that breaks one rule."""

    rule: str
    """Id of the rule, as tests name it with the marker `rule`."""

    breaks: str
    """The mistake of the changed code, in half a sentence."""

    file: str
    """Path of the changed file below the checkout."""

    before: str
    """Text that occurs exactly once in that file."""

    after: str
    """The text in its place."""

    test: str
    """The test that must fail: `path::name`, as pytest takes it."""

    @property
    def name(self) -> str:
        """A word that tells mutants of one rule apart."""
        return f"{self.rule}-{Path(self.file).stem}"

    @property
    def test_function(self) -> str:
        """Name of the function of the test, without class and parameters."""
        return self.test.rpartition("::")[2].partition("[")[0]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mutants: list[Mutant]


def recorded() -> list[Mutant]:
    """All of them, in the order of files and lines."""
    found: list[Mutant] = []
    for file in sorted(Path(__file__).parent.glob("*.toml")):
        found += msgspec.toml.decode(file.read_bytes(), type=_File).mutants
    return found


def mutated(mutant: Mutant, text: str) -> str:
    """The file with the change in it.

    Raises: UsageError if the text to change occurs not once, or if what comes out is no Python.
    """
    count = text.count(mutant.before)
    if count != 1:
        raise UsageError(f"{mutant.name}: {mutant.file} has its text {count} times, not once")
    changed = text.replace(mutant.before, mutant.after)
    try:
        compile(changed, mutant.file, "exec")
    except SyntaxError as error:
        raise UsageError(f"{mutant.name}: what it makes is no Python: {error}") from error
    return changed


def turn(mutants: Iterable[Mutant], number: int, turns: int) -> list[Mutant]:
    """Every `turns`-th mutant, beginning with the one of `number`: all of them in `turns` turns."""
    return [m for i, m in enumerate(mutants) if i % turns == number % turns]
