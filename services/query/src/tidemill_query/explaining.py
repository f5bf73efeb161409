"""Maintenance of a view by the dataflow: its plan, and one derivation measured.

Importing it loads loops.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidemill.catalog.directory import Readable
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import (
    DataflowEngine,
    Document,
    analysis_document,
    analysis_lines,
    plan_document,
    plan_dot,
    plan_lines,
)
from tidemill.datalog.logical.plan import logical_plan
from tidemill.datalog.logical.plan_text import scan_lines
from tidemill.datalog.placement import (
    HeavyKey,
    Live,
    apart_line,
    heavy_keys,
    live_line,
    live_of,
    live_of_heavy,
    placement_document,
    placement_lines,
    placement_of,
    ranges_for,
)
from tidemill.datalog.presence import Presence
from tidemill.errors import UsageError
from tidemill.shard.heavy_values import heavy_over
from tidemill.shard.parts import Part


@dataclass(frozen=True, slots=True)
class Known:
    """About how many `rows` inputs have, and which keys of theirs a history would divide."""

    rows: Mapping[str, int]
    heavy: Sequence[HeavyKey] = ()


NOTHING = Known({})


def known_of(inputs: Mapping[str, tuple[Readable, Sequence[Part]]]) -> Known:
    """The statistics of the parts of a view's inputs. Cost: O(parts)."""
    rows = {name: sum(part.rows for part in parts) for name, (_, parts) in inputs.items()}
    total = sum(rows.values())
    least, heavy = total // ranges_for(total, 1), list[HeavyKey]()
    for name, (readable, parts) in inputs.items():
        kinds = enumerate(readable.columns[: readable.arguments], 1)
        columns = {column: at for at, (column, kind) in kinds if kind not in ("set", "any")}
        heavy += heavy_keys(name, columns, heavy_over(part.heavy for part in parts), least)
    return Known(rows, heavy)


def plan_text(program: CheckedProgram, known: Known) -> list[str]:
    """The plan of a program; of one tick, if it is ticked."""
    return _flow_lines(program, _document(program, known))


def plan_json(program: CheckedProgram, known: Known) -> str:
    """The plan as JSON."""
    return json.dumps(_document(program, known), indent=2)


def plan_drawn(program: CheckedProgram) -> str:
    """The plan in the language DOT."""
    return plan_dot(_document(program, NOTHING))


def _document(program: CheckedProgram, known: Known) -> Document:
    flow = DataflowEngine(program, ticked=program.ticked)
    return {**plan_document(flow.plan, flow.checked), **_placed(program, known)}


def _placed(program: CheckedProgram, known: Known) -> Document:
    placement = placement_of(program, rows=known.rows, heavy=known.heavy)
    live = live_of(placement_of(program, rows=known.rows), program.derived)
    live = live_of_heavy(live, placement, program.derived)
    document = placement_document(placement, program, known.rows)
    told = {"lacking": live.lacking, "whole": live.whole, "moves": live.moves}
    document |= {"live": told | {"undivided": live.undivided}}
    return {"placement": document}


def _flow_lines(program: CheckedProgram, document: Document) -> list[str]:
    scans = scan_lines(logical_plan(program))
    reads = ["reads", *scans, ""] if scans else []
    placement = document["placement"]
    placed = ["", "placement on Spark", *placement_lines(placement)]
    placed += [live_line(Live(**placement["live"])), apart_line(program)]
    return [*reads, "dataflow", *plan_lines(document), *placed]


def analysis_text(
    program: CheckedProgram,
    inputs: Mapping[str, Sequence[Presence]],
    at: int,
    timer: Callable[[], float],
    allowance: Allowance | None = None,
) -> list[str]:
    """The plan for the facts that the inputs hold at an instant, with the cost of deriving all.

    Solutions that outlive the facts that established them are not derived. Raises: UsageError for a
    program with ticks. Cost: one derivation of everything.
    """
    document = _derived(program, inputs, at, timer, allowance)
    said = f"derived once from what the inputs hold at {at}"
    return [*_flow_lines(program, document), "", said, *analysis_lines(document)]


def analysis_json(
    program: CheckedProgram,
    inputs: Mapping[str, Sequence[Presence]],
    at: int,
    timer: Callable[[], float],
    allowance: Allowance | None = None,
) -> str:
    """The same as JSON. Raises: UsageError for a program with ticks."""
    return json.dumps({"at": at, **_derived(program, inputs, at, timer, allowance)}, indent=2)


def _derived(
    program: CheckedProgram,
    inputs: Mapping[str, Sequence[Presence]],
    at: int,
    timer: Callable[[], float],
    allowance: Allowance | None,
) -> Document:
    if program.ticked:
        raise UsageError(
            "a program with ticks is not derived from one instant: ask for its plan",
            reason="TickedProgram",
        )
    flow = DataflowEngine(program, timer=timer, allowance=allowance)
    for predicate, presences in inputs.items():
        flow.feed_presences(predicate, presences)
    flow.step(at + 1)
    return {**analysis_document(flow), **_placed(program, NOTHING)}
