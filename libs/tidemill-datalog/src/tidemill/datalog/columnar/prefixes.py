"""What joins of several rules have in common in a window: the first steps of one are found again by
the next.

Rules keep the orders of joins that the sizes of their tables ask for. Where two begin with the same
steps, up to the names of variables, the matches of these are there already when the second comes to
them, with all columns that were gathered from them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columnar.arrangements import Arrangements
from tidemill.datalog.columns.column import Column
from tidemill.datalog.evaluation.joins import Plan, Step
from tidemill.datalog.evaluation.sharing import atom_key, expression_key
from tidemill.datalog.logical.expressions import Scope
from tidemill.datalog.logical.forms import Call, RuleForm

Piece: TypeAlias = "tuple[Arrangements, int]"
"""A table that comes in pieces, and the number of one."""
ROWS_MAX = 1 << 21
"""How many matches are held for other rules until a window ends; what would be more is found again
by each.
"""
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first steps of a join, without the conditions after the last of them.

    `key` is the same for every rule that begins so; `names` are those of it for the variables of
    this rule.
    """

    key: Any
    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Found:
    """The matches of some steps: for each a row of its table, None for all rows as they are.

    `made` are columns gathered from them, by the names of the prefix. `tables` are held so that no
    other takes their place.
    """

    rule: int
    rows: Sequence[I64Array | None]
    start: I64Array
    stop: I64Array
    made: dict[str, Column]
    tables: Sequence[Arrangements]


@dataclass(slots=True)
class FoundOnce:
    """The matches of one window that several rules may ask for.

    `taken` counts how often one did.
    """

    rows_max: int = ROWS_MAX
    taken: int = 0
    _found: dict[Any, Found] = field(default_factory=dict)
    _rows: int = 0

    def get(self, key: Any) -> Found | None:
        """What was found for some steps over some tables."""
        return self._found.get(key)

    def put(self, key: Any, found: Found) -> Found | None:
        """Hold what was found, if it is not too much; what is held."""
        if key in self._found or self._rows + len(found.start) > self.rows_max:
            return None
        self._rows += len(found.start)
        self._found[key] = found
        return found


def commonly(form: RuleForm, plan: Plan, alike: Sequence[tuple[int, ...]]) -> Plan:
    """A plan that leaves guards which drop little, `!=`, until after the steps that another rule
    may have too.
    """
    sets = set(map(frozenset, alike))
    ends = [at for at in range(1, len(plan.steps)) if _atoms(plan, at) in sets]
    if not ends:
        return plan
    steps, moved = list(plan.steps), []
    for at in range(ends[-1]):
        step = steps[at]
        mine = [i for i in step.conditions if _drops_little(form, plan, i)]
        moved += mine
        steps[at] = replace(step, conditions=tuple(i for i in step.conditions if i not in mine))
    last = steps[ends[-1]]
    steps[ends[-1]] = replace(last, conditions=tuple(sorted((*last.conditions, *moved))))
    return replace(plan, steps=tuple(steps))


def _atoms(plan: Plan, last: int) -> frozenset[int]:
    return frozenset(step.atom for step in plan.steps[: last + 1])


def _drops_little(form: RuleForm, plan: Plan, condition: int) -> bool:
    known = form.conditions[condition]
    return isinstance(known, Call) and known.name == "!=" and condition not in plan.fallible


def prefixes(
    checked: CheckedProgram,
    form: RuleForm,
    plan: Plan,
    scope: Scope,
    alike: Sequence[tuple[int, ...]],
) -> tuple[Prefix | None, ...]:
    """For each step of a plan what is joined then, None where no other rule joins these atoms.

    `alike` are the atoms of the rule that another one has.
    """
    if not alike:
        return (None,) * len(plan.steps)
    return tuple(_prefixes(checked, form, plan, scope, set(map(frozenset, alike))))


def _prefixes(
    checked: CheckedProgram,
    form: RuleForm,
    plan: Plan,
    scope: Scope,
    alike: Collection[frozenset[int]],
) -> Iterator[Prefix | None]:
    names: dict[str, str] = {}
    before: tuple[Any, ...] = ()
    atoms: set[int] = set()
    for step in plan.steps:
        atoms.add(step.atom)
        atom = atom_key(form.atoms[step.atom], names, form.types, checked)
        before = (*before, atom, _step_key(step, names, scope))
        yield Prefix(before, dict(names)) if frozenset(atoms) in alike else None
        conditions = [expression_key(form.conditions[i], names) for i in step.conditions]
        before = (*before, tuple(conditions))


def _step_key(step: Step, names: Mapping[str, str], scope: Scope) -> Any:
    probes = tuple(
        (probe.position, expression_key(probe.value, names), probe.condition is None)
        for probe in step.probes
    )
    variables: dict[str, str] = {python: name for name, python in scope.names.items()}

    def canonical(found: re.Match[str]) -> str:
        name = variables.get(found[0])
        return found[0] if name is None else names.get(name, name)

    limits = tuple(
        tuple(_NAME.sub(canonical, source) for source in sources)
        for sources in (step.limits.low, step.limits.high)
    )
    return probes, step.range_column, limits


__all__ = ["Found", "FoundOnce", "Piece", "Prefix", "commonly", "prefixes"]
