"""The collections of a program, as its rules are lowered one after the other."""

from __future__ import annotations

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow.carried import NumberedValues
from tidemill.datalog.dataflow.plan import CollectionPlan
from tidemill.datalog.dataflow.representation import Representation
from tidemill.datalog.dataflow.schema import Schema
from tidemill.datalog.logical.expressions import TypeEnvironment
from tidemill.datalog.logical.forms import AtomForm, RuleForm, Type


class LoweredCollections:
    """The collections of a program, and what rules ask of them. Covers come as they are asked."""

    def __init__(self, checked: CheckedProgram, represented: Representation) -> None:
        self._checked = checked
        self._declared = {*checked.inputs, *checked.derived}
        self._represented = represented
        self.plans: dict[str, CollectionPlan] = {}
        self.values = NumberedValues(checked.vocabulary.lattices)
        self.schemas: dict[str, Schema] = {}

    def passed(self, rule: RuleForm, atom: AtomForm) -> frozenset[str]:
        """The lattices that may be passed from a fact of an atom to the head of its rule."""
        return self._represented.passed(rule, atom)

    def cover(self, predicate: str, columns: tuple[int, ...], nth: int) -> str:
        """The collection that says when a fact with given values in some columns is present."""
        name = f"#has:{predicate}:{','.join(map(str, columns))}{'+' * (nth - 1)}"
        if name not in self.plans:
            schema = self.schemas[predicate]
            kinds = tuple(schema.kind(column) for column in columns)
            self.schemas[name] = Schema(name, kinds, self.values)
            known = self.plans[predicate]
            self.plans[name] = CollectionPlan(
                self.schemas[name], known.stratum, len(self.plans), (predicate, columns)
            )
        return name

    def scope(self, rule: RuleForm) -> TypeEnvironment:
        """Types of the variables of a rule."""
        vocabulary = self._checked.vocabulary
        return TypeEnvironment(rule.types, {}, vocabulary.functions, vocabulary.lattices)

    def timed(self, predicate: str) -> bool:
        """Whether facts of a collection may have a time."""
        name = self.schemas[predicate].predicate
        return name not in self._declared or name in self._checked.carries_time

    def lattice_type(self, predicate: str, lattice: str, at: int = 0) -> Type:
        """The declared type of one of a lattice's values."""
        known = self._checked.lattice_types.get((predicate, lattice))
        return Type(known[at]) if known else Type.ANY
