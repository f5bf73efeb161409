"""Views of a case evaluated range by range, by tasks of Spark as bulk jobs do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow.evaluating import presences_of, undeclared
from tidemill.datalog.dataflow.schema import instant_word
from tidemill.datalog.placement import placement_of
from tidemill.datalog.presence import Presence
from tidemill.datalog.ranges.packing import (
    pack_program,
    pack_work,
    unpack_worked,
    work_packed,
)
from tidemill.datalog.ranges.running import Ranges
from tidemill.datalog.ranges.work import Settings
from tidemill.errors import UsageError
from tidemill.host.launching import lacking_for_jobs
from tidemill.spark.local_settings import LocalSettings
from tidemill.spark.session import local_session
from tidemill_server.trials.answers import Facts

if TYPE_CHECKING:  # loaded with the first session
    from pyspark.sql import SparkSession

RANGES = 3
_ASKED = pa.schema([("number", pa.int64()), ("program", pa.binary()), ("work", pa.binary())])
_ANSWERED = "number long, answer binary"


@contextmanager
def spark_evaluator() -> Iterator[SparkEvaluator]:
    """An evaluator with a session of its own. Raises: UsageError where Spark cannot run."""
    if lacking := lacking_for_jobs():
        raise UsageError(lacking, reason="spark")
    with TemporaryDirectory() as scratch:
        session = local_session("tidemill test", LocalSettings(scratch=scratch))
        try:
            yield SparkEvaluator(session)
        finally:
            session.stop()


class SparkEvaluator:
    """Evaluates programs in one session; each exchange of a program is a job of about a second."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def evaluate(
        self, program: CheckedProgram, facts: Facts, upper: int
    ) -> Mapping[str, Sequence[Presence]]:
        """Presences below `upper` of all that a program derives.

        Raises: UsageError for a rule that fails; what Spark raises.
        """
        carrying = undeclared(program, facts)
        settings = Settings()
        running = Ranges(placement_of(program, carrying), RANGES, program.derived, settings)
        for name, presences in facts.items():
            words = [
                (each.record, instant_word(each.start), instant_word(each.end), 1)
                for each in presences
            ]
            running.feed(name, words)
        packed = pack_program(program, carrying, settings)
        steps = running.step(upper)
        try:
            works = next(steps)
            while True:
                answers = self._answers(packed, [pack_work(work) for work in works])
                works = steps.send([unpack_worked(answer) for answer in answers])
        except StopIteration as done:
            merged = done.value
        if merged.errors:
            raise UsageError(f"a rule fails: {merged.errors[0][0]}", reason="case")
        return {name: presences_of(merged.moves.get(name, ())) for name in program.derived}

    def _answers(self, program: bytes, works: Sequence[bytes]) -> list[bytes]:
        """One job, with a task for each piece of work."""
        columns = [[*range(len(works))], [program] * len(works), works]
        arrays = [pa.array(each, f.type) for each, f in zip(columns, _ASKED, strict=True)]
        frame = self._session.createDataFrame(pa.Table.from_arrays(arrays, schema=_ASKED))
        dealt = frame.repartitionById(max(1, len(works)), frame["number"].cast("int"))
        found = dealt.mapInArrow(answered, _ANSWERED).collect()
        return [bytes(row["answer"]) for row in sorted(found, key=lambda row: row["number"])]


def answered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The answers to the work of one task."""
    for batch in batches:
        asked = batch.to_pydict()
        answers = [work_packed(*each) for each in zip(asked["program"], asked["work"], strict=True)]
        yield pa.RecordBatch.from_arrays(
            [batch.column("number"), pa.array(answers, pa.binary())], ["number", "answer"]
        )
