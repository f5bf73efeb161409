"""Tutorials and how-tos do what they say: a reader follows each with the real command."""

from __future__ import annotations

import re
import socket
import threading
from itertools import chain
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from tidemill.catalog.apply.check import check_files
from tidemill.client.command import app
from tidemill.testkit.charts import of, rendered
from tidemill.testkit.pages import DOCS, Block, PageRun, answers, blocks_of, commands_of, shell_of

ROOT = DOCS.parent
WRITTEN = sorted(
    str(path.relative_to(DOCS))
    for path in chain(DOCS.glob("tutorial/*.md"), DOCS.glob("how-to/*.md"))
)
NOT_REACHABLE = 4
CLUSTER = DOCS / "tutorial/laptop-to-cluster.md"


def test_a_block_is_known_by_its_heading_and_its_file() -> None:
    page = "## A\n\nSave this as `x.py`:\n\n```python\n1\n```\n\n### B\n\n```sh\necho 2\n```\n"
    python, shell = blocks_of(page)
    assert python == Block("python", (), "1\n", "A", "x.py")
    assert shell == Block("sh", (), "echo 2\n", "B", None)
    assert shell_of(page) == {"B": "echo 2\n"}


def test_a_command_is_found_in_a_loop_without_what_stands_behind_it() -> None:
    text = "until a b 'c | d' 2>/dev/null | grep a; do sleep 1; done\na e # f\ng a\n"
    assert list(commands_of(text, "a")) == [["b", "c | d"], ["e"]]


@pytest.mark.parametrize(
    ("page", "fails"),
    [
        ("```sh\necho 2\n```\n\n```text\n2\n```\n", False),
        ("```sh\necho 2\n```\n\n```text\n3\n```\n", True),
        ("```sh\necho 2 3\n```\n\n```text\n2 …\n```\n", False),
        ("```sh\nfalse\n```\n", True),
        ("```sh\necho tidemill: no\nfalse\n```\n\n```text\ntidemill: no\n```\n", False),
        ("```sh\necho tidemill: no\n```\n\n```text\ntidemill: no\n```\n", True),
    ],
)
def test_a_run_notices_what_a_page_gets_wrong(page: str, fails: bool, tmp_path: Path) -> None:
    run = PageRun(tmp_path)
    if fails:
        with pytest.raises(AssertionError):
            run.run(page)
    else:
        run.run(page)
    assert run.ran == 1


def test_a_run_ends_what_a_block_has_left_in_the_background(tmp_path: Path) -> None:
    PageRun(tmp_path).run("```sh\nsleep 600 >/dev/null 2>&1 & echo $! > pid\n```\n")
    state = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    for _ in range(1_000):
        if not state.exists() or ") Z " in state.read_text():
            return
        threading.Event().wait(0.01)
    pytest.fail("it still runs")


@pytest.mark.parametrize(
    "page",
    [
        "tutorial/late-event.md",
        "tutorial/alert-with-proof.md",
        "how-to/debug-a-lagging-view.md",
        "how-to/one-machine.md",
    ],
)
def test_a_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    run = PageRun(tmp_path)
    run.run((DOCS / page).read_text())
    assert run.ran > 4


