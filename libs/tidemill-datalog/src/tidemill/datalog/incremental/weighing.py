"""What an incremental engine holds, by the sizes of its parts."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.datalog.allowance import match_bytes
from tidemill.datalog.incremental.looped import LoopedUnit
from tidemill.datalog.incremental.program import AnyUnit
from tidemill.datalog.incremental.surroundings import Present
from tidemill.datalog.incremental.unit import Unit

_STEP_BYTES = 8 << 20
_STEP_SHARE = 16


def weigh(present: Present, units: Sequence[AnyUnit]) -> int:
    """Settle the allowance at what tables, matches and rounds take now; from where on it is worth
    weighing again.

    Tables tell it by a sample of their rows; texts that rules made are counted one by one. Raises:
    Exhausted. Cost: some hundred microseconds for each table, once in a sixteenth of what is held.
    """
    held = sum(table.size_bytes() for table in present.tables.values())
    for unit in units:
        if isinstance(unit, Unit):
            held += unit.texts_held
            held += sum(len(rule) * match_bytes(len(rule.form.atoms)) for rule in unit.rules)
        elif isinstance(unit, LoopedUnit):
            held += unit.bytes_held
    allowance = present.around.allowance
    allowance.begin(held)
    return allowance.held + max(_STEP_BYTES, held // _STEP_SHARE)
