"""Language cases on Spark: one session, and one job for what all cases ask at a time.

Ranges are evaluated by tasks of executors, which get nothing but packed programs and packed tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from tidemill.spark.dealing import dealt
from tidemill.spark.local_settings import LocalSettings
from tidemill.spark.session import local_session
from tidemill.testkit.conformance.meeting import Meeting, Question
from tidemill.testkit.conformance.registry import Case, Options, Outcome, run_case
from tidemill.testkit.ranges.packing import evaluate_packed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS = 4
CORES = 2
_ASKED = pa.schema(
    [("number", pa.int64()), ("task", pa.int32()), ("program", pa.binary()), ("work", pa.binary())]
)
_ANSWERED = "number long, answer binary"
_TICKS = "ticks of a program follow one another"


def run_together(cases: Sequence[Case], options: Options) -> list[Outcome]:
    """The outcome of each case. Cost: a session, and jobs for the exchanges of the longest case."""
    meeting = Meeting(len(cases))
    members = [_Member(meeting) for _ in cases]

    def run(case: Case, member: _Member) -> list[str]:
        try:
            return member.run(case, replace(options, evaluator=member))
        finally:
            meeting.leave()

    with TemporaryDirectory() as scratch, ThreadPoolExecutor(max(1, len(cases))) as threads:
        settings = LocalSettings(CORES, scratch=scratch)
        spark = local_session("conformance", settings)
        try:
            found = [*map(threads.submit, [run] * len(cases), cases, members)]
            meeting.serve(lambda asked: _answers(spark, asked))
            differences = [each.result() for each in found]
        finally:
            spark.stop()
    return [*zip(differences, (member.reason for member in members), strict=True)]


class _Member:
    """One case: whatever it evaluates is evaluated by executors."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self.reason = ""

    def run(self, case: Case, options: Options) -> list[str]:
        """Differences of the case; one with ticks is evaluated whole by one task."""
        if not isinstance(case, dict) or case.get("kind") != "ticks":
            return run_case(case, options)
        self.whole(_TICKS)
        packed = msgspec.msgpack.encode((case, options.strategy))
        (answer,) = self._meeting.ask([(b"", packed)])
        return msgspec.msgpack.decode(answer, type=list[str])

    def evaluate(self, program: bytes, works: Sequence[bytes]) -> Sequence[bytes]:
        """The packed answers of ranges to their packed tasks."""
        return self._meeting.ask([(program, work) for work in works])

    def whole(self, reason: str) -> None:
        """The plan of the case is one task."""
        self.reason = reason


def _answers(spark: SparkSession, asked: Sequence[Question]) -> list[bytes]:
    """One job, in which each question is a row and each task has as many as another."""
    rows = [(at, at % TASKS, program, work) for at, (program, work) in enumerate(asked)]
    columns = [
        pa.array(each, field.type)
        for each, field in zip(zip(*rows, strict=True), _ASKED, strict=True)
    ]
    frame = dealt(spark, pa.Table.from_arrays(columns, schema=_ASKED), "task")
    found = frame.mapInArrow(answer_in_task, _ANSWERED).collect()
    return [bytes(row["answer"]) for row in sorted(found, key=lambda row: row["number"])]


def answer_in_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The answers to the questions of one task."""
    for batch in batches:
        asked = batch.to_pydict()
        questions = zip(asked["program"], asked["work"], strict=True)
        answers = [_answer(program, work) for program, work in questions]
        yield pa.RecordBatch.from_arrays(
            [batch.column("number"), pa.array(answers, pa.binary())], ["number", "answer"]
        )


def _answer(program: bytes, work: bytes) -> bytes:
    if program:
        return evaluate_packed(program, work)
    case, strategy = msgspec.msgpack.decode(work)
    return msgspec.msgpack.encode(run_case(case, Options("dataflow", strategy)))
