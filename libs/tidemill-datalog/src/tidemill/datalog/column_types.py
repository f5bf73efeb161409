"""Column types: declared by inputs, inferred for the rest; and what does not fit (S120)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from tidemill.datalog.ast import (
    AsyncTo,
    Binary,
    Call,
    Expression,
    Literal,
    Span,
    Unary,
    Variable,
    Wildcard,
)
from tidemill.datalog.checked import ResolvedAtom, ResolvedRule
from tidemill.datalog.diagnostics import Diagnostic
from tidemill.datalog.functions import ScalarFunction
from tidemill.datalog.inputs import ColumnType, InputSchema, exact, scale_of
from tidemill.datalog.lattices import Lattice
from tidemill.datalog.signatures import PLAIN, called, negated, operated, united
from tidemill.datalog.vocabulary import STANDARD, Vocabulary
from tidemill.time.typed import TYPE_NAMES

_TIMES: tuple[ColumnType, ...] = ("int",)
_NUMERIC_ARGUMENTS = frozenset(("abs", "floor", "ceil", "round", "bucket"))
_TEXT_ARGUMENTS = frozenset(("concat", "lower", "upper", "starts_with", "ends_with"))
_CONVERTED: Mapping[str, tuple[ColumnType, ...]] = {
    "int": ("int", "float", "text", "bool"), "float": ("int", "float", "text"),
    "text": ("int", "float", "text", "bool"),
}  # fmt: skip
_COMMON_ARGUMENTS = frozenset(("least", "greatest", "coalesce"))
_ORDERED: Mapping[str, int] = {"min": 1, "max": 1, "earliest": 1, "latest": 1, "extent": 2}
"""Number of first values with an order, of lattices that keep a least or greatest one."""


def _turned(given: ColumnType, wanted: tuple[ColumnType, ...]) -> str:
    """The expression to write to get a value of `wanted` from one of `given`; empty without one."""
    if given == "text" and "int" in wanted:
        return "write int(…) or float(…) to read a number, concat(…, …) to join texts"
    if given in ("int", "float") and "text" in wanted:
        return "write text(…)"
    if given in ("timestamp", "duration") and "int" in wanted:
        return "write millis(…)"
    if "bool" in wanted:
        return "write a comparison, such as … != 0"
    return ""


class _Mismatch(Exception):
    """Two types that do not meet, at a place."""

    def __init__(self, message: str, span: Span, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.span = span
        self.hint = hint


@dataclass(slots=True)
class Types:
    """Inferred types, and the mistakes; `lattices` by predicate, then by name."""

    columns: dict[str, tuple[ColumnType, ...]]
    lattices: dict[str, dict[str, tuple[ColumnType, ...]]] = field(default_factory=dict)
    variables: dict[int, dict[str, ColumnType]] = field(default_factory=dict)
    mistakes: list[Diagnostic] = field(default_factory=list)


def _unknown(count: int) -> tuple[ColumnType, ...]:
    nothing: ColumnType = "any"
    return (nothing,) * count


def unite(a: ColumnType, b: ColumnType) -> ColumnType | None:
    """The least type that holds both, None if there is none."""
    if a == b or b == "any":
        return a
    if a == "any":
        return b
    return "float" if {a, b} == {"int", "float"} else united(a, b)


def never_equal(column: ColumnType, given: ColumnType) -> str | None:
    """Why no value of a column equals one of the type `given`; None if some may."""
    if unite(column, given) is not None:
        return None
    return f"a column of {_word(column)} never equals {_word(given)}"


def infer_types(
    rules: tuple[ResolvedRule, ...],
    inputs: Mapping[str, InputSchema],
    names: Mapping[str, tuple[str, ...]],
    order: Sequence[Sequence[str]],
    file: str,
    vocabulary: Vocabulary = STANDARD,
) -> Types:
    """Types of all columns, lattice values and variables; S120 where two do not meet.

    `order` are the components of the predicates, sources first. Types only widen (any, then int,
    then float), and a rule is looked at again only when what it reads has widened. Cost: O(program)
    where no recursion widens.
    """
    types = Types({predicate: _unknown(len(columns)) for predicate, columns in names.items()})
    for name, schema in inputs.items():
        types.columns[name] = tuple(kind for _, kind in schema.columns)
        types.lattices[name] = dict(schema.lattices)
    writers, readers = _by_predicate(rules)
    mistaken: dict[int, Diagnostic] = {}
    for component in order:
        waiting = deque(sorted(rule.number for name in component for rule in writers.get(name, ())))
        queued = set(waiting)
        while waiting:
            rule = rules[waiting.popleft() - 1]
            queued.discard(rule.number)
            try:
                widened = _infer_rule(rule, types, inputs, vocabulary)
            except _Mismatch as mismatch:
                mistaken.setdefault(rule.number, _mistake(mismatch, file))
                continue
            if not widened:
                continue
            for reader in readers.get(rule.predicate, ()):
                if reader.predicate in component and reader.number not in queued:
                    queued.add(reader.number)
                    waiting.append(reader.number)
    types.mistakes = [mistaken[number] for number in sorted(mistaken)]
    return types


def _mistake(mismatch: _Mismatch, file: str) -> Diagnostic:
    hint = mismatch.hint or "make the types agree"
    return Diagnostic("S120", mismatch.message, mismatch.span, file, hint)


def _by_predicate(
    rules: Iterable[ResolvedRule],
) -> tuple[dict[str, list[ResolvedRule]], dict[str, list[ResolvedRule]]]:
    """(the rules that derive a predicate, the rules that read it)."""
    writers: dict[str, list[ResolvedRule]] = {}
    readers: dict[str, list[ResolvedRule]] = {}
    for rule in rules:
        writers.setdefault(rule.predicate, []).append(rule)
        for predicate in dict.fromkeys(atom.predicate for atom in rule.atoms):
            readers.setdefault(predicate, []).append(rule)
    return writers, readers


def _infer_rule(
    rule: ResolvedRule,
    types: Types,
    inputs: Mapping[str, InputSchema],
    vocabulary: Vocabulary,
) -> bool:
    variables = _bind(rule, types)
    types.variables[rule.number] = variables
    scope = _Expressions(variables, rule.definitions, vocabulary.functions)
    _check_body(rule, types, scope)
    for guard in rule.guards:
        scope.demand(guard, ("bool",), "a guard is true or false")
    if isinstance(rule.temporal, AsyncTo):
        scope.type_of(rule.temporal.node)
    changed = _widen_columns(rule, types, scope, inputs)
    return _widen_lattices(rule, types, scope, vocabulary.lattices) or changed


def _bind(rule: ResolvedRule, types: Types) -> dict[str, ColumnType]:
    """The types of variables from where they stand alone in positive atoms."""
    variables: dict[str, ColumnType] = {}
    for atom in rule.positive:
        for term, kind in _typed_terms(atom, types):
            if not isinstance(term, Variable) or term.name in rule.definitions:
                continue
            known = variables.get(term.name, "any")
            both = unite(known, kind)
            if both is None:
                raise _Mismatch(f"`{term.name}` is {_word(known)} and {_word(kind)}", term.span)
            variables[term.name] = both
    return variables


def _typed_terms(atom: ResolvedAtom, types: Types) -> Iterator[tuple[Expression, ColumnType]]:
    if not atom.clock:
        kinds = types.columns.get(atom.predicate, ())
        yield from zip(atom.terms, kinds, strict=False)
    for parafact in atom.parafacts:
        values = _lattice_types(atom.predicate, parafact.lattice, len(parafact.terms), types)
        yield from zip(parafact.terms, values, strict=False)


def _lattice_types(predicate: str, lattice: str, arity: int, types: Types) -> Sequence[ColumnType]:
    if lattice in ("time", "expires", "count", "count_distinct"):
        return ("int",)
    if lattice == "average":
        return ("float",)
    if lattice in ("set", "provenance"):
        return ("set",)
    return types.lattices.get(predicate, {}).get(lattice, _unknown(arity))


def _check_body(rule: ResolvedRule, types: Types, scope: _Expressions) -> None:
    for atom in rule.atoms:
        if atom.clock:
            for term in atom.terms:
                scope.demand(term, ("int",), "a clock counts whole milliseconds")
        for term, kind in _typed_terms(atom, types):
            if isinstance(term, Wildcard):
                continue
            given = scope.type_of(term)
            if given != kind and (message := never_equal(kind, given)) is not None:
                raise _Mismatch(message, term.span)


def _widen_columns(
    rule: ResolvedRule, types: Types, scope: _Expressions, inputs: Mapping[str, InputSchema]
) -> bool:
    """Widen the types of the head's columns by this rule; whether one of them changed."""
    held = types.columns.get(rule.predicate, ())
    widened: list[ColumnType] = []
    declared = rule.predicate in inputs
    for index, term in enumerate(rule.terms):
        given = scope.type_of(term)
        known = held[index] if index < len(held) else "any"
        both = unite(known, given)
        if both is None or (declared and known not in ("any", both)):
            raise _Mismatch(f"this column is {_word(known)}, not {_word(given)}", term.span)
        widened.append(both)
    changed = tuple(widened) != held
    types.columns[rule.predicate] = tuple(widened)
    return changed


