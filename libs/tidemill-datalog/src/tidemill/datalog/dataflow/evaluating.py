"""A program evaluated once by the dataflow, over inputs that are known whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tidemill.arrangement.looks import let_go, with_looks
from tidemill.datalog.allowance import Allowance, found_bytes
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow.engine import DataflowEngine
from tidemill.datalog.limits import Limits
from tidemill.datalog.logical.plan import LogicalPlan
from tidemill.datalog.presence import END, ErrorPresence, Instant, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.state import StateRow


def evaluate_plan(
    plan: LogicalPlan,
    inputs: Mapping[str, Sequence[Presence]],
    *,
    upper: int,
    told: Iterable[str],
    limits: Limits | None = None,
    allowance: Allowance | None = None,
    lower: int | None = None,
    state: Sequence[StateRow] = (),
    carrying: Collection[str] | None = None,
) -> tuple[dict[str, list[Presence]], Sequence[ErrorPresence]]:
    """Presences of the predicates `told` below an instant, and the errors.

    With `lower` they are those from then on. A `state` was written just after it, by an engine with
    the same `carrying`, which is what `undeclared` finds unless it is said. An end at or after
    `upper` counts as none. Raises: NotInDataflow, Exhausted, LimitPassed, Corrupt. Cost: one step.
    """
    engine = DataflowEngine(
        plan.checked, plan=plan, told=told, limits=limits, allowance=allowance,
        keeps_state=bool(state),
        carrying=undeclared(plan.checked, inputs) if carrying is None else carrying,
    )  # fmt: skip
    if lower is not None:
        numbers = {rule.number for rule in plan.rules}
        engine.restore((row for row in state if row[0] in numbers), lower + 1)
    for name, presences in inputs.items():
        seen = presences
        if lower is not None:
            seen = [replace(each, start=max(each.start, lower)) for each in presences]
        engine.feed_presences(name, seen)
    changes = engine.step(upper)
    for each in changes.values():  # of which each is a record soon
        engine.allowance.take(len(each) * found_bytes(len(each.schema.kinds)))
    return {name: presences_of(found.records()) for name, found in changes.items()}, engine.errors()


def undeclared(checked: CheckedProgram, inputs: Mapping[str, Sequence[Presence]]) -> set[str]:
    """The inputs of which some record carries other lattices than its schema says. Cost: O(n)."""
    found = set()
    for name, presences in inputs.items():
        known = checked.inputs.get(name)
        names = {lattice for lattice, _ in known.lattices} if known is not None else set()
        if any({each for each, _ in p.record.parafacts} != names for p in with_looks(presences)):
            found.add(name)
    return found


def presences_of(changes: Iterable[tuple[Instant, Record, int]]) -> list[Presence]:
    """The stretches that the changes of one predicate draw, those of each record by instant."""
    # NB: the garbage collector goes through a container that is young twice, and at once. These are
    # old soon: each presence that is made for them counts for its next look.
    found: list[Presence] = []
    begun: dict[Record, Presence] = {}
    for at, record, diff in with_looks(changes):
        if diff > 0:
            begun[record] = Presence(record, at, END)
        else:
            found.append(Presence(record, begun.pop(record).start, at))
    found.extend(with_looks(begun.values()))
    let_go(begun)
    return found
