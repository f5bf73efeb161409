"""Eager actions: the events that are read so that a goal over a view fires early."""

from __future__ import annotations

from dataclasses import replace

from tidemill.catalog.catalog import Catalog
from tidemill.catalog.entry import PlannedView, state_of
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.eager import inputs_below
from tidemill.datalog.limits import Limits
from tidemill_compute.actions.early import EarlyTarget
from tidemill_compute.events.source_streams import stream_of


def early_target(
    view: PlannedView, predicate: str, catalog: Catalog, limits: Limits, allowance: Allowance
) -> EarlyTarget:
    """Target of an eager action over a predicate of the view."""
    inputs = {}
    for name in inputs_below(view.program, predicate):
        stored = catalog.applied_source(view.inputs[name].name)
        assert stored is not None, "what is no source was refused"
        shape = replace(view.inputs[name].shape, predicate=name)
        inputs[name] = (*stream_of(stored), shape)
    return EarlyTarget(predicate, view.program, inputs, state_of(view), limits, allowance)
