"""The engine `scratch`: all of a program over one window, on rows or on columns, whichever is
cheaper.

Its `windows` go on from window to window on columns; importing them imports numba.
"""

from tidemill.datalog.scratch.engine import Engine, Evaluation, Presences, evaluate

__all__ = ["Engine", "Evaluation", "Presences", "evaluate"]
