"""Many sources in a running server: at rest they cost one commit a second together, and answer all the same."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from tidemill.client import Client
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.up import START_S_MAX, UpProcess, up_process
from tidemill.time import sole_time

SOURCES = 12
SOURCE = """\
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: s{number}}}
spec:
  columns: [{{name: n, type: int}}]
  retain: 1h
  http: {{}}
"""


def _versions(folder: Path) -> int:
    """How many versions have been written, of all collections."""
    store = f"file:{folder / 'state' / 'consensus.sqlite'}?mode=ro"
    file = sqlite3.connect(store, uri=True)
    try:
        return sum(n for (n,) in file.execute("select max(number) + 1 from versions group by key"))
    finally:
        file.close()


def _uppers(process: UpProcess) -> list[int]:
    """How far the sources are, once all of them are there and well."""

    def asked(client: Client) -> list[int] | None:
        found = client.get("Source")
        uppers = [sole_time(each.upper) for each in found if each.upper is not None and each.ready]
        return uppers if len(uppers) == SOURCES else None

    return process.until(asked)


def test_d5_sources_at_rest_advance_by_fewer_commits_than_there_are_sources(tmp_path: Path) -> None:
    """In some seconds in which all of them advance several times, and are read; then one gets a row."""
    text = "---\n".join(SOURCE.format(number=number) for number in range(SOURCES))
    documents = ResourceDocument(text, "sources.yaml")
    with up_process(tmp_path) as process, process.client() as client:
        process.until(lambda asked: asked.apply(documents))
        client.push("s3", [b'{"n": 1}'])
        end_s = time.monotonic() + START_S_MAX
        while True:
            before, begun = _versions(tmp_path), max(_uppers(process))
            while min(_uppers(process)) < begun + 4_000:
                time.sleep(0.2)
            if _versions(tmp_path) - before < SOURCES:
                break
            assert time.monotonic() < end_s, "the sources never rest"
        seen = min(_uppers(process))
        client.push("s3", [b'{"n": 2}'])
        while client.query("s3").table.num_rows < 2:
            assert time.monotonic() < end_s, "the row never comes"
            time.sleep(0.2)
        assert client.query("s3", as_of=seen - 1).table.num_rows == 1
