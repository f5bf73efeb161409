"""Why a record is present, and why one is not, as text for people and a tree for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.datalog.why import why
from tidemill.datalog.why_not import why_not
from tidemill.rpc.messages import Explanation

Inputs: TypeAlias = "Mapping[str, Sequence[Presence]]"
Reason: TypeAlias = "Callable[[CheckedProgram, Inputs, Record, int], Explanation]"


def proof(program: CheckedProgram, inputs: Inputs, record: Record, at: int) -> Explanation:
    """A proof tree down to inputs."""
    found = why(program, inputs, record, at)
    return Explanation(found.render(), found.tree())


def absence(program: CheckedProgram, inputs: Inputs, record: Record, at: int) -> Explanation:
    """One reason for each rule that could derive the record."""
    found = why_not(program, inputs, record, at)
    text = "\n".join(reason.render() for reason in found)
    return Explanation(text, [reason.details() for reason in found])
