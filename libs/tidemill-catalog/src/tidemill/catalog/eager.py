"""Eager actions: whether a goal over a view may fire early."""

from __future__ import annotations

from tidemill.catalog.catalog import Catalog
from tidemill.catalog.entry import CatalogEntry, PlannedView
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.eager import eager_refusal
from tidemill.datalog.goals import Goal
from tidemill.runtime.resources import SourceSpec


def refuse_eager(view: PlannedView, goal: Goal, catalog: Catalog) -> None:
    """Raises: ProgramErrors (S129), at the rule that keeps the goal from firing early."""
    named = view.inputs.items()
    unfit = {p: why for p, each in named if (why := _unfit(each, catalog)) is not None}
    refusal = eager_refusal(view.program, goal, unfit)
    if refusal is not None:
        of_goal = refusal.file != view.program.program.file
        raise ProgramErrors([refusal], goal.text if of_goal else view.program.program.text)


def _unfit(named: CatalogEntry, catalog: Catalog) -> str | None:
    """The kind of an input whose rows are no events with an expiry; None for an input of such
    events.
    """
    stored = catalog.applied_source(named.name)
    if stored is None or named.kind != "Source":
        kinds = {"Table": "a table", "View": "what another view derives"}
        return f"{kinds.get(named.kind, 'no source')}, whose rows may be taken back"
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    if spec.envelope.key:
        return "a source with envelope.key, whose rows are taken back"
    return None if spec.event_time is not None else "a source without eventTime"
