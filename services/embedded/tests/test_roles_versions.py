"""A view is changed in one process and kept by others: whichever is killed, the new version takes over once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.client import Client
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.fleet import fleet
from tidemill.time import NotYet

RESOURCES = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: trips}
spec: {columns: [{name: who, type: text}, {name: late, type: int}], retain: all}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: delays}
spec: {retain: all, program: "delayed(w) := trips(w, d) if d > MORE;"}
"""


def version(client: Client, number: int) -> bool | None:
    """Whether a version is read, and no other is on its way."""
    status = client.describe("View", "delays")
    assert status.reason != "Stalled", status.message
    details = status.details
    return True if details.get("version") == number and "changing" not in details else None


def present(client: Client, at: int) -> list[str] | None:
    """Who is delayed at an instant; None while that is not definite."""
    try:
        table = client.query("delayed(w)", as_of=at, timeout_s=5).table
    except NotYet:
        return None
    return sorted(table[table.column_names[0]].to_pylist())


@pytest.mark.server
def test_a_change_goes_on_in_another_process(tmp_path: Path) -> None:
    with fleet(tmp_path) as system:
        system.start("query-a", "query,compaction")
        system.start("compute-a", "compute")
        first = ResourceDocument(RESOURCES.replace("MORE", "10"), "a.yaml")
        system.asked("query-a", lambda client: client.apply(first) or None)
        rows = [{"who": "a", "late": 20}, {"who": "b", "late": 7}]
        before = system.asked("query-a", lambda client: client.insert("trips", rows)).time
        assert system.asked("query-a", lambda client: present(client, before)) == ["a"]
        epoch = system.owned("compute", "View/delays").epoch
        changed = ResourceDocument(RESOURCES.replace("MORE", "5"), "a.yaml")
        system.asked("query-a", lambda client: client.apply(changed) or None)
        system.members["compute-a"].killed()
        system.start("compute-b", "compute")
        assert system.owned("compute", "View/delays", than=epoch).name == "compute-b"
        system.asked("query-a", lambda client: version(client, 2))
        late = [{"who": "c", "late": 6}]
        after = system.asked("query-a", lambda client: client.insert("trips", late)).time
        assert system.asked("query-a", lambda client: present(client, after)) == ["a", "b", "c"]
        assert system.asked("query-a", lambda client: present(client, before)) == ["a"]
        # The process that keeps the view sees a change that it has not applied itself.
        system.asked("query-a", lambda client: client.apply(first) or None)
        system.asked("query-a", lambda client: version(client, 3))
        last = system.asked("query-a", lambda client: client.insert("trips", late)).time
        assert system.asked("query-a", lambda client: present(client, last)) == ["a"]
