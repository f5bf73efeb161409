"""The package that docs/plugins.md shows, built, installed and used by every command and a running server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from zipfile import ZipFile

import pytest
import typer
from typer.testing import CliRunner

from tidemill.client.rows import table_of
from tidemill.rpc.messages import ResourceDocument
from tidemill.time import UsageError
from tidemill_compute import plugins
from tidemill_embedded.applying.checking import check_files
from tidemill_embedded.commands import check_command
from tidemill_embedded.process import Process, opened
from tidemill_embedded.settings import EmbeddedSettings

PAGE = Path(__file__).parents[3] / "docs" / "plugins.md"
HEAD = "apiVersion: tidemill.dev/v1alpha1\n"
USES = "  lattices: [bits@1]\n  functions: [root@1]\n"
PROGRAM = "seen(k) @bits(b) := flag(k, b);\n    side(k, root(b)) := flag(k, b);"


def table(name: str, *columns: str) -> str:
    """A table; each column is its name and type, with `?` behind it if a row may leave it out."""
    told = ([*each.rstrip("?").split(), str(each.endswith("?")).lower()] for each in columns)
    listed = ", ".join(f"{{name: {n}, type: {t}, nullable: {null}}}" for n, t, null in told)
    return f"{HEAD}kind: Table\nmetadata: {{name: {name}}}\nspec: {{columns: [{listed}], retain: all}}\n"


def view(name: str, program: str, more: str = "") -> str:
    return f"{HEAD}kind: View\nmetadata: {{name: {name}}}\nspec:\n{more}  retain: all\n  program: |\n    {program}\n"


@asynccontextmanager
async def running(folder: Path, *texts: str) -> AsyncIterator[Process]:
    """A process with what the texts say."""
    async with opened(EmbeddedSettings(directory=str(folder / "state"))) as process:
        await process.system.start()
        if texts:
            await apply(process, *texts)
        yield process


async def apply(process: Process, *texts: str) -> None:
    await process.system.apply([ResourceDocument(text, "test.yaml") for text in texts])


async def insert(process: Process, name: str, *rows: dict[str, object]) -> int:
    return (await process.system.insert(name, table_of(rows))).time


async def answer(process: Process, goal: str, at: int) -> list[tuple[object, ...]]:
    """The rows that match a goal at an instant, once it is definite."""
    ask = process.query.ask if "(" in goal else process.query.snapshot
    found = (await ask(goal, at, 60.0)).table.drop_columns(["_diff"])
    rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
    return sorted(rows, key=repr)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *changes: tuple[str, str]) -> None:
    """Build the package of the page and let this process find it, with some of its text changed."""
    text = PAGE.read_text(encoding="utf-8")
    named = dict(re.findall(r"`(\S+)`:\n\n```\w+\n(.*?)```", text, re.DOTALL))
    source = folder / "source"
    source.mkdir(parents=True)
    for name, body in named.items():
        for old, new in changes if name.endswith(".py") else ():
            body = body.replace(old, new)
        (source / name).write_text(body, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=source, capture_output=True, text=True, check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    monkeypatch.syspath_prepend(str(folder / "site"))
    forget(monkeypatch)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be as a process that has loaded nothing yet."""
    monkeypatch.delitem(sys.modules, "acme_words", raising=False)
    plugins._loaded.cache_clear()


async def test_users_lattices_and_functions_live_through_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "package", monkeypatch)
    flags, reader = (
        table("flag", "k text", "b int"),
        view("w", "met(k, b) ~bits := seen(k) @bits(b);"),
    )
    reads = reader.replace("spec:\n", "spec:\n  inputs: {seen: v/seen}\n" + USES)
    async with running(tmp_path, flags, view("v", PROGRAM, USES), reads) as process:
        at = await insert(
            process, "flag", {"k": "a", "b": 1}, {"k": "a", "b": 6}, {"k": "n", "b": -4}
        )
        assert await answer(process, "v/seen", at) == [("a", 7), ("n", -4)]
        assert await answer(process, "w/met", at) == [("a", 7), ("n", -4)]
        assert await answer(process, "v/side", at) == [("a", 1.0), ("a", 6**0.5)]
        ((error,),) = await answer(process, "v/errors", at)
        assert str(error) == 'root raised ValueError: flag("n", -4)'
    forget(monkeypatch)
    async with running(tmp_path) as process:
        at = await insert(process, "flag", {"k": "a", "b": 8}, {"k": "n", "b": 1})
        assert await answer(process, "v/seen", at) == [("a", 15), ("n", -3)]
        assert await answer(process, "w/met", at) == [("a", 15), ("n", -3)]


async def test_a_view_stalls_while_another_version_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = (
        table("flag", "k text", "b int"),
        view("v", PROGRAM, USES),
        view("o", "p(k) := flag(k, _);"),
    )
    with monkeypatch.context() as first:
        install(tmp_path / "first", first)
        async with running(tmp_path, *texts) as process:
            at = await insert(process, "flag", {"k": "a", "b": 1})
            assert await answer(process, "v/seen", at) == [("a", 1)]
    with monkeypatch.context() as second:
        install(tmp_path / "second", second, ('version="1"', 'version="2"'))
        async with running(tmp_path) as process:
            at = await insert(process, "flag", {"k": "a", "b": 2})
            assert await answer(process, "o/p", at) == [("a",)]
            with pytest.raises(
                UsageError, match=r"bits@1 is not installed, but bits@2 of acme-words"
            ):
                await apply(process, view("x", PROGRAM, USES))
    with monkeypatch.context() as third:
        third.syspath_prepend(str(tmp_path / "first" / "site"))
        forget(third)
        async with running(tmp_path) as process:
            assert await answer(process, "v/seen", at) == [("a", 3)]


def test_commands_take_what_programs_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "package", monkeypatch)
    program = tmp_path / "p.tidelog"
    program.write_text(f'flag("a", 1); flag("a", 4);\n{PROGRAM}\n')
    app = typer.Typer()
    app.command("eval")(check_command.evaluate)
    app.command("check")(check_command.check)
    options = ["--lattice", "acme-words:bits@1", "--function", "root@1"]
    found = CliRunner().invoke(app, ["eval", str(program), *options])
    assert '[-inf,-) seen("a") @bits(5)' in found.output
    assert '[-inf,-) side("a", 2.0)' in found.output
    assert CliRunner().invoke(app, ["check", str(program), *options]).exit_code == 0
    assert "S113" in CliRunner().invoke(app, ["check", str(program), *options[:2]]).output
    lost = CliRunner().invoke(app, ["check", str(program), "--lattice", "bots@1"])
    assert "no lattice bots is installed" in lost.output
    assert "installed are bits (acme-words)" in lost.output


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("a | b", "a + b"), "merge is not idempotent: a = "),
        (("a | b", "a"), "merge is not commutative: a = "),
        (("(inner,)", "(str(inner),)"), "shows no"),
        (("math.sqrt", "lambda x: str(x)"), "is no float, which it declares"),
        (("import math", "import math\n\n1 // 0"), "cannot be loaded: ZeroDivisionError"),
        (('version="1"', 'version="2"'), "bits@1 is not installed, but bits@2"),
    ],
)
def test_a_plugin_that_breaks_a_law_is_refused_with_its_counterexample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], says: str
) -> None:
    install(tmp_path / "package", monkeypatch, change)
    texts = {"v.yaml": "---\n".join((table("flag", "k text", "b int"), view("v", PROGRAM, USES)))}
    (finding,) = check_files(texts)
    assert says in finding.message
