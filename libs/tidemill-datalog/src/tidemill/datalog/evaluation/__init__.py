"""The evaluator of Tidelog: interval sets instead of instants, joins compiled to loops, strata in order."""

from tidemill.datalog.evaluation.engine import Engine, Evaluation, Presences, evaluate
from tidemill.datalog.evaluation.failures import ErrorPresence
from tidemill.datalog.evaluation.fixpoint import LimitPassed, Limits
from tidemill.datalog.evaluation.state import EngineState

__all__ = [
    "Engine", "EngineState", "ErrorPresence", "Evaluation", "LimitPassed", "Limits", "Presences", "evaluate",
]  # fmt: skip
