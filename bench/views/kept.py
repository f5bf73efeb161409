"""A view by the code with which the service keeps it, without its stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from bench.views.engine import Columns, I64Array
from tidemill.arrangement.updates import DIFF, TIME, stamp
from tidemill.catalog.record_rows import shape_of_output, shape_of_relation
from tidemill.datalog.checked import CheckedProgram
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.dataflow import DataflowMaintainer
from tidemill_compute.views.input_state import InputState
from tidemill_compute.views.view_target import ViewTarget
from tidemill_compute.views.view_updates import Start


class Kept:
    """One output of relations of whole numbers, kept by a maintainer of the service."""

    def __init__(self, checked: CheckedProgram) -> None:
        (self._wanted,) = checked.derived
        shapes = {
            name: shape_of_relation(name, pa.schema([(c, pa.int64()) for c, _ in columns]))
            for name, columns in checked.columns.items()
            if name in checked.inputs
        }
        given = {name: (name, shape) for name, shape in shapes.items()}
        outputs = {self._wanted: ("v/out", shape_of_output(checked, self._wanted))}
        target = ViewTarget("v", checked, given, outputs, "v/errors", "v/state")
        self._inputs = {name: InputState(replace(s, predicate=name)) for name, s in shapes.items()}
        self._maintainer = DataflowMaintainer(target, ComputeSettings())
        self._maintainer.begin(Start(0, True), self._inputs)
        self._lower = 0

    def updates(self, name: str, columns: Sequence[I64Array], time: int, diff: int) -> pa.Table:
        """Rows of an input that come or go at an instant."""
        schema = self._inputs[name].shape.schema
        arrays = [pa.array(column) for column in columns]
        return stamp(pa.Table.from_arrays(arrays, schema=schema), time, diff)

    def step(self, upper: int, given: Mapping[str, pa.Table]) -> tuple[Columns, I64Array]:
        """The changes below `upper`: the columns of the output, and diffs."""
        for name, living in self._inputs.items():
            nothing = self.updates(name, [np.empty(0, np.int64)] * len(living.shape.schema), 0, 1)
            living.extend(given.get(name, nothing), upper)
        parts: list[pa.Table] = []
        while self._lower < upper:
            done = self._maintainer.step(self._lower, upper, None)
            updates = dict(done.updates)
            assert not updates["v/errors"].num_rows
            parts.append(updates["v/out"])
            self._lower = done.upper
        found = pa.concat_tables(parts)
        rows = found.drop_columns([TIME, DIFF])
        columns = [np.asarray(c.to_numpy(), np.int64) for c in rows.itercolumns()]
        return columns, np.asarray(found.column(DIFF).to_numpy(), np.int64)
