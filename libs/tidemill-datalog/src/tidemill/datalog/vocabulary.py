"""Vocabulary of a program: functions and lattices of the language, and those of a host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.datalog.functions import FUNCTIONS, ScalarFunction
from tidemill.datalog.lattices import INSTANTS, LATTICES, Lattice


@dataclass(frozen=True, slots=True)
class Named:
    """Additions of a host, as a program writes them: `name@version` each."""

    lattices: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()


NOTHING = Named()


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Functions and lattices by name; `named` says which of them are not of the language."""

    functions: Mapping[str, ScalarFunction] = field(default_factory=lambda: FUNCTIONS)
    lattices: Mapping[str, Lattice] = field(default_factory=lambda: LATTICES)
    named: Named = NOTHING

    @property
    def arities(self) -> Mapping[str, int]:
        """Number of values of each lattice, the two that every fact may carry among them."""
        return dict.fromkeys(INSTANTS, 1) | {name: x.arity for name, x in self.lattices.items()}


STANDARD = Vocabulary()
"""Vocabulary of every program."""
