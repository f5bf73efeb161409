"""Live maintenance of a view with a placement: by windows, over few keys or over all of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tidemill.datalog.carried_lattices import matches_ends
from tidemill.datalog.logical.forms import RuleForm
from tidemill.datalog.placement.places import Fragment, Placement
from tidemill.datalog.placement.reasons import TICKS


@dataclass(frozen=True, slots=True)
class Live:
    """The windows of a view.

    `lacking` is a sentence if it has none, and is kept by one process. `whole` is one if each
    window looks at all keys. `moves` says that facts may change without a change of an input. With
    `remembers` each window goes on from the state of the view. `undivided` is a sentence if heavy
    keys are divided by the windows alone that look at all keys.
    """

    lacking: str = ""
    whole: str = ""
    moves: bool = False
    remembers: bool = False
    undivided: str = ""


def live_of(placement: Placement, outputs: Collection[str]) -> Live:
    """The windows of a program whose `outputs` are kept in collections. Pure. Cost: O(text)."""
    lacking = _lacking(placement)
    if lacking:
        return Live(lacking)
    whole, rules = "", placement.plan.rules
    moving = [rule for rule in rules if _moves_by_itself(rule)]
    remembering = [rule for rule in rules if rule.remembers]
    nowhere = sorted(n for f in placement.fragments for n in kept_nowhere(placement, f, outputs))
    if moving:
        whole = f"facts of rule {moving[0].number} change by themselves"
    elif remembering:
        whole = f"matches of rule {remembering[0].number} may outlive their facts"
    elif nowhere:
        name = nowhere[0].rpartition(":")[2]
        whole = f"no collection has {name} as it crosses to another fragment"
    return Live("", whole, bool(moving or remembering), bool(remembering))


def live_of_heavy(plain: Live, placement: Placement, outputs: Collection[str]) -> Live:
    """The windows of a program, by its placement with heavy keys beside the plain one.

    Windows over few keys divide no heavy keys where they would have to look at all keys for that.
    """
    if plain.lacking or plain.whole:
        return plain
    return replace(plain, undivided=live_of(placement, outputs).whole)


def kept_nowhere(
    placement: Placement, fragment: Fragment, outputs: Collection[str]
) -> frozenset[str]:
    """Predicates that cross to later fragments and are in no collection as they cross."""
    return frozenset(
        name
        for name in placement.crossing(fragment) - fragment.returning
        if name not in outputs or name in fragment.whole
    )


def live_line(live: Live) -> str:
    """The same as a line of text."""
    if live.lacking:
        return f"  live: in one process: {live.lacking}"
    over = f"all keys, since {live.whole}" if live.whole else "the keys that changes touch"
    heavy = f"; these divide no heavy key, since {live.undivided}" if live.undivided else ""
    return f"  live: windows over {over}{heavy}"


def _lacking(placement: Placement) -> str:
    program = placement.plan.checked
    if program.ticked:
        return "; ".join(TICKS)
    if matches_ends(program):
        return "a rule names the end of a fact, which may be infinite: leave out @expires(variable)"
    if not placement.divided:
        fragment = placement.fragments[0]
        advice = f"; {fragment.advice}" if fragment.advice else ""
        return f"the program is one task: {fragment.reason}{advice}"
    return ""


def _moves_by_itself(rule: RuleForm) -> bool:
    """Whether facts may change without a change of an input."""
    return bool(rule.head.time) or any(atom.is_clock for atom in rule.atoms)
