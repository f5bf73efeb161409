"""`tidemill check`, `tidemill fmt` and `tidemill eval` on files, without a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import typer
from click.testing import Result
from typer.testing import CliRunner

from tidemill.testkit.documents import document
from tidemill.testkit.documents import program_view as view
from tidemill_server.commands import check_command

SOURCE = document(
    "Source",
    "flights",
    "{http: {}, columns: [{name: plane, type: text}, {name: delay, type: int}]}",
)


def run_command(command: Callable[..., None], arguments: list[str], stdin: str = "") -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, arguments, input=stdin)


def test_the_command_speaks_to_people_and_to_editors(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SOURCE)
    (tmp_path / "v.tidelog").write_text("p(x, y) := q(x);\n")
    run = run_command(check_command.check, [str(tmp_path)])
    assert run.exit_code == 1
    assert "v.tidelog:1:6: S101" in run.output
    assert "2 files: 1 mistake, 0 warnings" in run.output
    run = run_command(check_command.check, [str(tmp_path), "--json"])
    (finding,) = json.loads(run.stdout)["findings"]
    assert (finding["code"], finding["severity"], finding["line"], finding["column"]) == (
        "S101", "error", 1, 6,
    )  # fmt: skip
    assert (finding["endLine"], finding["endColumn"]) == (1, 7)
    run = run_command(check_command.check, [str(tmp_path / "none")])
    assert (run.exit_code, "none: No such file" in run.output) == (1, True)


def test_fmt_changes_programs_in_place_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "v.yaml"
    wild = (
        "# kept\n" + SOURCE + "---\n" + view("v", "p( x ):=flights(x,_) ; // why\n\n\nq(x):=p(x);")
    )
    file.write_text(wild + "  retain: all  # kept\n---\n" + view("w", "r(x):=p(x);"))
    assert run_command(check_command.fmt, [str(file), "--check"]).exit_code == 1
    assert (
        "+    p(x) := flights(x, _);  // why"
        in run_command(check_command.fmt, [str(file), "--diff"]).output
    )
    assert run_command(check_command.fmt, [str(file)]).exit_code == 0
    text = file.read_text()
    assert (
        "    p(x) := flights(x, _);  // why\n\n    q(x) := p(x);\n  retain: all  # kept\n" in text
    )
    assert text.startswith("# kept\n" + SOURCE)
    assert text.endswith("  program: |\n    r(x) := p(x);\n")
    assert run_command(check_command.fmt, [str(file), "--check"]).exit_code == 0
    piped = run_command(check_command.fmt, ["-"], "p(x):=q(x);")
    assert piped.output == "p(x) := q(x);\n"
    file.write_text(view("w", "r(x):=p(x)"))
    broken = run_command(check_command.fmt, [str(file)])
    assert (broken.exit_code, "v.yaml:6:" in broken.output) == (1, True)


def test_eval_prints_what_a_program_derives_from_its_own_facts(tmp_path: Path) -> None:
    file = tmp_path / "p.tidelog"
    file.write_text("q(1) @time(5) @expires(9);\nq(2);\np(x, 6 / x) := q(x);\nr(1 / 0) := q(2);\n")
    ran = run_command(check_command.evaluate, [str(file)])
    assert ran.stdout == (
        "[-inf,-) p(2, 3)\n[5,9) p(1, 6) @time(5) @expires(9)\nfailed: division by zero: q(2)\n"
    )
    only = run_command(check_command.evaluate, ["-", "q", "--upper", "5"], file.read_text())
    assert only.stdout.startswith("[-inf,-) q(2)\nfailed")
    unknown = run_command(check_command.evaluate, [str(file), "z"])
    assert (unknown.exit_code, "has no z" in unknown.output) == (1, True)
    file.write_text("p(x) @next := q(x);")
    assert "tidemill conformance" in run_command(check_command.evaluate, [str(file)]).output


def test_c3_eval_follows_its_facts_and_says_which_instants_it_shows() -> None:
    text = 'flight("a", 1711845000000);\nlate(p) @time(t) := flight(p, t);\n'
    ran = run_command(check_command.evaluate, ["-"], text)
    assert ran.stdout == '[1711845000000,-) late("a") @time(1711845000000)\n'
    assert ran.stderr == "instants before 1711845500000 are shown; --upper shows others\n"
    assert run_command(check_command.evaluate, ["-"], "q(1); p(x) := q(x);").stderr == ""


def test_c3_a_misspelt_predicate_is_never_silent(tmp_path: Path) -> None:
    text = "late(p) := fligth(p, d) if d > 5;\n"
    ran = run_command(check_command.evaluate, ["-"], text)
    assert "-:1:12: W206 no rule states or derives `fligth`: it is empty here" in ran.stderr
    file = tmp_path / "p.tidelog"
    file.write_text(f'flight("a", 9);\n{text}')
    for command in (check_command.check, check_command.evaluate):
        ran = run_command(command, [str(file)])
        assert (ran.exit_code, ran.output.count("W206")) == (0, 1)
        assert "did you mean `flight`?" in ran.output


def test_a_file_that_is_no_text_is_named_with_the_line(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.tl", tmp_path / "bad.tl"
    good.write_text("p(1);\n")
    bad.write_bytes(b"p(1);\nq(\xff);\n")
    for command in (check_command.check, check_command.fmt):
        refused = run_command(command, [str(good), str(bad)])
        assert refused.exit_code == 1
        assert f"{bad}:2:3: not UTF-8: the byte 0xFF; save the file as UTF-8" in refused.stderr


def test_a_mark_at_the_beginning_of_a_file_is_no_mistake(tmp_path: Path) -> None:
    """Editors of some systems write it before UTF-8, and end lines with two characters."""
    file = tmp_path / "a.tidelog"
    file.write_bytes("\ufeffp(1);\r\nq(x) := p(x);\r\n".encode())
    assert run_command(check_command.evaluate, [str(file)]).stdout == "[-inf,-) q(1)\n"
    assert run_command(check_command.check, [str(file)]).exit_code == 0


def test_an_upper_beyond_every_instant_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.tidelog"
    file.write_text("p(1);\nq(x) := p(x);\n")
    for upper, code in ((1 << 63) - 1, 0), (1 << 63, 2):
        assert (
            run_command(check_command.evaluate, [str(file), "--upper", str(upper)]).exit_code
            == code
        )
