"""A rewrite of rules with `~expires` in their bodies: a pure function from plan to plan.

A solution of such a rule lives from when its body first holds as long as its other atoms hold, and
those under `not`. A rule `h := a ~expires ^ b ^ not c` has three collections of one row for each
match. It reads the last two of them in the place of `a`:

    #met(…) := a ^ b ^ not c
    #open(…), the lives of matches
    #stays(…) := #open(…) ^ b ^ not c
    h := #open(…) ^ #stays(…) ^ b

A rule of which nothing but its own `@expires` ends a solution is left as it is (`lives_alone`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from tidemill.datalog.inputs import TYPES, ColumnType
from tidemill.datalog.logical.expressions import type_of
from tidemill.datalog.logical.forms import (
    AtomForm,
    Constant,
    Expression,
    HeadForm,
    RuleForm,
    Term,
    Type,
    Variable,
    Wildcard,
    carried_variables,
    clock_time,
)
from tidemill.datalog.logical.plan import Component, LogicalPlan, reads_any
from tidemill.datalog.presence import END
from tidemill.datalog.state import Share

WORDS: Mapping[Type, ColumnType] = dict(zip(Type, TYPES, strict=True))
"""Types as columns name them."""
MET, OPEN, STAYS = "#met:", "#open:", "#stays:"
WHEN = "#time"
"""In the place of a lattice: the time of a fact, which may have none."""
INSTANTS = frozenset({"time", WHEN})
"""In the place of lattices: forms of the time of a fact."""


@dataclass(frozen=True, slots=True)
class Lives:
    """The lives of the matches of one rule, by the collections that say when they hold.

    `keys` are the facts of a match, in the order of the atoms: each value is a place among the
    arguments, or a literal. `values` are the places of what else tells matches apart. `leaving` is
    the number of atoms with `~expires`; `times` are the atoms of which the time is passed. `looped`
    are those of a rule within a recursion.
    """

    rule: int
    met: str
    stays: str
    keys: tuple[tuple[int | Constant, ...], ...]
    values: tuple[int, ...]
    leaving: int
    times: tuple[int, ...]
    looped: bool

    def share(self, share: Share) -> Share:
        """The same solutions by the rows of their lives, which the rule reads."""
        places = [self.keys[share.atom][at] for at in share.columns]
        columns = tuple(each for each in places if isinstance(each, int))
        assert len(columns) == len(places), "the key of a match is of variables"
        return replace(share, atom=0, columns=columns)


def lives_alone(rule: RuleForm) -> bool:
    """Whether a rule with `~expires` in its body needs its facts at one instant only.

    Nothing that it reads ends a match, so a solution is sure once the body holds. It is seen from
    the time of its head to its own expiry. Rules in a recursion, those that aggregate and
    those of ticked programs are others. Facts must not carry lattices beside their time.
    """
    head = rule.head
    return (
        bool(head.expires)
        and rule.deductive
        and not (head.aggregates or rule.absent)
        and all(_leaves(atom) and not atom.is_clock for atom in rule.atoms)
        and all(name == "time" for atom in rule.atoms for name, _ in atom.lattices)
    )


def lives_apart(
    logical: LogicalPlan, bare: Collection[str] = ()
) -> tuple[LogicalPlan, dict[str, Lives]]:
    """The plan without `~expires` in bodies, and the lives that it has for them.

    Rules that are `lives_alone`, of predicates in `bare` alone, keep theirs. Cost: O(text).
    """
    checked, lives = logical.checked, dict[str, Lives]()

    def stays(rule: RuleForm) -> bool:
        return lives_alone(rule) and {rule.head.predicate, *rule.reads}.issubset(bare)

    columns, components = dict(checked.columns), list[Component]()
    everything = frozenset(checked.vocabulary.lattices) - {"time", "expires"}
    for component in logical.components:
        apart_of = [
            rule.lingers and (component.recursive or not stays(rule)) for rule in component.rules
        ]
        if not any(apart_of):
            components.append(component)
            continue
        rules, names = list[RuleForm](), list(component.predicates)
        for rule, lingers in zip(component.rules, apart_of, strict=True):
            if not lingers:
                rules.append(rule)
                continue
            looped = component.recursive and reads_any(rule, component.predicates)
            apart = _Apart(rule, columns, everything, looped)
            lives[apart.open] = apart.lives
            columns.update(apart.columns)
            if looped:
                rules += (apart.met_rule, *apart.life_rules)
                names[:0] = (apart.met, apart.open, apart.stays)
            else:
                stratum = component.stratum
                components += (
                    Component((apart.met,), (apart.met_rule,), False, stratum),
                    Component((apart.open, apart.stays), apart.life_rules, False, stratum),
                )
            rules.append(apart.rule)
        components.append(replace(component, predicates=tuple(names), rules=tuple(rules)))
    if not lives:
        return logical, lives
    return logical.remade(components, replace(checked, columns=columns)), lives


class _Apart:
    """One rule with `~expires` in its body, and the rules that it becomes."""

    def __init__(
        self, rule: RuleForm, columns: Mapping[str, tuple[tuple[str, ColumnType], ...]],
        everything: frozenset[str], looped: bool,
    ) -> None:  # fmt: skip
        self._everything = everything
        self._looped = looped
        name = f"{rule.number}:{rule.head.predicate}"
        self.met, self.open, self.stays = MET + name, OPEN + name, STAYS + name
        self._types = dict(rule.types)
        keyed = [
            keyed_atom(f"#met:{number}", atom, columns, self._types)
            for number, atom in enumerate(rule.atoms)
        ]
        self._given = {
            f"#tick:{number}.{at}": each
            for number, atom in enumerate(rule.atoms)
            for at, each in enumerate(atom.clock or ())
        }
        self._types |= {each: type_of(e, rule.types) for each, e in self._given.items()}
        bound = dict.fromkeys(each for atom in keyed for each in atom.variables())
        self._names = {each: at for at, each in enumerate((*bound, *self._given), 1)}
        self._terms = tuple(map(Variable, self._names))
        self.lives = self._lives(rule, keyed)
        self.met_rule = self._met_rule(rule, keyed)
        staying = [atom for atom in keyed if not atom.is_clock and not _leaves(atom)]
        self.life_rules = self._life_rules(rule, staying)
        self.rule = self._rest(rule, staying)
        kinds = tuple(("", WORDS[self._types[each]]) for each in self._names)
        computed = [("", WORDS[type_of(each, rule.types)]) for each in _written(rule.head)]
        self.columns = {
            self.met: (*kinds, *computed), self.open: kinds, self.stays: kinds,
        }  # fmt: skip

    def _lives(self, rule: RuleForm, keyed: Iterable[AtomForm]) -> Lives:
        def place(term: Term) -> int | Constant:
            return self._names[term.name] if isinstance(term, Variable) else _literal(term)

        keys = []
        for number, atom in enumerate(keyed):
            found = [place(_time_of(atom)), *map(place, atom.terms)]
            if atom.is_clock:
                found += [self._names[f"#tick:{number}.{at}"] for at in range(2)]
            keys.append(tuple(found))
        leaving = [number for number, atom in enumerate(rule.atoms) if _leaves(atom)]
        timed = not rule.head.time and "time" not in rule.head.suppressed
        times = [n for n, atom in enumerate(rule.atoms) if timed and "time" not in atom.suppressed]
        values = tuple(self._names[each] for each in carried_variables(rule))
        return Lives(
            rule.number,
            self.met,
            self.stays,
            tuple(keys),
            values,
            len(leaving),
            tuple(times),
            self._looped,
        )

    def _met_rule(self, rule: RuleForm, keyed: Iterable[AtomForm]) -> RuleForm:
        """The matches of the whole body of which nothing in the head fails.

        Of their times and ends only that is asked; what facts that leave carry is passed.
        """
        head = rule.head
        dropped = head.suppressed - {"expires"} | {name for name, _ in head.lattices}
        terms = (*map(Variable, self._names), *_written(head))
        given = {Variable(name): each for name, each in self._given.items()}
        found = tuple(
            given.get(term, term) if isinstance(term, Variable) else term for term in terms
        )
        atoms = tuple(
            replace(
                atom,
                suppressed=atom.suppressed | {"expires"}
                | (frozenset() if _leaves(atom) else self._everything),
            )
            for atom in keyed
        )  # fmt: skip
        met = HeadForm(self.met, found, head.time, head.expires, (), dropped)
        return replace(rule, head=met, atoms=atoms, next_tick=False, sends=False)

    def _life_rules(self, rule: RuleForm, staying: Iterable[AtomForm]) -> tuple[RuleForm, ...]:
        """Parts of lives, and the lives that go on."""
        wild = tuple(Wildcard() for _ in _written(rule.head))
        opens = HeadForm(self.open, self._terms)
        types, mute = self._types, self._everything | {"time", "expires"}
        atoms = [replace(each, suppressed=mute) for each in staying]
        return (
            RuleForm(0, opens, (AtomForm(self.met, (*self._terms, *wild)),), (), (), 0, types),
            RuleForm(0, opens, (AtomForm(self.stays, self._terms),), (), (), 0, types),
            RuleForm(
                -rule.number,
                HeadForm(self.stays, self._terms, suppressed=self._everything | {"time"}),
                (AtomForm(self.open, self._terms, suppressed=mute), *atoms),
                rule.absent, (), 0, types,
            ),
        )  # fmt: skip

    def _rest(self, rule: RuleForm, staying: Iterable[AtomForm]) -> RuleForm:
        """The rule that reads the lives."""
        atoms = [
            replace(each, lattices=tuple(x for x in each.lattices if x[0] in INSTANTS))
            for each in staying
        ]
        alive = (("expires", (Constant(END),)),) if self._looped else ()
        lives = AtomForm(self.open, self._terms, alive, frozenset({"expires"}))
        goes_on = AtomForm(self.stays, self._terms)
        return replace(
            rule, atoms=(lives, goes_on, *atoms), absent=(), conditions=(), guards=0,
            types=self._types,
        )  # fmt: skip


def keyed_atom(
    name: str, atom: AtomForm, columns: Mapping[str, tuple[tuple[str, ColumnType], ...]],
    types: dict[str, Type],
) -> AtomForm:  # fmt: skip
    """An atom that binds all columns of its fact, and its time, by variables that begin so.

    Their types are put in `types`.
    """

    def fresh(place: int, kind: Type) -> Variable:
        variable = Variable(f"{name}.{place}")
        types[variable.name] = kind
        return variable

    time = clock_time(atom)
    if atom.is_clock:
        if time is not None:
            return atom
        others = tuple(each for each in atom.lattices if each[0] != "time")
        return replace(atom, lattices=(("time", (fresh(0, Type.INT),)), *others))
    terms = tuple(
        fresh(at, Type(kind)) if isinstance(term, Wildcard) else term
        for at, (term, (_, kind)) in enumerate(zip(atom.terms, columns[atom.predicate], strict=True), 1)
    )  # fmt: skip
    if time is not None:
        return replace(atom, terms=terms)
    return replace(atom, terms=terms, lattices=(*atom.lattices, (WHEN, (fresh(0, Type.INT),))))


def _leaves(atom: AtomForm) -> bool:
    return "expires" in atom.suppressed


def _time_of(atom: AtomForm) -> Term:
    """The term for the time of a fact, which a keyed atom has."""
    return clock_time(atom) or next(terms[0] for name, terms in atom.lattices if name == WHEN)


def _literal(term: Term) -> Constant:
    assert isinstance(term, Constant)
    return term


def _written(head: HeadForm) -> list[Expression]:
    """The arguments and values of lattices that may fail."""
    terms = [*head.terms, *(term for _, terms in head.lattices for term in terms)]
    return [term for term in terms if not isinstance(term, Variable | Constant)]
