"""Answers are Arrow streams, which pyarrow and DuckDB take without a word of ours."""

from __future__ import annotations

import duckdb
import pyarrow as pa

from tidemill.client.connection import SqlAnswer
from tidemill.rpc.messages import Answer
from tidemill.time import frontier

TABLE = pa.table({"name": ["a", "b", None], "load": pa.array([1, 2, 3], pa.int64())})


def test_an_answer_is_a_stream_of_its_rows() -> None:
    answer = Answer(TABLE, 7, frontier(0), frontier(8), "hosts")
    assert pa.table(answer).equals(TABLE)
    wider = pa.schema([("name", pa.large_string()), ("load", pa.int64())])
    assert pa.table(answer, schema=wider).schema == wider
    with pa.RecordBatchReader.from_stream(answer) as stream:
        assert stream.read_all().equals(TABLE)
    with duckdb.connect() as connection:
        found = connection.from_arrow(pa.RecordBatchReader.from_stream(answer)).sum("load")
        assert found.fetchall() == [(6,)]


def test_duckdb_finds_an_answer_by_its_name() -> None:
    hosts = SqlAnswer(TABLE, 7, {})
    with duckdb.connect() as connection:
        assert connection.sql("SELECT count(*), max(name) FROM hosts").fetchall() == [(3, "b")]
    assert hosts.as_of == 7
