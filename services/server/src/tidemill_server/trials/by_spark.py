"""Views of a case evaluated by Spark: as the history of a view, by the job that evaluates those."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME, consolidate
from tidemill.catalog.entry import PlannedView
from tidemill.catalog.record_rows import PredicateShape, record_of, row_of
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.dataflow.evaluating import presences_of
from tidemill.datalog.presence import END, Presence
from tidemill.errors import UsageError
from tidemill.host.launching import lacking_for_jobs
from tidemill.shard.encoding import unpack_part
from tidemill.shard.part_store import PartStore
from tidemill.shard.parts import Part
from tidemill.shard.state import Description
from tidemill.shard.stores import BlobPlace, open_blob
from tidemill.spark.local_settings import LocalSettings
from tidemill.spark.session import local_session
from tidemill.spark.workplace import Workplace
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.bulk import History
from tidemill_compute.views.bulk_spark import history_window
from tidemill_compute.views.view_target import ViewTarget
from tidemill_compute.views.view_updates import RowChange, update_table
from tidemill_compute.views.windows.spec import WindowResult, pack_window
from tidemill_compute.views.windows.window_job import run
from tidemill_server.trials.answers import Facts

if TYPE_CHECKING:  # loaded with the first session
    from pyspark.sql import SparkSession

RANGES = 3
"""Ranges at least, so that the few rows of a case are divided."""
_ERRORS = "errors"


@contextmanager
def spark_evaluator() -> Iterator[SparkEvaluator]:
    """An evaluator with a session of its own. Raises: UsageError where Spark cannot run."""
    if lacking := lacking_for_jobs():
        raise UsageError(lacking, reason="spark")
    with TemporaryDirectory() as scratch:
        session = local_session("tidemill test", LocalSettings(scratch=scratch))
        try:
            yield SparkEvaluator(session, Path(scratch) / "blob")
        finally:
            session.stop()


class SparkEvaluator:
    """Evaluates views in one session, over collections that it writes to a folder."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        place = BlobPlace(f"file:{folder}")
        self._here = Workplace(session, place, lambda line: None)
        self._unique = partial(next, map(str, count()))
        self._store = PartStore(open_blob(place, self._unique), self._unique)

    def evaluate(
        self, view: PlannedView, facts: Facts, upper: int
    ) -> Mapping[str, Sequence[Presence]]:
        """Presences from 0 on and below `upper` of the outputs of a view.

        Raises: UsageError for a rule that fails; what Spark raises. Cost: one job.
        """
        outputs = {name: (name, entry.shape) for name, entry in view.outputs.items()}
        inputs = {name: (f"in/{name}", entry.shape) for name, entry in view.inputs.items()}
        target = ViewTarget("view", view.program, inputs, outputs, _ERRORS, "state")
        written = {name: Description(shape.schema) for name, shape in outputs.values()}
        written |= {_ERRORS: Description(ERROR_SCHEMA), "state": Description(STATE_SCHEMA)}
        read = {
            collection: asyncio.run(self._write(collection, shape, facts[name]))
            for name, (collection, shape) in inputs.items()
        }
        history = History(target, ComputeSettings(), 0, upper, read, written)
        window = pack_window(history_window(history, self._unique(), 0, ranges=RANGES))
        result = msgspec.msgpack.decode(run(window, self._here), type=WindowResult)
        if result.failure:
            raise UsageError(result.message, reason="case")
        tables = {name: asyncio.run(self._read(result, name, written[name])) for name in written}
        if failed := tables[_ERRORS].to_pylist():
            raise UsageError(f"a rule fails: {next(iter(failed[0].values()))}", reason="case")
        return {name: _presences(tables[name], shape) for name, shape in outputs.values()}

    async def _write(
        self, collection: str, shape: PredicateShape, facts: Sequence[Presence]
    ) -> tuple[Description, tuple[Part, ...]]:
        description, row, changes = Description(shape.schema), row_of(shape), list[RowChange]()
        for each in facts:
            if each.end > max(each.start, 0):
                changes.append((row(each.record), int(max(each.start, 0)), 1))
                if each.end != END:
                    changes.append((row(each.record), int(each.end), -1))
        updates = update_table(changes, shape.schema)
        return description, await self._store.write(collection, description, updates)

    async def _read(self, result: WindowResult, name: str, description: Description) -> pa.Table:
        parts = [*map(unpack_part, result.parts.get(name, ()))]
        tables = [await self._store.table(part, description) for part in parts]
        return consolidate(pa.concat_tables([description.no_updates(), *tables]))


def _presences(updates: pa.Table, shape: PredicateShape) -> list[Presence]:
    make, rows = record_of(shape), updates.sort_by(TIME)
    times, diffs = rows.column(TIME).to_pylist(), rows.column(DIFF).to_pylist()
    columns = [rows.column(name).to_pylist() for name in shape.schema.names]
    records = map(make, zip(*columns, strict=True) if columns else [()] * len(times))
    return presences_of(zip(times, records, diffs, strict=True))
