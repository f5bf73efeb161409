"""The logical plan of a program: what is read, matched, denied and derived, in which order of
strata.

The dataflow is lowered from it. Rewritings of a program, as the one for bound questions, are plans
made from plans.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.logical.forms import RuleForm
from tidemill.datalog.logical.normal_form import forms_of
from tidemill.datalog.logical.scans import Scan, scans_of
from tidemill.datalog.nodes import dataclass

NEXT, SENT = "#next:", "#sent:"
GIVEN = "#given:"
"""Before the name of a predicate: its facts that no rule derives."""


@dataclass(frozen=True, slots=True)
class Component:
    """Predicates that are derived together, and the rules that do: one predicate, or a recursion.

    A predicate without rules is an input. Heads with `@next` and `@async` are predicates of
    their own: `#next:p`, `#sent:p`.
    """

    predicates: tuple[str, ...]
    rules: tuple[RuleForm, ...]
    recursive: bool
    stratum: int


@dataclass(frozen=True, slots=True)
class LogicalPlan:
    """The components of a program in an order in which each reads only itself and earlier ones.

    `later` are those of other ticks and nodes. `scans` say what of each input can matter. `checked`
    has the names and types of all predicates.
    """

    checked: CheckedProgram
    rules: tuple[RuleForm, ...]
    components: tuple[Component, ...]
    later: tuple[Component, ...] = ()
    scans: Mapping[str, Scan] = field(default_factory=dict)

    def remade(
        self, components: Iterable[Component], checked: CheckedProgram | None = None
    ) -> LogicalPlan:
        """The plan of other components in their order, and of what is known of predicates."""
        kept = tuple(components)
        rules = tuple(rule for component in kept for rule in component.rules)
        return replace(self, checked=checked or self.checked, rules=rules, components=kept)


def logical_plan(checked: CheckedProgram) -> LogicalPlan:
    """The plan of a checked program. Cost: O(text)."""
    rules = forms_of(checked)
    return LogicalPlan(
        checked,
        rules,
        components_of(checked, rules),
        _later(checked, rules),
        scans_of(checked, rules),
    )


def plan_below(plan: LogicalPlan, predicates: Collection[str]) -> LogicalPlan:
    """The part of a plan from which some predicates are derived. Cost: O(rules)."""
    needed, found = set(predicates), []
    for component in reversed(plan.components):
        if needed.isdisjoint(component.predicates):
            continue
        found.append(component)
        needed |= {name for rule in component.rules for name in rule.reads}
    rules = tuple(rule for rule in plan.rules if rule.head.predicate in needed)
    return replace(plan, rules=rules, components=tuple(reversed(found)), later=())


def components_of(checked: CheckedProgram, rules: tuple[RuleForm, ...]) -> tuple[Component, ...]:
    """The components of `checked`, each with its rules in the order of the text."""
    deriving: dict[str, list[RuleForm]] = {}
    for rule in rules:
        if rule.deductive:
            deriving.setdefault(rule.head.predicate, []).append(rule)
    found = []
    for predicates in checked.components:
        mine = [rule for name in predicates for rule in deriving.get(name, ())]
        mine.sort(key=lambda rule: rule.number)
        recursive = any(reads_any(rule, predicates) for rule in mine)
        stratum = checked.strata.get(predicates[0], 0)
        found.append(Component(tuple(predicates), tuple(mine), recursive, stratum))
    return tuple(found)


def _later(checked: CheckedProgram, rules: tuple[RuleForm, ...]) -> tuple[Component, ...]:
    by_name: dict[str, list[RuleForm]] = {}
    for rule in rules:
        if not rule.deductive:
            prefix = SENT if rule.sends else NEXT
            by_name.setdefault(prefix + rule.head.predicate, []).append(rule)
    found = []
    for name, mine in by_name.items():
        below = [checked.strata.get(read, 0) for rule in mine for read in rule.reads]
        recursive = any(reads_any(rule, (name,)) for rule in mine)
        found.append(Component((name,), tuple(mine), recursive, max(below, default=0)))
    return tuple(found)


def reads_any(rule: RuleForm, predicates: Sequence[str]) -> bool:
    """Whether a positive atom of the rule is one of the predicates."""
    return any(atom.predicate in predicates and not atom.is_clock for atom in rule.atoms)
