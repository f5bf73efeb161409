"""A job in a process of this machine: `python -m tidemill.spark.local_job`.

The specification comes on its standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from tidemill.shard.stores import BlobPlace
from tidemill.spark.local_settings import LocalSettings
from tidemill.spark.session import local_session
from tidemill.spark.workplace import Workplace, run_module, say


class LocalJob(msgspec.Struct, frozen=True):
    """Specification of the process; the result goes to the file `result`."""

    module: str
    spec: bytes
    blob: BlobPlace
    session: LocalSettings
    result: str


def main() -> None:
    """Read what to do, do it, leave the result."""
    told = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=LocalJob)
    spark = local_session(told.module, told.session)
    try:
        result = run_module(told.module, told.spec, Workplace(spark, told.blob, say))
    finally:
        spark.stop()
    Path(told.result).write_bytes(result)


if __name__ == "__main__":
    main()
