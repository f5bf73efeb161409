"""The solutions of a state with which each range of a fragment goes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from tidemill.arrangement.kernels import BoolArray
from tidemill.datalog.placement.column_hashes import ranges_of_columns
from tidemill.datalog.placement.hashing import range_of
from tidemill.datalog.placement.places import Fragment
from tidemill.datalog.state import Share, StateRow


def state_of(fragment: Fragment, rows: Iterable[StateRow]) -> list[StateRow]:
    """The rows of a state that are of the rules of a fragment."""
    numbers = {rule.number for rule in fragment.plan.rules if rule.remembers}
    return [row for row in rows if row[0] in numbers]


def shares_of(fragment: Fragment, number: int, ranges: int) -> dict[int, Share]:
    """The share of one of the ranges in the solutions of each rule; without one it has them all.

    A match is in the range of each of its facts that has a key.
    """
    found = {}
    places = {read.name: read.place for read in fragment.reads} | {**fragment.placed}
    for rule in fragment.plan.rules if fragment.divided else ():
        for at, atom in enumerate(rule.atoms):
            place = None if atom.is_clock else places.get(atom.predicate)
            if place is not None and place.positions and rule.remembers:
                found[rule.number] = _share(at, place.positions, number, ranges)
                break
    return found


def _share(atom: int, positions: tuple[int, ...], number: int, ranges: int) -> Share:
    def holds(key: Sequence[Any]) -> bool:
        return range_of(key, ranges) == number

    def held(key: Sequence[pa.Array]) -> BoolArray:
        found: BoolArray = ranges_of_columns(key, ranges) == number
        return found

    return Share(atom, positions, holds, held)
