"""From checked rules to rules in normal form, which engines evaluate."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.datalog import ast
from tidemill.datalog.checked import CheckedProgram, ResolvedAtom, ResolvedRule
from tidemill.datalog.logical.expressions import OPERATORS, type_of
from tidemill.datalog.logical.forms import (
    WIDEN,
    AbsentForm,
    AtomForm,
    Call,
    Constant,
    Expression,
    HeadForm,
    RuleForm,
    Term,
    Type,
    Variable,
    Wildcard,
    type_named,
)
from tidemill.datalog.values import Failed, Value, widen

_FOLDED = frozenset({"+", "-", "*", "/", "%", "neg"})
"""Operators that are computed where their operands are constants."""


def forms_of(checked: CheckedProgram) -> tuple[RuleForm, ...]:
    """Every rule of the program as engines evaluate it, in the order of the text."""
    variables: dict[str, Variable] = {}
    return tuple(_Normaliser(checked, rule, variables).form() for rule in checked.rules)


class _Normaliser:
    """Puts one rule into normal form."""

    def __init__(
        self, checked: CheckedProgram, rule: ResolvedRule, variables: dict[str, Variable]
    ) -> None:
        """`variables` are those of the program by name, and grow."""
        self._checked = checked
        self._rule = rule
        self._variables = variables
        kinds = checked.variable_types.get(rule.number, {})
        self._types = {name: type_named(kind) for name, kind in kinds.items()}
        self._conditions: list[Expression] = []

    def form(self) -> RuleForm:
        rule = self._rule
        atoms = tuple(
            self._atom(index, atom)
            for index, atom in enumerate(atom for atom in rule.atoms if not atom.negated)
        )
        absent = tuple(self._absent(atom) for atom in rule.atoms if atom.negated)
        guards = [self.expression(guard) for guard in rule.guards]
        temporal = rule.temporal
        return RuleForm(
            number=rule.number,
            head=self._head(),
            atoms=atoms,
            absent=absent,
            conditions=(*self._conditions, *guards),
            guards=len(guards),
            types=self._types,
            has_body=rule.source.has_formula,
            next_tick=isinstance(temporal, ast.NextTick),
            sends=isinstance(temporal, ast.AsyncTo),
        )

    def expression(self, written: ast.Expression) -> Expression:
        """The expression with definitions unfolded and constants folded."""
        match written:
            case ast.Literal():
                return Constant(written.value)
            case ast.Variable():
                defined = self._rule.definitions.get(written.name)
                return self._variable(written.name) if defined is None else self.expression(defined)
            case ast.Unary():
                return _folded(Call("neg", (self.expression(written.operand),)))
            case ast.Binary():
                sides = (self.expression(written.left), self.expression(written.right))
                return _folded(Call(written.operator, sides))
            case ast.Call():
                return Call(written.name, tuple(map(self.expression, written.arguments)))
            case ast.Wildcard():
                raise AssertionError("a wildcard is no expression; the checker refuses it")

    def _variable(self, name: str) -> Variable:
        known = self._variables.get(name)
        if known is None:
            known = self._variables[name] = Variable(name)
        return known

    def _head(self) -> HeadForm:
        rule = self._rule
        written: dict[str, list[Expression]] = {"time": [], "expires": []}
        lattices: list[tuple[str, tuple[Expression, ...]]] = []
        for parafact in rule.parafacts:
            terms = tuple(map(self.expression, parafact.terms))
            if parafact.lattice in written:
                written[parafact.lattice].append(terms[0])
            else:
                lattices.append((parafact.lattice, terms))
        terms = tuple(map(self.expression, rule.terms))
        if isinstance(rule.temporal, ast.AsyncTo):
            terms = (self.expression(rule.temporal.node), *terms)
        return HeadForm(
            predicate=rule.predicate,
            terms=terms,
            time=tuple(written["time"]),
            expires=tuple(written["expires"]),
            lattices=tuple(lattices),
            suppressed=rule.suppressed,
        )

    def _atom(self, index: int, atom: ResolvedAtom) -> AtomForm:
        clock: tuple[Expression, Expression] | None = None
        terms: tuple[Term, ...] = ()
        if atom.clock:
            clock = (self.expression(atom.terms[0]), self.expression(atom.terms[1]))
        else:
            columns = self._checked.columns[atom.predicate]
            terms = tuple(
                [
                    self._term(term, f"#{index}.", at, type_named(columns[at][1]))
                    for at, term in enumerate(atom.terms)
                ]
            )
        lattices = []
        for place, parafact in enumerate(atom.parafacts):
            kinds = self._lattice_types(atom.predicate, parafact.lattice, len(parafact.terms))
            lattices.append(
                (
                    parafact.lattice,
                    tuple(
                        self._term(term, f"#{index}.{place}@", at, kinds[at])
                        for at, term in enumerate(parafact.terms)
                    ),
                )
            )
        return AtomForm(atom.predicate, terms, tuple(lattices), atom.suppressed, clock)

    def _lattice_types(self, predicate: str, lattice: str, arity: int) -> Sequence[Type]:
        if lattice in ("time", "expires"):
            return (Type.INT,)
        known = self._checked.lattice_types.get((predicate, lattice))
        return (Type.ANY,) * arity if known is None else tuple(map(type_named, known))

    def _term(self, written: ast.Expression, prefix: str, at: int, kind: Type) -> Term:
        if isinstance(written, ast.Wildcard):
            return Wildcard()
        if isinstance(written, ast.Variable) and written.name not in self._rule.definitions:
            return self._variable(written.name)
        expression = self.expression(written)
        if isinstance(expression, Constant):
            return _constant_as_kept(expression, kind)
        column = f"{prefix}{at}"
        self._types[column] = kind
        self._conditions.append(Call("==", (Variable(column), expression)))
        return Variable(column)

    def _absent(self, atom: ResolvedAtom) -> AbsentForm:
        def term(written: ast.Expression, kind: Type) -> Expression | Wildcard:
            if isinstance(written, ast.Wildcard):
                return Wildcard()
            return self._as_kept(self.expression(written), kind)

        columns = () if atom.clock else self._checked.columns[atom.predicate]
        kinds = [type_named(kind) for _, kind in columns] or [Type.ANY] * len(atom.terms)
        terms = [term(mine, kind) for mine, kind in zip(atom.terms, kinds, strict=True)]
        lattices = []
        for parafact in atom.parafacts:
            of = self._lattice_types(atom.predicate, parafact.lattice, len(parafact.terms))
            asked = [term(mine, kind) for mine, kind in zip(parafact.terms, of, strict=True)]
            lattices.append((parafact.lattice, tuple(asked)))
        widened = [
            position
            for position, (mine, kind) in enumerate(zip(terms, kinds, strict=True), 1)
            if kind is Type.INT
            and not isinstance(mine, Wildcard | Constant)
            and type_of(mine, self._types) is Type.FLOAT
        ]
        return AbsentForm(atom.predicate, tuple(terms), tuple(lattices), tuple(widened))

    def _as_kept(self, expression: Expression, kind: Type) -> Expression:
        """An expression in the type of a column: whole numbers among floats are floats."""
        if isinstance(expression, Constant):
            return _constant_as_kept(expression, kind)
        known = type_of(expression, self._types)
        unknown = known is Type.ANY and isinstance(expression, Call)  # a function of a host
        if kind is not Type.FLOAT or not (known is Type.INT or unknown):
            return expression
        return Call(WIDEN, (expression,))


def _constant_as_kept(constant: Constant, kind: Type) -> Constant:
    if kind is not Type.FLOAT or type(constant.value) is not int:
        return constant
    kept = widen(constant.value)
    return constant if kept == constant.value else Constant(kept)


def _folded(call: Call) -> Expression:
    """The constant that the call always is, or the call where it is none or would fail."""
    if not all(isinstance(argument, Constant) for argument in call.arguments):
        return call
    values: list[Value] = [a.value for a in call.arguments if isinstance(a, Constant)]
    try:
        return Constant(OPERATORS[call.name](*values)) if call.name in _FOLDED else call
    except Failed:
        return call
