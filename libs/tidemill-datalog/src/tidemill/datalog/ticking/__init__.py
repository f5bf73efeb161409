"""Ticked programs over a timeline: schedule and inputs of ticks, and explanations."""

from tidemill.datalog.tick_plan import TickPlan
from tidemill.datalog.ticking.history import TickHistory, recorded
from tidemill.datalog.ticking.run import TickRun, TickStart
from tidemill.datalog.ticking.why import why_in_ticks
from tidemill.datalog.ticking.why_not import why_not_in_ticks

__all__ = [
    "TickHistory", "TickPlan", "TickRun", "TickStart", "recorded", "why_in_ticks",
    "why_not_in_ticks",
]  # fmt: skip
