"""A view of several ranges, kept by processes of compute: they say what one process says."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tidemill.client import Client
from tidemill.errors import UsageError
from tidemill.testkit.fleet import Fleet, fleet

RANGES = 4
PROGRAM = """
    load(o) @sum(n) @count(n) := orders(o, n);
    share(o, 60 / n) := orders(o, n);
    idle(o) := known(o) ^ not orders(o, _);
"""
TABLES = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: orders}
spec: {retain: all, columns: [{name: o, type: text}, {name: n, type: int}]}
---
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: known}
spec: {retain: all, columns: [{name: o, type: text}]}
"""
VIEW = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: NAME}
spec:
  retain: all
  ranges: COUNT
  program: |PROGRAM
"""


def view(name: str, ranges: int, program: str = PROGRAM) -> str:
    text = VIEW.replace("NAME", name).replace("COUNT", str(ranges))
    return text.replace("PROGRAM", program)


def written(system: Fleet, query: str, text: str) -> None:
    path = system.folder / "resources.yaml"
    path.write_text(text)
    system.asked(query, lambda client: client.apply(path) or None)


def insert(system: Fleet, query: str, random: Random, rows: int = 60) -> int:
    """Write rows; an instant at which they are there."""
    orders = [{"o": f"o{random.randrange(40)}", "n": random.randrange(4)} for _ in range(rows)]
    known = [{"o": f"o{random.randrange(60)}"} for _ in range(rows // 4)]
    system.asked(query, lambda client: client.insert("orders", orders))
    return system.asked(query, lambda client: client.insert("known", known)).time


def contents(name: str, at: int, client: Client) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of outputs and errors of a view at an instant."""
    found = {}
    for each in ("load", "share", "idle", "errors"):
        table = client.query(f"{name}/{each}", as_of=at, timeout_s=60).table
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        found[each] = sorted(rows, key=repr)
    return found


def same(system: Fleet, query: str, at: int) -> None:
    """The view in ranges says what the whole one says, and that is something."""
    whole = system.asked(query, partial(contents, "whole", at))
    assert all(whole.values())
    assert system.asked(query, partial(contents, "ranged", at)) == whole


def ranges_of(client: Client, name: str, count: int = RANGES) -> dict[str, Any] | None:
    """The details of each range, once all of them are kept."""
    found = client.describe("View", name).details.get("ranges", {})
    return found if len(found) == count else None


@pytest.mark.server
@pytest.mark.rule("C1", "K2")
def test_two_processes_keep_the_ranges_of_a_view_and_one_takes_over_those_of_the_other(
    tmp_path: Path, redis_url: str
) -> None:
    random = Random(7)
    with fleet(tmp_path) as system:
        consensus = f"{redis_url}?prefix=ranges-{tmp_path.name}"
        system.options = {"store": {"consensus": consensus, "blob": f"file:{tmp_path / 'blob'}"}}
        for name, roles in {"q": "query,compaction", "a": "compute", "b": "compute"}.items():
            system.start(name, roles)
        written(system, "q", "\n---\n".join((TABLES, view("whole", 1), view("ranged", RANGES))))
        first = insert(system, "q", random)
        same(system, "q", first)
        owners = system.asked("q", shared_out)
        assert sorted(owners) == ["0", "1", "2", "3"]
        moved = [number for number, owner in owners.items() if owner == "a"]
        epochs = {n: system.owned("compute", f"View/ranged#{n}").epoch for n in moved}
        system.members["a"].killed()
        second = insert(system, "q", random)
        for number, epoch in epochs.items():
            assert system.owned("compute", f"View/ranged#{number}", than=epoch).name == "b"
        same(system, "q", second)
        assert not system.members["a"].running
        same(system, "q", first)
        (status,) = system.asked("q", lambda client: client.get("View", "ranged"))
        assert status.reason == "Running", status.message
        refused(system, "q")
        system.asked("q", lambda client: client.delete("View", "ranged") or True)


def shared_out(client: Client) -> dict[str, str] | None:
    """The process of each range, once two have as many each."""
    told = ranges_of(client, "ranged") or {}
    owners = {number: each["process"] for number, each in told.items()}
    return owners if Counter(owners.values()) == {"a": 2, "b": 2} else None


@pytest.mark.server
def test_one_process_keeps_all_ranges_of_a_view(tmp_path: Path) -> None:
    with fleet(tmp_path) as system:
        system.start("one", "ingest,remap,reclock,compute,compaction,query")
        written(system, "one", "\n---\n".join((TABLES, view("whole", 1), view("ranged", 3))))
        same(system, "one", insert(system, "one", Random(3)))
        refused(system, "one", 3)
        told = system.asked("one", lambda client: ranges_of(client, "ranged", 3))
        assert {each["process"] for each in told.values()} == {"one"}


def refused(system: Fleet, query: str, ranges: int = RANGES) -> None:
    """A program that needs all ranges is refused with advice, and so is another program."""
    said = [
        ("NoRanges", view("total", 2, "\n    all() @sum(n) := orders(_, n);\n")),
        ("NoRanges", view("ranged", ranges).replace("  retain", "  engine: spark\n  retain")),
        ("Immutable", view("ranged", ranges, "\n    load(o) @count(n) := orders(o, n);\n")),
        ("Immutable", view("whole", 2)),
    ]
    with Client(system.address(query)) as client:
        for reason, text in said:
            path = system.folder / "refused.yaml"
            path.write_text(text)
            with pytest.raises(UsageError) as error:
                client.apply(path)
            assert error.value.reason == reason, error.value
            assert "refused.yaml:" in str(error.value)
