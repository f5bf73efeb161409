"""Values that ride beside facts, as words: all lattices of one fact are one value with a number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidemill.datalog.lattices import (
    TALLIES,
    Lattice,
    Parafacts,
    Tally,
    inject_given,
    merge_parafacts,
    tally,
    without,
)
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.records import Record

NOTHING_CARRIED = 0
"""The number of the parafacts of a fact that carries none."""


class NumberedValues:
    """Numbers for parafacts, sets and what else has no word of its own.

    Values of one type have equal numbers if and only if they are equal. Numbers of values that
    nobody needs are given again after `keep_only`.
    """

    def __init__(self, lattices: Mapping[str, Lattice]) -> None:
        self.lattices = lattices
        self.set_values_max = Limits().set_values
        self._numbers: dict[Any, int] = {(): NOTHING_CARRIED}
        self._values: list[Any] = [None]
        self._free: list[int] = []
        self._merged: dict[tuple[int, ...], int] = {}
        self._without: dict[tuple[int, frozenset[str]], int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, value: Any) -> int:
        """The number of a value. Raises: LimitPassed for too large a set."""
        if value is None:
            return NOTHING_CARRIED
        key = key_of(value)
        known = self._numbers.get(key)
        if known is None:
            self._limit(value)
            if self._free:
                known = self._free.pop()
                self._values[known] = value
            else:
                known = len(self._values)
                self._values.append(value)
            self._numbers[key] = known
        return known

    def _limit(self, value: Any) -> None:
        most, sets = self.set_values_max, [value] if type(value) is frozenset else []
        if type(value) is tuple:  # of parafacts
            sets = [item[1] for item in value if type(item) is tuple and item[0] == "set"]
        if any(len(each) > most for each in sets):
            raise LimitPassed(
                f"evaluation given up: a set has more than {most} values",
                reason="LimitPassed", limit="set_values",
            )  # fmt: skip

    def value(self, number: int) -> Any:
        """The value of a number."""
        return self._values[number]

    def given(self, record: Record) -> int:
        """The parafacts that a record of an input carries."""
        return self.number(inject_given(record, self.lattices)) if record.parafacts else 0

    def seen(self, number: int, lattice: str) -> tuple[Any, ...] | None:
        """The values seen of one lattice, None where it is not carried."""
        for name, inner in self._values[number] or ():
            if name == lattice:
                return self.lattices[name].observe(inner)
        return None

    def without(self, number: int, names: frozenset[str]) -> int:
        """The parafacts of other lattices than the named ones."""
        if number == NOTHING_CARRIED or not names:
            return number
        known = self._without.get((number, names))
        if known is None:
            known = self.number(without(self._values[number], names))
            self._without[number, names] = known
        return known

    def merged(self, numbers: Iterable[int]) -> int:
        """The merge of parafacts. Raises: Failed."""
        different = tuple(sorted({*numbers} - {NOTHING_CARRIED}))
        if len(different) < 2:
            return different[0] if different else NOTHING_CARRIED
        known = self._merged.get(different)
        if known is None:
            found = merged_all([self._values[each] for each in different], self.lattices)
            known = self._merged[different] = self.number(found)
        return known

    def keep_only(self, needed: Iterable[int]) -> None:
        """Forget the values that are not needed. Cost: O(values)."""
        kept = {NOTHING_CARRIED, *needed}
        self._merged.clear()
        self._without.clear()
        for key, number in list(self._numbers.items()):
            if number not in kept:
                del self._numbers[key]
                self._values[number] = None
                self._free.append(number)


def merged_all(found: Sequence[Parafacts], lattices: Mapping[str, Lattice]) -> Parafacts:
    """The merge of several parafacts. Contributions to a sum are put together once.

    Raises: Failed. Cost: O(contributions).
    """
    merged: Parafacts = None
    tallies: dict[str, list[Tally]] = {}
    for parafacts in found:
        others = []
        for item in parafacts or ():
            if item[0] in TALLIES:
                tallies.setdefault(item[0], []).append(item[1])
            else:
                others.append(item)
        merged = merge_parafacts(merged, tuple(others) or None, lattices)
    for name, known in tallies.items():
        members = {key: value for each in known for key, value in each.members.items()}
        mine = known[0] if len(known) == 1 else tally(name, members)
        merged = merge_parafacts(merged, ((name, mine),), lattices)
    return merged


def key_of(value: Any) -> Any:
    """A key that keeps types apart which are equal to Python."""
    if isinstance(value, Tally):  # equal sums of different contributions have to hash apart
        return "tally", type(value.value), hash(frozenset(value.members.items())), value
    if isinstance(value, tuple):
        return tuple(map(key_of, value))
    if isinstance(value, frozenset | str):
        return value
    return type(value), value
