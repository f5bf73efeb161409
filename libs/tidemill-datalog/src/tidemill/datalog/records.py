"""Facts with their parafacts, and their text form in cases, answers and questions."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from tidemill.datalog.elements import TruthElement, element
from tidemill.errors import UsageError
from tidemill.time import normal
from tidemill.time.typed import READ, TYPE_NAMES, Json, Typed, write_span, write_typed


class Blank:
    """`_`: whatever value stands there."""

    def __str__(self) -> str:
        return "_"


ANY = Blank()

Value: TypeAlias = "int | float | str | bool | Typed | frozenset[Value] | None"


@dataclass(frozen=True, slots=True)
class Record:
    """A fact and the values that ride beside it.

    `time` is None for a timeless fact, `expires` None for one that does not end. `parafacts` are
    the other lattices by name; a lattice of several values, like `extent`, has a tuple of them.
    """

    predicate: str
    arguments: tuple[Value, ...] = ()
    time: int | None = None
    expires: int | None = None
    parafacts: tuple[tuple[str, Any], ...] = field(default=())

    @property
    def key(self) -> tuple[str, tuple[Value, ...], int | None]:
        """The identity of an event: predicate, arguments, time."""
        return (self.predicate, self.arguments, self.time)

    def __str__(self) -> str:
        return format_record(self)


def format_float(number: float) -> str:
    """The shortest decimal of the same number, with a point or an exponent."""
    if number == 0.0:
        return "0.0"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    shortest = repr(number)
    if 1e-4 <= abs(number) < 1e16:
        return shortest if "e" not in shortest else f"{number:f}"
    mantissa, _, exponent = shortest.partition("e")
    if not exponent:
        mantissa, _, exponent = f"{number:e}".partition("e")
    sign = exponent[0] if exponent[0] in "+-" else "+"
    return f"{mantissa}e{sign}{exponent.lstrip('+-'):0>2}"


_CONTROL = re.compile(r"[\x00-\x1f]")


def format_text(text: str) -> str:
    """Text in quotes, normal form C, control characters escaped."""
    quoted = normal(text).replace("\\", "\\\\").replace('"', '\\"')
    quoted = quoted.replace("\n", "\\n").replace("\t", "\\t")
    return '"' + _CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", quoted) + '"'


def format_value(value: Value) -> str:
    """One value; sets in ascending order without blanks."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return format_text(value)
    if isinstance(value, float):
        return format_float(value)
    if isinstance(value, frozenset):
        return "{" + ",".join(map(format_value, elements_of(value))) + "}"
    if isinstance(value, timedelta):
        return write_span(value)
    if (typed := typed_of(value)) is not None:
        return f"{TYPE_NAMES[type(typed)]}({format_text(write_typed(typed))})"
    return str(value)


def typed_of(value: object) -> Typed | None:
    """The value itself if its type is none of numbers, texts, truths and sets; else None."""
    if isinstance(value, Decimal):
        return Decimal(value)
    return value if type(value) in TYPE_NAMES else None  # type: ignore[return-value]  # as tested


def elements_of(value: frozenset[Value]) -> list[Value]:
    """The elements of a set in ascending order, truth values as such."""
    ordered = sorted(value, key=_rank)
    return [bool(each) if type(each) is TruthElement else each for each in ordered]


def _rank(value: Value) -> tuple[Any, ...]:
    """A total order of values: null, booleans, numbers by value, the whole one first, text by code
    point, other types by name, sets.
    """
    if value is None:
        return (0, 0)
    if isinstance(value, bool | TruthElement):
        return (1, int(value))
    if isinstance(value, int | float):
        # Elements of sets are unequal to numbers of another type, which tuples would stop at.
        floats = isinstance(value, float)
        return (2, float(value) if floats else int(value), floats)
    if isinstance(value, str):
        return (3, value)
    if (typed := typed_of(value)) is not None:
        own = typed.text if isinstance(typed, Json) else typed
        return (4, TYPE_NAMES[type(typed)], own)
    assert isinstance(value, frozenset)
    return (5, sorted(map(_rank, value)))


def format_fact(predicate: str, arguments: Iterable[Value]) -> str:
    """A fact without parafacts."""
    return f"{predicate}({', '.join(map(format_value, arguments))})"


def format_record(record: Record) -> str:
    """The text form: fact, @time, @expires, other lattices by name."""
    parts = [format_fact(record.predicate, record.arguments)]
    if record.time is not None:
        parts.append(f"@time({record.time})")
    if record.expires is not None:
        parts.append(f"@expires({record.expires})")
    for lattice, value in sorted(record.parafacts, key=lambda item: item[0]):
        values = value if isinstance(value, tuple) else (value,)
        parts.append(f"@{lattice}({', '.join(map(format_value, values))})")
    return " ".join(parts)


