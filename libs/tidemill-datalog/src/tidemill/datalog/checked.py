"""A program that passed every check: what engines evaluate.

Arguments are positional, columns have names and types, predicates have strata. Expressions keep
their place in the text, for error messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from tidemill.datalog.ast import AsyncTo, Expression, NextTick, Program, Rule, Span
from tidemill.datalog.diagnostics import Diagnostic
from tidemill.datalog.graphs import reached
from tidemill.datalog.inputs import ColumnType, InputSchema
from tidemill.datalog.nodes import dataclass
from tidemill.datalog.vocabulary import STANDARD, Vocabulary

CLOCK = "clock"
NON_MONOTONE = frozenset(("count", "count_distinct", "sum", "average"))
SEMILATTICES = frozenset(("min", "max", "set"))


@dataclass(frozen=True, slots=True)
class ResolvedParafact:
    """A lattice with its terms, in the head or on an atom."""

    lattice: str
    terms: tuple[Expression, ...]
    span: Span
    name_span: Span


@dataclass(frozen=True, slots=True)
class ResolvedAtom:
    """An atom with one term for each column of its predicate; columns left out are wildcards."""

    predicate: str
    terms: tuple[Expression, ...]
    parafacts: tuple[ResolvedParafact, ...]
    suppressed: frozenset[str]
    negated: bool
    span: Span
    name_span: Span

    @property
    def clock(self) -> bool:
        """Whether the atom matches clock events."""
        return self.predicate == CLOCK


@dataclass(frozen=True, slots=True)
class ResolvedRule:
    """One rule with positional arguments. `definitions` are the expressions of `where` by name."""

    number: int
    predicate: str
    terms: tuple[Expression, ...]
    parafacts: tuple[ResolvedParafact, ...]
    suppressed: frozenset[str]
    temporal: NextTick | AsyncTo | None
    atoms: tuple[ResolvedAtom, ...]
    guards: tuple[Expression, ...]
    definitions: Mapping[str, Expression] = field(hash=False)
    source: Rule
    aggregates: frozenset[str] = field(init=False, repr=False, compare=False)
    """The lattices, other than time and expires, that the head mentions."""
    positive: tuple[ResolvedAtom, ...] = field(init=False, repr=False, compare=False)
    """The atoms that bind."""

    def __post_init__(self) -> None:
        aggregates = frozenset(p.lattice for p in self.parafacts) - {"time", "expires"}
        object.__setattr__(self, "aggregates", aggregates)
        positive = tuple(atom for atom in self.atoms if not atom.negated)
        object.__setattr__(self, "positive", positive)

    @property
    def deductive(self) -> bool:
        """Whether the head holds in the tick of the body."""
        return self.temporal is None

    def mentions(self, lattice: str) -> bool:
        """Whether the head has an expression for a lattice."""
        return any(parafact.lattice == lattice for parafact in self.parafacts)


@dataclass(frozen=True, slots=True)
class CheckedProgram:
    """A program ready to run.

    `columns`: (name, type) of every predicate but `clock`. `strata`: language.md 6.6. `components`:
    the derived predicates in an order in which each component reads only itself and earlier ones.
    `recursive`: predicates on some cycle within a tick. `variable_types`: per rule number.
    """

    program: Program
    rules: tuple[ResolvedRule, ...]
    inputs: Mapping[str, InputSchema]
    columns: Mapping[str, tuple[tuple[str, ColumnType], ...]]
    strata: Mapping[str, int]
    components: tuple[tuple[str, ...], ...]
    recursive: frozenset[str]
    variable_types: Mapping[int, Mapping[str, ColumnType]]
    lattice_types: Mapping[tuple[str, str], tuple[ColumnType, ...]]
    carries_time: frozenset[str]
    warnings: tuple[Diagnostic, ...] = ()
    vocabulary: Vocabulary = STANDARD

    @property
    def derived(self) -> tuple[str, ...]:
        """The predicates that rules derive, in the order of their first rule."""
        return tuple(dict.fromkeys(rule.predicate for rule in self.rules))

    @property
    def ticked(self) -> bool:
        """Whether some rule holds in a later tick or at another node."""
        return any(rule.temporal is not None for rule in self.rules)

    @property
    def timeless(self) -> bool:
        """Whether facts begin and end only at instants at which an input changes.

        No input is of events, no rule reads the clock or writes a time or an end, and no tick hands
        anything to the next.
        """
        return not (
            self.ticked
            or self.carries_time
            or any(schema.kind == "events" for schema in self.inputs.values())
            or any(rule.mentions("time") or rule.mentions("expires") for rule in self.rules)
            or any(atom.clock for rule in self.rules for atom in rule.atoms)
        )

    @property
    def timeline(self) -> str | None:
        """The one timeline of the inputs; None for a program without inputs."""
        return next((schema.timeline for schema in self.inputs.values()), None)

    def below(self, predicates: Iterable[str]) -> set[str]:
        """The predicates that some depend on, themselves among them. Cost: O(program)."""
        reads: dict[str, set[str]] = {}
        for rule in self.rules:
            reads.setdefault(rule.predicate, set()).update(atom.predicate for atom in rule.atoms)
        return reached(predicates, lambda name: reads.get(name, ()))

    def lattices_of(self, predicate: str) -> tuple[str, ...]:
        """The lattices beside time and expires that records may carry, by name."""
        return tuple(sorted(lattice for name, lattice in self.lattice_types if name == predicate))
