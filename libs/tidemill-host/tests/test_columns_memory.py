"""Columns of a process of ours come from the memory of the C library, whoever makes them."""

from __future__ import annotations

import subprocess
import sys

WRITTEN = """
import tidemill.host
import pyarrow as pa
import pyarrow.parquet as pq

table = pa.table({"n": range(100_000)})
sink = pa.BufferOutputStream()
pq.write_table(table, sink, compression="zstd")
pq.read_table(pa.BufferReader(sink.getvalue()))
with pa.ipc.new_stream(pa.BufferOutputStream(), table.schema, options=pa.ipc.IpcWriteOptions(
    compression="lz4"
)) as stream:
    stream.write_table(table)
print(pa.default_memory_pool().backend_name, pa.default_memory_pool().max_memory() > 0)
for backend in set(pa.supported_memory_backends()) - {"system"}:
    print(getattr(pa, f"{backend}_memory_pool")().max_memory())
"""


def test_columns_of_files_and_messages_are_of_the_memory_that_is_given_back() -> None:
    command = [sys.executable, "-c", WRITTEN]
    said = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()
    assert said[:2] == ["system", "True"]
    assert all(taken == "0" for taken in said[2:])
