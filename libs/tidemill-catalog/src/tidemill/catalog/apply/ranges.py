"""The ranges of a view, which several processes may keep: by which columns its inputs are divided.

That is decided once, when the view is applied, and kept with it: the state of a range is of it.
"""

from __future__ import annotations

from dataclasses import replace

from tidemill.catalog.entry import PLACES, PlannedView, located
from tidemill.catalog.store import Stored
from tidemill.errors import UsageError
from tidemill.runtime.resources import Resource, ViewSpec


def refuse_spark(resource: Resource) -> None:
    """Raises: UsageError for a view of several ranges that asks for windows on Spark."""
    spec = resource.spec
    if isinstance(spec, ViewSpec) and spec.ranges > 1 and spec.engine == "spark":
        with located(resource, "spec", "engine"):
            raise UsageError(
                "ranges are kept by processes of compute: leave engine out, or ranges",
                reason="NoRanges",
            )


def with_places(stored: Stored, view: PlannedView | None) -> Stored:
    """The resource with the places of its inputs, if it is a view of several ranges.

    Raises: UsageError for a program whose ranges would need each other, with what to change.
    """
    spec = stored.resource.spec
    if view is None or not isinstance(spec, ViewSpec) or spec.ranges == 1:
        return stored
    refuse_spark(stored.resource)
    if PLACES in stored.resolved:  # its states are of these, whatever an analysis says by now
        return stored
    from tidemill.datalog.placement.apart import InTheWay, places_apart  # loads loops

    with located(stored.resource, "spec", "ranges"):
        found = places_apart(view.program)
        if isinstance(found, InTheWay):
            advice = f"; {found.advice}" if found.advice else ""
            raise UsageError(
                f"the program cannot be kept range by range: {found.reason}{advice}; or leave "
                "ranges out",
                reason="NoRanges",
            )
        for name, positions in found.items():
            shape = view.inputs[name].shape
            for at in positions:
                if not shape.divides(at):
                    raise UsageError(
                        f"rows of {name} cannot be divided by {shape.schema.names[at - 1]}, whose "
                        "values are sets or of any type: join by another column, or leave ranges "
                        "out",
                        reason="NoRanges",
                    )
    places = {name: list(positions) for name, positions in found.items()}
    return replace(stored, resolved={**stored.resolved, PLACES: places})
