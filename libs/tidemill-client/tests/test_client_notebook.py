"""Magics in a real shell of IPython: answers as values of cells, refusals as one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from tidemill.client import load_ipython_extension, notebook
from tidemill.client.showing import PARTS_MAX, ShownAnswer, ShownExplanation
from tidemill.errors import UnknownCollection
from tidemill.rpc.messages import Applied, Json, Outcome, ResourceDocument
from tidemill.time import frontier


class Answering:
    """A client that answers with its own calls."""

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self._calls = calls

    def query(self, goal: str, as_of: str | None, *, timeout_s: float) -> ShownAnswer:
        self._calls.append(("query", goal, as_of))
        if goal.startswith("nothing"):
            raise UnknownCollection("there is no collection nothing")
        return ShownAnswer(pa.table({"p": ["N2"]}), 5, frontier(0), frontier(6), "late")

    def why(self, record: str, as_of: str | None) -> ShownExplanation:
        self._calls.append(("why", record, as_of))
        return ShownExplanation("late", {"fact": "late", "children": []})

    def apply(self, document: ResourceDocument) -> list[Applied]:
        self._calls.append(("apply", document.text))
        return [Applied("View", "delays", Outcome.CREATED)]

    def close(self) -> None:
        self._calls.append(("close",))


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    made = InteractiveShell(config=Config(HistoryManager={"enabled": False}))
    load_ipython_extension(made)
    yield made
    made.restore_sys_module_state()


def test_a_cell_asks_and_has_the_answer_as_its_value(shell: InteractiveShell) -> None:
    calls: list[tuple[Any, ...]] = []
    magic = notebook.Magic(lambda address: Answering(calls))  # type: ignore[arg-type,return-value]
    shell.register_magic_function(magic, "line_cell", notebook.NAME)
    answer = shell.run_line_magic("tidemill", "--as-of 5 query late(p, d)")
    assert "exact as of 5" in answer._repr_html_()
    shell.run_line_magic("tidemill", 'why late("N  2", 45) @time(2000)')
    assert shell.run_cell_magic("tidemill", "apply", "kind: View\n") == ["View/delays created"]
    assert calls == [
        ("query", "late(p, d)", "5"),
        ("why", 'late("N  2", 45) @time(2000)', None),
        ("apply", "kind: View"),
    ]
    magic.close()
    assert calls[-1] == ("close",)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("query nothing(x)", "there is no collection nothing"),
        ("query", "verbs are query, sql"),
        ("ask late(p)", "verbs are query"),
    ],
)
def test_a_refusal_is_one_line(line: str, says: str, shell: InteractiveShell) -> None:
    magic = notebook.Magic(lambda address: Answering([]))  # type: ignore[arg-type,return-value]
    shell.register_magic_function(magic, "line_cell", notebook.NAME)
    with pytest.raises(notebook.Refused, match=says):
        shell.run_line_magic("tidemill", line)


def test_a_proof_opens_and_is_no_markup() -> None:
    leaf: Json = {"fact": 'f("<b>")', "kind": "input", "children": []}
    shown = ShownExplanation("late", {"fact": "late", "text": "rule", "children": [leaf]})
    assert shown._repr_html_() == (
        "<details open><summary><b>late</b> rule</summary><ul>"
        "<li><b>f(&quot;&lt;b&gt;&quot;)</b>  <i>input</i></li></ul></details>"
    )
    assert str(shown) == "late"
    other = ShownExplanation(
        "late(1) is not present: present is late(2)\nlate(2)", {"fact": "late(2)"}
    )
    assert other._repr_html_().startswith("<p>late(1) is not present: present is late(2)</p>")
    assert ShownExplanation("why <not>")._repr_html_() == "<pre>why &lt;not&gt;</pre>"


def test_a_proof_of_any_depth_is_cut_and_closed() -> None:
    tree: Json = {"fact": "f", "children": []}
    for _ in range(20_000):
        tree = {"fact": "f", "children": [tree]}
    drawn = ShownExplanation("f", tree)._repr_html_()
    assert drawn.count("<details") == drawn.count("</details") == PARTS_MAX
    assert drawn.endswith("… more parts, in <code>text</code></p>")
