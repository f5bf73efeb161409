"""The plan of a program: collections, and the operators that derive one from others.

A *collection* is kept once, as an arrangement. A *rule* turns the change of one collection into a
change of another. It has a *delta plan* of stateless operators for each way in which a change can
reach it. Operators over matches share the columns of their rule: variables, constants, the keys of
facts where identity matters. Time, expiry and nulls of the match come last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

from tidemill.arrangement.interval_updates import JoinShape
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.dataflow.carried import NumberedValues
from tidemill.datalog.dataflow.lingering import Lives
from tidemill.datalog.dataflow.schema import Schema
from tidemill.datalog.logical.expressions import TypeEnvironment
from tidemill.datalog.logical.forms import Expression, RuleForm, Type, Wildcard
from tidemill.datalog.logical.linear import ValueLimits
from tidemill.datalog.nodes import dataclass
from tidemill.datalog.values import Value

MODERATE = 1 << 60
"""Limits of ticks count on instants and periods that are closer to zero than this."""
VALUE = "#value"
"""In the place of a lattice: the value of a column that holds values of any type."""
UNIT = "#unit"
"""A collection of one fact without arguments, present always: rules without atoms read it."""


@dataclass(frozen=True, slots=True)
class Join:
    """Complete matches by the facts of a collection, or by what the same change says of it."""

    collection: str
    shape: JoinShape
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Subtract:
    """Take from matches the instants at which a fact agrees with them."""

    collection: str
    columns: I64Array
    theirs: I64Array


@dataclass(frozen=True, slots=True)
class Filter:
    """Keep the matches for which a condition is true; those for which it fails are errors.

    A `silent` operator does not tell errors: what comes later than it in a rule changes nothing of
    what fails in it.
    """

    condition: Expression
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Compute:
    """Write the value of an expression into a column; matches for which it fails are errors.

    With `check` the column has a value already, and matches with another one end.
    """

    expression: Expression
    column: int
    kind: Type
    check: bool = False
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Clock:
    """Complete matches by ticks: offset, period and time go into columns.

    The time is equal to what its column holds already where it is `bound`, else between `limits`.
    Ticks without an upper limit come when the frontier reaches them, of a `withheld` clock.
    """

    offset: Expression
    period: Expression
    columns: tuple[int, int, int]
    bound: bool
    limits: ValueLimits
    timed: bool
    silent: bool = False
    withheld: bool = False


@dataclass(frozen=True, slots=True)
class Untick:
    """End matches where a clock under `not` ticks as asked.

    `asked` are the lattices of the tick, each with what it has to be: its time, or its end.
    """

    offset: Expression
    period: Expression
    asked: tuple[tuple[str, Expression | Wildcard], ...]
    silent: bool = False


@dataclass(frozen=True, slots=True)
class See:
    """Keep matches with a fact that carries a lattice, and write what is seen of it into columns.

    The column `source` has the fact's parafacts or, of its end, the word of that. Each of `terms`
    is a column, its type, and whether it has a value already, which is compared; -1 for any value.
    """

    lattice: str
    source: int
    terms: tuple[tuple[int, Type, bool], ...]


Operator: TypeAlias = "Join | Subtract | Filter | Compute | Clock | Untick | See"


@dataclass(frozen=True, slots=True)
class DeltaPlan:
    """The operators that follow in a rule from the change of one collection, in their order.

    A match begins for each row of the change that agrees with the first atom. Diffs are multiplied
    by `sign`: the facts under `not` count against their rule. A change that is met at several atoms
    at once has been counted too often.
    """

    source: str
    sign: int
    begin: JoinShape
    steps: tuple[Operator, ...]
    alone: bool = field(init=False, compare=False, repr=False)
    """Whether the change is met at one atom only."""

    def __post_init__(self) -> None:
        alone = not any(isinstance(step, Join) and step.changed for step in self.steps)
        object.__setattr__(self, "alone", alone)

    @property
    def absent(self) -> bool:
        """Whether the change is met under `not`."""
        return self.alone and self.sign < 0


@dataclass(frozen=True, slots=True)
class MatchColumns:
    """Columns of the values of a rule's matches.

    `variables` have a column and a type; `facts` are, for each atom, the columns of its key, time
    first, where errors and identities need them. `width` counts time, expiry and nulls, the last
    three. `identity` are the columns that tell matches apart, `times` those of them with the times
    of facts. Words of its columns in `numbers` are numbers of values of a type, in one engine.
    A match begins as the `template`, which has the words of `literals` once a plan is `numbered`.
    """

    variables: Mapping[str, tuple[int, Type]]
    facts: tuple[tuple[int, ...], ...]
    identity: tuple[int, ...]
    times: tuple[int, ...]
    numbers: Mapping[int, Type]
    width: int
    template: I64Array
    literals: tuple[tuple[int, Value, Type], ...]
    values: NumberedValues

    @property
    def time(self) -> int:
        """The column of the time of a match."""
        return self.width - 3

    @property
    def expiry(self) -> int:
        """The column of its expiry."""
        return self.width - 2

    @property
    def nulls(self) -> int:
        """The column of its nulls."""
        return self.width - 1


@dataclass(frozen=True, slots=True)
class Passes:
    """Parafacts that a match passes on: their merge is written into the column `into`.

    `sources` are columns with the parafacts of facts, each with lattices that are not passed.
    """

    into: int
    sources: tuple[tuple[int, frozenset[str]], ...]


@dataclass(frozen=True, slots=True)
class Head:
    """The row that a match becomes in the collection of its rule.

    `copies` are columns of the match above those of the row; `computed` other arguments by column.
    Of an `asked` head the time and the expiry only have to be sound, and are not of the row.
    Matches of one that is `ahead` are established before the time from which it is derived.
    """

    copies: I64Array
    computed: tuple[tuple[int, Expression, Type], ...]
    time: tuple[Expression, ...]
    expires: tuple[Expression, ...]
    timed: bool
    expiring: bool
    outlives: bool
    asked: bool
    passes: Passes | None = None
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Reduce:
    """Aggregate the matches of a rule by their head: lattices with what they take of a match.

    `kinds` are the types of what is taken. `by_time` says whether the time belongs to the group.
    `linear`: all lattices are counts and sums of whole numbers, and move by what changes.
    `carried`: the values of a group are parafacts; `floats`: its sums are those of floats. Of a
    group that `merges` each match is a part, with what can be added up of counts and sums. Matches
    of a group have different times only where it is `timed`.
    """

    lattices: tuple[tuple[str, tuple[Expression, ...]], ...]
    kinds: tuple[Type, ...]
    by_time: bool
    linear: bool
    carried: bool = False
    floats: bool = False
    merges: bool = False
    timed: bool = False


@dataclass(frozen=True, slots=True)
class WitnessSide:
    """A witness: a fact of one atom of which it matters that there is any.

    Shapes: (2, n), columns of a match above those of a witness: `keys` are equal, `apart` differ.
    Columns of a witness in `same` are equal, none in the mask `known` is null. Its column `rank`,
    -1 for none, is between `low` and `high`. The column `expiring` may end a match; -1 for none.
    """

    right: str
    keys: I64Array
    same: I64Array
    apart: I64Array
    known: int
    rank: int
    low: tuple[Expression, ...]
    high: tuple[Expression, ...]
    expiring: int


@dataclass(frozen=True, slots=True)
class Witness:
    """The way of a rule to its matches by witnesses, of which nothing shows in them.

    A match is one of `left`, the delta plans of one atom and of those under `not`, with a witness
    of each of `sides`. Of a match the columns `numbers` have its whole numbers, `limited` those of
    witnesses, and `own` are of witnesses alone.
    """

    left: tuple[DeltaPlan, ...]
    sides: tuple[WitnessSide, ...]
    numbers: tuple[int, ...]
    limited: tuple[int, ...]
    own: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RulePlan:
    """One rule: its matches from each change, and what becomes of them.

    `again` leads in a recursion from facts of the head to the matches that derive them, and maybe
    to others. The facts matched are older than an age in the place of the expiry. Matches of an
    `exact` rule may fail, or see the end or a lattice of a fact. Those of one that is `distinct`
    derive different facts at each instant. A rule with a `witness` has matches without it.
    """

    form: RuleForm
    scope: TypeEnvironment
    columns: MatchColumns
    deltas: tuple[DeltaPlan, ...]
    head: Head
    reduce: Reduce | None
    exact: bool
    again: DeltaPlan | None = None
    distinct: bool = False
    witness: Witness | None = None


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """A collection that is kept. `rank` orders them: each is derived from those of lower rank.

    A `cover` keeps of another collection when a fact with given values is present: (collection,
    columns), for atoms under `not`. The rows of `lives` are made of two others.
    """

    schema: Schema
    stratum: int
    rank: int
    cover: tuple[str, tuple[int, ...]] | None = None
    lives: Lives | None = None


@dataclass(frozen=True, slots=True)
class DataflowPlan:
    """All collections of a program by name, and its rules. Each of `loops` is a recursion."""

    collections: Mapping[str, CollectionPlan]
    rules: tuple[RulePlan, ...]
    values: NumberedValues
    loops: tuple[tuple[str, ...], ...] = ()
    inputs: frozenset[str] = field(default_factory=frozenset)
