"""Replays of actions: what would have fired, which is what an action fires that begins there."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.client import Client
from tidemill.errors import NotYet, UnknownCollection
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.up import UpProcess, up_process
from tidemill_server.trials import history
from tidemill_server.trials.replaying import replay

HEAD = "apiVersion: tidemill.dev/v1alpha1\n"
WORLD = f"""{HEAD}kind: Table
metadata: {{name: ovens}}
spec: {{retain: all, columns: [{{name: oven, type: text}}, {{name: degrees, type: int}}]}}
---
{HEAD}kind: View
metadata: {{name: heat}}
spec:
  retain: all
  program: "hot(oven: o) @max(d) := ovens(oven: o, degrees: d) if d > 200;"
---
{HEAD}kind: Action
metadata: {{name: asleep}}
spec: {{view: heat, goal: "hot(o) @max(d)", follow: FOLLOW, sink: {{file: {{path: asleep.jsonl}}}}}}
"""


def changed(client: Client, *rows: tuple[str, int, int]) -> int:
    ovens, degrees, diffs = zip(*rows, strict=True)
    diff = pa.array(diffs, pa.int64())
    return client.insert("ovens", pa.table({"oven": ovens, "degrees": degrees, "_diff": diff})).time


def lines_of(server: UpProcess, name: str, count: int) -> list[str]:
    """The lines of a file, without the name of the action and its keys, once there are so many."""

    def enough(_: Client) -> list[str] | None:
        file = server.folder / name
        told = file.read_text().splitlines() if file.exists() else []
        return told if len(told) >= count else None

    return [bare(line) for line in server.until(enough, 60)]


def bare(line: str) -> str:
    body = json.loads(line)
    return json.dumps([body[each] for each in ("instant", "record")] + [body.get("phase")])


@pytest.mark.parametrize("follow", [False, True])
def test_a_replay_is_what_an_action_fires_that_begins_there(follow: bool, tmp_path: Path) -> None:
    with up_process(tmp_path) as server:
        with server.client() as client:
            client.apply(ResourceDocument(WORLD.replace("FOLLOW", str(follow).lower()), "a.yaml"))
            changed(client, ("A", 220, 1), ("B", 100, 1))
            second = changed(client, ("B", 100, -1), ("B", 300, 1), ("A", 220, -1), ("A", 230, 1))
            changed(client, ("A", 230, -1))
            last = changed(client, ("A", 250, 1), ("C", 260, 1))
            client.query("heat/hot", last, timeout_s=60)
            found = {}
            for name, start in (("all", "beginning"), ("later", second), ("end", last)):
                begin = None if start == "beginning" else int(start)
                told = replay(client, "asleep", begin, last, 1_000)
                found[name] = [bare(firing.line) for firing in told.firings]
                text = WORLD.split("---\n")[2].replace("asleep", f"act-{name}")
                text = text.replace("FOLLOW", f"{str(follow).lower()}, fireFrom: {start}")
                client.apply(ResourceDocument(text, f"{name}.yaml"))
        for name, told in found.items():
            assert sorted(lines_of(server, f"act-{name}.jsonl", len(told))) == sorted(told)
        assert len(found["all"]) == (6 if follow else 3)
        assert found["end"]
        assert found["later"] != found["all"]


def test_a_replay_groups_as_the_action_does(tmp_path: Path) -> None:
    text = WORLD.replace("FOLLOW", "false, fireFrom: beginning, group: {within: 1ms}")
    with up_process(tmp_path) as server:
        with server.client() as client:
            client.apply(ResourceDocument(text, "a.yaml"))
            changed(client, ("A", 220, 1), ("B", 230, 1))
            last = changed(client, ("C", 260, 1))
            client.query("heat/hot", last, timeout_s=60)
            told = replay(client, "asleep", None, last, 1_000)
            latest = replay(client, "asleep", None, None, 1_000)
            assert latest.messages == told.messages
            assert latest.stretch.at >= last
        lines_of(server, "asleep.jsonl", 2)
        file = (server.folder / "asleep.jsonl").read_text()
        assert file.splitlines() == [message.line for message in told.messages]
        assert [len(message.events) for message in told.messages] == [2, 1]
        assert len(told.firings) == 3


def test_a_replay_up_to_what_is_not_definite_ends_with_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instant at which event time stands still was waited for without end."""
    monkeypatch.setattr(history, "PATIENCE_S", 0.2)
    with up_process(tmp_path) as server, server.client() as client:
        client.apply(ResourceDocument(WORLD.replace("FOLLOW", "false"), "a.yaml"))
        last = changed(client, ("A", 220, 1))
        client.query("heat/hot", last, timeout_s=60)
        with pytest.raises(NotYet, match=r"heat/hot are definite together up to .* not yet at"):
            replay(client, "asleep", None, last + 3_600_000, 1_000)


def test_an_action_that_is_not_there_is_said(tmp_path: Path) -> None:
    with (
        up_process(tmp_path) as server,
        server.client() as client,
        pytest.raises(UnknownCollection, match="no action nobody"),
    ):
        replay(client, "nobody", None, None, 1_000)
