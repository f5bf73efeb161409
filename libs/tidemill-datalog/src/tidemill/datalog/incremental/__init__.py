"""Tidelog kept up to date: matches found when facts come and let go when they go, strata in order."""

from tidemill.datalog.incremental.changes import (
    Changes,
    ErrorChange,
    FactBlock,
    FactChange,
    FactChanges,
)
from tidemill.datalog.incremental.engine import IncrementalEngine, presences_of_changes
from tidemill.datalog.incremental.program import follows
from tidemill.datalog.incremental.scheduling import Strategy
from tidemill.datalog.incremental.versions import FactVersion, Given, Later, Pause, paused

__all__ = [
    "Changes", "ErrorChange", "FactBlock", "FactChange", "FactChanges", "FactVersion", "Given",
    "IncrementalEngine", "Later", "Pause", "Strategy", "follows", "paused", "presences_of_changes",
]  # fmt: skip
