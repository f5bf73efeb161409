"""The driver of a job in a pod: `python -m tidemill.spark.pod_job TOLD`.

`pod_specs.driver_pod` starts it. Run by spark-submit, as a SparkApplication has it, it finds its
session's settings there.
"""

from __future__ import annotations

import re
import signal
import sys
from functools import partial
from pathlib import Path
from secrets import token_hex
from types import FrameType

import msgspec

from tidemill.errors import UsageError
from tidemill.shard.stores import open_blob
from tidemill.spark.launcher import digest_of
from tidemill.spark.pod_specs import TEMPLATE_FILE, PodJob
from tidemill.spark.pod_states import EXIT_MEMORY, EXIT_REFUSED
from tidemill.spark.session import jars_in, session_of
from tidemill.spark.workplace import Workplace, run_module, say

_MEMORY = re.compile(r"OutOfMemoryError|exit code:? 137|\(SIGKILL|OOMKilled|exit code:? 52\b")
"""Texts of Spark after it, or an executor, had too little memory."""


def main() -> None:
    """Do what the command line says, and leave the result in Blob."""
    signal.signal(signal.SIGTERM, _end)  # a pid 1 without a handler ignores it
    told = msgspec.json.decode(sys.argv[1], type=PodJob)
    try:
        run(told)
    except UsageError as error:
        say(f"refused: {error}")
        sys.exit(EXIT_REFUSED)
    except Exception as error:
        say(f"failed: {error}")
        sys.exit(EXIT_MEMORY if _MEMORY.search(str(error)) else 1)


def run(told: PodJob) -> None:
    """The whole life of a driver. Raises: UsageError, what a store raises, and what Spark does."""
    blob = open_blob(told.blob, partial(token_hex, 16))
    spec = blob.get_now(told.spec)
    if spec is None:
        raise UsageError(f"there is no specification {told.spec} in {told.blob}", reason="spec")
    if digest_of(spec) != told.digest:
        raise UsageError(
            f"the specification {told.spec} in {told.blob} is not the one that was sent",
            reason="spec",
        )
    if told.template:
        Path(TEMPLATE_FILE).write_bytes(msgspec.json.encode(told.template))
    conf = told.conf
    if jars := jars_in(Path(told.jars)):
        conf = {"spark.jars": ",".join(map(str, jars)), **conf}
    spark = session_of(told.result, conf)
    try:
        result = run_module(told.module, spec, Workplace(spark, told.blob, say))
    finally:
        spark.stop()
    blob.put_now(told.result, result)


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
