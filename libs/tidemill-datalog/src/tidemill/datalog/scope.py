"""One rule and what gives its variables their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidemill.datalog.ast import Expression, Span, Variable, walk
from tidemill.datalog.checked import ResolvedAtom, ResolvedRule
from tidemill.datalog.diagnostics import Diagnostic
from tidemill.datalog.functions import ScalarFunction


def names_in(expression: Expression, definitions: Mapping[str, Expression]) -> frozenset[str]:
    """The variables of an expression, names from `where` replaced by what they stand for.

    Cost: O(length of the expression and of all definitions).
    """
    variables = (p for p in parts_of(expression, definitions) if isinstance(p, Variable))
    return frozenset(part.name for part in variables if part.name not in definitions)


def parts_of(expression: Expression, definitions: Mapping[str, Expression]) -> Iterator[Expression]:
    """The parts of an expression, and once each those of the definitions that it uses."""
    seen: set[str] = set()
    waiting = [expression]
    while waiting:
        for part in walk(waiting.pop()):
            yield part
            if isinstance(part, Variable) and part.name not in seen and part.name in definitions:
                seen.add(part.name)
                waiting.append(definitions[part.name])


def resolved(expression: Expression, definitions: Mapping[str, Expression]) -> Expression:
    """The definition of a name from `where`; other expressions themselves."""
    while isinstance(expression, Variable) and expression.name in definitions:
        expression = definitions[expression.name]
    return expression


class Scope:
    """One rule with what binds its variables."""

    def __init__(
        self,
        rule: ResolvedRule,
        file: str,
        functions: Mapping[str, ScalarFunction],
        lattices: Mapping[str, int],
    ) -> None:
        self.rule = rule
        self.file = file
        self.functions = functions
        self.lattices = lattices
        self.bound = bound_alone(rule, clocks=True)

    def report(self, code: str, message: str, span: Span, hint: str = "") -> Diagnostic:
        """A mistake at a place of this rule."""
        return Diagnostic(code, message, span, self.file, hint)

    def unbound(self, expression: Expression) -> Iterator[Variable]:
        """Variables that neither a positive atom nor a definition gives a value, in text order."""
        for part in walk(expression):
            if isinstance(part, Variable) and not self.has_value(part.name):
                yield part

    def has_value(self, name: str) -> bool:
        """Whether a match or a definition gives the variable a value."""
        return name in self.bound or name in self.rule.definitions

    def unfolded(self, expression: Expression) -> frozenset[str]:
        """The variables of an expression once definitions are replaced by what they stand for."""
        return names_in(expression, self.rule.definitions)


def bound_alone(rule: ResolvedRule, *, clocks: bool) -> frozenset[str]:
    """Variables that positive atoms bind, with `clocks` clocks too, and `where` does not."""
    atoms = [atom for atom in rule.positive if clocks or not atom.clock]
    return frozenset().union(*map(bound_names, atoms)) - rule.definitions.keys()


def bound_names(atom: ResolvedAtom) -> frozenset[str]:
    """Variables that stand alone in an atom; a clock binds only what matches its parafacts."""
    terms = [] if atom.clock else list(atom.terms)
    terms += [term for parafact in atom.parafacts for term in parafact.terms]
    return frozenset(term.name for term in terms if isinstance(term, Variable))
