"""Rewrites of a logical plan that give a program to the dataflow: pure functions from plan to plan.

Ticks: `@next` and `@async` become collections that the ticker reads, and what they hand on becomes
an input. Recursions: an input that a recursion also derives is read by a rule of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow.rewrites import reading_rule
from tidemill.datalog.inputs import InputSchema
from tidemill.datalog.logical.expressions import type_of
from tidemill.datalog.logical.forms import RuleForm, Type
from tidemill.datalog.logical.plan import GIVEN, SENT, Component, LogicalPlan, logical_plan


def plan_of(checked: CheckedProgram) -> LogicalPlan:
    """The plan of a program; of one tick, if it is ticked. Cost: O(text)."""
    plan = logical_plan(checked)
    return given_apart(ticked_plan(plan) if checked.ticked else plan)


def ticked_plan(logical: LogicalPlan) -> LogicalPlan:
    """The plan of one tick: `#next:p` and `#sent:p` are derived, and `p` is an input as well.

    Cost: O(text).
    """
    checked = logical.checked
    columns, types = dict(checked.columns), dict(checked.lattice_types)
    inputs, later = dict(checked.inputs), []
    for component in logical.later:
        name = component.predicates[0]
        base = name.partition(":")[2]
        rules = tuple(
            replace(rule, head=replace(rule.head, predicate=name)) for rule in component.rules
        )
        columns[name] = checked.columns[base]
        if name.startswith(SENT):
            kinds = {type_of(rule.head.terms[0], rule.types) for rule in rules}
            kind = kinds.pop() if len(kinds) == 1 else Type.ANY
            columns[name] = (("", kind.value), *columns[name])
        carried = [(lattice, types[base, lattice]) for lattice in checked.lattices_of(base)]
        types.update({(name, lattice): kinds_ for lattice, kinds_ in carried})
        schema = InputSchema(base, "events", checked.columns[base], lattices=tuple(carried))
        inputs.setdefault(base, schema)
        later.append(Component((name,), rules, False, component.stratum))
    checked = replace(checked, columns=columns, lattice_types=types, inputs=inputs)
    return replace(logical, later=()).remade((*logical.components, *later), checked)


def given_apart(logical: LogicalPlan, names: Collection[str] = ()) -> LogicalPlan:
    """The same plan where no input is derived in a recursion: `p := #given:p` reads it instead.

    Nor are the inputs in `names` derived by any rule. Cost: O(text).
    """
    checked = logical.checked
    looped = {name for each in logical.components if each.recursive for name in each.predicates}
    looped |= {rule.head.predicate for rule in logical.rules if rule.head.predicate in names}
    both = [name for name in checked.inputs if name in looped]
    if not both:
        return logical
    copies = {name: reading_rule(name, GIVEN + name, checked.columns[name]) for name in both}
    components = [_with_copies(each, copies.values()) for each in logical.components]
    inputs = {
        copies[name].atoms[0].predicate if name in copies else name: schema
        for name, schema in checked.inputs.items()
    }
    columns = {GIVEN + name: checked.columns[name] for name in both}
    types = {
        (GIVEN + name, lattice): kinds
        for (name, lattice), kinds in checked.lattice_types.items()
        if name in copies
    }
    return replace(
        logical,
        checked=replace(
            checked,
            inputs=inputs,
            columns={**checked.columns, **columns},
            lattice_types={**checked.lattice_types, **types},
        ),
        rules=(*logical.rules, *copies.values()),
        components=tuple(components),
    )


def _with_copies(component: Component, copies: Iterable[RuleForm]) -> Component:
    mine = [copy for copy in copies if copy.head.predicate in component.predicates]
    return replace(component, rules=(*component.rules, *mine))
