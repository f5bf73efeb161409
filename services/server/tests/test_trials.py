"""`tidemill test`: cases are compared in every order and cut, with a legible outcome."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest
import typer
from typer.testing import CliRunner

from tidemill.arrangement.machine_code import compiling_begins
from tidemill.errors import UsageError
from tidemill_server.trials import running
from tidemill_server.trials.answers import rules_of
from tidemill_server.trials.cases import case_files, load_cases
from tidemill_server.trials.command import run_cases
from tidemill_server.trials.running import differences
from tidemill_server.trials.staging import given_rows, reordered, stage

RESOURCES = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: flights}
spec:
  http: {}
  columns: [{name: plane, type: text}, {name: delay, type: int}, {name: at, type: int}]
  eventTime: {column: at, timeline: air, expiresAfter: 1h, skew: 1s}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: delays}
spec:
  inputs: {flight: flights}
  program: |
    late(plane: p, delay: d) := flight(p, d, _) if d > 30;
    often(plane: p) @count(d) := late(plane: p, delay: d);
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: watch}
spec: {program: "worst(plane: p) @time(0) ~count := often(plane: p) @count(c) if c >= 2;"}
---
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {name: tell}
spec: {view: watch, goal: "worst(p)", sink: {file: {path: late.jsonl}}}
"""
GIVEN = """
  given:
    flights:
    - {plane: N1, delay: 45, at: 2000}
    - {plane: N1, delay: 50, at: 1500}
    - {plane: N2, delay: 5, at: 9000}
"""
WRONG = {
    "asOf: {2000: {'late(p, d)': ['late(\"N1\", 45)']}}": [
        "as of 2000, late(p, d):",
        '  + late("N1", 50) @time(1500) @expires(3601500)',
    ],
    "asOf: {1500: {late: ['late(\"N1\", 50) @time(1)']}}": [
        "as of 1500, late:",
        '  - late("N1", 50) @time(1)',
        '  + late("N1", 50) @time(1500) @expires(3601500)',
    ],
    "fires: {tell: []}": ["tell fires:", '  + 2000: worst("N1") @time(0) @expires(3601500)'],
    "fires: {tell: ['1999: worst(\"N1\")']}": [
        "tell fires:",
        "  - 1999: worst(\"N1\")",
        '  + 2000: worst("N1") @time(0) @expires(3601500)',
    ],
    "corrections: {tell: ['5: worst(\"N1\") -> nothing']}": [
        "corrections of tell:", "  - 5: worst(\"N1\") -> nothing",
    ],
    "refused: {flights: [{plane: N9}]}": ["flights refuses:", "  - {'plane': 'N9'}"],
    "absent: [{record: 'late(\"N1\", 45) @time(2000)', asOf: 2000}]": [
        'as of 2000: late("N1", 45) @time(2000) is present, and was to be absent',
    ],
}  # fmt: skip


def written(folder: Path, expect: str, given: str = GIVEN) -> Path:
    (folder / "delays.yaml").write_text(RESOURCES)
    file = folder / "delays.test.yaml"
    file.write_text(f"cases:\n- name: one\n{given}\n  expect:\n    {expect}\n")
    return file


def outcome(file: Path) -> list[str]:
    loaded = load_cases(file)
    ((_, case),) = loaded.cases
    return differences(rules_of(loaded.resources), case, Random(1))


def test_a_case_passes_in_every_run(tmp_path: Path) -> None:
    expect = (
        "asOf: {2000: {'late(p, d)': ['late(\"N1\", 45)', 'late(\"N1\", 50) @time(1500)'],"
        " delays/often: ['often(\"N1\") @count(2)']}}\n"
        "    fires: {tell: ['2000: worst(\"N1\")']}\n    corrections: {tell: []}\n"
        "    absent: [{record: 'late(\"N2\", 5) @time(9000)', asOf: 9000, because: guard_false}]"
    )
    assert outcome(written(tmp_path, expect)) == []


@pytest.mark.parametrize("expect", WRONG)
def test_what_differs_is_said_line_by_line(tmp_path: Path, expect: str) -> None:
    assert outcome(written(tmp_path, expect)) == WRONG[expect]


def test_a_given_row_that_is_none_is_told_where_a_case_fails(tmp_path: Path) -> None:
    """A text in a column of numbers was a missing fact, and nothing said why."""
    given = GIVEN.replace("delay: 45", "delay: many")
    expect = "asOf: {2000: {'late(p, d)': ['late(\"N1\", 45)', 'late(\"N1\", 50)']}}"
    assert outcome(written(tmp_path, expect, given)) == [
        "as of 2000, late(p, d):",
        '  - late("N1", 45)',
        "flights refuses {'plane': 'N1', 'delay': 'many', 'at': 2000}: the column delay is text, not int",
    ]
    stated = expect + "\n    refused: {flights: [{plane: N1, delay: many, at: 2000}]}"
    assert len(outcome(written(tmp_path, stated, given))) == 2


