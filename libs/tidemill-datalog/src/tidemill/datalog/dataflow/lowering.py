"""From the logical plan of a program to its dataflow: one function for each construct."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columnar.columns import Texts
from tidemill.datalog.dataflow.plan import (
    UNIT,
    CollectionPlan,
    DataflowPlan,
)
from tidemill.datalog.dataflow.rules import RuleLowering
from tidemill.datalog.dataflow.schema import (
    COLUMNS_MAX,
    KINDS,
    NotInDataflow,
    Schema,
    word_of,
)
from tidemill.datalog.dataflow.ticked_plan import given_apart
from tidemill.datalog.evaluation.expressions import UNBOUNDED, Scope
from tidemill.datalog.evaluation.forms import (
    RuleForm,
    Type,
)
from tidemill.datalog.evaluation.logical import Component, LogicalPlan, logical_plan

_GIVES = {"count": Type.INT, "count_distinct": Type.INT, "average": Type.FLOAT}


def lower(logical: LogicalPlan, texts: Texts) -> DataflowPlan:
    """The dataflow of a program. Raises: NotInDataflow. Cost: O(text)."""
    return _Lowering(logical, texts).plan()


def missing_in(checked: CheckedProgram) -> str | None:
    """The first construct of a program that has no operator here, in words; None for none."""
    try:
        lower(given_apart(logical_plan(checked)), Texts())
    except NotInDataflow as missing:
        return str(missing)
    return None


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
        if self._logical.later:
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
        """Types of the variables of a rule."""
        vocabulary = self._checked.vocabulary
        names = {name for atom in rule.atoms for name in atom.variables()}
        bounds = dict.fromkeys(names, UNBOUNDED)
        return Scope(rule.types, bounds, vocabulary.functions, vocabulary.lattices)

    def word(self, value: object, kind: Type) -> tuple[int, bool]:
        return word_of(value, kind, self._texts)

    def lattice_type(self, predicate: str, lattice: str) -> Type:
        known = self._checked.lattice_types.get((predicate, lattice))
        return Type(known[0]) if known else Type.ANY
