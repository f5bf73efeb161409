"""A view is changed in one process and worked on by others: whichever is killed, the change takes
place once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidemill.client import Client
from tidemill.errors import NotYet
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.fleet import Fleet, fleet

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
    """Planes that are delayed at an instant; None while that is not definite."""
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


SEEN = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: seen}
spec:
  file: {path: rows.jsonl, format: jsonl}
  columns: [{name: host, type: text}, {name: at, type: int}MORE]
  timestampInterval: 100ms
  retain: all
  eventTime: {column: at, timeline: t, expiresAfter: 1h, skew: 1s}
"""


def written(folder: Path, *rows: dict[str, Any]) -> None:
    """Append rows to the file of the source, and one that is long after them."""
    end = {"host": "end", "at": rows[-1]["at"] + 10_000}
    with (folder / "rows.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in (*rows, end))


def seen(client: Client, goal: str, at: int) -> list[tuple[Any, ...]] | None:
    """The hosts seen by an instant of events; None while that is not definite."""
    try:
        table = client.query(goal, as_of=at, timeout_s=5).table
    except NotYet:
        return None
    kept = [name for name in table.column_names if name not in ("time", "expires", "_diff")]
    columns = table.select(kept).columns
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return sorted(row for row in rows if row[0] not in ("end", "probe"))


def wide_from(system: Fleet, folder: Path) -> int:
    """A time of events that is not late, once the reader of the file knows the new column."""
    for at in range(30_000, 2_000_000, 20_000):
        written(folder, {"host": "probe", "at": at, "rack": 1})
        told = system.asked("query-a", lambda client, at=at: probes(client, at))
        assert len(told) == 1
        if told == [1]:
            return at + 20_000
    raise AssertionError("no process reads the new column")


def probes(client: Client, at: int) -> list[Any] | None:
    """The racks that the probe of an instant of events was read with; None while that is not
    definite.
    """
    try:
        return list(
            client.query(f'seen("probe", {at}, r)', as_of=at, timeout_s=5).table["r"].to_pylist()
        )
    except NotYet:
        return None


@pytest.mark.server
def test_a_source_gains_columns_that_other_processes_read_bind_and_write(tmp_path: Path) -> None:
    narrow = ResourceDocument(SEEN.replace("MORE", ""), "a.yaml")
    rack = ", {name: rack, type: int, nullable: true}"
    wide = ResourceDocument(SEEN.replace("MORE", rack), "a.yaml")
    with fleet(tmp_path) as system:
        written(tmp_path, {"host": "a", "at": 10_000, "rack": 1})
        system.start("query-a", "query,compaction")
        system.start("ingest-a", "ingest,remap")
        system.start("reclock-a", "reclock")
        system.start("compute-a", "compute")
        system.asked("query-a", lambda client: client.apply(narrow) or None)
        found = system.asked("query-a", lambda client: seen(client, "seen(h, a)", 15_000))
        assert found == [("a", 10_000)]
        system.asked("query-a", lambda client: client.apply(wide) or None)
        then = wide_from(system, tmp_path)
        written(tmp_path, {"host": "b", "at": then, "rack": 7}, {"host": "c", "at": then + 1_000})
        both = [("a", 10_000, None), ("b", then, 7), ("c", then + 1_000, None)]
        assert system.asked("query-a", lambda client: seen(client, "seen(h, a, r)", then + 5_000)) == both  # fmt: skip
        for role in ("reclock", "compute"):
            system.members[f"{role}-a"].killed()
            system.start(f"{role}-b", role)
        last = then + 20_000
        written(tmp_path, {"host": "d", "at": last, "rack": 9})
        assert system.asked("query-a", lambda client: seen(client, "seen(h, a, r)", last + 5_000)) == [
            *both, ("d", last, 9),
        ]  # fmt: skip