def _widen_lattices(
    rule: ResolvedRule, types: Types, scope: _Expressions, lattices: Mapping[str, Lattice]
) -> bool:
    """Mentioned lattices get the types of their expressions, passed ones those of the atoms."""
    changed = False
    for parafact in rule.parafacts:
        given = tuple(map(scope.type_of, parafact.terms))
        if parafact.lattice in ("time", "expires"):
            scope.demand(parafact.terms[0], _TIMES, f"@{parafact.lattice} is whole milliseconds")
            continue
        if parafact.lattice in ("sum", "average"):
            _demand_summed(parafact.terms[0], parafact.lattice, scope)
        ordered = _ORDERED.get(parafact.lattice, 0)
        for term, kind in zip(parafact.terms[:ordered], given[:ordered], strict=True):
            _refuse_sets(kind, term.span)
        known = lattices[parafact.lattice]
        if known.takes is not None and known.gives is not None:
            for term, *kinds in zip(parafact.terms, known.takes, known.gives, strict=True):
                reason = f"@{parafact.lattice} takes {_word(kinds[0])}"
                scope.demand(term, _with_whole(kinds), reason)
            given = known.gives
        changed |= _widen_lattice(rule, parafact.lattice, given, types, parafact.span)
    mentioned = {parafact.lattice for parafact in rule.parafacts} | rule.suppressed
    for atom in rule.positive:
        for lattice, values in tuple(types.lattices.get(atom.predicate, {}).items()):
            if lattice not in mentioned and lattice not in atom.suppressed:
                changed |= _widen_lattice(rule, lattice, values, types, atom.span)
    return changed


