"""A checked program as units: which rules run together, what each reads, in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.evaluation.compiled import CompiledRule
from tidemill.datalog.evaluation.fixpoint import Limits
from tidemill.datalog.evaluation.forms import Constant, RuleForm
from tidemill.datalog.evaluation.translation import forms_of
from tidemill.datalog.incremental.anew import AnewUnit
from tidemill.datalog.incremental.clocks import Demand, Ticking, demand_form
from tidemill.datalog.incremental.looped import LoopedUnit, loops
from tidemill.datalog.incremental.matches import Matches
from tidemill.datalog.incremental.surroundings import Present
from tidemill.datalog.incremental.unit import Reporter, Unit

AnyUnit: TypeAlias = "Unit | AnewUnit | LoopedUnit"
NEXT, SENT = "#next:", "#sent:"


@dataclass(frozen=True, slots=True)
class Component:
    """The rules of one unit before it is built: `kind` says how it is kept up to date.

    Heads of rules with `@next` and `@async` are predicates of their own: `#next:p`, `#sent:p`.
    """

    predicates: tuple[str, ...]
    forms: tuple[RuleForm, ...]
    recursive: bool
    anew: bool
    stratum: int
    looped: bool = False


def components_of(checked: CheckedProgram) -> list[Component]:
    """The components of a program in an order in which each reads only itself and earlier ones."""
    forms = forms_of(checked)
    expiring = _expiring(checked, forms)
    found: list[Component] = []
    deriving: dict[str, list[RuleForm]] = {}
    for form in forms:
        if form.deductive:
            deriving.setdefault(form.head.predicate, []).append(form)
    for predicates in checked.components:
        found_here = [form for name in predicates for form in deriving.get(name, ())]
        mine = tuple(sorted(found_here, key=lambda form: form.number))
        if mine:
            stratum = checked.strata.get(predicates[0], 0)
            found.append(_component(tuple(predicates), mine, checked, expiring, stratum))
    later: dict[str, list[RuleForm]] = {}
    for form in forms:
        if not form.deductive:
            prefix = SENT if form.sends else NEXT
            later.setdefault(prefix + form.head.predicate, []).append(form)
    for name, mine_later in later.items():
        stratum = max(
            (checked.strata.get(name, 0) for form in mine_later for name in form.reads), default=0
        )
        found.append(_component((name,), tuple(mine_later), checked, expiring, stratum))
    return found


def follows(checked: CheckedProgram) -> bool:
    """Whether every part of a program is kept up to date at the cost of what changes.

    Not so are rules with `~expires` in the body, and recursions that group facts with times or ends.
    """
    return not any(component.anew for component in components_of(checked))


def _component(
    predicates: tuple[str, ...],
    forms: tuple[RuleForm, ...],
    checked: CheckedProgram,
    expiring: frozenset[str],
    stratum: int,
) -> Component:
    inside = [form for form in forms if reads_any(form, predicates)]
    lingers = any(form.lingers for form in forms)
    changing = any(name in expiring or name in checked.carries_time for name in predicates)
    takes_back = changing and any(form.head.aggregates for form in inside)
    anew = lingers or takes_back
    looped = bool(inside) and not anew and loops(forms, predicates, checked, expiring)
    return Component(predicates, forms, bool(inside), anew, stratum, looped)


def reads_any(form: RuleForm, predicates: Sequence[str]) -> bool:
    """Whether a positive atom of the rule is one of the predicates."""
    return any(atom.predicate in predicates and not atom.is_clock for atom in form.atoms)


def _expiring(checked: CheckedProgram, forms: Sequence[RuleForm]) -> frozenset[str]:
    """The predicates whose facts may have an expiry."""
    found = {name for name, schema in checked.inputs.items() if schema.kind == "events"}
    grew = True
    while grew:
        grew = False
        for form in forms:
            if form.head.predicate in found or "expires" in form.head.suppressed:
                continue
            if form.head.expires or any(atom.predicate in found for atom in form.atoms):
                found.add(form.head.predicate)
                grew = True
    return frozenset(found)


def build_units(
    checked: CheckedProgram, present: Present, reporter: Reporter, limits: Limits
) -> list[AnyUnit]:
    """The units of a program, in the order of their components."""
    components = components_of(checked)
    units: list[AnyUnit] = []
    remembering = _remembered(components)
    for number, component in enumerate(components):
        unit: AnyUnit
        if component.anew:
            rules = [CompiledRule(form) for form in component.forms]
            later = not component.forms[0].deductive
            unit = AnewUnit(component.predicates, rules, present, reporter, limits, number, later)
        elif component.looped:
            unit = LoopedUnit(
                component.predicates, component.forms, present, reporter, limits, number
            )
        else:
            unit = Unit(component.predicates, present, reporter, limits, number)
            for form in component.forms:
                _add_rule(unit, form, component, present, remembering)
        unit.stratum = component.stratum
        units.append(unit)
    _set_levels(units)
    return units


def _add_rule(
    unit: Unit,
    form: RuleForm,
    component: Component,
    present: Present,
    remembering: Mapping[str, bool],
) -> None:
    rule = Matches(
        form,
        present,
        unit,
        predicate=None if form.deductive else component.predicates[0],
        decorates=component.recursive and reads_any(form, component.predicates),
        remembers=remembering.get(component.predicates[0], False),
    )
    unit.add(rule)
    _add_clocks(unit, rule, present)


def _add_clocks(unit: Unit, rule: Matches, present: Present) -> None:
    """Let every clock atom of a rule tick, whatever its arguments depend on."""
    for atom in rule.joins.clocks:
        ticking = Ticking(rule, present, unit.on_tick(rule, atom))
        unit.clocks.append(ticking)
        demand = demand_form(rule.form, atom)
        if demand is None:
            clock = rule.form.atoms[atom].clock
            assert clock is not None
            assert isinstance(clock[0], Constant)
            assert isinstance(clock[1], Constant)
            ticking.need(clock[0].value, clock[1].value)
            continue
        asking = Matches(demand, present, Demand(ticking), silent=True)
        unit.add(asking)
        _add_clocks(unit, asking, present)


def _remembered(components: Sequence[Component]) -> dict[str, bool]:
    """For each component whether the tallies of its facts may meet others, by its first predicate.

    They may if a rule passes them on, or if several rules derive one predicate.
    """
    found: dict[str, bool] = {}
    passed = {
        atom.predicate
        for component in components
        for form in component.forms
        for atom in form.atoms
    }
    for component in components:
        name = component.predicates[0]
        found[name] = len(component.forms) > 1 or not passed.isdisjoint(component.predicates)
        if name.startswith((NEXT, SENT)):
            found[name] = True
    return found


def _set_levels(units: Sequence[AnyUnit]) -> None:
    owner = {name: unit for unit in units for name in unit.component}
    for unit in units:
        below = [owner[name] for name in unit.reads if name in owner]
        unit.level = max((other.level + 1 for other in below), default=0)
