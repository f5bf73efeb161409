"""The derivations of each collection, as an engine keeps them alone or together with others."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.arrangement.interval_updates import Merged, RowsAsOf
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.operators.blending import Blended
from tidemill.datalog.dataflow.operators.errors import Errors
from tidemill.datalog.dataflow.plan import DataflowPlan


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


def kept_derivations(
    plan: DataflowPlan, shared: Mapping[str, RowsAsOf], errors: Errors, texts: Texts
) -> dict[str, Merged | Blended | RowsAsOf]:  # fmt: skip
    """The derivations of each collection; groups have one fact at most, whatever its time.

    Of recursions by differences the best derivation of each fact is kept.
    """
    grouped = {
        rule.form.head.predicate
        for rule in plan.rules
        if rule.reduce is not None and not rule.reduce.by_time
    }.difference(*plan.loops)
    found: dict[str, Merged | Blended | RowsAsOf] = {}
    for name, collection in plan.collections.items():
        schema = collection.schema
        if name in shared:
            found[name] = shared[name]
        elif schema.carrying:
            found[name] = Blended(schema, errors, texts)
        else:
            key = schema.key[name in grouped :]
            found[name] = Merged(schema.columns, key, schema.order, best_only=schema.aged)
    return found
