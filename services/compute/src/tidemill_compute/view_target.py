"""What a view is: its program, the collections it reads and writes, how it is evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import pyarrow as pa

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.evaluation import Limits
from tidemill.datalog.incremental import Strategy
from tidemill.datalog.incremental.running import Batch, Skew
from tidemill.time import Frontier
from tidemill_compute.record_rows import PredicateShape

STATE_SCHEMA = pa.schema(
    [pa.field("rule", pa.int64()), pa.field("kind", pa.string()), pa.field("solution", pa.string())]
)
ERROR_SCHEMA = pa.schema([pa.field("error", pa.string())])

Engine: TypeAlias = Literal["auto", "incremental", "scratch"]
Admission: TypeAlias = "Literal['tick', 'eager'] | Batch | Skew"


@dataclass(frozen=True, slots=True)
class TickPlan:
    """At which instants a ticked program runs, at how many nodes, and what of its inputs a tick takes in.

    Ticks are at k·`period_ms`; without a period at the instants at which an input changes, and one instant
    after each message. An input in `place` gives each row to the node that this argument of it names; all
    others are seen by every node. Nodes are 0, 1, … below `nodes`.
    """

    period_ms: int | None = None
    nodes: int = 1
    place: Mapping[str, int] = field(default_factory=dict)
    admission: Mapping[str, Admission] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ViewTarget:
    """A view: its program, the collection of each input and output, its errors and its state.

    `ticks` is there if and only if the program is ticked. History of the inputs before `begin` does not
    count; without it all that can be read does.
    """

    name: str
    program: CheckedProgram
    inputs: Mapping[str, tuple[str, PredicateShape]]
    outputs: Mapping[str, tuple[str, PredicateShape]]
    errors: str
    state: str
    ticks: TickPlan | None = None
    engine: Engine = "auto"
    strategy: Strategy = "strata"
    begin: Frontier | None = None
    limits: Limits = field(default_factory=Limits)