def _demand_summed(term: Expression, lattice: str, scope: _Expressions) -> None:
    given = scope.type_of(term)
    if given == "duration" and lattice == "average":
        raise _Mismatch(
            "@average adds numbers, not a duration", term.span, "write @average(seconds(…))"
        )
    if given != "duration" and scale_of(given) is None:
        scope.demand(term, ("int", "float"), f"@{lattice} adds numbers")


def _widen_lattice(
    rule: ResolvedRule, lattice: str, given: tuple[ColumnType, ...], types: Types, span: Span
) -> bool:
    held = types.lattices.setdefault(rule.predicate, {})
    if lattice in ("count", "count_distinct"):
        given = ("int",)
    elif lattice == "average":
        given = ("float",)
    elif lattice == "sum" and (scale := scale_of(given[0])) is not None:
        given = (exact(scale),)
    elif lattice in ("set", "provenance"):
        given = ("set",)
    elif lattice == "extent":
        given = (*given[:2], "set")
    known = held.get(lattice)
    if known is None:
        held[lattice] = given
        return True
    both = tuple(unite(a, b) for a, b in zip(known, given, strict=True))
    if None in both:
        raise _Mismatch(f"@{lattice} of `{rule.predicate}` has two types", span)
    widened = tuple(each for each in both if each is not None)
    held[lattice] = widened
    return widened != known