def test_a_withdrawal_after_firing_is_a_correction(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(
        "apiVersion: tidemill.dev/v1alpha1\nkind: Table\nmetadata: {name: flights}\n"
        "spec: {columns: [{name: plane, type: text}]}\n---\n"
        "apiVersion: tidemill.dev/v1alpha1\nkind: View\nmetadata: {name: v}\n"
        'spec: {program: "seen(plane: p) := flights(plane: p);"}\n---\n'
        "apiVersion: tidemill.dev/v1alpha1\nkind: Action\nmetadata: {name: tell}\n"
        'spec: {view: v, goal: "seen(p)", sink: {file: {path: x}}}\n'
    )
    file = tmp_path / "t.test.yaml"
    file.write_text(
        "resources: [t.yaml]\ncases:\n- name: one\n"
        "  given: {flights: [{row: {plane: N1}, from: 10, until: 20}]}\n"
        "  expect: {fires: {tell: ['10: seen(\"N1\")']},"
        " corrections: {tell: ['20: seen(\"N1\") -> nothing']}}\n"
    )
    assert outcome(file) == []


FOLLOWED = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: ovens}
spec: {columns: [{name: oven, type: text}, {name: heat, type: int}]}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: heat}
spec: {program: "hot(oven: o) @max(d) := ovens(oven: o, heat: d) if d > 30;"}
---
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {name: page}
spec: {view: heat, goal: "hot(o) @max(d)", follow: FOLLOW, sink: {file: {path: x}}}
"""


@pytest.mark.parametrize("follow", [True, False])
def test_an_action_that_follows_tells_changes_and_ends_in_a_case(
    tmp_path: Path, follow: bool
) -> None:
    """The firings of a case are those of the action itself; a fact that always was begins at 0."""
    (tmp_path / "t.yaml").write_text(FOLLOWED.replace("FOLLOW", str(follow).lower()))
    rows = (
        "[{row: {oven: a, heat: 40}, from: 1000, until: 3000}, "
        "{row: {oven: a, heat: 50}, from: 2000, until: 3000}, {oven: b, heat: 31}]"
    )
    lines = ['0: hot("b") @max(31)', '1000: hot("a") @max(40)']
    if follow:
        lines = [
            '0: begin hot("b")', '1000: begin hot("a")', '2000: change hot("a") @max(50)',
            '3000: end hot("a") @max(50)',
        ]  # fmt: skip
    file = tmp_path / "t.test.yaml"
    for wanted in (lines, lines[:-1]):
        file.write_text(
            f"resources: [t.yaml]\ncases:\n- name: one\n  given: {{ovens: {rows}}}\n"
            f"  expect: {{fires: {{page: {wanted}}}}}\n"
        )
        missing = [f"  + {lines[-1]}"] if wanted != lines else []
        assert [line.partition(" @expires")[0] for line in outcome(file)[1:]] == missing


def test_a_limit_holds_firings_of_a_group_back_in_a_case(tmp_path: Path) -> None:
    text = FOLLOWED.replace(
        "follow: FOLLOW", "follow: true, limit: {count: 1, per: 5s, by: [oven]}"
    )
    text = text.replace("heat, type: int}", "heat, type: int}, {name: n, type: int}")
    text = text.replace("heat: d)", "heat: d, n: _)")
    (tmp_path / "t.yaml").write_text(
        text.replace('goal: "hot(o) @max(d)"', 'goal: "hot(o) @max(d)"')
    )
    rows = ", ".join(
        f"{{row: {{oven: {oven}, heat: 40, n: {begin}}}, from: {begin}, until: {begin + 100}}}"
        for begin, oven in ((1_000, "a"), (2_000, "b"), (3_000, "a"), (6_100, "a"))
    )
    wanted = [
        f"{at}: {phase} hot({json.dumps(oven)})"
        for begin, oven in ((1_000, "a"), (2_000, "b"), (6_100, "a"))
        for at, phase in ((begin, "begin"), (begin + 100, "end"))
    ]
    file = tmp_path / "t.test.yaml"
    file.write_text(
        f"resources: [t.yaml]\ncases:\n- name: one\n  given: {{ovens: [{rows}]}}\n"
        f"  expect: {{fires: {{page: {wanted}}}}}\n"
    )
    assert outcome(file) == []


def test_a_row_behind_the_skew_is_refused_and_keeps_the_order(tmp_path: Path) -> None:
    late = "  given: {flights: [{plane: N2, delay: 5, at: 9000}, {plane: N1, delay: 45, at: 2000}]}"
    expect = (
        "refused: {flights: [{plane: N1, delay: 45, at: 2000}]}\n"
        "    absent: [{record: 'late(\"N1\", 45) @time(2000)', asOf: 2000, because: late}]"
    )
    assert outcome(written(tmp_path, expect, late)) == []


def test_other_orders_differ_and_change_no_answer(tmp_path: Path) -> None:
    rules = rules_of(load_cases(written(tmp_path, "fires: {}")).resources)
    stored, entry = rules.inputs["flights"]
    rows = [{"plane": f"N{n}", "delay": n, "at": 1_000 + 300 * n} for n in range(12)]
    given = given_rows(stored, rows)
    wanted = stage(stored, entry, given)
    orders = [reordered(stored, given, Random(seed)) for seed in range(20)]
    assert len({str(order) for order in orders}) > 10
    for order in orders:
        assert set(stage(stored, entry, order).presences) == set(wanted.presences)
        assert not stage(stored, entry, order).refused


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cases:\n- nam: one\n", r"delays.test.yaml:2:.*nam"),
        ("cases:\n- name: one\n  given: {}\n  expect: {asOf: 3}\n", r"delays.test.yaml:4:"),
        ("cases: [", "delays.test.yaml:1"),
    ],
)
def test_a_mistake_in_a_case_file_has_a_place(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "delays.test.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=says):
        load_cases(file)


BEFORE_ALL = "  given: {{flights: [{{row: {{plane: N1}}, {}}}]}}"


@pytest.mark.parametrize(
    ("expect", "given", "says"),
    [
        ("asOf: {soon: {late: []}}", GIVEN, "no instant"),
        ("asOf: {1: {lat: []}}", GIVEN, "no view derives lat"),
        ("fires: {tel: []}", GIVEN, "no action tel; there are: tell"),
        ("fires: {}", "  given: {flight: []}", "flight is no source or table; there are: flights"),
        ("fires: {}", BEFORE_ALL.format("from: -9, until: 40"), "from -9 until 40: say from 0 on"),
        ("fires: {}", BEFORE_ALL.format("until: 0"), "from 0 until 0: say from 0 on"),
        ("fires: {}", BEFORE_ALL.format("from: null"), "from None until"),
        ("fires: {}", BEFORE_ALL.format("until: soon"), "from 0 until soon: say from 0 on"),
    ],
)
def test_a_case_that_does_not_fit_the_resources_is_refused(
    tmp_path: Path, expect: str, given: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        outcome(written(tmp_path, expect, given))


def test_the_command_writes_junit_and_fails_for_a_failed_case(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(run_cases)
    written(tmp_path, "fires: {tell: []}")
    done = CliRunner().invoke(app, [str(tmp_path), "--junit", str(tmp_path / "out.xml")])
    assert done.exit_code == 1
    assert "FAILED" in done.output
    assert done.stdout.endswith("0 passed, 1 failed\n")
    suite = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    assert "tell fires" in (suite.findtext("testcase/failure") or "")
    written(tmp_path, "fires: {tell: ['2000: worst(\"N1\")']}")
    done = CliRunner().invoke(app, [str(tmp_path)])
    assert (done.exit_code, done.stdout) == (0, "1 passed, 0 failed\n")
    done = CliRunner().invoke(app, [str(tmp_path), "--only", "two"])
    assert (done.exit_code, "no case has 'two' in its name" in done.output) == (1, True)
    (tmp_path / "delays.test.yaml").write_text("cases: []\n")
    done = CliRunner().invoke(app, [str(tmp_path)])
    assert (done.exit_code, done.output.splitlines()[0]) == (
        1, f"tidemill: no case is in {tmp_path / 'delays.test.yaml'}",
    )  # fmt: skip


def test_a_run_that_compiles_loops_says_so_once_beside_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = typer.Typer()
    app.command()(run_cases)
    written(tmp_path, "asOf: {2000: {'late(p, d)': []}}")

    def compile_two(*_: object) -> list[str]:
        compiling_begins()
        compiling_begins()
        return []

    monkeypatch.setattr(running, "differences", compile_two)
    done = CliRunner().invoke(app, [str(tmp_path)])
    assert (done.exit_code, done.stdout) == (0, "1 passed, 0 failed\n")
    assert (
        done.stderr
        == "compiling loops, which takes up to some minutes; later runs find them compiled\n"
    )
    monkeypatch.setattr(running, "differences", lambda *_: [])
    assert CliRunner().invoke(app, [str(tmp_path)]).stderr == ""


def test_a_folder_without_cases_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.test\.yaml"):
        case_files([tmp_path])
