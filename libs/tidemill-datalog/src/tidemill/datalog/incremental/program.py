"""A checked program as units: which rules run together, what each reads, in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.evaluation.sharing import Judged, Measured, Sharing, common_joins
from tidemill.datalog.incremental.anew import AnewUnit
from tidemill.datalog.incremental.clocks import Demand, Ticking, demand_form
from tidemill.datalog.incremental.folding import Folded, folds
from tidemill.datalog.incremental.looped import LoopedUnit, loops
from tidemill.datalog.incremental.matches import Matches
from tidemill.datalog.incremental.shared import JoinUnit, SharedJoin, named, reading_of
from tidemill.datalog.incremental.surroundings import Present, Told
from tidemill.datalog.incremental.unit import Reporter, Unit
from tidemill.datalog.limits import Limits
from tidemill.datalog.logical.forms import Constant, RuleForm
from tidemill.datalog.logical.plan import (
    NEXT,
    SENT,
    Component,
    LogicalPlan,
    logical_plan,
    reads_any,
)

AnyUnit: TypeAlias = "Unit | AnewUnit | LoopedUnit"


@dataclass(frozen=True, slots=True)
class Followed:
    """A component of the plan, and how it is kept up to date: anew, by rounds, or by its matches."""

    component: Component
    anew: bool
    looped: bool = False

    @property
    def predicates(self) -> tuple[str, ...]:
        """What it derives."""
        return self.component.predicates

    @property
    def rules(self) -> tuple[RuleForm, ...]:
        """Its rules, in the order of the text."""
        return self.component.rules


def followed_components(plan: LogicalPlan) -> list[Followed]:
    """The components that have rules, in an order in which each reads only itself and earlier ones."""
    expiring = _expiring(plan.checked, plan.rules)
    return [
        _followed(component, plan.checked, expiring)
        for component in (*plan.components, *plan.later)
        if component.rules
    ]


def follows(checked: CheckedProgram) -> bool:
    """Whether every part of a program is kept up to date at the cost of what changes.

    Not so are rules with `~expires` in the body, and recursions that group facts with times or
    ends.
    """
    return not any(followed.anew for followed in followed_components(logical_plan(checked)))


def _followed(component: Component, checked: CheckedProgram, expiring: frozenset[str]) -> Followed:
    predicates, rules = component.predicates, component.rules
    inside = [rule for rule in rules if reads_any(rule, predicates)]
    lingers = any(rule.lingers for rule in rules)
    changing = any(name in expiring or name in checked.carries_time for name in predicates)
    takes_back = changing and any(rule.head.aggregates for rule in inside)
    anew = lingers or takes_back
    looped = component.recursive and not anew and loops(rules, predicates, checked, expiring)
    return Followed(component, anew, looped)


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


@dataclass(frozen=True, slots=True)
class Shares:
    """The joins of a program that are kept once for several rules, and those of which that would
    save nothing.
    """

    joins: tuple[SharedJoin, ...] = ()
    left: tuple[Judged, ...] = ()


def shares_of(plan: LogicalPlan, sharing: Sharing, sizes: Measured) -> Shares:
    """What the rules of a plan share for facts of these sizes.

    Rules that are kept by their matches have joins to share, outside of recursions, but for those
    whose solutions outlive their facts: such are known by the facts of their rule, from one run to
    the next.
    """
    forms = [
        form
        for followed in followed_components(plan)
        if not (followed.anew or followed.component.recursive)
        for form in followed.rules
        if len(form.atoms) > 1 and not form.outlives
    ]
    done, left = common_joins(plan.checked, forms, sharing, sizes)
    return Shares(tuple(named(done)), tuple(left))


def build_units(
    plan: LogicalPlan, present: Present, reporter: Reporter, limits: Limits, shares: Shares
) -> list[AnyUnit]:
    """The units of a plan, in the order of its components, each shared join before the first that
    reads it.
    """
    components = followed_components(plan)
    units: list[AnyUnit] = []
    remembering = _remembered(components)
    readings, built = reading_of(shares.joins), set[str]()
    of_rules = {rule: shared for shared in shares.joins for rule in shared.join.rules}
    for number, followed in enumerate(components):
        predicates, forms = followed.predicates, followed.rules
        for form in forms:
            shared = of_rules.get(form.number)
            if shared is not None and shared.name not in built:
                built.add(shared.name)
                units.append(_join_unit(shared, present, reporter, limits, number))
        unit: AnyUnit
        if followed.anew:
            later = not forms[0].deductive
            unit = AnewUnit(followed.component, present, reporter, limits, number, later)
        elif followed.looped:
            unit = LoopedUnit(predicates, forms, present, reporter, limits, number)
        else:
            unit = Unit(predicates, present, reporter, limits, number)
            for form in forms:
                mine, told = readings.get(form.number, (form, None))
                _add_rule(unit, mine, followed.component, present, remembering, told)
        unit.stratum = followed.component.stratum
        units.append(unit)
    _set_levels(units)
    return units


def _join_unit(
    shared: SharedJoin, present: Present, reporter: Reporter, limits: Limits, number: int
) -> JoinUnit:
    """What keeps a shared join; it stands in the highest stratum that it reads."""
    read = [atom.predicate for atom in shared.join.atoms]
    present.share(shared.name, read, shared.columns(present.checked))
    unit = JoinUnit(shared, present, reporter, limits, number)
    unit.stratum = max(present.checked.strata.get(name, 0) for name in read)
    return unit


def _add_rule(
    unit: Unit,
    form: RuleForm,
    component: Component,
    present: Present,
    remembering: Mapping[str, bool],
    told: Told | None,
) -> None:
    predicate = None if form.deductive else component.predicates[0]
    remembers = remembering.get(component.predicates[0], False)
    if folds(form, component.recursive):
        unit.fold(Folded(form, present, unit, predicate=predicate, remembers=remembers, told=told))
        return
    rule = Matches(
        form,
        present,
        unit,
        predicate=predicate,
        decorates=component.recursive and reads_any(form, component.predicates),
        remembers=remembers,
        told=told,
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


def _remembered(components: Sequence[Followed]) -> dict[str, bool]:
    """For each component whether the tallies of its facts may meet others, by its first predicate.

    They may if a rule passes them on, or if several rules derive one predicate.
    """
    found: dict[str, bool] = {}
    passed = {
        atom.predicate
        for component in components
        for form in component.rules
        for atom in form.atoms
    }
    for component in components:
        name = component.predicates[0]
        found[name] = len(component.rules) > 1 or not passed.isdisjoint(component.predicates)
        if name.startswith((NEXT, SENT)):
            found[name] = True
    return found


def _set_levels(units: Sequence[AnyUnit]) -> None:
    owner = {name: unit for unit in units for name in unit.component}
    for unit in units:
        below = [owner[name] for name in unit.reads if name in owner]
        unit.level = max((other.level + 1 for other in below), default=0)