class _Expressions:
    """The types of expressions of one rule."""

    def __init__(
        self,
        variables: Mapping[str, ColumnType],
        definitions: Mapping[str, Expression],
        functions: Mapping[str, ScalarFunction],
    ) -> None:
        self._variables = variables
        self._definitions = definitions
        self._functions = functions
        self._defined: dict[str, ColumnType] = {}
        self._known: dict[int, ColumnType] = {}

    def type_of(self, expression: Expression) -> ColumnType:
        """The type of an expression; O(1) once it is known. Raises: _Mismatch inside it."""
        known = self._known.get(id(expression))
        if known is None:
            known = self._known[id(expression)] = self._found(expression)
        return known

    def _found(self, expression: Expression) -> ColumnType:
        match expression:
            case Literal(value=value):
                return literal_type(value)
            case Variable(name=name):
                if name in self._definitions:
                    return self._type_of_definition(name)
                return self._variables.get(name, "any")
            case Wildcard():
                return "any"
            case Unary():
                given = self.type_of(expression.operand)
                if (turned := negated(given)) is not None:
                    return turned
                return self.demand(expression.operand, ("int", "float"), "a sign needs a number")
            case Binary():
                return self._binary(expression)
            case Call():
                return self._call(expression)

    def _type_of_definition(self, name: str) -> ColumnType:
        if name not in self._defined:
            self._defined[name] = self.type_of(self._definitions[name])
        return self._defined[name]

    def demand(
        self, expression: Expression, wanted: tuple[ColumnType, ...], reason: str
    ) -> ColumnType:
        """The type of an expression that has to be one of `wanted`."""
        given = self.type_of(expression)
        if given != "any" and given not in wanted:
            raise _Mismatch(
                f"{reason}, not {_word(given)}", expression.span, _turned(given, wanted)
            )
        return given

    def _binary(self, expression: Binary) -> ColumnType:
        if expression.operator in ("&&", "||"):
            for side in (expression.left, expression.right):
                self.demand(side, ("bool",), f"`{expression.operator}` joins truths")
            return "bool"
        if expression.operator in ("<", "<=", ">", ">=", "==", "!="):
            left, right = self.type_of(expression.left), self.type_of(expression.right)
            if unite(left, right) is None:
                message = f"{_word(left)} and {_word(right)} do not compare"
                raise _Mismatch(message, expression.place)
            if expression.operator not in ("==", "!="):
                for kind in (left, right):
                    _refuse_sets(kind, expression.place)
            return "bool"
        left, right = self.type_of(expression.left), self.type_of(expression.right)
        if left not in PLAIN or right not in PLAIN:
            result = operated(expression.operator, left, right)
            if result is None:
                raise _Mismatch(
                    f"`{expression.operator}` does not join {_word(left)} and {_word(right)}",
                    expression.place, _converted(expression.operator, left, right),
                )  # fmt: skip
            return result
        reason = f"`{expression.operator}` needs numbers"
        left = self.demand(expression.left, ("int", "float"), reason)
        right = self.demand(expression.right, ("int", "float"), reason)
        return unite(left, right) or "any"

    def _call(self, call: Call) -> ColumnType:
        arguments = call.arguments
        function = self._functions.get(call.name)
        given = [self.type_of(each) for each in arguments]
        if function is not None and call.name not in _COMMON_ARGUMENTS and (
            function.also or not PLAIN.issuperset(given)
        ):  # fmt: skip
            found = called(function, given, _digits(arguments[-1]) if arguments else None)
            if found is not None:
                return found
            if not PLAIN.issuperset(given) and function.also:
                kinds = " and ".join(map(_word, given))
                raise _Mismatch(f"{call.name} does not take {kinds}", call.span, _taken(function))
        if function is not None and function.takes is not None:
            for each, kind in zip(arguments, function.takes, strict=False):
                self.demand(each, _with_whole([kind]), f"{call.name} takes {_word(kind)}")
            return function.gives
        if call.name in _NUMERIC_ARGUMENTS:
            given = [
                self.demand(each, ("int", "float"), f"{call.name} needs numbers")
                for each in arguments
            ]
            gives = function.gives if function is not None else "any"
            return _united(given) if gives == "any" else gives
        if call.name in _TEXT_ARGUMENTS:
            for each in arguments:
                self.demand(each, ("text",), f"{call.name} needs text")
        elif call.name in _CONVERTED:
            self.demand(arguments[0], _CONVERTED[call.name], f"{call.name} converts other values")
        elif call.name == "substring":
            self.demand(arguments[0], ("text",), "substring needs text")
            for each in arguments[1:]:
                self.demand(each, ("int",), "substring counts characters")
        elif call.name == "length":
            self.demand(arguments[0], ("text", "set"), "length is of text or a set")
        elif call.name == "contains":
            if (
                self.demand(arguments[0], ("text", "set"), "contains looks into text or a set")
                == "text"
            ):
                self.demand(arguments[1], ("text",), "text contains text")
            else:
                self.type_of(arguments[1])
        else:
            given = [self.type_of(each) for each in arguments]
            if call.name in _COMMON_ARGUMENTS:
                return self._common(call, given)
        return function.gives if function is not None else "any"

    def _common(self, call: Call, given: Sequence[ColumnType]) -> ColumnType:
        result: ColumnType = "any"
        for argument, kind in zip(call.arguments, given, strict=True):
            both = unite(result, kind)
            if both is None:
                raise _Mismatch(f"{call.name} of {_word(result)} and {_word(kind)}", argument.span)
            if call.name != "coalesce":
                _refuse_sets(kind, argument.span)
            result = both
        return result


