"""Every example of the guide derives what the guide says."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tidemill.catalog.apply.check import check_files, check_program
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.layout import format_text
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.conformance.registry import Options, run_case
from tidemill.testkit.pages import DOCS, blocks_of
from tidemill.testkit.whole import opened
from tidemill.time import frontier
from tidemill_server.commands.evaluating import UPPER, presences_of
from tidemill_server.settings import ServerSettings

GUIDE = (DOCS / "tutorial/tidelog.md").read_text()
BLOCKS = [(block.kind, list(block.words), block.text) for block in blocks_of(GUIDE)]
EXAMPLES = [
    (text, answer[1], answer[2])
    for (kind, _, text), answer in itertools.pairwise(BLOCKS)
    if kind == "tidelog"
]
CASES = [
    case
    for kind, words, text in BLOCKS
    if kind == "yaml" and not words
    for case in YAML(typ="safe").load(text)
]
RESOURCES = [text for kind, words, text in BLOCKS if words == ["resource"]]
TABLE = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: put}
spec: {columns: [{name: key, type: text}, {name: value, type: int}]}
---
"""


def test_the_guide_has_examples_of_every_kind() -> None:
    kinds = [kind for kind, _, _ in BLOCKS]
    assert kinds.count("tidelog") == kinds.count("result") == len(EXAMPLES) >= 18
    assert len(CASES) >= 3
    assert kinds.count("error") == 1
    assert len(re.findall(r"^### ", GUIDE.partition("## 12.")[2], re.MULTILINE)) == 10


@pytest.mark.parametrize(("text", "words", "answer"), EXAMPLES)
def test_an_example_derives_what_stands_below_it(text: str, words: list[str], answer: str) -> None:
    upper = int(words[words.index("upper") + 1]) if "upper" in words else UPPER
    predicates = words[: words.index("upper")] if "upper" in words else words
    assert sorted(presences_of(text, upper=upper, predicates=predicates)) == sorted(
        answer.splitlines()
    )
    assert [f for f in check_program(text, "guide") if not f.warning] == []
    assert format_text(format_text(text)) == format_text(text)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_a_case_of_the_guide_passes(case: dict[str, object]) -> None:
    for options in (Options(), Options(strategy="retraction")):
        assert run_case(case, options) == []


def test_the_resources_of_the_guide_are_accepted() -> None:
    assert RESOURCES
    for text in RESOURCES:
        assert check_files({"guide.yaml": TABLE + text}) == []


async def test_the_pattern_that_is_ready_to_apply_says_what_the_guide_says(tmp_path: Path) -> None:
    (text,) = [text for text in RESOURCES if "name: clicks" in text]
    command = re.search(r"printf '(.*)\\n' ([\d ]+) \| tidemill push clicks", GUIDE)
    assert command is not None
    lines = [(command[1] % int(at)).encode() for at in command[2].split()]
    async with opened(ServerSettings(directory=str(tmp_path))) as process:
        await process.start()
        await process.controller.apply([ResourceDocument(text, "guide.yaml")])
        await process.controller.push("clicks", lines)
        answer = (await process.query.ask("session(u)", 4_000_000, 240.0)).table
        upper = await process.context.collections.status("sessions/session")
    assert answer["u"].to_pylist() == ["ann"]
    assert upper.upper == frontier(4_090_000)


def test_the_mistake_of_the_guide_is_told_as_it_says() -> None:
    (told,) = [text for kind, _, text in BLOCKS if kind == "error"]
    program, _, wanted = told.partition("\n---\n")
    with pytest.raises(ProgramErrors) as error:
        presences_of(program)
    assert error.value.render().rstrip() == wanted.rstrip()
