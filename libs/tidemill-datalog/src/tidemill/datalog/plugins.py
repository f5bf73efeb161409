"""Functions and lattices of a host: their declarations, guarantees and laws.

A plugin never sees null, nor a value of another type than it declares, and its results are held to
its own declaration. Its exceptions are errors of the solution, as a division by zero is. A value of
a host's lattice is kept as its observed tuple. That is a value of the language, so it is stored,
sent and read as one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from random import Random  # noqa: TID251  the type of what is handed in
from typing import Any, TypeAlias

from tidemill.datalog.carried_lattices import MARK
from tidemill.datalog.elements import TruthElement, element
from tidemill.datalog.functions import FUNCTIONS, ScalarFunction
from tidemill.datalog.inputs import ColumnType
from tidemill.datalog.lattices import LATTICES, Lattice
from tidemill.datalog.state import encode_fields
from tidemill.datalog.values import (
    INT_MAX,
    INT_MIN,
    NOT_A_NUMBER,
    OVERFLOW,
    TEXT_MAX,
    WRONG_TYPE,
    Failed,
    Value,
    finite,
    normal,
    tried,
    whole,
)
from tidemill.errors import UsageError

Samples: TypeAlias = "Callable[[Random], Iterable[tuple[Any, ...]]]"

SET_MAX = 100_000
"""Values in a set that a plugin may give; a larger set fails with `overflow`.

