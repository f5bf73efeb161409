"""Groups of which each range has a part: what a range says of one, and who puts parts together.

A rule that aggregates is two rules then. The first derives a fact for each group of its range. Of a
count or a sum that fact carries how many values there are, and the sums of their upper and lower
halves. The second rule reads what it carries as columns, and which range said it as another one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidemill.datalog.logical.forms import Constant, RuleForm
from tidemill.datalog.logical.plan import LogicalPlan
from tidemill.datalog.records import Record

PARTIAL = "#cross:groups:"
"""Before the place of a rule and its predicate: the groups of its matches in one range."""
GATHERED = "#held:groups:"
"""Before a predicate: the groups of several rules as columns, before one rule merges them.

These are no facts of the program, and no limit counts them.
"""
COUNTED, UPPER, LOWER = "#counted:", "#upper:", "#lower:"
"""Before the place of a lattice in its head: how many values are no nulls, sums of their halves.

No whole numbers are too large for the sums of upper and lower halves.
"""


def merges(rule: RuleForm) -> bool:
    """Whether a rule puts parts of groups together."""
    return len(rule.atoms) == 1 and PARTIAL in rule.atoms[0].predicate


def kind_of(lattice: str) -> str:
    """The name of a lattice, without its place in the head."""
    return lattice.rstrip("0123456789") if lattice[:1] == "#" else lattice


def plan_in(plan: LogicalPlan, number: int) -> LogicalPlan:
    """The plan of a fragment in one of its ranges: facts of groups say that they are of it."""
    if not any(rule.head.predicate.startswith(PARTIAL) for rule in plan.rules):
        return plan
    return plan.remade(
        replace(each, rules=tuple(_in(rule, number) for rule in each.rules))
        for each in plan.components
    )


def _in(rule: RuleForm, number: int) -> RuleForm:
    head = rule.head
    if not head.predicate.startswith(PARTIAL):
        return rule
    return replace(rule, head=replace(head, terms=(*head.terms[:-1], Constant(number))))


def flat(record: Record) -> Record:
    """The fact of a group as others read it: what it carries are columns, by names of lattices."""
    carried: list[Any] = []
    for _, value in record.parafacts:
        carried += value if isinstance(value, tuple) else [value]
    return replace(record, arguments=(*record.arguments, *carried), parafacts=())
