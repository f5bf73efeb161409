"""Guards that contradict each other by literals, and heads that end before they begin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tidemill.datalog.ast import Binary, Expression, Literal, Variable
from tidemill.datalog.checked import ResolvedParafact, ResolvedRule

Constant: TypeAlias = "int | float | str"
_TURNED: Mapping[str, str] = {
    "<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="
}  # fmt: skip


@dataclass(slots=True)
class _Interval:
    """The values that a variable can have: an interval, of which each border may be left out."""

    low: tuple[Constant, bool] | None = None
    high: tuple[Constant, bool] | None = None
    without: set[Constant] = field(default_factory=set)

    def narrow(self, operator: str, value: Constant) -> None:
        """Take in one comparison of the variable with a literal."""
        strict = operator in ("<", ">")
        if operator in (">", ">=", "==") and (self.low is None or (value, strict) > self.low):
            self.low = value, strict
        if operator in ("<", "<=", "=="):
            current = self.high
            if current is None or value < current[0] or (value == current[0] and strict):  # type: ignore[operator]  # of one kind
                self.high = value, strict
        if operator == "!=":
            self.without.add(value)

    @property
    def empty(self) -> bool:
        """Whether no value is left."""
        if self.low is None or self.high is None:
            return False
        (low, above), (high, below) = self.low, self.high
        if low == high:
            return above or below or low in self.without
        return low > high  # type: ignore[operator]  # of one kind


def contradiction(rule: ResolvedRule) -> Expression | None:
    """The first comparison that can not be true together with the guards before it."""
    intervals: dict[tuple[str, bool], _Interval] = {}
    for guard in rule.guards:
        for part in _conjuncts(guard):
            found = _compared(part)
            if found is not None:
                name, operator, value = found
                interval = intervals.setdefault((name, isinstance(value, str)), _Interval())
                interval.narrow(operator, value)
                if interval.empty:
                    return part
    return None


def _conjuncts(guard: Expression) -> Iterator[Expression]:
    waiting = [guard]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Binary) and part.operator == "&&":
            waiting += [part.right, part.left]
        else:
            yield part


def _compared(part: Expression) -> tuple[str, str, Constant] | None:
    """A variable, how it is compared, and the number or text that it is compared with."""
    match part:
        case Binary(operator=operator, left=Variable(name=name), right=Literal(value=value)):
            pass
        case Binary(operator=turned, left=Literal(value=value), right=Variable(name=name)):
            operator = _TURNED.get(turned, turned)
        case _:
            return None
    if operator not in _TURNED or type(value) not in (int, float, str):
        return None
    return name, operator, value  # type: ignore[return-value]  # as just tested


def ended_at_once(rule: ResolvedRule) -> ResolvedParafact | None:
    """The expiry of a head that is never after the head's own time."""
    written = {each.lattice: each for each in rule.parafacts if len(each.terms) == 1}
    if "time" not in written or "expires" not in written:
        return None
    time, expiry = (_moved(written[name].terms[0]) for name in ("time", "expires"))
    if time is None or expiry is None or time[0] != expiry[0] or expiry[1] > time[1]:
        return None
    return written["expires"]


def _moved(expression: Expression) -> tuple[str, int | float] | None:
    """A variable and the number that is added to it; no variable where the whole is a number."""
    match expression:
        case Literal(value=int() | float() as value):
            return "", value
        case Variable(name=name):
            return name, 0
        case Binary(
            operator="+" | "-" as sign, left=Variable(name=name),
            right=Literal(value=int() | float() as value),
        ):  # fmt: skip
            return name, value if sign == "+" else -value
    return None
