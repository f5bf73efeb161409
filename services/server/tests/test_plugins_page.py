"""The package that docs/how-to/plugins.md shows, built, installed and used by every command and a
running server.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
import typer
from typer.testing import CliRunner

from tidemill.catalog import plugins
from tidemill.catalog.apply.check import check_files
from tidemill.catalog.catalog import Catalog
from tidemill.catalog.store import Stored
from tidemill.datalog.check import check
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import parse_record
from tidemill.datalog.vocabulary import Named
from tidemill.errors import UsageError
from tidemill.runtime.resources import load_resources
from tidemill.testkit.evaluated import evaluated
from tidemill.testkit.pages import DOCS, blocks_of
from tidemill.testkit.whole import running
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.bulk import History
from tidemill_compute.views.history_spec import pack_history, unpack_history
from tidemill_compute.views.view_target import ViewTarget
from tidemill_server.commands import check_command

HEAD = "apiVersion: tidemill.dev/v1alpha1\n"
USES = "  lattices: [bits@1]\n  functions: [acme_mean@1]\n"
PROGRAM = "seen(k) @bits(b) := flag(k, b);\n    side(k, acme_mean(b, 1)) := flag(k, b);"


def table(name: str, *columns: str) -> str:
    """A table; each column is its name and type, with `?` behind it if a row may leave it out."""
    told = ([*each.rstrip("?").split(), str(each.endswith("?")).lower()] for each in columns)
    listed = ", ".join(f"{{name: {n}, type: {t}, nullable: {null}}}" for n, t, null in told)
    return f"{HEAD}kind: Table\nmetadata: {{name: {name}}}\nspec: {{columns: [{listed}], retain: all}}\n"


def view(name: str, program: str, more: str = "") -> str:
    return f"{HEAD}kind: View\nmetadata: {{name: {name}}}\nspec:\n{more}  retain: all\n  program: |\n    {program}\n"


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *changes: tuple[str, str]) -> None:
    """Build the package of the page and let this process find it, with some of its text changed."""
    blocks = blocks_of((DOCS / "how-to/plugins.md").read_text(encoding="utf-8"))
    named = {block.file: block.text for block in blocks if block.file is not None}
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
        at = await process.insert(
            "flag", {"k": "a", "b": 1}, {"k": "a", "b": 6}, {"k": "n", "b": -4}
        )
        assert await process.answer("v/seen", at) == [("a", 7), ("n", -4)]
        assert await process.answer("w/met", at) == [("a", 7), ("n", -4)]
        assert await process.answer("v/side", at) == [("a", 1.0), ("a", 6**0.5)]
        ((error,),) = await process.answer("v/errors", at)
        assert str(error) == 'acme_mean raised ValueError: flag("n", -4)'
        assert await process.answer('v/seen("a") @bits(b)', at) == [(7,)]
        assert await process.answer("v/seen(k) @bits(-4)", at) == [("n",)]
        proof = (await process.query.why('v/seen("a") @bits(7)', at)).text
        assert 'flag("a", 1)' in proof
        assert 'flag("a", 6)' in proof
        below = (await process.query.why('w/met("a", 7)', at)).text
        assert "[of the view v]" in below
        assert 'flag("a", 6)' in below
        absent = (await process.query.why_not('v/seen("b")', at)).text
        assert 'flag("b", _)' in absent
        assert "@bits" in await process.query.explain("v", "plan")
    forget(monkeypatch)
    async with running(tmp_path) as process:
        at = await process.insert("flag", {"k": "a", "b": 8}, {"k": "n", "b": 1})
        assert await process.answer("v/seen", at) == [("a", 15), ("n", -3)]
        assert await process.answer("w/met", at) == [("a", 15), ("n", -3)]


def test_a_history_that_a_job_evaluates_means_what_its_plugins_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job names its plugins; where they are not installed it is refused, in words."""
    inputs = {"flag": InputSchema("flag", "relation", (("k", "text"), ("b", "int")))}
    with monkeypatch.context() as installed:
        install(tmp_path / "package", installed)
        words = plugins.vocabulary_of(Named(("bits@1",), ("acme_mean@1",)))
        program = check(parse(PROGRAM), InputSchemas(inputs), words)
        target = ViewTarget("v", program, {}, {}, "v/errors", "v/state")
        packed = pack_history(History(target, ComputeSettings(), 0, 1, {}, {}))
        forget(installed)
        again = unpack_history(packed).target.program
        told = [Presence(parse_record(f'flag("a", {b})'), 0, END) for b in (1, 4)]
        found = evaluated(again, {"flag": told}, upper=1).presences
        assert [str(each.record) for each in found["seen"]] == ['seen("a") @bits(5)']
        assert {str(each.record) for each in found["side"]} == {'side("a", 1.0)', 'side("a", 2.0)'}
    forget(monkeypatch)
    with pytest.raises(UsageError, match="no lattice bits is installed: install the distribution"):
        unpack_history(packed)


def test_a_plugin_that_takes_too_long_to_load_is_refused_with_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = ("import math", "import math\nimport threading\n\nthreading.Event().wait(1)")
    install(tmp_path / "package", monkeypatch, endless)
    catalog = Catalog(plugin_load_s=0.05)
    (resource,) = load_resources(view("v", PROGRAM, "  inputs: {flag: f}\n" + USES))
    (flags,) = load_resources(table("f", "k text", "b int"))
    catalog.plan(Stored(flags, 0))
    with pytest.raises(UsageError, match=r"within 0\.05 s \(limits\.plugin_load_s\)"):
        catalog.plan(Stored(resource, 0))


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
            at = await process.insert("flag", {"k": "a", "b": 1})
            assert await process.answer("v/seen", at) == [("a", 1)]
    with monkeypatch.context() as second:
        install(tmp_path / "second", second, ('version="1"', 'version="2"'))
        async with running(tmp_path) as process:
            at = await process.insert("flag", {"k": "a", "b": 2})
            assert await process.answer("o/p", at) == [("a",)]
            with pytest.raises(
                UsageError, match=r"bits@1 is not installed, but bits@2 of acme-words"
            ):
                await process.apply(view("x", PROGRAM, USES))
    with monkeypatch.context() as third:
        third.syspath_prepend(str(tmp_path / "first" / "site"))
        forget(third)
        async with running(tmp_path) as process:
            assert await process.answer("v/seen", at) == [("a", 3)]


def test_commands_take_what_programs_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "package", monkeypatch)
    program = tmp_path / "p.tidelog"
    program.write_text(f'flag("a", 1); flag("a", 4);\n{PROGRAM}\n')
    app = typer.Typer()
    app.command("eval")(check_command.evaluate)
    app.command("check")(check_command.check)
    options = ["--lattice", "acme-words:bits@1", "--function", "acme_mean@1"]
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
        (("math.sqrt", "str"), "is no float, which it declares"),
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
