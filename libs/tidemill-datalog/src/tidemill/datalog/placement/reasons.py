"""Why a fragment is one task, and what to change so that it is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tidemill.datalog.logical.partial import merges
from tidemill.datalog.logical.plan import Component
from tidemill.datalog.placement.division import head_keys, keys_of

Obstacle: TypeAlias = "tuple[str, str]"
"""The reason, and what to change."""
TICKS: Obstacle = (
    "ticks follow one another, and each sees all that the last one left",
    "derive without @next and @async what can be, in a view of its own",
)


def reason_of(component: Component, lacks: str = "") -> Obstacle:
    """Why the facts of a component are derived in one task; what a recursion `lacks` for rounds."""
    names = ", ".join(name.rpartition(":")[2] for name in component.predicates)
    if not any(atom for rule in component.rules for atom in rule.atoms if not atom.is_clock):
        return f"{names}: stated facts and clocks alone have no rows to divide", ""
    if all(map(merges, component.rules)):
        return f"{names}: what ranges say of one group is put together", ""
    if component.recursive:
        return (
            f"{names}: no argument of the recursion is handed on unchanged by all of its rules, and "
            f"{lacks}",
            "pass one argument through each recursive rule, as x in reach(x, z) := reach(x, y) ^ "
            "edge(y, z)",
        )
    if not any(any(keys_of(rule, {})) for rule in component.rules):
        return f"{names}: no atom has a variable by whose values rows could be divided", ""
    if not any(map(head_keys, component.rules)):
        return (
            f"{names}: all matches belong to one group or one fact",
            "give the head an argument, and put the groups together in a view that reads it",
        )
    return (
        f"{names}: its matches cannot be told apart from where its facts are",
        "give the head the variable that joins the atoms of the body",
    )


def together(names: Sequence[str]) -> Obstacle:
    """Why predicates are derived where they are read."""
    shown = ", ".join(names)
    return (
        f"{shown}: lattices of a host, or values counted once, are passed on from it and have to meet",
        "end what is passed: ~count_distinct, or ~ and its name, on the head or the atom",
    )
