"""The rules of a recursion as joins of two collections at a time, on pairs of numbers.

A body of many atoms is joined in an order in which each atom shares one variable or two with those
before it, and no more than two variables are wanted at any point: by the atoms that follow, or by
the head. So what is joined so far is a collection of pairs like the facts themselves, and is kept
in the same loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tidemill.datalog.logical.forms import AtomForm, Constant, RuleForm, Variable, variables_of

if TYPE_CHECKING:  # importing it imports numba
    from tidemill.arrangement.loops import Collection

Words: TypeAlias = "npt.NDArray[np.uint64]"
Pair: TypeAlias = "tuple[Words, Words]"
_ATOMS_MAX = 8
_HALF = np.uint64(32)
_LOW = np.uint64((1 << 32) - 1)


def chain_of(form: RuleForm) -> tuple[int, ...] | None:
    """The order in which the atoms of a rule are joined: the first in the order of the text, None
    without one.
    """
    if not 1 <= len(form.atoms) <= _ATOMS_MAX:
        return None
    names = [frozenset(atom.variables()) for atom in form.atoms]
    failed: set[frozenset[int]] = set()

    def extended(order: tuple[int, ...], bound: frozenset[str]) -> tuple[int, ...] | None:
        if len(order) == len(names):
            return order
        done = frozenset(order)
        if done in failed:
            return None
        for at, mine in enumerate(names):
            if at in done or (order and not bound & mine):
                continue
            live = (bound | mine) & wanted_after(form, (*order, at))
            found = extended((*order, at), live) if len(live) <= 2 else None
            if found is not None:
                return found
        failed.add(done)
        return None

    return extended((), frozenset())


def wanted_after(form: RuleForm, joined: Sequence[int]) -> frozenset[str]:
    """The variables that the head, or an atom that is not joined yet, asks for."""
    rest = (atom for at, atom in enumerate(form.atoms) if at not in joined)
    names = frozenset(name for atom in rest for name in atom.variables())
    return names.union(*(variables_of(term) for term in form.head.terms))


@dataclass(frozen=True, slots=True)
class _Pairs:
    """A collection of pairs, and which variables its first and second words are; None for neither."""

    rows: Collection
    names: tuple[str | None, str | None]


class ChainBuilder:
    """Makes collections of the heads of rules from those of their atoms.

    What several rules ask of one predicate is one collection, and so is arranged once. `number`
    gives the number of a value of a kind; all numbers are below 2^32.
    """

    def __init__(
        self,
        known: Mapping[str, Collection],
        columns: Mapping[str, Sequence[str]],
        number: Callable[[str, Any], int],
    ) -> None:
        self._known = known
        self._columns = columns
        self._number = number
        self._made: dict[tuple[Any, ...], Collection] = {}

    def derived(self, form: RuleForm) -> Collection:
        """What one rule makes of the collections of its atoms."""
        order = chain_of(form)
        assert order is not None
        first, *others = order
        found = self._atom(form.atoms[first])
        for place, at in enumerate(others, 2):
            found = self._joined(found, form.atoms[at], wanted_after(form, order[:place]))
        head = self._head(form, found.names)
        return found.rows if head is None else found.rows.map(head)

    def _joined(self, found: _Pairs, atom: AtomForm, wanted: frozenset[str]) -> _Pairs:
        """What is joined so far, with one atom more."""
        other = self._atom(atom)
        shared = [name for name in found.names if name is not None and name in other.names]
        left, right = self._keyed(found, shared), self._keyed(other, shared)
        sides: dict[str, str] = {}
        for side, pairs in (("left", found), ("right", other)):
            sides |= {name: side for name in pairs.names if name is not None}
        sides |= dict.fromkeys(shared, "key")
        names = [name for name in sides if name in wanted]
        first, second = [*names, None, None][:2]

        def project(keys: Words, lefts: Words, rights: Words) -> Pair:
            words = {"left": lefts, "right": rights}
            both = dict(zip(shared, _unpacked(keys) if len(shared) == 2 else (keys,), strict=True))
            found = {n: both[n] if n in both else words[side] for n, side in sides.items()}
            return tuple(  # type: ignore[return-value]  # two words
                np.zeros(len(keys), np.uint64) if name is None else found[name]
                for name in (first, second)
            )

        return _Pairs(left.join(right, project), (first, second))

    def _keyed(self, pairs: _Pairs, shared: Sequence[str]) -> Collection:
        """The collection by the variables of a join."""
        way = "packed" if len(shared) == 2 else "plain"
        if way == "plain" and pairs.names[0] == shared[0]:
            return pairs.rows
        if way == "plain":
            return self._once((pairs.rows, "swapped"), pairs.rows.swap)
        swapped = pairs.names[0] != shared[0]

        def packed(first: Words, second: Words) -> Pair:
            high, low = (second, first) if swapped else (first, second)
            return high << _HALF | low, np.zeros(len(high), np.uint64)

        return self._once((pairs.rows, way, swapped), lambda: pairs.rows.map(packed))

    def _atom(self, atom: AtomForm) -> _Pairs:
        """The facts that fit the constants and repeated variables of an atom."""
        names = [term.name if isinstance(term, Variable) else None for term in atom.terms]
        facts = self._known[atom.predicate]
        wanted = tuple(
            (at, self._number(self._columns[atom.predicate][at], term.value))
            for at, term in enumerate(atom.terms)
            if isinstance(term, Constant)
        )
        twice = len(names) == 2 and names[0] is not None and names[0] == names[1]
        first, second = (*names, None)[:2]
        if not wanted and not twice:
            return _Pairs(facts, (first, second))

        def fits(keys: Words, vals: Words) -> npt.NDArray[np.bool_]:
            kept = keys == vals if twice else np.ones(len(keys), np.bool_)
            for at, number in wanted:
                kept &= (keys, vals)[at] == np.uint64(number)
            return kept

        rows = self._once((facts, wanted, twice), lambda: facts.filter(fits))
        return _Pairs(rows, (first, None if twice else second))

    def _once(self, what: tuple[Any, ...], make: Callable[[], Collection]) -> Collection:
        """A collection that is made on first use."""
        known = self._made.get(what)
        if known is None:
            known = self._made[what] = make()
        return known

    def _head(
        self, form: RuleForm, names: tuple[str | None, str | None]
    ) -> Callable[[Words, Words], Pair] | None:
        """How a derived fact is made of the words of a match; None if it is the match."""
        sources: list[int | None] = []
        # 0 or 1 for a word of the match; for a constant there is None, and its number beside it.
        numbers: list[int] = []
        kinds = self._columns[form.head.predicate]
        for term, kind in zip(form.head.terms, kinds, strict=True):
            if isinstance(term, Variable):
                sources.append(names.index(term.name))
                numbers.append(0)
            elif isinstance(term, Constant):
                sources.append(None)
                numbers.append(self._number(kind, term.value))
        if len(sources) == 1:
            sources.append(None)
            numbers.append(0)
        if sources == [0, 1]:
            return None

        def make(first: Words, second: Words) -> Pair:
            words = (first, second)
            return tuple(  # type: ignore[return-value]  # two words
                np.full(len(first), number, np.uint64) if source is None else words[source]
                for source, number in zip(sources, numbers, strict=True)
            )

        return make


def _unpacked(keys: Words) -> Pair:
    return keys >> _HALF, keys & _LOW


__all__ = ["ChainBuilder", "chain_of"]
