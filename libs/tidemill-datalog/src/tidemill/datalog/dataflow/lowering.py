"""From the logical plan of a program to its dataflow: one function for each construct."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from tidemill.arrangement.interval_updates import END_WORD, JoinShape
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.columnar.columns import Texts
from tidemill.datalog.dataflow.plan import (
    MODERATE,
    UNIT,
    Begin,
    Clock,
    CollectionPlan,
    Compute,
    DataflowPlan,
    DeltaPlan,
    Filter,
    Head,
    Join,
    MatchColumns,
    Operator,
    Reduce,
    RulePlan,
    Subtract,
)
from tidemill.datalog.dataflow.schema import (
    COLUMNS_MAX,
    KINDS,
    TIME,
    NotInDataflow,
    Schema,
    word_of,
)
from tidemill.datalog.evaluation.expressions import UNBOUNDED, Scope, type_of
from tidemill.datalog.evaluation.forms import (
    WIDEN,
    AbsentForm,
    AtomForm,
    Call,
    Constant,
    Expression,
    RuleForm,
    Term,
    Type,
    Variable,
    Wildcard,
    variables_of,
)
from tidemill.datalog.evaluation.joins import clock_time
from tidemill.datalog.evaluation.linear import NO_LIMITS, limits_of
from tidemill.datalog.evaluation.logical import Component, LogicalPlan
from tidemill.datalog.evaluation.tables import Bounds

_ATOMS_ALIKE_MAX = 4
_UNIT_ATOM = AtomForm(UNIT, ())
LINEAR = frozenset({"count", "sum", "average"})
_GIVES = {"count": Type.INT, "count_distinct": Type.INT, "average": Type.FLOAT}


def lower(logical: LogicalPlan, texts: Texts) -> DataflowPlan:
    """The dataflow of a program. Raises: NotInDataflow. Cost: O(text)."""
    return _Lowering(logical, texts).plan()


class _Lowering:
    """Lowers one program: its collections first, then each rule."""

    def __init__(self, logical: LogicalPlan, texts: Texts) -> None:
        self._logical = logical
        self._checked = logical.checked
        self._texts = texts
        self._collections: dict[str, CollectionPlan] = {}
        self.schemas: dict[str, Schema] = {}

    def plan(self) -> DataflowPlan:
        checked = self._checked
        if checked.ticked:
            raise NotInDataflow("rules with @next or @async")
        deriving = {rule.head.predicate for rule in self._logical.rules}
        read = {name for rule in self._logical.rules for name in rule.reads}
        names = [n for n in (*checked.inputs, *sorted(read)) if n not in deriving]
        self._collect(UNIT, Schema(UNIT, ()), 0)
        for name in dict.fromkeys(names):
            self._collect(name, self._schema(name, self._input_lattices(name)), 0)
        rules = []
        loops = []
        for component in self._logical.components:
            if not component.rules:
                continue
            if component.recursive:
                self._refuse_in_loop(component)
                loops.append(component.predicates)
            for name in component.predicates:
                self._collect(name, self._derived_schema(name, component), component.stratum)
            rules += [RuleLowering(self, rule).plan() for rule in component.rules]
            for name in component.predicates:
                self._rank_last(name)
        inputs = frozenset(checked.inputs)
        return DataflowPlan(self._collections, tuple(rules), tuple(loops), inputs)

    def _derived_schema(self, name: str, component: Component) -> Schema:
        rules = [rule for rule in component.rules if rule.head.predicate == name]
        lattices = self._derived_lattices(name, rules)
        if name in self._checked.inputs and self._input_lattices(name) != lattices:
            raise NotInDataflow(f"{name}, derived and an input, that carries lattices")
        return self._schema(name, lattices)

    def _refuse_in_loop(self, component: Component) -> None:
        for rule in component.rules:
            if rule.outlives:
                raise NotInDataflow("an end of its own in a recursion")
            if rule.head.aggregates:
                raise NotInDataflow("a lattice in a recursion")
        if not self._checked.inputs.keys().isdisjoint(component.predicates):
            raise NotInDataflow("a recursion through an input")

    def _collect(self, name: str, schema: Schema, stratum: int) -> None:
        if schema.columns > COLUMNS_MAX:
            raise NotInDataflow(f"{name}, which has more than {COLUMNS_MAX} columns")
        self.schemas[name] = schema
        self._collections[name] = CollectionPlan(schema, stratum, len(self._collections))

    def _rank_last(self, name: str) -> None:
        """A collection comes after the covers that its rules asked for."""
        known = self._collections.pop(name)
        self._collections[name] = CollectionPlan(known.schema, known.stratum, 1 << 30)
        for rank, (each, plan) in enumerate(self._collections.items()):
            self._collections[each] = CollectionPlan(plan.schema, plan.stratum, rank, plan.cover)

    def _schema(self, name: str, lattices: tuple[tuple[str, Type], ...]) -> Schema:
        kinds = tuple(Type(kind) for _, kind in self._checked.columns.get(name, ()))
        for kind in kinds:
            if kind not in KINDS and kind is not Type.ANY:
                raise NotInDataflow(f"{name}, which has a column of type {kind.value}")
        return Schema(name, kinds, lattices)

    def _input_lattices(self, name: str) -> tuple[tuple[str, Type], ...]:
        schema = self._checked.inputs.get(name)
        if schema is not None and schema.lattices:
            raise NotInDataflow(f"the input {name}, which carries lattices")
        return ()

    def _derived_lattices(
        self, name: str, rules: Sequence[RuleForm]
    ) -> tuple[tuple[str, Type], ...]:
        """The lattices that facts of a predicate carry, which its one aggregating rule makes."""
        for rule in rules:
            dropped = rule.head.suppressed | {lattice for lattice, _ in rule.head.lattices}
            for atom in rule.atoms:
                known = self.schemas.get(atom.predicate)
                passed = {each for each, _ in known.lattices} if known else set()
                if passed - dropped - atom.suppressed:
                    raise NotInDataflow("a lattice that is passed from a body to a head")
        if not any(rule.head.aggregates for rule in rules):
            return ()
        if len(rules) > 1:
            raise NotInDataflow("aggregates of one predicate in several rules")
        found = []
        for lattice, terms in rules[0].head.lattices:
            if lattice not in self._checked.vocabulary.lattices or len(terms) != 1:
                raise NotInDataflow(f"@{lattice}")
            known_types = self._checked.lattice_types.get((name, lattice))
            kind = _GIVES.get(lattice) or (Type(known_types[0]) if known_types else Type.ANY)
            if kind not in KINDS:
                raise NotInDataflow(f"@{lattice} of type {kind.value}")
            found.append((lattice, kind))
        if len({lattice for lattice, _ in found}) < len(found):
            raise NotInDataflow("a lattice that a head mentions twice")
        return tuple(found)

    def cover(self, predicate: str, columns: tuple[int, ...]) -> str:
        """The collection that says when a fact with given values in some columns is present."""
        name = f"#has:{predicate}:{','.join(map(str, columns))}"
        if name not in self._collections:
            schema = self.schemas[predicate]
            kinds = tuple(schema.kind(column) for column in columns)
            self.schemas[name] = Schema(name, kinds)
            known = self._collections[predicate]
            self._collections[name] = CollectionPlan(
                self.schemas[name], known.stratum, len(self._collections), (predicate, columns)
            )
        return name

    def scope(self, rule: RuleForm) -> Scope:
        """What is known of the variables of a rule: their types."""
        vocabulary = self._checked.vocabulary
        names = {name for atom in rule.atoms for name in atom.variables()}
        bounds = dict.fromkeys(names, UNBOUNDED)
        return Scope(rule.types, bounds, vocabulary.functions, vocabulary.lattices)

    def word(self, value: object, kind: Type) -> tuple[int, bool]:
        return word_of(value, kind, self._texts)

    def lattice_type(self, predicate: str, lattice: str) -> Type:
        known = self._checked.lattice_types.get((predicate, lattice))
        return Type(known[0]) if known else Type.ANY


class RuleLowering:
    """Lowers one rule: its columns, a delta plan for each change, its head."""

    def __init__(self, program: _Lowering, rule: RuleForm) -> None:
        self._program = program
        self._rule = rule
        self._scope = program.scope(rule)
        atoms = rule.atoms
        if all(atom.is_clock for atom in atoms):
            atoms = (_UNIT_ATOM, *atoms)
        self._atoms = atoms
        self._template: list[tuple[int, bool]] = []
        self._variables: dict[str, tuple[int, Type]] = {}
        self._constants: dict[tuple[object, Type], int] = {}
        self._own: dict[tuple[int, int], int] = {}
        self._asked: dict[tuple[int, int], int] = {}
        self._refuse()

    def _refuse(self) -> None:
        rule = self._rule
        if rule.lingers:
            raise NotInDataflow("~expires in a body")
        for absent in rule.absent:
            if absent.is_clock or absent.widened:
                raise NotInDataflow("a clock or a widened value under `not`")
            for name, terms in absent.lattices:
                if name != "time" or isinstance(terms[0], Wildcard):
                    raise NotInDataflow(f"@{name} under `not`")

    def plan(self) -> RulePlan:
        full = self._needs_identity()
        for number, atom in enumerate(self._atoms):
            self._allocate(number, atom, full)
        for number, absent in enumerate(self._rule.absent):
            self._allocate_absent(number, absent)
        head_plan, reduce = self._head(), self._reduce()
        columns = self._columns()
        if columns.width > COLUMNS_MAX:
            raise NotInDataflow(f"a rule whose matches have more than {COLUMNS_MAX} columns")
        return RulePlan(self._rule, self._scope, columns, tuple(self._deltas()), head_plan, reduce)

    def _moderate(self) -> Scope:
        """The same names for numbers that can be added without overflow; clocks look at that."""
        known = Bounds(-MODERATE, MODERATE, True)
        bounds = {
            name: known if self._scope.types.get(name) is Type.INT else each
            for name, each in self._scope.bounds.items()
        }
        return replace(self._scope, bounds=bounds)

    # Columns of matches.

    def _needs_identity(self) -> bool:
        rule = self._rule
        expressions: list[Expression] = [*rule.conditions, *rule.head.terms, *rule.head.time]
        expressions += rule.head.expires
        expressions += [term for _, terms in rule.head.lattices for term in terms]
        expressions += [each for absent in rule.absent for each in absent.expressions()]
        clocks = [atom.clock for atom in rule.atoms if atom.clock is not None]
        if any(not isinstance(each, Constant) for clock in clocks for each in clock):
            return True
        return (
            rule.outlives
            or bool(rule.head.time or rule.head.expires)
            or any(self._scope.fallible(expression) for expression in expressions)
        )

    def _column(self, word: int = 0, null: bool = False) -> int:
        self._template.append((word, null))
        return len(self._template) - 1

    def _constant(self, value: object, kind: Type) -> int:
        key = (value if value is None else (type(value), value), kind)
        if key not in self._constants:
            self._constants[key] = self._column(*self._program.word(value, kind))
        return self._constants[key]

    def _places(self, number: int) -> list[tuple[int, Term, Type]]:
        """The columns of an atom's facts with their terms: (column, term, type)."""
        atom = self._atoms[number]
        schema = self._program.schemas[atom.predicate]
        found: list[tuple[int, Term, Type]] = [
            (at, term, schema.kinds[at - 1]) for at, term in enumerate(atom.terms, 1)
        ]
        for name, terms in atom.lattices:
            if name == "time":
                found.append((TIME, terms[0], Type.INT))
                continue
            place = schema.place(name)
            if place is None or len(terms) != 1 or name == "expires":
                raise NotInDataflow(f"a match of @{name}")
            found.append((place, terms[0], schema.kind(place)))
        return found

    def _allocate(self, number: int, atom: AtomForm, full: bool) -> None:
        if atom.is_clock:
            for at in range(3):
                self._own[number, at] = self._column()
            time = clock_time(atom)
            if isinstance(time, Variable):
                known = self._variables.setdefault(time.name, (self._own[number, 0], Type.INT))
                self._own[number, 0] = known[0]
            elif isinstance(time, Constant):
                self._own[number, 0] = self._constant(time.value, Type.INT)
            for name, _ in atom.lattices:
                if name != "time":
                    raise NotInDataflow(f"a match of @{name} on a clock")
            return
        for place, term, kind in self._places(number):
            if isinstance(term, Variable):
                known = self._variables.get(term.name)
                wanted = self._rule.types.get(term.name, kind)
                if wanted is not kind and wanted is not Type.ANY:
                    raise NotInDataflow("whole numbers that are joined with floats")
                if known is None:
                    known = self._variables[term.name] = self._column(), kind
                if known[1] is not kind:
                    raise NotInDataflow("columns of different types that are joined")
                self._own.setdefault((number, place), known[0])
            elif isinstance(term, Constant):
                self._own.setdefault((number, place), self._constant(term.value, kind))
        if full:
            schema = self._program.schemas[atom.predicate]
            for place in schema.key:
                if (number, place) not in self._own:
                    self._own[number, place] = self._column()

    def _allocate_absent(self, number: int, absent: AbsentForm) -> None:
        schema = self._program.schemas[absent.predicate]
        for place, term in absent.columns():
            kind = schema.kind(place)
            if isinstance(term, Variable) and self._rule.types.get(term.name) is kind:
                self._asked[number, place] = self._variables[term.name][0]
            elif isinstance(term, Constant):
                self._asked[number, place] = self._constant(term.value, kind)
            else:
                self._asked[number, place] = self._column()

    def _columns(self) -> MatchColumns:
        facts = []
        for number, atom in enumerate(self._rule.atoms):
            number += len(self._atoms) - len(self._rule.atoms)
            size = 3 if atom.is_clock else len(self._program.schemas[atom.predicate].key)
            facts.append(tuple(self._own.get((number, at), -1) for at in range(size)))
        identity = sorted(
            {column for (number, at), column in self._own.items()}
            | {column for column, _ in self._variables.values()}
        )
        width = len(self._template) + 3
        return MatchColumns(dict(self._variables), tuple(facts), tuple(identity), width)

    # Delta plans.

    def _deltas(self) -> Iterable[DeltaPlan]:
        occurrences: dict[str, list[int]] = {}
        for number, atom in enumerate(self._atoms):
            if not atom.is_clock:
                occurrences.setdefault(atom.predicate, []).append(number)
        for predicate, numbers in occurrences.items():
            if len(numbers) > _ATOMS_ALIKE_MAX:
                raise NotInDataflow(f"a rule with more than {_ATOMS_ALIKE_MAX} atoms alike")
            for size in range(1, len(numbers) + 1):
                for changed in combinations(numbers, size):
                    sign = 1 if size % 2 else -1
                    yield self._delta(predicate, sign, changed, None)
        for number, absent in enumerate(self._rule.absent):
            yield self._delta(self._cover(number, absent), -1, (), number)

    def _cover(self, number: int, absent: AbsentForm) -> str:
        columns = tuple(place for place, _ in absent.columns())
        return self._program.cover(absent.predicate, columns)

    def _delta(
        self, source: str, sign: int, changed: tuple[int, ...], absent: int | None
    ) -> DeltaPlan:
        steps = _Steps(self, absent)
        shape = steps.atom(changed[0]) if absent is None else steps.cover(absent)
        waiting = [
            number
            for number, atom in enumerate(self._atoms)
            if not atom.is_clock and number not in changed[:1]
        ]
        while waiting:
            chosen = max(waiting, key=lambda number: (steps.bound_places(number), -number))
            waiting.remove(chosen)
            steps.join(chosen, chosen in changed)
        steps.finish()
        words = np.array([word for word, _ in self._template] + [0, END_WORD, 0], np.int64)
        nulls = sum(1 << at for at, (_, null) in enumerate(self._template) if null)
        words[-1] = nulls | 1 << (len(words) - 3)
        return DeltaPlan(source, sign, Begin(words, shape), tuple(steps.steps))

    # What a match becomes.

    def _head(self) -> Head:
        head = self._rule.head
        schema = self._program.schemas[head.predicate]
        copies, computed = [], []
        for at, (term, kind) in enumerate(zip(head.terms, schema.kinds, strict=True), 1):
            known = self._variables.get(term.name) if isinstance(term, Variable) else None
            if isinstance(term, Constant) and kind in KINDS:
                copies.append((self._constant(term.value, kind), at))
            elif known is not None and known[1] is kind:
                copies.append((known[0], at))
            else:
                widened = kind is Type.FLOAT and type_of(term, self._rule.types) is Type.INT
                computed.append((at, Call(WIDEN, (term,)) if widened else term, kind))
        return Head(
            copies=pairs(copies),
            computed=tuple(computed),
            time=head.time,
            expires=head.expires,
            timed="time" not in head.suppressed,
            expiring="expires" not in head.suppressed,
            outlives=self._rule.outlives,
        )

    def _reduce(self) -> Reduce | None:
        head = self._rule.head
        if not head.aggregates:
            return None
        kinds = []
        for name, terms in head.lattices:
            kind = type_of(terms[0], self._rule.types)
            declared = self._program.lattice_type(head.predicate, name)
            if kind is Type.INT and declared is Type.FLOAT and name not in LINEAR:
                raise NotInDataflow(f"@{name} of whole numbers among floats")
            if kind is Type.INT and name == "sum" and declared is Type.FLOAT:
                raise NotInDataflow("@sum of whole numbers among floats")
            if kind not in KINDS:
                raise NotInDataflow(f"@{name} of values of type {kind.value}")
            kinds.append(kind)
        linear = all(
            name == "count" or (name in LINEAR and kind is Type.INT)
            for (name, _), kind in zip(head.lattices, kinds, strict=True)
        )
        return Reduce(head.lattices, tuple(kinds), bool(head.time), linear)