No setting of a process, as `TEXT_MAX` is none. The limit decides contents of views, which have to
be the same in every process that computes them.
"""

_TYPES = ("int", "float", "text", "bool", "set")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_RESERVED = frozenset(
    {"time", "expires", "clock", "next", "async", "not", "if", "where", "true", "false", "null", "neg"}
    | {"node", "error", *FUNCTIONS, *LATTICES}
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PluginFunction:
    """A pure function: equal arguments give equal values, in every process and for ever in one
    `version`.

    `takes` are the types of its arguments, `gives` that of its value: int, float, text, bool or
    set. `samples` gives arguments that the check at load tries, where values drawn by type would
    say little.
    """

    version: str
    takes: tuple[ColumnType, ...]
    gives: ColumnType
    evaluate: Callable[..., Any]
    samples: Samples | None = None


@dataclass(frozen=True, kw_only=True)
class PluginLattice:
    """A semilattice: `merge` is commutative, associative and idempotent.

    `inject(*written)` makes an element of the values that a head writes, of the types `takes`.
    `observe(element)` is the tuple that is seen, of the types `gives`, by default the same. It
    determines the element: injected once more it gives an equal one. `samples` gives written values
    for the check at load.
    """

    version: str
    takes: tuple[ColumnType, ...]
    gives: tuple[ColumnType, ...] | None = None
    inject: Callable[..., Any]
    merge: Callable[[Any, Any], Any]
    observe: Callable[[Any], tuple[Any, ...]]
    samples: Samples | None = None

    @property
    def seen(self) -> tuple[ColumnType, ...]:
        """The types of what is seen."""
        return self.takes if self.gives is None else self.gives


def function_of(name: str, plugin: PluginFunction) -> ScalarFunction:
    """The function as programs call it: of null it is null.

    Raises: UsageError for a declaration without sense.
    """
    _declared("function", name, plugin.version, (*plugin.takes, plugin.gives), len(plugin.takes))
    takes, gives = plugin.takes, plugin.gives

    def evaluate(*arguments: Value) -> Value:
        if None in arguments:
            return None
        given = [_given(value, kind) for value, kind in zip(arguments, takes, strict=True)]
        return _kept(_called(name, plugin.evaluate, given), gives)

    return ScalarFunction(name, len(takes), len(takes), evaluate, takes, gives)


def lattice_of(name: str, plugin: PluginLattice) -> Lattice:
    """The lattice as programs carry it: null is its least value.

    Raises: UsageError as `function_of`.
    """
    takes, gives = plugin.takes, plugin.seen
    _declared("lattice", name, plugin.version, (*takes, *gives), len(takes))
    if len(gives) != len(takes):
        raise UsageError(
            f"lattice {name} takes {len(takes)} values and shows {len(gives)}: declare as many",
            reason="Plugin",
        )

    def seen(inner: Any) -> Any:
        values = _called(name, plugin.observe, [inner])
        if type(values) is not tuple or len(values) != len(gives) or None in values:
            raise Failed(WRONG_TYPE)
        return tuple(_kept(value, kind) for value, kind in zip(values, gives, strict=True))

    def inject(*written: Value) -> Any:
        if None in written:
            return None
        given = [
            value if _fits(value, shown) else _given(value, kind)
            for value, kind, shown in zip(written, takes, gives, strict=True)
        ]
        return seen(_called(name, plugin.inject, given))

    def merge(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        if a == b:
            return a
        inner = [_called(name, plugin.inject, each) for each in (a, b)]
        return seen(_called(name, plugin.merge, inner))

    def observe(held: Any) -> tuple[Value, ...]:
        values: tuple[Value, ...] = (None,) * len(gives) if held is None else held
        return values

    return Lattice(name, len(takes), inject, merge, observe, takes, gives)


def _declared(what: str, name: str, version: str, types: Iterable[ColumnType], arity: int) -> None:
    """Raises: UsageError."""
    taken = name in _RESERVED or (what == "lattice" and name.startswith(MARK))
    if taken or not _NAME.fullmatch(name):
        raise UsageError(
            f"{what} {name!r} cannot be named so: small letters, digits and _, no name of the language, "
            f"and no lattice {MARK}…",
            reason="Plugin",
        )  # fmt: skip
    if not version or arity < 1:
        raise UsageError(f"{what} {name} needs a version, and a value to take", reason="Plugin")
    for kind in types:
        if kind not in _TYPES:
            raise UsageError(
                f"{what} {name} declares the type {kind!r}: it may be one of {', '.join(_TYPES)}",
                reason="Plugin",
            )


def _called(name: str, function: Callable[..., Any], arguments: Iterable[Any]) -> Any:
    try:
        return function(*arguments)
    except Failed:
        raise
    except Exception as error:  # code of others: whatever it raises is an error of the solution
        raise Failed(f"{name} raised {type(error).__name__}") from error


def _fits(value: Value, kind: ColumnType) -> bool:
    """Whether a value is one of the type as it is."""
    types = {"int": int, "float": float, "text": str, "bool": bool, "set": frozenset}
    return type(value) is types[kind] and not (type(value) is float and math.isinf(value))


def _given(value: Value, kind: ColumnType) -> Value:
    """A value as a plugin gets it. Raises: Failed."""
    if isinstance(value, float) and math.isinf(value):
        raise Failed(OVERFLOW)
    if kind == "float" and type(value) is int:
        return float(value)
    if not _fits(value, kind):
        raise Failed(WRONG_TYPE)
    return value


def _kept(value: Any, kind: ColumnType) -> Value:
    """A value as a plugin gave it, as a value of the language. Raises: Failed."""
    if value is None:
        return None
    if kind == "bool" and type(value) is bool:
        return value
    if kind == "int" and type(value) is int:
        return whole(value)
    if kind == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            raise Failed(OVERFLOW) from None
        if math.isnan(number):
            raise Failed(NOT_A_NUMBER)
        return finite(number) + 0.0
    if kind == "text" and isinstance(value, str):
        if len(value) > TEXT_MAX:
            raise Failed(OVERFLOW)
        return _text(value)
    if kind == "set" and isinstance(value, set | frozenset):
        if len(value) > SET_MAX:
            raise Failed(OVERFLOW)
        return frozenset(_member(each) for each in value)
    raise Failed(WRONG_TYPE)


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:  # half a pair: no text
        raise Failed(WRONG_TYPE) from None
    return normal(str(value))


def _member(value: Any) -> Any:
    """An element of a set: numbers, truths and texts keep their types. Raises: Failed."""
    if isinstance(value, TruthElement):
        return value
    kinds: tuple[tuple[type, ColumnType], ...] = (
        (bool, "bool"), (int, "int"), (float, "float"), (str, "text"),
    )  # fmt: skip
    for of, kind in kinds:
        if isinstance(value, of):
            return element(_kept(value, kind))
    raise Failed(WRONG_TYPE)


SAMPLES = 40
"""Values of a lattice, or argument lists of a function, that the check at load tries."""


def check_function(name: str, plugin: PluginFunction, rng: Random) -> None:
    """Refuse a function that gives two values of equal arguments, or one of another type than it
    declares.

    Raises: UsageError with the arguments.
    """
    function = function_of(name, plugin)
    for arguments in _drawn(plugin.samples, plugin.takes, rng):
        first, second = (tried(function.evaluate, *arguments) for _ in range(2))
        told = f"{name}({_shown(arguments)})"
        if _mistaken(first):
            raise _broken("function", name, f"{told} is no {plugin.gives}, which it declares")
        if not _same(first, second):
            raise _broken("function", name, f"{told} is {first!r}, and then {second!r}")


def check_lattice(name: str, plugin: PluginLattice, rng: Random) -> None:
    """Refuse a lattice that breaks a law on values drawn.

    Raises: UsageError with the counterexample.
    """
    lattice = lattice_of(name, plugin)
    elements: list[Any] = []
    for written in _drawn(plugin.samples, plugin.takes, rng):
        found = tried(lattice.inject, *written)
        if _mistaken(found):
            raise _broken("lattice", name, f"inject({_shown(written)}) shows no {plugin.seen}")
        if isinstance(found, Failed):
            continue  # what cannot be injected is an error of its solution
        if not _same(found, tried(lattice.inject, *written)):
            raise _broken("lattice", name, f"inject({_shown(written)}) shows two values")
        if not _same(found, tried(lattice.inject, *found)):
            raise _broken("lattice", name, f"{found!r} is seen, and injected shows another value")
        elements.append(found)
    if len(elements) < 2:
        raise _broken("lattice", name, "no values drawn by type can be injected: declare samples")
    for _ in range(4 * SAMPLES):
        _check_laws(name, plugin, lattice, [rng.choice(elements) for _ in range(3)])


def _check_laws(name: str, plugin: PluginLattice, lattice: Lattice, drawn: list[Any]) -> None:
    a, b, c = drawn

    def merge(x: Any, y: Any) -> Any:
        """The merge of the plugin, called for equal values too."""
        inner = [_called(name, plugin.inject, each) for each in (x, y)]
        both = _called(name, plugin.merge, inner)
        return lattice.inject(*_called(name, plugin.observe, [both]))

    def directly(x: Any, y: Any, z: Any) -> Any:
        first, second, third = (_called(name, plugin.inject, each) for each in (x, y, z))
        both = _called(name, plugin.merge, [first, second])
        return lattice.inject(
            *_called(name, plugin.observe, [_called(name, plugin.merge, [both, third])])
        )

    laws: tuple[tuple[str, Callable[[], Any], Callable[[], Any]], ...] = (
        ("idempotent", lambda: merge(a, a), lambda: a),
        ("commutative", lambda: merge(a, b), lambda: merge(b, a)),
        ("associative", lambda: merge(merge(a, b), c), lambda: merge(a, merge(b, c))),
        ("told by what is seen", lambda: merge(merge(a, b), c), lambda: directly(a, b, c)),
        ("the same each time", lambda: merge(a, b), lambda: lattice.merge(a, b)),
    )
    for law, left, right in laws:
        one, other = tried(left), tried(right)
        told = f"a = {a!r}, b = {b!r}, c = {c!r}"
        if any(isinstance(each, Failed) and each.reason != OVERFLOW for each in (one, other)):
            raise _broken("lattice", name, f"merge fails: {told}: {one!r}, {other!r}")
        if not _same(one, other) and not isinstance(one, Failed) and not isinstance(other, Failed):
            raise _broken("lattice", name, f"merge is not {law}: {told}: {one!r}, not {other!r}")


def _broken(what: str, name: str, says: str) -> UsageError:
    return UsageError(f"{what} {name} is refused: {says}", reason="PluginLaw")


def _mistaken(found: Any) -> bool:
    """Whether a call gave what it does not declare, or cannot be called so at all."""
    return isinstance(found, Failed) and (
        found.reason == WRONG_TYPE or isinstance(found.__cause__, TypeError)
    )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Failed) and isinstance(other, Failed):
        return one.reason == other.reason
    if isinstance(one, Failed) or isinstance(other, Failed):
        return False
    return encode_fields((one,)) == encode_fields((other,))  # keeps types apart


def _shown(arguments: Iterable[Any]) -> str:
    return ", ".join(map(repr, arguments))


def _drawn(
    samples: Samples | None, types: tuple[ColumnType, ...], rng: Random
) -> list[tuple[Any, ...]]:
    """Written values to try: what the plugin gives, or values drawn by type."""
    if samples is not None:
        return [tuple(each) for each in islice(samples(rng), SAMPLES)]
    return [tuple(_value(kind, rng) for kind in types) for _ in range(SAMPLES)]


def _value(kind: ColumnType, rng: Random) -> Value:
    if kind == "int":
        return rng.choice(
            (rng.randint(-3, 9), rng.randint(0, 1 << 20), rng.randint(INT_MIN, INT_MAX))
        )
    if kind == "float":
        return rng.choice((0.0, -1.5, rng.uniform(-100, 100), rng.uniform(-1e300, 1e300)))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "text":
        return "".join(rng.choice("ab 0\u00e9\u4e2d") for _ in range(rng.randint(0, 4)))
    return frozenset(rng.choice((1, 2, 3, "a", "b")) for _ in range(rng.randint(0, 3)))
