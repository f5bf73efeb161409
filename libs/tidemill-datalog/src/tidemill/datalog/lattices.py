"""Lattices: the values that ride beside a fact.

A lattice has three functions. `inject` turns a written value into one of the lattice. `merge` joins
two values of one fact or of one solution: commutative, associative, idempotent. `observe` gives the
value that a reader sees.

`count`, `sum` and `average` are not idempotent on numbers. Inside they are sets of contributions,
each with the identity of the solution that made it (`Tally`). Merging is union, and the number is
observed only at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tidemill.datalog.elements import element
from tidemill.datalog.inputs import ColumnType
from tidemill.datalog.records import Record
from tidemill.datalog.sums import exact_average, exact_sum
from tidemill.datalog.values import WRONG_TYPE, Failed, Value, compare

Identity: TypeAlias = (
    "tuple[Any, ...]"  # names one contribution: rule, expression, facts of the solution
)
Parafacts: TypeAlias = (
    "tuple[tuple[str, Any], ...] | None"  # (lattice, inner value), by name; None for none
)

TALLIES = frozenset({"count", "sum", "average"})
TOLD = "told"
"""Before the key of an input's fact and its sum or average: the identity of that contribution.

IMPORTANT: a fact that two records state with two values has made two contributions. By the key
alone one of them took the place of the other, whichever was merged last.
"""


class Tally:
    """A set of contributions and the number observed of it.

    The contributions are asked for only when two different tallies meet; until then a tally of a
    group of n solutions costs O(1).
    """

    __slots__ = ("_contributions", "_hash", "_members", "kind", "origin", "value")

    def __init__(
        self,
        kind: str,
        value: Value,
        contributions: Callable[[], Mapping[Identity, Value]],
        origin: Identity | None = None,
    ) -> None:
        """A tally of an input's fact says that fact as its `origin`."""
        self.kind = kind
        self.value = value
        self.origin = origin
        self._hash: int | None = None
        self._contributions: Callable[[], Mapping[Identity, Value]] = contributions
        self._members: Mapping[Identity, Value] | None = None

    @property
    def members(self) -> Mapping[Identity, Value]:
        """The contributions by identity."""
        if self._members is None:
            self._members = self._contributions()
        return self._members

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Tally):
            return NotImplemented
        if self.kind != other.kind or self.value != other.value:
            return False
        alike = self.origin is not None and self.origin == other.origin
        return alike or self.members == other.members

    def __hash__(self) -> int:
        # IMPORTANT: equal numbers of different solutions are common, and have to differ here.
        # A count of nothing is one whatever fact says so, and so is what the state says of it.
        if self._hash is None:
            alone = self.origin is not None and self.value
            origins = (self.origin,) if alone else map(_origin, self.members)
            self._hash = hash((self.kind, self.value, min(map(hash, origins), default=0)))
        return self._hash

    def __repr__(self) -> str:
        return f"Tally({self.kind!r}, {self.value!r})"


def _origin(identity: Identity) -> Identity:
    """An identity without the number of what was counted of an input's fact."""
    return identity[:-1] if identity[0] == "counted" else identity


def tally(kind: str, members: Mapping[Identity, Value]) -> Tally:
    """The tally of the given contributions. Raises: Failed(overflow)."""
    return Tally(kind, _observed(kind, members.values()), lambda: members)


def _observed(kind: str, values: Iterable[Value]) -> Value:
    if kind == "count":
        return sum(value is not None for value in values)
    return exact_sum(values) if kind == "sum" else exact_average(values)


@dataclass(frozen=True, slots=True)
class Lattice:
    """A named lattice of `arity` written values.

    `inject(*values)` gives an inner value, `merge(a, b)` the least inner value above both,
    `observe(inner)` the values seen, as many as the arity. One of a host says the types of both.
    `meaning` is its line in the reference of the language.
    """

    name: str
    arity: int
    inject: Callable[..., Any]
    merge: Callable[[Any, Any], Any]
    observe: Callable[[Any], tuple[Value, ...]]
    takes: tuple[ColumnType, ...] | None = None
    gives: tuple[ColumnType, ...] | None = None
    meaning: str = ""


def _merge_tallies(a: Tally, b: Tally) -> Tally:
    if a is b:
        return a
    return tally(a.kind, {**a.members, **b.members})


def _least(a: Value, b: Value) -> Value:
    if a is None or b is None:
        return b if a is None else a
    return a if compare(a, b) <= 0 else b


def _greatest(a: Value, b: Value) -> Value:
    if a is None or b is None:
        return b if a is None else a
    return a if compare(a, b) >= 0 else b


def _singleton(value: Value) -> frozenset[Value]:
    return frozenset() if value is None else frozenset((element(value),))


def _members(value: Value) -> frozenset[Value]:
    """A set as it is, so that a matched one merges; anything else as the only member."""
    return value if isinstance(value, frozenset) else _singleton(value)


def _inject_extent(
    low: Value, high: Value, sources: Value
) -> tuple[Value, Value, frozenset[Value]]:
    return low, high, _members(sources)