def _refuse_sets(kind: ColumnType, span: Span) -> None:
    if kind == "set":
        raise _Mismatch("sets have no order", span, "compare their length")
    if kind == "json":
        raise _Mismatch("json has no order", span, 'compare a part of it: json_text(j, "name")')


def _with_whole(kinds: Sequence[ColumnType]) -> tuple[ColumnType, ...]:
    """The types that fit where these are taken: a whole number is a float, too."""
    return (*kinds, "int") if "float" in kinds else tuple(kinds)


def _united(kinds: Iterable[ColumnType]) -> ColumnType:
    result: ColumnType = "any"
    for kind in kinds:
        result = unite(result, kind) or "any"
    return result


def literal_type(value: object) -> ColumnType:
    """The type of a value: `any` for null."""
    match value:
        case None:
            return "any"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float"
        case str():
            return "text"
        case Decimal():
            return exact(-int(value.as_tuple().exponent))
        case frozenset():
            return "set"
        case _:
            return TYPE_NAMES[type(value)]


_WORDS: Mapping[str, str] = {
    "int": "a whole number", "float": "a float", "text": "text", "bool": "a boolean",
    "set": "a set", "any": "null", "timestamp": "a timestamp", "date": "a date",
    "duration": "a duration", "bytes": "bytes", "uuid": "a uuid", "json": "json",
    "decimal": "a decimal number",
}  # fmt: skip


def _word(kind: ColumnType) -> str:
    return _WORDS[kind.partition("(")[0]]


def _digits(last: Expression) -> int | None:
    """The whole number that a literal is."""
    return last.value if isinstance(last, Literal) and type(last.value) is int else None


def _taken(function: ScalarFunction) -> str:
    """The types that a function takes, as a correction."""
    forms = dict.fromkeys(
        f"{function.name}({', '.join(takes)})" for takes, _ in function.signatures
    )
    return f"it is {' or '.join(forms)}" if forms else ""


def _converted(sign: str, left: ColumnType, right: ColumnType) -> str:
    """The conversion to write where an operator has no meaning between two types."""
    kinds = {left.partition("(")[0], right.partition("(")[0]}
    if kinds == {"decimal"}:
        if sign == "*":
            return "its digits behind the point are more than 18: round one with decimal(x, 4)"
        return "write quotient(a, b, 2), which says the digits, or float(…)"
    if "decimal" in kinds:
        return "write decimal(…) for an exact result, or float(…)"
    if kinds == {"duration", "int"}:
        return "write duration(…) of milliseconds, or millis(…) of a duration"
    if kinds == {"timestamp", "int"}:
        return "write timestamp(…) of milliseconds, or millis(…) of a timestamp"
    return ""