class _Steps:
    """The operators of one delta plan, in their order, and what is bound so far."""

    def __init__(self, lowering: RuleLowering, absent: int | None) -> None:
        self._of = lowering
        self._absent = absent
        self._bound: set[int] = set(lowering._constants.values())
        self._done: set[int] = set()
        self.steps: list[Operator] = []

    def bound_places(self, number: int) -> int:
        """How many columns of an atom are known."""
        of = self._of
        return sum(
            of._own[number, place] in self._bound
            for place, term, _ in of._places(number)
            if not isinstance(term, Wildcard)
        )

    def atom(self, number: int) -> JoinShape:
        """The shape of a match with an atom; its columns are bound then."""
        of = self._of
        atom = of._atoms[number]
        schema = of._program.schemas[atom.predicate]
        keys, copies, checks, known = [], [], [], 0
        before = set(self._bound)
        asked = {place: term for place, term, _ in of._places(number)}
        for place, term in asked.items():
            if isinstance(term, Wildcard):
                known |= 1 << place if place == TIME else 0
                continue
            column = of._own[number, place]
            known |= 1 << place if place == TIME else 0
            if column in before:
                keys.append((column, place))
            elif column in self._bound:
                checks.append((column, place))
            else:
                copies.append((column, place))
                self._bound.add(column)
        for place in schema.key:
            column = of._own.get((number, place), -1)
            if column >= 0 and column not in self._bound:
                copies.append((column, place))
                self._bound.add(column)
        return JoinShape(
            pairs(keys), pairs(copies), pairs(checks),
            "time" not in atom.suppressed,
            -1 if "expires" in atom.suppressed else schema.expiry, known,
        )  # fmt: skip

    def cover(self, number: int) -> JoinShape:
        """The shape of a match that begins with the values of an atom under `not`."""
        of = self._of
        keys, copies, checks = [], [], []
        for at, (place, _) in enumerate(of._rule.absent[number].columns(), 1):
            column = of._asked[number, place]
            if column in of._constants.values():
                keys.append((column, at))
            elif column in self._bound:
                checks.append((column, at))
            else:
                copies.append((column, at))
                self._bound.add(column)
        return JoinShape(pairs(keys), pairs(copies), pairs(checks), False, -1)

    def join(self, number: int, changed: bool) -> None:
        """Match one more atom."""
        self._conditions()
        predicate = self._of._atoms[number].predicate
        self.steps.append(Join(predicate, self.atom(number), changed))

    def _conditions(self, all_: bool = False) -> None:
        """The conditions that may be judged now: none before one that may fail, but at the end."""
        of = self._of
        clocks = [atom for atom in of._atoms if atom.is_clock]
        if clocks and not all_:
            return
        for at, condition in enumerate(of._rule.conditions):
            if at in self._done:
                continue
            fallible = of._scope.fallible(condition)
            columns = {of._variables[name][0] for name in variables_of(condition)}
            if all_ or (not fallible and columns <= self._bound):
                self.steps.append(Filter(condition, self._absent is not None))
                self._done.add(at)
            elif fallible:
                return

    def _clocks(self) -> None:
        of = self._of
        waiting = [number for number, atom in enumerate(of._atoms) if atom.is_clock]
        while waiting:
            ready = [n for n in waiting if self._clock_bound(n)]
            if not ready:
                raise NotInDataflow("a clock whose arguments no atom before it binds")
            number = ready[0]
            waiting.remove(number)
            self._clock(number)

    def _clock_bound(self, number: int) -> bool:
        clock = self._of._atoms[number].clock
        assert clock is not None
        names = variables_of(clock[0]) | variables_of(clock[1])
        return all(self._of._variables[name][0] in self._bound for name in names)

    def _clock(self, number: int) -> None:
        of = self._of
        atom = of._atoms[number]
        assert atom.clock is not None
        time, columns = clock_time(atom), tuple(of._own[number, at] for at in range(3))
        limits, bound = NO_LIMITS, columns[0] in self._bound
        if isinstance(time, Variable) and not bound:
            names = {n for n, (column, _) in of._variables.items() if column in self._bound}
            limits = limits_of(time.name, of._rule.conditions, names, of._moderate())
        if not bound and not limits.high:
            raise NotInDataflow("a clock without an upper limit")
        self.steps.append(
            Clock(
                atom.clock[0],
                atom.clock[1],
                (columns[0], columns[1], columns[2]),
                bound,
                limits,
                "time" not in atom.suppressed, self._absent is not None,
            )
        )  # fmt: skip
        self._bound.update(columns)

    def finish(self) -> None:
        """Clocks, conditions and the atoms under `not`, but for one whose change this is about."""
        of, absent = self._of, self._absent
        self._clocks()
        self._conditions(all_=True)
        for number, form in enumerate(of._rule.absent):
            columns, theirs = [], []
            for at, (place, term) in enumerate(form.columns(), 1):
                column = of._asked[number, place]
                kind = of._program.schemas[form.predicate].kind(place)
                if not isinstance(term, Variable | Constant) or (
                    isinstance(term, Variable) and of._variables[term.name][0] != column
                ):
                    silent = absent is not None and absent >= number
                    self.steps.append(Compute(term, column, kind, number == absent, silent))
                columns.append(column)
                theirs.append(at)
            if number != absent:
                name = of._cover(number, form)
                self.steps.append(
                    Subtract(name, np.array(columns, np.int64), np.array(theirs, np.int64))
                )


def pairs(found: Sequence[tuple[int, int]]) -> I64Array:
    """Pairs of columns as kernels take them. Shapes: (2, n)."""
    return np.array(found, np.int64).reshape(-1, 2).T.copy()


__all__ = ["Callable", "RuleLowering", "lower", "pairs"]