def _merge_extents(a: Any, b: Any) -> Any:
    return _least(a[0], b[0]), _greatest(a[1], b[1]), a[2] | b[2]


def _itself(value: Any) -> Any:
    return value


def _seen(value: Any) -> tuple[Value, ...]:
    return (value,)


def _no_tally_without_solutions(*_: Value) -> Tally:
    raise Failed(WRONG_TYPE)


_TALLIED: Mapping[str, str] = {
    "average": "The exact mean of the numbers, one for each solution, rounded once; nulls are skipped.",
    "count": "The number of solutions whose value is not null; `@count(1)` counts all.",
    "sum": "The exact sum of the numbers, one for each solution, rounded once; nulls are skipped.",
}


def _standard() -> Mapping[str, Lattice]:
    def one(name: str, meaning: str, inject: Any, merge: Any, observe: Any = _seen) -> Lattice:
        return Lattice(name, 1, inject, merge, observe, meaning=meaning)

    def size(values: Any) -> tuple[Value, ...]:
        return (len(values),)

    def number(value: Any) -> tuple[Value, ...]:
        return (value.value,)

    lattices = [
        one("min", "The smallest value; null loses to every other.", _itself, _least),
        one("max", "The largest value; null loses to every other.", _itself, _greatest),
        one("earliest", "The first instant: `min`, said of times.", _itself, _least),
        one("latest", "The last instant: `max`, said of times.", _itself, _greatest),
        one("set", "The set of the values without nulls.", _members, frozenset.union),
        one(
            "count_distinct", "The number of different values that are not null.",
            _singleton, frozenset.union, size,
        ),
        one("provenance", "The set of the sources of a fact.", _members, frozenset.union),
        Lattice(
            "extent", 3, _inject_extent, _merge_extents, _itself,
            meaning="Smallest low end, largest high end, and the set of sources of an interval.",
        ),
        *(
            one(name, meaning, _no_tally_without_solutions, _merge_tallies, number)
            for name, meaning in _TALLIED.items()
        ),
    ]  # fmt: skip
    return {lattice.name: lattice for lattice in lattices}


LATTICES: Mapping[str, Lattice] = _standard()
"""The lattices every program may use beside `INSTANTS`; a host program adds its own."""

INSTANTS: Mapping[str, str] = {
    "time": "The instant from which on a fact is present.",
    "expires": "The instant from which on it is present no more; `inf` where nothing ends it.",
}
"""Parafacts of every fact: bounds of its presence, in milliseconds of its timeline."""


def merge_parafacts(a: Parafacts, b: Parafacts, lattices: Mapping[str, Lattice]) -> Parafacts:
    """The values of both, merged where both have one.

    Raises: Failed where a merged sum overflows.
    """
    if a is None or a is b:
        return b
    if b is None:
        return a
    merged = dict(a)
    for name, value in b:
        if name in merged:
            mine = merged[name]
            merged[name] = mine if mine is value else lattices[name].merge(mine, value)
        else:
            merged[name] = value
    return tuple(sorted(merged.items(), key=_by_name))


def without(parafacts: Parafacts, names: frozenset[str]) -> Parafacts:
    """The parafacts of other lattices than the named ones."""
    if parafacts is None:
        return None
    kept = tuple(item for item in parafacts if item[0] not in names)
    return kept or None


def inject_given(record: Record, lattices: Mapping[str, Lattice]) -> Parafacts:
    """The inner values of the parafacts that a record was delivered with.

    A tally comes from a fragment of the same program, and is one already.
    """
    inner: list[tuple[str, Any]] = []
    for name, seen in record.parafacts:
        values = seen if isinstance(seen, tuple) else (seen,)
        if isinstance(seen, Tally):
            inner.append((name, seen))
        elif name in TALLIES:
            inner.append((name, _given_tally(name, record, values[0])))
        elif name == "count_distinct":
            inner.append((name, frozenset(_given(record, values[0]))))
        else:
            inner.append((name, lattices[name].inject(*values)))
    return tuple(sorted(inner, key=_by_name))


def _given_tally(name: str, record: Record, value: Value) -> Tally:
    """A delivered count, sum or average, with contributions that make it what it is."""
    if name == "count" and type(value) is int:
        origin = ("counted", *record.key)
        return Tally(name, value, lambda: dict.fromkeys(_given(record, value), 1), origin)
    return tally(name, {(TOLD, *record.key, value): value})


def _given(record: Record, count: Value) -> Iterator[tuple[Any, ...]]:
    """Identities of nobody else, as many as were counted."""
    return (("counted", *record.key, i) for i in range(count if type(count) is int else 0))


def _by_name(item: tuple[str, Any]) -> str:
    return item[0]


def observe_parafacts(parafacts: Parafacts, lattices: Mapping[str, Lattice]) -> tuple[Any, ...]:
    """Observed parafacts: (lattice, value), or (lattice, tuple of values) for a product."""
    if parafacts is None:
        return ()
    seen = []
    for name, inner in parafacts:
        values = lattices[name].observe(inner)
        seen.append((name, values[0] if len(values) == 1 else values))
    return tuple(seen)
