"""Writers: a DataFrame, or a batch of a stream, as one insert with one token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from tidemill.client.spark.options import Options
from tidemill.errors import Indeterminate, Unavailable, UsageError
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.messages import Inserted
from tidemill.runtime.clock import SystemClock

BYTES_MAX = 48 << 20
"""Bytes of one insert in Arrow, below the limit of a message."""
ATTEMPTS = 8
"""Inserts of the same rows with the same token before the job fails."""

StreamArrowWriter: type = getattr(
    datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter
)
"""Base of stream writers; Spark 4.0 has none that take Arrow."""


class Written(WriterCommitMessage):  # type: ignore[misc]  # pyspark has no types
    """The rows of a task as an Arrow stream; empty for none."""

    def __init__(self, rows: bytes) -> None:
        self.rows = rows


def gathered(given: Iterator[pa.RecordBatch]) -> Written:
    """The rows of a task. Raises: UsageError if they are more than one insert takes."""
    sink, writer = pa.BufferOutputStream(), None
    for batch in given:
        if batch.num_rows:
            writer = writer or pa.ipc.new_stream(sink, batch.schema)
            writer.write_batch(batch)
            _refuse_many(sink.tell())
    if writer is None:
        return Written(b"")
    writer.close()
    return Written(sink.getvalue().to_pybytes())


def inserted(options: Options, messages: Sequence[object], token: str) -> Inserted | None:
    """Insert the rows of all tasks at one instant; None for no rows.

    Rows of a token that has been written are not written again.
    """
    rows = [each.rows for each in messages if isinstance(each, Written) and each.rows]
    if len([each for each in messages if each is not None]) < len(messages):
        raise UsageError("the rows of some task are missing: nothing is written", reason="rows")
    if not rows:
        return None
    _refuse_many(sum(map(len, rows)))
    table = pa.concat_tables([pa.ipc.open_stream(each).read_all() for each in rows])

    async def insert(client: AsyncClient) -> Inserted:
        for attempt in range(ATTEMPTS):
            try:
                return await client.insert(options.collection, table, token=token)
            except (Unavailable, Indeterminate):
                if attempt == ATTEMPTS - 1:
                    raise
                await SystemClock().sleep(0.1 * 2**attempt)
        raise AssertionError(token)

    with options.connect() as calls:
        return calls.drive(insert)


def _refuse_many(size: int) -> None:
    if size > BYTES_MAX:
        raise UsageError(
            f"a DataFrame is written by one insert at one instant, of at most {BYTES_MAX >> 20} MB of "
            "Arrow: write it in parts, each with an idempotencyKey of its own",
            reason="rows",
        )


class RowsWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes a DataFrame into a table: all rows at one instant, or none.

    Tasks that run again change nothing. With an `idempotencyKey` a job that runs again, after the
    death of its driver, writes nothing that it has written.
    """

    def __init__(self, options: Options, token: str) -> None:
        self._options = options
        self._token = token

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Take the rows of a task; nothing is written yet."""
        return gathered(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Insert the rows of all tasks."""
        inserted(self._options, messages, self._token)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """No effect: nothing has been written."""


class BatchesWriter(StreamArrowWriter):  # type: ignore[misc]
    """Writes each batch of a stream into a table, once for its number and the key of the stream."""

    def __init__(self, options: Options, token: str) -> None:
        self._options = options
        self._token = token

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Take the rows of a task; nothing is written yet."""
        return gathered(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Insert the rows of a batch."""
        inserted(self._options, messages, f"{self._token}-batch-{batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """No effect: nothing has been written."""
