"""Subcommands that other distributions add."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tidemill.client import near_commands, plugins
from tidemill.client.command import app

GOOD = '''
"""A module."""
import typer

def greet(name: str) -> None:
    """Say a name."""
    typer.echo(f"hello {name}")
'''
NESTED = '''
"""A group of two."""
import typer
app = typer.Typer()

@app.command()
def one() -> None:
    """The first."""
    typer.echo("1")

@app.command()
def two() -> None:
    """The second."""
'''
BROKEN = 'def broken() -> None:\n    """Break."""\n\nraise RuntimeError("half installed")\n'


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins: two good ones, one that cannot be imported, one in a package, one that is
    nowhere.
    """
    points: dict[str, EntryPoint] = {}
    for name, text, attr in (
        ("greet", GOOD, "greet"), ("nested", NESTED, "app"), ("broken", BROKEN, "broken"),
    ):  # fmt: skip
        (tmp_path / f"plugin_{name}.py").write_text(text)
        points[name] = EntryPoint(name, f"plugin_{name}:{attr}", plugins.GROUP)
    (tmp_path / "plugin_package").mkdir()
    (tmp_path / "plugin_package" / "__init__.py").write_text('raise RuntimeError("imported")\n')
    (tmp_path / "plugin_package" / "inner.py").write_text(GOOD)
    points["inner"] = EntryPoint("inner", "plugin_package.inner:greet", plugins.GROUP)
    points["gone"] = EntryPoint("gone", "plugin_gone.sub:gone", plugins.GROUP)
    points["get"] = EntryPoint("get", "plugin_greet:greet", plugins.GROUP)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("plugin_")]:
        monkeypatch.delitem(sys.modules, name)  # of another test
    monkeypatch.setattr(plugins, "plugins", lambda: points)


@pytest.mark.usefixtures("installed")
def test_help_lists_plugins_without_importing_them() -> None:
    listed = CliRunner().invoke(app, ["--help"])
    assert listed.exit_code == 0
    lines = {tuple(line.split(maxsplit=1)) for line in listed.output.splitlines()}
    for line in (
        ("greet", "Say a name."),
        ("broken", "Break."),
        ("nested", "A group of two."),
        ("inner", "Say a name."),
    ):
        assert line in lines
    assert "(cannot be loaded)" in listed.output
    assert not {"plugin_greet", "plugin_broken", "plugin_package"} & set(sys.modules)


def test_help_imports_no_columns() -> None:
    script = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from tidemill.client.command import app\n"
        "listed = CliRunner().invoke(app, ['--help'])\n"
        "assert listed.exit_code == 0, listed.output\n"
        "print(*sorted({'numpy', 'pyarrow', 'grpc', 'duckdb', 'pandas'} & set(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "\n"


@pytest.mark.usefixtures("installed")
def test_a_plugin_runs_be_it_a_function_or_an_app() -> None:
    assert CliRunner().invoke(app, ["greet", "you"]).output == "hello you\n"
    assert CliRunner().invoke(app, ["nested", "one"]).output == "1\n"
    assert CliRunner().invoke(app, ["greet"]).exit_code == 2


@pytest.mark.usefixtures("installed")
def test_a_broken_plugin_is_one_line_and_the_others_go_on() -> None:
    broken = CliRunner().invoke(app, ["broken"])
    assert broken.exit_code == 5
    assert broken.output == (
        "tidemill: the subcommand 'broken' cannot be loaded from plugin_broken: "
        "RuntimeError: half installed\n"
    )
    assert CliRunner().invoke(app, ["gone"]).exit_code == 5
    assert CliRunner().invoke(app, ["greet", "you"]).exit_code == 0


@pytest.mark.usefixtures("installed")
def test_a_plugin_never_replaces_a_subcommand_of_ours() -> None:
    assert "List resources" in CliRunner().invoke(app, ["get", "--help"]).output


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("ask", "there is no command 'ask'; did you mean tidemill query or tidemill sql"),
        ("qurey", "there is no command 'qurey'; did you mean tidemill query?"),
        ("ls", "did you mean tidemill get?"),
        ("desc", "did you mean tidemill describe?"),
        ("late(f, d)", "questions are asked by: tidemill query"),
        ("xyzzy", "tidemill --help lists them, and questions are asked by: tidemill query"),
    ],
)
def test_a_word_that_is_no_command_is_told_what_is(written: str, says: str) -> None:
    ran = CliRunner().invoke(app, [written])
    assert ran.exit_code == 2
    assert says in " ".join(ran.output.split())


def test_every_command_that_is_proposed_is_there() -> None:
    named = {each for meant in near_commands._MEANT.values() for each in meant}
    group = typer.main.get_command(app)
    assert named - {"--help"} <= set(group.list_commands(None))  # type: ignore[attr-defined]


def test_a_choice_that_is_none_is_refused_with_the_choices() -> None:
    ran = CliRunner().invoke(app, ["get", "-o", "nothing"])
    assert ran.exit_code == 2
    told = " ".join(ran.output.split())
    assert "'nothing' is not one of" in told
    assert "Value error" not in told
