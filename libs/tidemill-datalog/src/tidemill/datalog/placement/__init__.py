"""Placement: which rules of a program can be evaluated range by range, and what crosses between.

A pure analysis of the plan. Importing it loads loops.
"""

from tidemill.datalog.placement.apart import apart_line
from tidemill.datalog.placement.heavy import heavy_keys
from tidemill.datalog.placement.live import (
    Live,
    kept_nowhere,
    live_line,
    live_of,
    live_of_heavy,
)
from tidemill.datalog.placement.places import Fragment, HeavyKey, Place, Placement, Read
from tidemill.datalog.placement.placing import placement_of
from tidemill.datalog.placement.sizes import ranges_for
from tidemill.datalog.placement.telling import placement_document, placement_lines

__all__ = [
    "Fragment", "HeavyKey", "Live", "Place", "Placement", "Read", "apart_line", "heavy_keys",
    "kept_nowhere", "live_line", "live_of", "live_of_heavy", "placement_document", "placement_lines",
    "placement_of", "ranges_for",
]  # fmt: skip
