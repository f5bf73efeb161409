"""Plans of programs, lowered once for all engines, and as one engine has them.

A program does not change, and neither does its plan: the cache is of a pure function. Words of
literals and numbers of values differ from engine to engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.carried import NumberedValues
from tidemill.datalog.dataflow.lowering import lower
from tidemill.datalog.dataflow.plan import DataflowPlan, MatchColumns
from tidemill.datalog.dataflow.schema import word_of
from tidemill.datalog.dataflow.ticked_plan import given_apart, plan_of
from tidemill.datalog.identity import Same
from tidemill.datalog.logical.plan import LogicalPlan

PLANS_KEPT, RULES_KEPT = 32, 100
"""Plans that a process keeps, and rules of the longest one: some 7 KB each, so 22 MB at most."""


def kept_plan(
    program: CheckedProgram | LogicalPlan,
    carrying: Iterable[str] = (),
    whole: Iterable[str] = (),
) -> tuple[CheckedProgram, DataflowPlan]:
    """The plan that `lower` makes of a program, or of its logical plan, and what is known of it.

    Raises: NotInDataflow. Cost: O(text) for the first engine, a look-up for the others; O(text) for
    each engine of a program of more than `RULES_KEPT` rules.
    """
    kept = _kept if len(program.rules) <= RULES_KEPT else _lowered
    return kept(Same(program), frozenset(carrying), frozenset(whole))


def _lowered(
    same: Same[CheckedProgram | LogicalPlan], carrying: frozenset[str], whole: frozenset[str]
) -> tuple[CheckedProgram, DataflowPlan]:
    program = same.of
    logical = plan_of(program) if isinstance(program, CheckedProgram) else given_apart(program)
    return logical.checked, lower(logical, carrying, whole)


_kept = lru_cache(PLANS_KEPT)(_lowered)


def numbered(plan: DataflowPlan, texts: Texts) -> DataflowPlan:
    """A plan for one engine, whose texts are these: with words of literals, and its own values.

    Cost: O(collections + rules).
    """
    values = NumberedValues(plan.values.lattices)
    collections = {
        name: replace(each, schema=replace(each.schema, values=values))
        for name, each in plan.collections.items()
    }
    known: dict[int, MatchColumns] = {}
    for each in plan.rules:
        if id(each.columns) not in known:
            known[id(each.columns)] = _numbered_columns(each.columns, texts, values)
    rules = tuple(replace(each, columns=known[id(each.columns)]) for each in plan.rules)
    return replace(plan, collections=collections, rules=rules, values=values)


def _numbered_columns(
    columns: MatchColumns, texts: Texts, values: NumberedValues
) -> MatchColumns:  # fmt: skip
    template = columns.template.copy()
    for column, value, kind in columns.literals:
        template[column], _ = word_of(value, kind, texts, values)
    return replace(columns, template=template, values=values)