def test_the_readme_takes_ten_commands(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text()
    numbers = [int(n) for n in re.findall(r"# (\d+): ", page)]
    assert numbers == list(range(1, 11))
    run = PageRun(tmp_path)
    run.run(page, after="A sample, its tests, a server", before="Rules of your own")
    assert run.ran == 2
    lines = (tmp_path / "hot.jsonl").read_text().splitlines()
    assert ["s1" in line for line in lines] == [True, False]


def test_the_rules_of_the_readme_answer(tmp_path: Path) -> None:
    run = PageRun(tmp_path)
    run.run((ROOT / "README.md").read_text(), after="Rules of your own")
    assert run.ran == 2
    (line,) = (tmp_path / "late.jsonl").read_text().splitlines()
    assert '"arguments": ["N2", 45]' in line


def test_the_endpoint_of_the_page_has_one_alarm(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"localhost:{free.getsockname()[1]}"
    run = PageRun(tmp_path, {"localhost:8099": address})
    run.run((DOCS / "how-to/write-a-sink.md").read_text())
    assert run.ran == 3


@pytest.mark.server
def test_the_first_source_reads_a_real_topic(tmp_path: Path, kafka_bootstrap: str) -> None:
    run = PageRun(tmp_path, {"localhost:9092": kafka_bootstrap})
    run.run((DOCS / "tutorial/first-source.md").read_text())
    assert run.ran > 6


def test_the_laptop_of_the_tutorial_has_the_row(tmp_path: Path) -> None:
    run = PageRun(tmp_path)
    run.run(CLUSTER.read_text(), before="2. One pod")
    assert run.ran == 2


def test_the_cluster_of_the_tutorial_is_what_the_chart_makes() -> None:
    files = {block.file: block.text for block in blocks_of(CLUSTER.read_text()) if block.file}
    assert check_files({"orders.yaml": files["orders.yaml"]}) == []
    yaml = YAML(typ="safe")
    assert len(of("StatefulSet", rendered(yaml.load(files["pod.yaml"])))) == 1
    values = yaml.load(files["roles.yaml"])
    roles = of("Deployment", rendered(values))
    assert {f"one-tidemill-{role}" for role in values["roles"]} <= roles.keys()
    shell = "\n".join(shell_of(CLUSTER.read_text()).values())
    for words in commands_of(shell, "helm"):
        named = [word for word in words if word.endswith(".yaml")]
        assert set(named) <= files.keys()
        assert all((ROOT / word).is_dir() for word in words if word.startswith("charts/"))
    applied = [words[-1] for words in commands_of(shell, "kubectl") if "apply" in words]
    assert applied == ["orders.yaml", "orders.yaml"]


def test_the_commands_for_a_cluster_are_ones() -> None:
    """Words, options and values are accepted; nothing answers at the address."""
    cluster = "".join(shell_of(CLUSTER.read_text().partition("## 2.")[2]).values())
    found = list(commands_of(cluster, "tidemill"))
    assert [words[0] for words in found] == ["insert", "query"]
    for words in found:
        ended = CliRunner().invoke(app, ["--address", "127.0.0.1:1", *words])
        assert ended.exit_code == NOT_REACHABLE, f"{words}: {ended.output}"


@pytest.mark.parametrize("page", WRITTEN)
def test_the_files_and_targets_that_a_page_names_are_there(page: str) -> None:
    text = (DOCS / page).read_text()
    files = {block.file for block in blocks_of(text)}
    assert set(re.findall(r"save (?:this|it) as\s+`(\S+)`", text, re.IGNORECASE)) <= files
    tops = "services|libs|charts|protos|infra|e2e|bench|examples|docs"
    for path in re.findall(rf"`((?:{tops})/[^`\s*]+)`", text):
        assert (ROOT / path).exists(), path
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^    |`)make ([a-z0-9-]+)", text, re.MULTILINE)) <= targets


def test_the_format_of_the_page_prints_what_stands_below_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = blocks_of((DOCS / "how-to/write-a-format.md").read_text())
    (program,) = [block.text for block in blocks if block.kind == "python"]
    (expected,) = [block.text for block in blocks if block.kind == "text"]
    exec(program, {})
    printed = capsys.readouterr().out
    assert answers(expected, printed), printed


def test_the_jobs_that_stand_beside_those_of_other_systems_have_no_mistakes() -> None:
    page = (DOCS / "explanation/coming-from.md").read_text()
    jobs = {block.heading: block.text for block in blocks_of(page) if block.kind == "yaml"}
    assert list(jobs) == ["ksqlDB", "Flink CEP", "Materialize", "Spark Structured Streaming"]
    for heading, text in jobs.items():
        assert check_files({f"{heading}.yaml": text}) == []
