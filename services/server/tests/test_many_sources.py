"""Many sources in a running server: at rest they cost one commit a second together, and answer all
the same.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from tidemill.client import Client
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.up import START_S_MAX, UpProcess, up_process
from tidemill.time import sole_time

SOURCES = 6
"""Of each kind: with event time, and without."""
SOURCE = """\
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: s{number}}}
spec:
  columns: [{{name: n, type: int}}]
  retain: 1h
  http: {{}}
"""
EVENTS = """\
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: e{number}}}
spec:
  columns: [{{name: n, type: int}}]
  http: {{}}
  eventTime: {{column: n, timeline: t{number}, skew: 0s}}
"""
SEEN = """\
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: seen}
spec: {retain: 1h, program: "both(n) := s1(n) ^ s3(n);"}
"""


def _versions(folder: Path) -> int:
    """Number of versions that were written, of all collections."""
    store = f"file:{folder / 'state' / 'consensus.sqlite'}?mode=ro"
    file = sqlite3.connect(store, uri=True)
    try:
        found = file.execute("select max(number) + 1 from versions group by key").fetchall()
        return sum(number for (number,) in found)
    finally:
        file.close()


def _uppers(process: UpProcess) -> list[int]:
    """Uppers of the sources without event time, once all sources are there and well."""

    def asked(client: Client) -> list[int] | None:
        found = [each for each in client.get("Source") if each.upper is not None and each.ready]
        uppers = [sole_time(each.upper) for each in found if each.name.startswith("s")]
        return uppers if len(found) == 2 * SOURCES else None

    return process.until(asked)


def _reached(client: Client) -> int:
    """Upper of the view."""
    (found,) = [each.upper for each in client.get("View") if each.upper is not None]
    return sole_time(found)


def test_d5_sources_at_rest_advance_by_fewer_commits_than_there_are_sources(tmp_path: Path) -> None:
    """In some seconds in which all of them, and a view, advance several times, and are read; then
    one gets a row.
    """
    each = (kind.format(number=number) for kind in (SOURCE, EVENTS) for number in range(SOURCES))
    documents = ResourceDocument("---\n".join(each), "sources.yaml")
    with up_process(tmp_path) as process, process.client() as client:
        process.until(lambda asked: asked.apply(documents))
        process.until(lambda asked: asked.apply(ResourceDocument(SEEN, "view.yaml")))
        client.push("s3", [b'{"n": 1}'])
        client.push("e3", [b'{"n": 1}'])
        end_s = time.monotonic() + START_S_MAX
        while True:
            before, begun = _versions(tmp_path), max(_uppers(process))
            while min(_uppers(process)) < begun + 4_000 or _reached(client) < begun + 4_000:
                time.sleep(0.2)
            if _versions(tmp_path) - before < SOURCES:
                break
            assert time.monotonic() < end_s, "the sources never rest"
        seen = min(_uppers(process))
        client.push("s3", [b'{"n": 2}'])
        client.push("e3", [b'{"n": 2}', b'{"n": 3}'])
        while min(client.query(name).table.num_rows for name in ("s3", "e3")) < 2:
            assert time.monotonic() < end_s, "the row never comes"
            time.sleep(0.2)
        assert client.query("s3", as_of=seen - 1).table.num_rows == 1
        assert client.query("seen/both", as_of=seen - 1).table.num_rows == 0
        client.push("s1", [b'{"n": 2}'])
        while client.query("seen/both").table.num_rows < 1:
            assert time.monotonic() < end_s, "the view never says what its inputs say"
            time.sleep(0.2)
