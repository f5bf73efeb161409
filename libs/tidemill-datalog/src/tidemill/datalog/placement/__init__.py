"""Placement: which rules of a program can be evaluated range by range, and what crosses between.

A pure analysis of the plan. Importing it imports numba.
"""

from tidemill.datalog.placement.live import Live, kept_nowhere, live_line, live_of
from tidemill.datalog.placement.places import Fragment, Place, Placement, Read
from tidemill.datalog.placement.placing import placement_of
from tidemill.datalog.placement.telling import placement_document, placement_lines

__all__ = [
    "Fragment", "Live", "Place", "Placement", "Read", "kept_nowhere", "live_line", "live_of",
    "placement_document", "placement_lines", "placement_of",
]  # fmt: skip
