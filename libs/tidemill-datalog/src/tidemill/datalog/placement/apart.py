"""Programs whose ranges need no word of each other: each reads its share of the inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.datalog.carried_lattices import matches_ends
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.logical.forms import Variable
from tidemill.datalog.logical.plan import GIVEN
from tidemill.datalog.placement.places import Fragment, Place, Placement, Positions, Read
from tidemill.datalog.placement.placing import placement_of


@dataclass(frozen=True, slots=True)
class InTheWay:
    """Why the ranges of a program depend on each other, and what to change."""

    reason: str
    advice: str


def places_apart(checked: CheckedProgram) -> Mapping[str, Positions] | InTheWay:
    """The columns of each input by whose hash its rows are in one range; none: in all ranges.

    With these the whole program over the rows of a range says exactly that range of the answers.
    No row of an output is derived in two ranges, and no error: its text names a fact with the key
    of its range. Pure: the same for one program, whatever its inputs hold. Cost: as
    `placement_of`.
    """
    found = _apart(checked, placement_of(checked, rounds=False, moves=False))
    if isinstance(found, InTheWay):  # the facts that would move say more than copies of inputs
        return _apart(checked, placement_of(checked, rounds=False))
    return found


def _apart(checked: CheckedProgram, placement: Placement) -> Mapping[str, Positions] | InTheWay:
    """The same by one placement of the program."""
    for fragment in placement.fragments:
        if fragment.way == "one task":
            return InTheWay(fragment.reason, fragment.advice)
    if matches_ends(checked):
        return InTheWay(
            "a rule names the end of a fact, which may be infinite",
            "leave the end out of @expires, or bind it to a literal",
        )
    return _exchange(placement) or _places(placement)


def _exchange(placement: Placement) -> InTheWay | None:
    """The first facts that change their range, None where none do."""
    of: dict[str, Fragment] = {n: each for each in placement.fragments for n in each.derives}
    for fragment in placement.fragments:
        for read in fragment.reads:
            if read.predicate in of:
                name = read.predicate.rpartition(":")[2]
                if _computes_its_key(of[read.predicate], read.predicate):
                    return InTheWay(
                        f"no argument of {name} is a variable: its facts are in other ranges than "
                        "their matches",
                        f"give {name} an argument that is a variable of its body",
                    )
                maker, reader = _numbers(of[read.predicate], fragment, read)
                by = f", by rule {reader}" if reader not in (0, maker) else ""
                return InTheWay(
                    f"facts of {name} are derived in one range, by rule {maker}, and needed in "
                    f"another{by}",
                    f"derive {name} in a view of its own, which others read, or by the variable "
                    "that joins the other rules",
                )
    return None


def _numbers(maker: Fragment, reader: Fragment, read: Read) -> tuple[int, int]:
    """The first rules that derive and read facts, by their numbers; 0 for none of the text."""
    derives = (r.number for r in maker.plan.rules if r.head.predicate == read.predicate)
    reads = (r.number for r in reader.plan.rules if read.name in r.reads)
    return next(derives, 0), max(0, next(reads, 0))


def apart_line(checked: CheckedProgram) -> str:
    """Which rows a range has that a process keeps (`ranges: N`), or why there are none.

    Cost: as `places_apart`.
    """
    found = places_apart(checked)
    if isinstance(found, InTheWay):
        advice = f"; to change that: {found.advice}" if found.advice else ""
        return f"  ranges: none for processes: {found.reason}{advice}"
    told = [f"{name}{_by_columns(checked, name, at)}" for name, at in found.items()]
    return f"  ranges: for any number of processes, rows of {', '.join(told)}"


def _by_columns(checked: CheckedProgram, name: str, positions: Positions) -> str:
    columns = checked.inputs[name].columns
    names = ", ".join(columns[at - 1][0] for at in positions)
    return f" by ({names})" if names else " in all ranges"


def _computes_its_key(fragment: Fragment, predicate: str) -> bool:
    """Whether no argument of a head is a variable, by which its facts are with their matches."""
    heads = [rule.head for rule in fragment.plan.rules if rule.head.predicate == predicate]
    return any(
        head.terms and not any(isinstance(term, Variable) for term in head.terms) for head in heads
    )


def _places(placement: Placement) -> Mapping[str, Positions] | InTheWay:
    found: dict[str, Place] = {}
    for read in (read for fragment in placement.fragments for read in fragment.reads):
        name = read.predicate.removeprefix(GIVEN)
        if 0 in read.place.positions:
            return InTheWay(f"facts of {name} would be divided by their time", _by(read))
        if found.setdefault(name, read.place) != read.place:
            return InTheWay(
                f"facts of {name} are needed by one column in one rule, by another in another",
                _by(read),
            )
    return {name: place.positions for name, place in sorted(found.items())}


def _by(read: Read) -> str:
    name = read.predicate.removeprefix(GIVEN)
    return f"join {name} by the same arguments in every rule, or divide the rules among views"
