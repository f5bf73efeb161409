"""`tidemill plan` and `tidemill test --record`: a running server is read, and not changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tidemill.client import Client
from tidemill.errors import UnknownCollection, UsageError
from tidemill.rpc.messages import ResourceDocument
from tidemill.runtime.resources import load_resources
from tidemill.testkit.up import UpProcess, up_process
from tidemill_server.trials.answers import rules_of
from tidemill_server.trials.cases import load_cases
from tidemill_server.trials.previews import Preview, previews
from tidemill_server.trials.recording import record
from tidemill_server.trials.running import differences

SOURCES = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: flights}
spec:
  http: {}
  columns: [{name: plane, type: text}, {name: delay, type: int}, {name: at, type: int}]
  retain: all
  timestampInterval: 50ms
  eventTime: {column: at, timeline: air, expiresAfter: 1h, skew: 1s, late: correct}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: watch}
spec: {retain: all, program: "n(plane: p) @count(d) := late(plane: p, delay: d);"}
---
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {name: tell}
spec: {view: delays, goal: "late(p, d)", fireFrom: beginning, sink: {file: {path: late.jsonl}}}
"""
INFERRED = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: planes}
spec: {file: {path: planes.csv, format: csv}, infer: {}, retain: all}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: makers}
spec: {retain: all, program: "made(maker: m) @count(p) := planes(plane: p, maker: m);"}
"""
VIEW = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: delays}
spec:
  retain: all
  inputs: {flight: flights}
  program: "late(plane: p, delay: d) := flight(p, d, _) if d > 30;"
"""
ROWS = [
    '{"plane":"N1","delay":10,"at":1000}',
    '{"plane":"N2","delay":45,"at":2000}',
    '{"plane":"N3","delay":25,"at":3000}',
    '{"plane":"N9","delay":5,"at":9000}',
]
LATE = ['{"plane":"N4","delay":60,"at":4000}', '{"plane":"N9","delay":5,"at":20000}']
"""The first one arrives when everything before 8000 is definite."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    folder = tmp_path_factory.mktemp("up")
    (folder / "all.yaml").write_text(f"{SOURCES}---{INFERRED}---{VIEW}")
    (folder / "planes.csv").write_text("plane,maker\nN1,a\nN2,b\nN3,b\n")
    with up_process(folder, "-f", "all.yaml") as process:

        def pushed(client: Client) -> bool:
            client.push("flights", ROWS)
            return True

        assert process.until(pushed)
        with process.client() as client:
            client.query("flights", 7_999, timeout_s=60)
            client.push("flights", LATE)
            client.query("watch/n", 18_000, timeout_s=60)
        yield process


@pytest.fixture
def client(server: UpProcess) -> Iterator[Client]:
    with server.client() as found:
        yield found


def planned(client: Client, text: str, at: int | None = None, most: int = 100) -> list[Preview]:
    documents = load_resources(text, "new.yaml")
    return list(previews(client, documents, start=None, at=at, changes_max=most, random=Random(1)))


def told(found: list[Preview]) -> dict[tuple[str, str], tuple[list[str], list[str], int]]:
    return {
        (preview.view, each.what): ([*each.more], [*each.fewer], each.alike)
        for preview in found
        for each in preview.differences
    }


def test_a_changed_view_is_compared_with_its_readers_and_actions(client: Client) -> None:
    before = client.get()
    found = planned(client, VIEW.replace("d > 30", "d > 20 && d < 60"), at=9_000)
    assert [(each.view, each.kind) for each in found] == [
        ("delays", "changed"), ("watch", "reads a change"),
    ]  # fmt: skip
    more, fewer, alike = told(found)["delays", "late"]
    assert more == ['late("N3", 25) @time(3000) @expires(3603000)']
    assert fewer == ['late("N4", 60) @time(4000) @expires(3604000)']
    assert alike == 1
    more, fewer, _ = told(found)["watch", "n"]
    assert [line.split("@")[0] for line in (*more, *fewer)] == ['n("N3") ', 'n("N4") ']
    more, fewer, _ = told(found)["delays", "action tell fires"]
    assert [line.split(":")[0] for line in (*more, *fewer)] == ["3000", "8000"]
    assert [each.document_yaml for each in client.get()] == [r.document_yaml for r in before]


def test_what_is_as_it_was_has_no_preview(client: Client) -> None:
    assert planned(client, VIEW) == []


def test_the_old_version_is_what_the_server_says(client: Client) -> None:
    (found, _) = planned(client, VIEW.replace("d > 30", "d > 1000"), at=9_000)
    (late,) = [each for each in found.differences if each.what == "late"]
    assert len(late.fewer) == client.query("delays/late", 9_000).table.num_rows == 2


def test_a_new_view_and_one_over_a_new_source_are_previewed(client: Client) -> None:
    text = VIEW.replace("name: delays", "name: calm").replace("late(", "calm(")
    assert told(planned(client, text))["calm", "calm"][0]
    other = SOURCES.split("---")[0].replace("name: flights", "name: trains")
    text = text.replace("name: calm", "name: slow").replace("flight: flights", "flight: trains")
    assert told(planned(client, f"{other}---{text}"))["slow", "calm"] == ([], [], 0)


def test_a_view_over_a_source_that_infers_its_columns_is_previewed(client: Client) -> None:
    client.query("makers/made")
    text = INFERRED.partition("---")[2].replace("maker: m);", 'maker: m) if m != \\"a\\";')
    more, fewer, alike = told(planned(client, text))["makers", "made"]
    assert (more, fewer, alike) == ([], ['made("a") @count(1)'], 1)


def test_too_much_history_is_refused_with_what_to_do(client: Client) -> None:
    with pytest.raises(UsageError, match="--from"):
        planned(client, VIEW.replace("30", "20"), most=3)


@pytest.mark.parametrize("view", ["delays", "watch"])
def test_a_recorded_case_passes_and_names_late_arrivals(
    client: Client, tmp_path: Path, view: str
) -> None:
    made = record(client, view, None, 9_000, 100)
    resources, case = made.write(view, tmp_path)
    loaded = load_cases(case)
    ((_, only),) = loaded.cases
    assert {"heartbeat": 8_000} in only.given["flights"]
    assert differences(rules_of(loaded.resources), only, Random(1)) == []
    resources.write_text(resources.read_text().replace("d > 30", "d > 50"))
    changed = load_cases(case)
    assert differences(rules_of(changed.resources), only, Random(1)) != []
    with pytest.raises(UsageError, match="there already"):
        made.write(view, tmp_path)


def test_an_unknown_view_is_not_recorded(client: Client) -> None:
    with pytest.raises(UnknownCollection):
        record(client, "delay", None, None, 100)


def test_the_version_that_answers_is_compared_and_recorded_whatever_waits(
    server: UpProcess, client: Client, tmp_path: Path
) -> None:
    """The document is that of a version that waits, or was aborted."""
    manual = VIEW.replace("d > 30", "d > 20").replace(
        "retain: all", "retain: all\n  takeover: manual"
    )
    client.apply(ResourceDocument(manual, "manual.yaml"))

    def reason(wanted: str) -> bool:
        (status,) = client.get("view", "delays")
        return status.reason == wanted

    for step, wanted in enumerate(("TakeoverWaits", "Aborted")):
        assert server.until(lambda _, wanted=wanted: reason(wanted))
        more, fewer, _ = told(planned(client, manual, at=9_000))["delays", "late"]
        assert (len(more), fewer) == (1, [])
        made = record(client, "delays", None, 9_000, 100)
        _, case = made.write("delays", tmp_path / wanted)
        loaded = load_cases(case)
        ((_, only),) = loaded.cases
        assert differences(rules_of(loaded.resources), only, Random(1)) == []
        if step == 0:
            client.abort("delays")
    client.apply(ResourceDocument(VIEW, "view.yaml"))
