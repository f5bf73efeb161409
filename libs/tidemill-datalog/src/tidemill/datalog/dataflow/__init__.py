"""The dataflow: one plan, one representation, each operator once.

A program is lowered to a plan of collections and operators (`plan`, `lowering`). A collection is an
arrangement of interval updates. Operators turn changes into changes (`operators`). The engine hands
them on in the order of its strategy (`engine`, `scheduler`). Importing it loads loops.
"""

from tidemill.datalog.dataflow.engine import DataflowEngine
from tidemill.datalog.dataflow.evaluating import evaluate_plan
from tidemill.datalog.dataflow.explaining import (
    Document,
    analysis_document,
    analysis_lines,
    plan_document,
    plan_dot,
    plan_lines,
)
from tidemill.datalog.dataflow.lowering import lower, missing_in
from tidemill.datalog.dataflow.output_changes import OutputChanges
from tidemill.datalog.dataflow.plan import DataflowPlan
from tidemill.datalog.dataflow.schema import NotInDataflow, Schema

__all__ = [
    "DataflowEngine", "DataflowPlan", "Document", "NotInDataflow", "Schema", "OutputChanges",
    "analysis_document", "analysis_lines", "evaluate_plan", "lower", "missing_in", "plan_document",
    "plan_dot", "plan_lines",
]  # fmt: skip
