"""The derivations of each collection, as an engine keeps them alone or together with others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from tidemill.arrangement.interval_updates import Merged, Passed, RowsAsOf
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.operators.blending import Blended
from tidemill.datalog.dataflow.operators.errors import Errors
from tidemill.datalog.dataflow.plan import DataflowPlan, Join, Subtract


def shared_inputs(plan: DataflowPlan) -> dict[str, RowsAsOf]:
    """The inputs whose words mean the same to all engines with the same texts.

    Facts that carry lattices or sets have numbers that only their own engine knows.
    """
    derived, found = {rule.form.head.predicate for rule in plan.rules}, {}
    for name in sorted(plan.inputs - derived):
        schema = plan.collections[name].schema
        if not (schema.carrying or schema.lattices or schema.numbered):
            found[name] = RowsAsOf(schema.columns, schema.key, schema.expiry)
    return found


Derivations: TypeAlias = Merged | Blended | RowsAsOf | Passed
"""The derivations of one collection."""


def kept_derivations(
    plan: DataflowPlan, shared: Mapping[str, RowsAsOf], errors: Errors, texts: Texts, ticked: bool
) -> dict[str, Derivations]:  # fmt: skip
    """The derivations of each collection; groups have one fact at most, whatever its time.

    Of recursions by differences the best derivation of each fact is kept. Facts that nobody looks
    up are not kept if all of their derivations are different.
    """
    passed = set() if ticked else _passed(plan)
    grouped = {
        rule.form.head.predicate
        for rule in plan.rules
        if rule.reduce is not None and not rule.reduce.by_time
    }.difference(*plan.loops)
    found: dict[str, Derivations] = {}
    for name, collection in plan.collections.items():
        schema = collection.schema
        if name in shared:
            found[name] = shared[name]
        elif schema.carrying:
            found[name] = Blended(schema, errors, texts)
        elif name in passed:
            found[name] = Passed(schema.columns)
        else:
            key = schema.key[name in grouped :]
            found[name] = Merged(schema.columns, key, schema.order, best_only=schema.aged)
    return found


def count_of(merged: Derivations) -> int:
    """The number of facts, for the limit of rows."""
    return merged.count if isinstance(merged, Passed) else len(merged.facts)


def _passed(plan: DataflowPlan) -> set[str]:
    """The collections that one rule derives, each fact by one match, and that nobody looks up."""
    deltas = [delta for rule in plan.rules for delta in rule.deltas]
    deltas += [rule.again for rule in plan.rules if rule.again is not None]
    read = {
        step.collection
        for delta in deltas
        for step in delta.steps
        if isinstance(step, Join | Subtract)
    }
    looped = {name for loop in plan.loops for name in loop}
    for rule in plan.rules:
        if rule.form.head.predicate in looped:  # it may begin again from all that it reads
            read.update(delta.source for delta in rule.deltas)
    for name, collection in plan.collections.items():
        if collection.lives is not None:
            read |= {name, collection.lives.met, collection.lives.stays}
    rules = Counter(rule.form.head.predicate for rule in plan.rules)
    found = {
        rule.form.head.predicate
        for rule in plan.rules
        if rule.distinct and rule.reduce is None and rules[rule.form.head.predicate] == 1
    }
    return found.difference(read, plan.inputs, *plan.loops)
