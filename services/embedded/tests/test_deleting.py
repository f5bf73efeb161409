"""What is deleted gives its storage back, and its name never means it again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.client import Client
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.up import up_process

CONFIG = """
compaction:
  interval_s: 0.2
  garbage_grace_s: 1
"""
DOCUMENTS = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: big}
spec: {columns: [{name: n, type: int}, {name: text, type: text}], retain: 2s}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: over}
spec: {retain: all, program: "copied(n, t) := big(n, t);"}
"""
ROWS = 40_000


def stored_bytes(folder: Path) -> int:
    """What is in the objects of the store."""
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file() and "part" in f.name)


def tombstones(client: Client) -> list[str]:
    return [c.id for c in client.collections() if c.since.empty and c.upper.empty]


@pytest.mark.rule("L3", "K15")
def test_v4_a_deleted_resource_gives_its_storage_back_within_the_grace(tmp_path: Path) -> None:
    (tmp_path / "up.yaml").write_text(CONFIG)
    rows = pa.table({"n": range(ROWS), "text": [f"{n * 7919:032x}" for n in range(ROWS)]})
    with up_process(tmp_path, "--config", "up.yaml") as server:
        with server.client() as client:
            client.apply(ResourceDocument(DOCUMENTS, "test.yaml"))
            time = client.insert("big", rows).time
            assert client.query("over/copied", time, timeout_s=60).table.num_rows == ROWS
            assert stored_bytes(tmp_path / "state") > 100_000
            client.delete("View", "over")
            client.delete("Table", "big")
            assert {"big", "over/copied", "over/state"} <= set(tombstones(client))
        server.until(lambda _: True if stored_bytes(tmp_path / "state") == 0 else None, 30)
        # The name is free, and the collection that it makes is another one.
        with server.client() as client:
            client.apply(ResourceDocument(DOCUMENTS, "test.yaml"))
            client.insert("big", rows.slice(0, 1))
            assert client.query("big").table.num_rows == 1
            assert "big" in tombstones(client)
