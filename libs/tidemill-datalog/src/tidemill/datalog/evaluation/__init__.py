"""The evaluator of Tidelog: interval sets instead of instants, joins compiled to loops, strata in
order.
"""

from tidemill.datalog.evaluation.failures import ErrorPresence
from tidemill.datalog.evaluation.limits import LimitPassed, Limits
from tidemill.datalog.evaluation.state import EngineState

__all__ = ["EngineState", "ErrorPresence", "LimitPassed", "Limits"]