def format_presence(record: Record, start: float, end: float) -> str:
    """`[s,f) record` with -inf for the beginning and - for no end."""
    first = "-inf" if start == -math.inf else str(start)
    last = "-" if end == math.inf else str(end)
    return f"[{first},{last}) {format_record(record)}"


NESTING_MAX = 50
"""Levels of sets inside each other in a record that a user writes."""
RECORD_CHARS_MAX = 1 << 20
_DIGITS_MAX = 30
_OUTSIDE_TEXT = re.compile(r'"(?:[^"\\\n]++|\\.)*+"?|[{}]')  # a text without an end is one, too


def parse_record(text: str, *, blanks: bool = False) -> Record:
    """The record that `text` writes; with `blanks`, `_` among its arguments stands for any value.

    Raises: UsageError with the place of the first mistake. Cost: O(length).
    """
    if len(text) > RECORD_CHARS_MAX:
        raise _refused(f"it has more than {RECORD_CHARS_MAX:,} characters", text)
    depth = 0
    for match in _OUTSIDE_TEXT.finditer(text):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth > NESTING_MAX:
            raise _refused(f"sets stand in each other more than {NESTING_MAX} deep", text)
    return _record(_parsed(text), text, blanks)


def _refused(says: str, text: str) -> UsageError:
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    return UsageError(f"not a record: {says}: {shown!r}", reason="InvalidRecord")


@cache
def _grammar() -> Lark:
    source = files("tidemill.datalog").joinpath("records.lark").read_text(encoding="utf-8")
    return Lark(source, parser="lalr", start="record", maybe_placeholders=False)


def _parsed(text: str) -> Tree[Token]:
    try:
        return _grammar().parse(text)
    except UnexpectedInput as error:
        raise _refused(
            f'a mistake at column {error.column}; write p(1, "a") @time(10)', text
        ) from None


def _instant(lattice: str, values: tuple[Any, ...], text: str) -> int | float:
    """The one instant that a mark writes."""
    if len(values) == 1 and (type(values[0]) is int or values[0] == math.inf):
        instant: int | float = values[0]
        return instant
    raise _refused(f"@{lattice} takes one whole number", text)


def _record(tree: Tree[Any], text: str, blanks: bool) -> Record:
    fact, *marks = tree.children
    written = sum(1 for _ in tree.find_data("blank"))
    if written > blanks * sum(each.data == "blank" for each in fact.children[1:]):
        raise _refused("`_` is no value here; write the value, or ask tidemill query", text)
    time: int | None = None
    expires: int | None = None
    parafacts: list[tuple[str, Any]] = []
    for mark in marks:
        lattice, *values = mark.children
        decoded = tuple(_value(value, text) for value in values)
        if lattice == "time":
            instant = _instant(lattice, decoded, text)
            if instant == math.inf:
                raise _refused("@time takes one whole number", text)
            time = int(instant)
        elif lattice == "expires":
            instant = _instant(lattice, decoded, text)
            expires = None if instant == math.inf else int(instant)
        else:
            parafacts.append((str(lattice), decoded[0] if len(decoded) == 1 else decoded))
    arguments = tuple(_value(each, text) for each in fact.children[1:])
    parafacts.sort(key=lambda item: item[0])
    return Record(str(fact.children[0]), arguments, time, expires, tuple(parafacts))


def _typed(kind: str, written: str, text: str) -> Typed:
    """The value that a literal of a type writes."""
    found = READ[kind](written)
    if found is None:
        raise _refused(f"{written!r} is no {kind}", text)
    return found


def _value(tree: Tree[Any], text: str) -> Any:
    match tree.data:
        case "int":
            digits = str(tree.children[0])
            if len(digits) > _DIGITS_MAX:
                raise _refused("a whole number has at most 64 bits", text)
            return int(digits)
        case "float":
            return float(tree.children[0])
        case "string":
            try:
                read = normal(json.loads(str(tree.children[0])))
                read.encode()
            except json.JSONDecodeError as error:
                raise _refused(f"a text has a mistake, {error.msg.lower()}", text) from None
            except UnicodeEncodeError:
                raise _refused("half of a surrogate pair is no character", text) from None
            return read
        case "true":
            return True
        case "false":
            return False
        case "null":
            return None
        case "infinity":
            return math.inf
        case "blank":
            return ANY
        case "span":
            return _typed("duration", str(tree.children[0]), text)
        case "typed":
            kind, written = tree.children
            return _typed(str(kind), json.loads(str(written)), text)
        case _:
            return frozenset(element(_value(each, text)) for each in tree.children)
