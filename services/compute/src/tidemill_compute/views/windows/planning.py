"""The plan of a view's windows on Spark, or why it has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tidemill.datalog.carrying import matches_ends
from tidemill.datalog.logical.forms import RuleForm
from tidemill.datalog.placement import Placement, placement_of
from tidemill_compute.views.bulk import History
from tidemill_compute.views.range_history import RangeHistory


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The placement of a view that was made for so many `rows` of its inputs.

    `lacking` is a sentence if the view has no windows on Spark, and empty if it has.
    """

    divided: RangeHistory
    rows: Mapping[str, int]
    lacking: str

    @property
    def whole(self) -> bool:
        """Whether each window looks at all keys.

        Something that crosses is in no collection, or facts change by themselves.
        """
        divided = self.divided
        nowhere = any(divided.kept_nowhere(each) for each in divided.placement.fragments)
        return nowhere or self.moves

    @property
    def moves(self) -> bool:
        """Whether facts may change without a change of an input."""
        return any(map(_moves_by_itself, self.divided.placement.plan.rules))

    def collections(self) -> list[str]:
        """The collections whose rows its fragments read."""
        found = [
            self.divided.stored(read.predicate)
            for fragment in self.divided.placement.fragments
            for read in fragment.reads
        ]
        return list(dict.fromkeys(each[0] for each in found if each is not None))


def plan_windows(history: History) -> WindowPlan:
    """The plan of a view, by the rows of its inputs. Pure. Cost: as `placement_of`."""
    target = history.target
    rows = {
        predicate: sum(part.rows for part in history.inputs[collection][1])
        for predicate, (collection, _) in target.inputs.items()
    }
    empty = {name: (description, ()) for name, (description, _) in history.inputs.items()}
    bare = replace(history, lower=0, upper=0, inputs=empty)
    divided = RangeHistory(bare, placement_of(target.program, rows=rows), 1)
    return WindowPlan(divided, rows, _lacking(divided))


def _lacking(divided: RangeHistory) -> str:
    target, placement = divided.history.target, divided.placement
    program = target.program
    if program.ticked or target.ticks is not None:
        return "a program with ticks is evaluated in one process"
    if matches_ends(program):
        return "a rule names the end of a fact, which may be infinite: leave out @expires(variable)"
    if not placement.divided:
        return _undivided(placement)
    for rule in placement.plan.rules:
        if rule.outlives:
            return f"rule {rule.number} gives its facts an end of their own: one process keeps them"
        if rule.lingers:
            return f"rule {rule.number} has ~expires in its body: one process keeps its matches"
    if not divided.keys_fit():
        return "rows cannot be divided by a column that holds sets, or lattices of several values"
    return ""


def _undivided(placement: Placement) -> str:
    fragment = placement.fragments[0]
    advice = f"; {fragment.advice}" if fragment.advice else ""
    return f"the program is one task: {fragment.reason}{advice}"


def _moves_by_itself(rule: RuleForm) -> bool:
    """Whether facts may change without a change of an input."""
    return bool(rule.head.time) or any(atom.is_clock for atom in rule.atoms)
