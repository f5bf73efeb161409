"""The dataflow: one plan, one representation, each operator once.

A program is lowered to a plan of collections and operators (`plan`, `lowering`). A collection is an
arrangement of interval updates. Operators turn changes into changes (`operators`). The engine hands
them on in the order of its strategy (`engine`, `scheduler`). Importing it imports numba.
"""

from tidemill.datalog.dataflow.engine import DataflowEngine, Told
from tidemill.datalog.dataflow.evaluating import evaluate_plan
from tidemill.datalog.dataflow.explaining import explain_figures
from tidemill.datalog.dataflow.lowering import lower, missing_in
from tidemill.datalog.dataflow.plan import DataflowPlan
from tidemill.datalog.dataflow.schema import NotInDataflow, Schema

__all__ = [
    "DataflowEngine", "DataflowPlan", "NotInDataflow", "Schema", "Told", "evaluate_plan",
    "explain_figures", "lower",
    "missing_in",
]  # fmt: skip
