"""Plans for bound questions: only what the values of a question can need is derived (magic sets).

Every predicate below the question has a *magic predicate*, `#ask:p`, of the values that are asked
for. The first ones are those of the question. Rules with wanted heads add those that they find in
the atoms before another one. Each rule derives only heads that are asked for. A magic fact is
timeless, and present as long as the facts that it comes from. Facts are looked at while it is
there, so no instant of an answer differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.functions import FUNCTIONS
from tidemill.datalog.graphs import reached, strong_components
from tidemill.datalog.lattices import LATTICES
from tidemill.datalog.logical.expressions import TypeEnvironment
from tidemill.datalog.logical.forms import (
    TYPE_OF,
    AbsentForm,
    AtomForm,
    Constant,
    Expression,
    HeadForm,
    RuleForm,
    Term,
    Type,
    Variable,
    Wildcard,
    variables_of,
)
from tidemill.datalog.logical.plan import LogicalPlan, components_of
from tidemill.datalog.records import ANY
from tidemill.datalog.relevance import Pattern

MAGIC = "#ask:"
_PASSED = frozenset({"time", *LATTICES}) - {"expires"}

Positions = frozenset[int]


def magic_plan(plan: LogicalPlan, predicate: str, pattern: Pattern) -> LogicalPlan:
    """A plan that derives the facts of `predicate` that fit the pattern, as `plan` does at every
    instant.

    It may derive fewer facts that do not fit, of that predicate and of others, and never a wrong
    one. A fact that only helps may end earlier, with the last fact that needs it. Predicates whose
    solutions outlive their facts, and all below them, are derived whole. Cost: O(text squared).
    """
    if plan.checked.ticked:
        return plan
    for through_derived in (True, False):
        rewriting = _Rewriting(plan, through_derived)
        found = rewriting.plan(predicate, pattern)
        if found is not None:
            return found
    raise AssertionError("magic facts that come from inputs alone are on no cycle with `not`")


def tells_ends(plan: LogicalPlan) -> bool:
    """Whether a fact of the plan may end by itself: helping facts may then show an earlier end."""
    return any(schema.kind == "events" for schema in plan.checked.inputs.values()) or any(
        rule.head.expires for rule in plan.rules
    )


@dataclass(frozen=True, slots=True)
class _Subquery:
    """An atom of a rule with the positions known before it, and the atoms that know them."""

    atom: AtomForm | AbsentForm
    positions: Positions
    before: tuple[AtomForm, ...]


class _Rewriting:
    """One way to pass values sideways: through every atom, or only through atoms over inputs.

    Predicates that are only stated count as inputs: they are there without being derived.
    """

    def __init__(self, plan: LogicalPlan, through_derived: bool) -> None:
        self._plan = plan
        self._checked = plan.checked
        self._through_derived = through_derived
        self._rules: dict[str, list[RuleForm]] = {}
        derived = {rule.head.predicate for rule in plan.rules if rule.has_body}
        for rule in plan.rules:
            if rule.head.predicate in derived:
                self._rules.setdefault(rule.head.predicate, []).append(rule)
        self._kinds = {
            name: [Type(kind) for _, kind in columns]
            for name, columns in self._checked.columns.items()
        }
        self._whole = self._needed_whole()
        self._adorned: dict[str, Positions] = {}

    def plan(self, predicate: str, pattern: Pattern) -> LogicalPlan | None:
        """The rewritten plan; None if magic rules and `not` or an aggregate were on one cycle."""
        given = frozenset(
            at
            for at, value in enumerate(pattern)
            if value is not ANY and self._fits(predicate, at, value)
        )
        self._adorned = (
            {predicate: self._adornment(predicate, given)} if predicate in self._rules else {}
        )
        while self._spread():
            pass
        first = 1 + max((rule.number for rule in self._plan.rules), default=0)
        rules = [
            self._restricted(rule)
            for rule in self._plan.rules
            if rule.head.predicate in self._adorned or rule.head.predicate not in self._rules
        ]
        magic = [
            self._magic_rule(rule, subquery)
            for rule in self._plan.rules
            if rule.head.predicate in self._adorned
            for subquery in self._subqueries(rule)
            if self._adorned.get(subquery.atom.predicate)
        ]
        if self._adorned.get(predicate):
            values = {at: Constant(pattern[at]) for at in self._adorned[predicate]}
            magic.append(self._stated(predicate, values))
        new = [rule for rule in dict.fromkeys(magic) if not _says_itself(rule)]
        numbered = [replace(rule, number=number) for number, rule in enumerate(new, first)]
        return self._finished((*rules, *numbered))

    def _needed_whole(self) -> frozenset[str]:
        """Predicates with rules that look back in time, or at ends, and all that those read."""
        looking = [
            name
            for name, rules in self._rules.items()
            if any(rule.remembers or _reads_ends(rule) for rule in rules)
        ]

        def read(name: str) -> Iterable[str]:
            return (each for rule in self._rules.get(name, ()) for each in rule.reads)

        return frozenset(reached(looking, read))

    def _adornment(self, predicate: str, positions: Positions) -> Positions:
        return frozenset() if predicate in self._whole else positions

    def _fits(self, predicate: str, at: int, value: object) -> bool:
        """Whether a value is of the very type of a column, so that comparing needs no widening."""
        kind = self._kinds[predicate][at]
        of = TYPE_OF.get(type(value))
        return value is None or kind is Type.ANY or kind is of

    def _spread(self) -> bool:
        """Pass on the positions asked of each predicate once; whether any are fewer now."""
        grew = False
        for name in list(self._adorned):
            for rule in self._rules.get(name, ()):
                for subquery in self._subqueries(rule):
                    below = subquery.atom.predicate
                    wanted = self._adornment(below, subquery.positions)
                    known = self._adorned.get(below)
                    if known is not None:
                        wanted &= known
                    if wanted != known:
                        self._adorned[below] = wanted
                        grew = True
        return grew

    def _subqueries(self, rule: RuleForm) -> list[_Subquery]:
        """Subqueries of a rule on derived predicates, in an order that passes values on."""
        bound = set(self._bound(rule))
        before: list[AtomForm] = []
        waiting = [atom for atom in rule.atoms if not atom.is_clock]
        found: list[_Subquery] = []
        while waiting:
            atom = min(waiting, key=lambda each: self._rank(rule, each, bound))
            waiting.remove(atom)
            derived = atom.predicate in self._rules
            if derived:
                positions = self._known(rule, atom, bound)
                found.append(_Subquery(atom, positions, tuple(before)))
            if self._through_derived or not derived:
                before.append(atom)
                bound |= {term.name for term in atom.terms if isinstance(term, Variable)}
        for absent in rule.absent:
            if not absent.is_clock and absent.predicate in self._rules:
                positions = self._known(rule, absent, bound)
                found.append(_Subquery(absent, positions, tuple(before)))
        return found

    def _rank(self, rule: RuleForm, atom: AtomForm, bound: set[str]) -> tuple[int, int, int]:
        """Smallest first: atoms with some value, inputs, then those with more values."""
        known = len(self._known(rule, atom, bound))
        return (0 if known else 1, 1 if atom.predicate in self._rules else 0, -known)

    def _bound(self, rule: RuleForm) -> dict[str, int]:
        """The variables of the head that a magic fact for it knows, each with its position."""
        asked = self._adorned.get(rule.head.predicate, frozenset())
        found: dict[str, int] = {}
        for at in sorted(asked):
            term = rule.head.terms[at]
            if isinstance(term, Variable) and self._alike(rule, term, rule.head.predicate, at):
                found.setdefault(term.name, at)
        return found

    def _alike(self, rule: RuleForm, term: Variable, predicate: str, at: int) -> bool:
        return rule.types.get(term.name, Type.ANY) is self._kinds[predicate][at]

    def _known(self, rule: RuleForm, atom: AtomForm | AbsentForm, bound: set[str]) -> Positions:
        """The positions of an atom whose values are known, constants among them."""
        return frozenset(
            at
            for at, term in enumerate(atom.terms)
            if (isinstance(term, Constant) and self._fits(atom.predicate, at, term.value))
            or (
                isinstance(term, Variable)
                and term.name in bound
                and self._alike(rule, term, atom.predicate, at)
            )
        )

    # From what is asked to rules.

    def _restricted(self, rule: RuleForm) -> RuleForm:
        """The rule for heads that are asked for."""
        asked = self._adorned.get(rule.head.predicate)
        if not asked:
            return rule
        bound = self._bound(rule)
        known = {name for name, _ in bound.items()}
        terms: list[Term] = []
        for at in sorted(asked):
            term = rule.head.terms[at]
            constant = isinstance(term, Constant) and self._fits(
                rule.head.predicate, at, term.value
            )
            if constant or (isinstance(term, Variable) and term.name in known):
                terms.append(term)  # type: ignore[arg-type]  # a constant or a variable
            else:
                terms.append(Wildcard())
        magic = AtomForm(MAGIC + rule.head.predicate, tuple(terms))
        return replace(rule, atoms=(*rule.atoms, magic), has_body=True)

    def _magic_rule(self, rule: RuleForm, subquery: _Subquery) -> RuleForm:
        """The rule for the magic facts that an atom of the rule can need."""
        predicate = subquery.atom.predicate
        terms = {at: subquery.atom.terms[at] for at in sorted(self._adorned[predicate])}
        wanted = {term.name for term in terms.values() if isinstance(term, Variable)}
        if not wanted:
            return self._stated(predicate, terms)  # type: ignore[arg-type]  # constants only
        restricted = self._restricted(rule)
        sources = [replace(atom, lattices=(), suppressed=frozenset()) for atom in subquery.before]
        if len(restricted.atoms) > len(rule.atoms):
            sources.insert(0, restricted.atoms[-1])
        atoms = _connected(sources, wanted)
        names = {name for atom in atoms for name in atom.variables()}
        scope = TypeEnvironment(rule.types, {}, FUNCTIONS, LATTICES)
        conditions = tuple(
            condition
            for condition in rule.conditions
            if variables_of(condition) <= names and _certain(condition, scope)
        )
        return RuleForm(
            0, HeadForm(MAGIC + predicate, tuple(terms.values()), suppressed=_PASSED),  # type: ignore[arg-type]  # no wildcards
            atoms, (), conditions, 0, rule.types,
        )  # fmt: skip

    def _stated(self, predicate: str, values: Mapping[int, Constant]) -> RuleForm:
        terms = tuple(values[at] for at in sorted(values))
        return RuleForm(0, HeadForm(MAGIC + predicate, terms), (), (), (), 0, {}, has_body=False)

    # The plan of the new rules.

    def _finished(self, rules: tuple[RuleForm, ...]) -> LogicalPlan | None:
        reads: dict[str, list[str]] = {}
        for rule in rules:
            reads.setdefault(rule.head.predicate, []).extend(sorted(rule.reads))
        components = strong_components(reads, lambda name: reads.get(name, []))
        of = {name: number for number, each in enumerate(components) for name in each}
        if any(self._newly_cyclic(rule, of) for rule in rules):
            return None
        columns = dict(self._checked.columns)
        for name, positions in self._adorned.items():
            if positions:
                columns[MAGIC + name] = tuple(columns[name][at] for at in sorted(positions))
        checked = replace(
            self._checked,
            columns=columns,
            components=tuple(tuple(sorted(each)) for each in components),
            strata=_strata(rules, components, of, self._checked),
        )
        return replace(
            self._plan, checked=checked, rules=rules, components=components_of(checked, rules)
        )

    def _newly_cyclic(self, rule: RuleForm, of: Mapping[str, int]) -> bool:
        """Whether a rule over finished facts is on a cycle now that was none before."""
        head = rule.head.predicate
        if head.startswith(MAGIC):
            return False
        mine = next(c for c in self._checked.components if head in c)
        atoms: list[AtomForm | AbsentForm] = [*rule.atoms, *rule.absent]
        for atom in atoms:
            name = atom.predicate
            if of.get(name) != of[head] or name in mine:
                continue
            plain = isinstance(atom, AtomForm) and not atom.lattices
            if not plain or rule.head.lattices:
                return True
        return False


def _says_itself(rule: RuleForm) -> bool:
    """Whether a rule only derives the fact that it matches."""
    head = rule.head
    return len(rule.atoms) == 1 and rule.atoms[0] == AtomForm(head.predicate, head.terms)  # type: ignore[arg-type]  # compared only


def _reads_ends(rule: RuleForm) -> bool:
    atoms: list[AtomForm | AbsentForm] = [*rule.atoms, *rule.absent]
    return any(name == "expires" for atom in atoms for name, _ in atom.lattices)


def _certain(condition: Expression, scope: TypeEnvironment) -> bool:
    """Whether a condition over functions of the language cannot fail for any values."""
    names = _functions(condition)
    return names <= FUNCTIONS.keys() and not scope.fallible(condition)


def _functions(expression: Expression) -> set[str]:
    if isinstance(expression, Constant | Variable):
        return set()
    own = (
        {expression.name} if expression.name.isidentifier() and expression.name != "neg" else set()
    )
    return own.union(*(_functions(argument) for argument in expression.arguments))


def _connected(atoms: Sequence[AtomForm], wanted: Iterable[str]) -> tuple[AtomForm, ...]:
    """The atoms that bind the wanted variables, and those that are joined to them."""
    names = set(wanted)
    kept: set[int] = set()
    grew = True
    while grew:
        grew = False
        for at, atom in enumerate(atoms):
            if at not in kept and not names.isdisjoint(atom.variables()):
                kept.add(at)
                names.update(atom.variables())
                grew = True
    return tuple(atom for at, atom in enumerate(atoms) if at in kept)


def _strata(
    rules: Sequence[RuleForm],
    components: Sequence[Sequence[str]],
    of: Mapping[str, int],
    checked: CheckedProgram,
) -> dict[str, int]:
    """The strata of the new components; magic predicates are not above their readers."""
    level = [0] * len(components)
    by_head: dict[int, list[RuleForm]] = {}
    for rule in rules:
        by_head.setdefault(of[rule.head.predicate], []).append(rule)
    for number, names in enumerate(components):
        known = [checked.strata.get(name, 0) for name in names if not name.startswith(MAGIC)]
        below = [
            level[of[read]]
            for rule in by_head.get(number, ())
            for read in rule.reads
            if read in of and of[read] != number
        ]
        level[number] = max((*known, *below), default=0)
    return {name: level[of[name]] for name in of}
