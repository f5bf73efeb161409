"""The command, line by line, against a real server over handlers in memory."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from tidemill.client import connect
from tidemill.client.command import app
from tidemill.client.faults import advice
from tidemill.client.plugins import connection_first
from tidemill.errors import (
    Corrupt,
    CutOff,
    Fenced,
    Indeterminate,
    NotYet,
    Unavailable,
    UnknownCollection,
    UsageError,
)
from tidemill.rpc.messages import Answer, Explanation, Json, ResourceStatus
from tidemill.rpc.server import Server, serve
from tidemill.testkit.handlers_memory import MemoryHandlers, flights
from tidemill.time import frontier

DOCUMENTS = "kind: Source\nname: flights\n---\nkind: View\nname: delays"


@dataclass
class Served:
    """A server, what is behind it, and the command that calls it."""

    handlers: MemoryHandlers
    address: str

    def run(self, *arguments: str, stdin: str | bytes | None = None) -> Result:
        """The end of `tidemill --address … arguments`."""
        return CliRunner().invoke(app, ["--address", self.address, *arguments], input=stdin)


@pytest.fixture
def served() -> Iterator[Served]:
    """A server in a loop of its own thread."""
    handlers = MemoryHandlers({"flights": flights(), "delays/late": flights(2)})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> Server:
        return await serve("127.0.0.1:0", handlers, handlers, handlers)

    server = asyncio.run_coroutine_threadsafe(start(), loop).result()
    yield Served(handlers, f"127.0.0.1:{server.port}")
    asyncio.run_coroutine_threadsafe(server.stop(0), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_apply_takes_files_folders_and_standard_input(served: Served, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(DOCUMENTS)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.yml").write_text("kind: Table\nname: airlines")
    first = served.run("apply", "-f", str(tmp_path))
    assert first.output == "source/flights created\nview/delays created\ntable/airlines created\n"
    again = served.run("apply", "-f", str(tmp_path / "a.yaml"))
    assert again.output == "source/flights unchanged\nview/delays unchanged\n"
    piped = served.run("apply", "-f", "-", stdin="kind: View\nname: delays\nx: 1")
    assert piped.output == "view/delays configured\n"


def test_apply_names_a_file_that_is_not_there_or_is_wrong(served: Served, tmp_path: Path) -> None:
    missing = served.run("apply", "-f", str(tmp_path / "none.yaml"))
    assert (missing.exit_code, "none.yaml: No such file" in missing.output) == (1, True)
    (tmp_path / "bad.yaml").write_text("name: x")
    wrong = served.run("apply", "-f", str(tmp_path / "bad.yaml"))
    assert (wrong.exit_code, "bad.yaml:1: kind: is required" in wrong.output) == (1, True)
    (tmp_path / "nothing.yaml").write_text("")
    nothing = served.run("apply", "-f", str(tmp_path / "nothing.yaml"))
    assert (nothing.exit_code, "no resource in" in nothing.output) == (1, True)
    (tmp_path / "empty").mkdir()
    assert served.run("apply", "-f", str(tmp_path / "empty")).exit_code == 1


def test_get_lists_resources_in_each_form(served: Served) -> None:
    assert "tidemill apply -f" in served.run("get").output
    served.handlers.resources["View", "delays"] = ResourceStatus(
        "View", "delays", False, "Waiting", "no input", frontier(10), frontier(), 61_000, 5_000,
        "kind: View", {"strata": 2},
    )  # fmt: skip
    heading, line = served.run("get", "views").output.splitlines()
    assert heading.split() == ["KIND", "NAME", "READY", "SINCE", "UPPER", "LAG", "AGE", "REASON"]
    assert re.split(r"\s{2,}", line.strip()) == [
        "View", "delays", "no", "10", "closed", "1m 1s", "5s", "Waiting",
    ]  # fmt: skip
    wide = served.run("get", "view", "delays", "-o", "wide").output
    assert all(text in wide for text in ("MESSAGE", "closed", "no input"))
    assert served.run("get", "-o", "yaml").output == "kind: View\n"
    (listed,) = json.loads(served.run("get", "-o", "json").output)
    assert (listed["since"], listed["upper"], listed["details"]) == ([10], [], {"strata": 2})
    described = served.run("describe", "View", "delays").output
    assert all(text in described for text in ("not ready: Waiting", "strata", "kind: View"))


def test_a_source_without_records_is_listed_with_its_topic_and_broker(served: Served) -> None:
    says = "no records in topic t at kafka:9092 yet"
    served.handlers.resources["Source", "s"] = ResourceStatus(
        "Source", "s", True, "NoRecords", says, frontier(0), frontier(0)
    )
    _, line = served.run("get", "sources").output.splitlines()
    assert re.split(r"\s{2,}", line.strip()) == ["Source", "s", "yes", "0", "-", "-", "-", says]
    described = served.run("describe", "source", "s").output
    assert says in described
    assert re.search(r"^upper +-", described, re.MULTILINE)


def test_speed_records_behind_and_time_left_are_shown_while_a_source_catches_up(
    served: Served,
) -> None:
    caught_up = ResourceStatus("Source", "s", True, "Running", records_per_s=0.0, records_behind=0)
    behind = replace(caught_up, records_per_s=12_345.6, records_behind=2_000_000, left_ms=162_000)
    resources = served.handlers.resources
    resources["Source", "s"] = caught_up
    assert "BEHIND" not in served.run("get", "sources").output
    assert "BEHIND" in served.run("get", "sources", "-o", "wide").output
    resources["Source", "s"], resources["View", "v"] = behind, ResourceStatus("View", "v", True)
    heading, source, view = served.run("get").output.splitlines()
    assert heading.split()[5:9] == ["LAG", "RATE", "BEHIND", "LEFT"]
    assert re.split(r"\s{2,}", source.strip())[6:9] == ["12,346/s", "2,000,000", "2m 42s"]
    assert view.split()[6:9] == ["-", "-", "-"]
    described = served.run("describe", "source", "s").output
    assert all(text in described for text in ("12,346/s", "2,000,000", "2m 42s"))
    resources["Source", "s"] = replace(behind, left_ms=None)
    (listed,) = json.loads(served.run("get", "sources", "-o", "json").output)
    assert (listed["records_behind"], listed["left_ms"]) == (2_000_000, None)


def test_get_lists_collections(served: Served) -> None:
    listed = served.run("get", "collections").output
    assert "delays/late" in listed
    assert "retain" in listed
    (one,) = json.loads(served.run("get", "collections", "flights", "-o", "json").output)
    assert one["columns"][0] == {"name": "carrier", "type": "string", "nullable": True}


def test_what_is_not_there_is_refused_with_advice(served: Served) -> None:
    for arguments in (
        ("get", "view", "none"), ("describe", "view", "none"), ("delete", "view", "none"),
        ("query", "none(x)"), ("get", "widgets"),
    ):  # fmt: skip
        result = served.run(*arguments)
        assert result.exit_code == 1
        assert result.output.startswith("tidemill: there is no ")
    assert "`tidemill get`" in served.run("query", "none(x)").output


def test_delete_says_what_went(served: Served) -> None:
    served.run("apply", "-f", "-", stdin=DOCUMENTS)
    assert served.run("delete", "views", "delays").output == "view/delays deleted\n"
    assert ("View", "delays") not in served.handlers.resources


def test_query_shows_rows_and_says_for_which_instant(served: Served) -> None:
    result = served.run("query", "flights(carrier, delay)", "--as-of", "11")
    assert result.stdout == "carrier  delay\nAA           0\nUA          15\n"
    assert result.stderr == "2 rows as of 11\n  flights: since 10, upper 13\n"


def test_query_writes_json_csv_and_arrow(served: Served) -> None:
    answer = json.loads(served.run("query", "flights", "--format", "json").stdout)
    assert answer["as_of"] == 12
    assert answer["frontiers"] == {"flights": {"since": [10], "upper": [13]}}
    assert answer["rows"][2] == {"carrier": "UA", "delay": 15}
    text = served.run("query", "flights", "--format", "csv")
    assert next(csv.reader(io.StringIO(text.stdout))) == ["carrier", "delay"]
    stream = served.run("query", "flights", "--format", "arrow")
    with pa.ipc.open_stream(stream.stdout_bytes) as reader:
        assert reader.read_all().num_rows == 3
    for result in (text, stream):
        assert result.stderr == "3 rows as of 12\n  flights: since 10, upper 13\n"


def test_query_waits_only_if_it_is_told_to(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float | None] = []
    snapshot = MemoryHandlers.snapshot

    async def note_and_snapshot(
        self: MemoryHandlers, collection: str, as_of: int | None, wait_s: float | None
    ) -> Answer:
        asked.append(wait_s)
        return await snapshot(self, collection, as_of, wait_s)

    monkeypatch.setattr(MemoryHandlers, "snapshot", note_and_snapshot)
    for options in ((), ("--wait",), ("--timeout", "2.5"), ("--wait", "--timeout", "2.5")):
        assert served.run("query", "flights", *options).exit_code == 0
    assert asked == [None, 60.0, 2.5, 2.5]


def test_sql_reads_the_collections_it_names_at_one_instant(served: Served) -> None:
    text = "select count(*) n, sum(l.delay) s from flights f join delays.late l using (carrier)"
    answer = json.loads(served.run("sql", text, "--format", "json").stdout)
    assert answer["as_of"] == 11
    assert answer["rows"] == [{"n": 2, "s": 15}]
    assert set(answer["frontiers"]) == {"flights", "delays/late"}
    assert served.run("sql", "drop table flights").exit_code == 1
    assert served.run("sql", "select nothing from flights").exit_code == 1
    two = served.run("sql", "select 1; drop table flights")
    assert (two.exit_code, "exactly one SELECT" in two.output) == (1, True)
    goal = served.run("sql", "late(p, d)")
    assert (goal.exit_code, "`tidemill query` asks a goal" in goal.output) == (1, True)
    assert served.run("sql", "select 1 as one").stdout == "one\n  1\n"


FOLLOW = ("subscribe", "flights", "--from", "11", "--until", "12")


def test_subscribe_prints_changes_and_progress(served: Served) -> None:
    result = served.run(*FOLLOW)
    assert result.stdout.splitlines() == [
        "11  +1  carrier=AA, delay=0",
        "11  +1  carrier=UA, delay=15",
        "12  +1  carrier=DL, delay=30",
    ]
    assert result.stderr == "-- complete before 13\n"
    lines = served.run(*FOLLOW, "--no-snapshot", "--format", "json").stdout.splitlines()
    assert json.loads(lines[0]) == {"carrier": "DL", "delay": 30, "_time": 12, "_diff": 1}
    assert json.loads(lines[1]) == {"progress": [13]}


def test_subscribe_writes_csv_with_one_heading_and_one_arrow_stream(served: Served) -> None:
    text = served.run(*FOLLOW, "--format", "csv")
    assert list(csv.reader(io.StringIO(text.stdout))) == [
        ["carrier", "delay", "_time", "_diff"],
        ["AA", "0", "11", "1"], ["UA", "15", "11", "1"], ["DL", "30", "12", "1"],
    ]  # fmt: skip
    assert text.stderr == "-- complete before 13\n"
    stream = served.run(*FOLLOW, "--format", "arrow")
    with pa.ipc.open_stream(stream.stdout_bytes) as reader:
        assert reader.read_all()["_time"].to_pylist() == [11, 11, 12]


def test_a_subscriber_that_was_cut_off_is_told_where_to_go_on(served: Served) -> None:
    served.handlers.failing["flights"] = CutOff("cut off", upper=frontier(12), resume_at=11)
    result = served.run("subscribe", "flights")
    assert result.exit_code == 3
    assert result.stderr == "tidemill: cut off\n  Go on with --from 11 --no-snapshot.\n"


def test_why_draws_the_proof_and_why_not_says_what_stops_it(served: Served) -> None:
    drawn = served.run("why", "late(1)").stdout
    assert drawn.splitlines()[0] == "late(1)   by late(f) := flight(f)"
    assert "└── flight(1)" in drawn
    assert json.loads(served.run("why", "late(1)", "--json").stdout)["fact"] == "late(1)"
    assert "no match for flight(1)" in served.run("why-not", "late(1)").stdout


def test_a_proof_of_any_depth_is_drawn_to_the_depth_asked_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def why(self: MemoryHandlers, record: str, as_of: int | None) -> Explanation:
        tree: Json = {"fact": "a(0)", "rule": None, "children": []}
        for step in range(1, 5_000):
            other: Json = {"fact": f"b({step})", "children": []}
            tree = {"fact": f"a({step})", "rule": "r", "children": [other, tree]}
        return Explanation("", tree)

    monkeypatch.setattr(MemoryHandlers, "why", why)
    drawn = served.run("why", "a(4999)", "--depth", "3").stdout.splitlines()
    assert [line.strip("│├└─ ").split(" ")[0] for line in drawn] == [
        "a(4999)", "b(4999)", "a(4998)", "b(4998)", "a(4997)", "…",
    ]  # fmt: skip
    assert "9994 more below" in drawn[-1]
    text = served.run("why", "a(4999)", "--json").stdout
    assert text.count('"fact"') == 9_999
    assert text.count("[") == text.count("]") == 9_999


def test_explain_prints_the_plan(served: Served) -> None:
    assert served.run("explain", "delays").stdout == "view delays\n  stratum 1\n"
    for form in ("analyze", "json", "dot", "svg"):
        assert served.run("explain", "delays", f"--{form}").stdout == f"{form} of delays\n"
    both = served.run("explain", "delays", "--json", "--analyze")
    assert both.stdout == "analyze-json of delays\n"
    both = served.run("explain", "delays", "--dot", "--svg")
    assert both.exit_code == 2


def test_insert_takes_rows_and_files(served: Served, tmp_path: Path) -> None:
    row = '{"carrier": "B6", "delay": 7}'
    assert served.run("insert", "flights", "--row", row).output == (
        "1 row in flights, present from 13\n"
    )
    (tmp_path / "more.csv").write_text("carrier,delay\n007,1\nX,2\n")
    assert served.run("insert", "flights", "-f", str(tmp_path / "more.csv")).exit_code == 0
    shown = served.run("query", "flights", "--format", "csv").stdout
    assert '"007",1' in shown
    assert served.run("insert", "flights", "-f", "-", stdin=row).exit_code == 0
    piped = served.run("insert", "flights", stdin=f"{row}\n{row}\n")
    assert piped.output.startswith("2 rows in flights, present from ")
    assert served.run("insert", "flights").exit_code == 1
    assert served.run("insert", "flights", "-f", str(tmp_path / "none.csv")).exit_code == 1


def test_push_sends_lines_as_they_are(served: Served, tmp_path: Path) -> None:
    result = served.run("push", "flights", stdin=b'{"a": 1}\r\n\n\xff\n')
    assert result.output == "2 rows in the log of flights\n"
    (tmp_path / "rows.csv").write_text("x,1\n")
    assert served.run("push", "flights", "-f", str(tmp_path / "rows.csv")).exit_code == 0
    assert [row for _, row in served.handlers.pushed] == [b'{"a": 1}', b"\xff", b"x,1"]


def test_c2_heartbeat_sends_what_it_promises_as_a_row(served: Served) -> None:
    """C2: the instant may be written as a date; one that is none is refused before anything is
    sent.
    """
    result = served.run("heartbeat", "flights", "--until", "2013-02-01T06:00:00Z")
    assert (
        result.output == "flights has no more events before 1359698400000 (2013-02-01T06:00:00Z)\n"
    )
    assert [row for _, row in served.handlers.pushed] == [b"tidemill-heartbeat: 1359698400000"]
    for wrong in ("latest", "noon"):
        assert served.run("heartbeat", "flights", "--until", wrong).exit_code != 0
    assert len(served.handlers.pushed) == 1


def test_push_of_nothing_says_that_there_is_no_such_source(served: Served) -> None:
    assert served.run("push", "flights", stdin=b"").output == "0 rows in the log of flights\n"
    served.handlers.failing["flihgts"] = UnknownCollection("there is no Source flihgts")
    result = served.run("push", "flihgts", stdin=b"")
    assert result.exit_code == 1
    assert "there is no Source flihgts" in result.output


@pytest.mark.parametrize(
    ("as_of", "texts"),
    [
        ("99", ["not definite at 99", "The upper is 13", "--wait"]),
        ("3", ["no longer known at 3", "The since is 10, moved by retain 10m", "retain"]),
    ],
)
def test_instants_outside_of_the_definite_interval_exit_with_three(
    served: Served, as_of: str, texts: list[str]
) -> None:
    result = served.run("query", "flights", "--as-of", as_of)
    assert result.exit_code == 3
    assert all(text in result.stderr for text in texts)
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("refused"), 1),
        (Fenced("refused"), 1),
        (Unavailable("refused"), 4),
        (Indeterminate("refused"), 4),
        (Corrupt("refused"), 5),
        (ZeroDivisionError("refused"), 5),
    ],
)
def test_the_exit_code_says_what_to_do_next(served: Served, error: Exception, code: int) -> None:
    served.handlers.failing["delays"] = error
    result = served.run("explain", "delays")
    assert result.exit_code == code
    assert "refused" in result.output
    assert "Traceback" not in result.output


def test_a_server_that_is_away_is_one_line_and_what_to_do() -> None:
    result = CliRunner().invoke(app, ["--address", "127.0.0.1:1", "get"])
    assert result.exit_code == 4
    assert len(result.output.splitlines()) == 2
    assert "No server answers at 127.0.0.1:1. Start it with: tidemill up" in result.output


def test_a_bug_of_the_command_is_a_line_too(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("tidemill.client.listings.print_collections", broken)
    result = served.run("get", "collections")
    assert result.exit_code == 5
    assert result.output == "tidemill: the command failed: KeyError: 'oops'\n"


@pytest.mark.parametrize("address", ["junk", "http://localhost:7474", "localhost:99999", "a b:1"])
def test_what_is_no_address_is_told_and_not_looked_for(address: str) -> None:
    result = CliRunner().invoke(app, ["--address", address, "get"])
    assert (result.exit_code, "write HOST:PORT" in result.stderr) == (1, True)


def test_the_address_may_stand_anywhere_on_the_line(served: Served) -> None:
    for arguments in (
        ("explain", "v", "--address", served.address),
        ("explain", f"--address={served.address}", "v"),
    ):
        assert CliRunner().invoke(app, list(arguments)).output == "view v\n  stratum 1\n"
    assert connection_first(["--", "get", "--address", "a"], {"get"})[0] == "--"
    assert connection_first(["up", "--address", "a"], {"get"}) == ["up", "--address", "a"]
    assert CliRunner().invoke(app, ["get", "--address"]).exit_code == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: str) -> None:
    result = CliRunner().invoke(app, ["completion", shell])
    assert result.exit_code == 0
    assert "_TIDEMILL_COMPLETE" in result.output


def test_a_wrong_instant_and_a_wrong_option_are_refused_before_the_call() -> None:
    assert CliRunner().invoke(app, ["query", "p(x)", "--as-of", "yesterday"]).exit_code == 1
    assert CliRunner().invoke(app, ["query", "p(x)", "--format", "xml"]).exit_code == 2
    assert CliRunner().invoke(app, ["apply"]).exit_code == 2


def test_the_address_comes_from_the_environment(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_ADDRESS", served.address)
    assert CliRunner().invoke(app, ["explain", "v"]).output == "view v\n  stratum 1\n"
    with connect() as client:
        assert client.query("flights", "latest").table.num_rows == 3
        assert client.sql("select count(*) c from flights", 10).table.to_pydict() == {"c": [1]}
        assert client.insert("flights", [{"carrier": "B6", "delay": 1}]).rows == 1
        assert client.push("flights", ["a", b"b"]).accepted == 2


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from tidemill.client.command import app\n"
        "try: app(['--help'], prog_name='tidemill')\n"
        "except SystemExit: pass\n"
        "print([m for m in ('grpc', 'pyarrow', 'duckdb', 'google', 'numpy', 'rich') if m in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1] == "[]"


def test_who_has_waited_is_not_told_to_wait() -> None:
    waited = advice(NotYet("no, after 60 s of waiting", upper=frontier(7), reason="waited"), "here")
    assert "--timeout waits longer" in waited
    assert "--wait" not in waited


def test_a1_who_asks_before_the_first_instant_is_not_sent_to_an_earlier_one() -> None:
    assert "choose an earlier instant" in advice(NotYet("no", upper=frontier(7)), "here")
    assert (
        advice(NotYet("ask again", upper=frontier(0), reason="first"), "here")
        == "Wait for it with --wait."
    )
