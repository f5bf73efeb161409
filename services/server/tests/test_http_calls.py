"""Calls over HTTP: the answers and the rights of gRPC, in the forms of the web."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.catalog.resource_yaml import yaml_of
from tidemill.errors import UsageError
from tidemill.host.settings import LimitSettings
from tidemill.rpc.identity import Grant, Role
from tidemill.rpc.messages import Comparison, Condition, ResourceDocument
from tidemill.runtime.http_problems import FORM_STATUSES, STATUSES
from tidemill.runtime.http_server import HttpLimits
from tidemill.testkit.web import TABLE, VIEW, Named, web
from tidemill_query import resource_status
from tidemill_query.web.forms import FORMS, accepted
from tidemill_query.web.openapi import OPERATIONS, document
from tidemill_query.web.reading import conditions_of

SOURCE = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: events}
spec: {http: {}, format: {json: {}}, columns: [{name: n, type: int}], retain: all}
"""


async def test_an_answer_is_that_of_grpc_in_every_form(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        at = await asked.insert()
        found = await asked.whole.query.ask("late(p, d)", at, 60.0)
        rows = found.table.to_pylist()
        path = f"/v1/ask?goal=late(p,d)&as_of={at}&wait_s=60"
        for form in FORMS:
            said = await asked.ask(path, headers={"Accept": form})
            assert said.status == 200
            assert said.headers["Content-Type"] == form
            assert said.headers["Tidemill-As-Of"] == str(at)
            assert decoded(form, said.body) == rows
        assert (await asked.ask(path)).json["as_of"] == at


def decoded(form: str, body: bytes) -> list[dict[str, Any]]:
    match form:
        case "application/json":
            found: list[dict[str, Any]] = json.loads(body)["rows"]
            return found
        case "application/x-ndjson":
            return [json.loads(line) for line in body.splitlines()]
        case "text/csv":
            return pa.csv.read_csv(io.BytesIO(body)).to_pylist()
        case _:
            return pa.ipc.open_stream(body).read_all().to_pylist()


@pytest.mark.parametrize(
    ("where", "planes"),
    [
        (["delay>=30"], {"N2", "N3"}),
        (["delay==45"], {"N2"}),
        (['plane=="N1"'], {"N1"}),
        (["plane!=N1", "delay<40"], {"N3"}),
        (["gate==null"], {"N3"}),
        (["gate!=null", "delay>5"], {"N2"}),
    ],
)
async def test_rows_are_filtered_by_column(
    tmp_path: Path, where: list[str], planes: set[str]
) -> None:
    async with web(tmp_path) as asked:
        at = await asked.insert()
        query = [("as_of", str(at)), ("wait_s", "60"), *(("where", each) for each in where)]
        said = await asked.ask("/v1/collections/delays", params=query)
        assert {row["plane"] for row in said.json["rows"]} == planes


EVERY = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: every}
spec:
  retain: all
  columns: [{name: i, type: int}, {name: f, type: float}, {name: t, type: text}, {name: b, type: bool},
    {name: ts, type: timestamp}, {name: d, type: date}, {name: du, type: duration}, {name: u, type: uuid},
    {name: de, type: "decimal(9, 2)"}, {name: by, type: bytes}, {name: j, type: json}]
"""
EVERY_ROWS = [
    {"i": 1, "f": 1.5, "t": "a", "b": True, "ts": "2026-01-01T00:00:00Z", "d": "2026-01-01", "du": "1h",
     "u": "6f9619ff-8b86-d011-b42d-00c04fc964ff", "de": "1.50", "by": "AP8=", "j": {"a": 1}},
    {"i": 2, "f": -0.0, "t": 'b,"x"', "b": False, "ts": "2026-01-02T00:00:00Z", "d": "2026-01-02", "du": "2h",
     "u": "00000000-0000-0000-0000-000000000000", "de": "2.50", "by": "", "j": [1, 2]},
    {"i": 9007199254740993, "f": 1e300, "t": "", "b": False, "ts": "1969-12-31T23:59:59.999Z",
     "d": "0001-01-01", "du": "-1ms", "u": "f" * 32, "de": "-0.01", "by": "eA==", "j": {"z": None}},
]  # fmt: skip
FILTERS = [
    (["i==9007199254740993"], [2]), (["i>=2", "f<0.5"], [1]), (["f==0"], [1]), (["f>1e299"], [2]),
    (['t=="b,\\"x\\""'], [1]), (["t=="], [2]), (["b!=true"], [1, 2]), (["ts<2026-01-01T00:00:00Z"], [2]),
    (["ts>=2026-01-01T01:00:00+01:00"], [0, 1]), (["d<0002-01-01"], [2]), (["du==60m"], [0]),
    (["du<0ms"], [2]), (["de==1.5"], [0]), (["de<0"], [2]), (["by==AP8="], [0]), (['by==""'], [1]),
    (["u==6F9619FF8B86D011B42D00C04FC964FF"], [0]), (['j=={"a": 1}'], [0]), (["j!=[1,2]"], [0, 2]),
    (["i==1", "t==a", "b==true", "de>1", "ts>2020-01-01T00:00:00Z"], [0]),
]  # fmt: skip


async def test_rows_are_filtered_by_columns_of_every_type(tmp_path: Path) -> None:
    """Refusals name the column and its type."""
    async with web(tmp_path) as asked:
        await asked.whole.controller.apply([ResourceDocument(EVERY, "test.yaml")])
        sent = await asked.ask("/v1/tables/every/rows", "POST", data=json.dumps(EVERY_ROWS),
                               headers={"Content-Type": "application/json"})  # fmt: skip
        at = ("as_of", str(sent.json["time"]))
        numbers = {row["i"]: number for number, row in enumerate(EVERY_ROWS)}
        for where, wanted in FILTERS:
            query = [at, ("wait_s", "60"), *(("where", each) for each in where)]
            said = await asked.ask("/v1/collections/every", params=query)
            assert said.status == 200, said.body
            assert sorted(numbers[row["i"]] for row in said.json["rows"]) == wanted, where
        wrongs = {
            "b==1": "b, which is bool:", "ts==1767225600000": "ts, which is timestamp:",
            "de==1.555": "de, which is decimal(9,2):", "j<1": "j is json,",
            "i==1.0": "i, which is int:", f"i=={'9' * 20}": "i, which is int:",
        }  # fmt: skip
        for wrong, named in wrongs.items():
            said = await asked.ask("/v1/collections/every", params=[at, ("where", wrong)])
            assert (said.status, said.json["reason"]) == (400, "Value")
            assert named in said.json["detail"]


def test_the_value_of_a_condition_is_text_of_the_column() -> None:
    assert conditions_of(["a==1", 'b!="null"', "c==null", "d<=x=y"]) == [
        Condition("a", Comparison.EQUAL, "1"),
        Condition("b", Comparison.NOT_EQUAL, "null"),
        Condition("c", Comparison.EQUAL, None),
        Condition("d", Comparison.LESS_OR_EQUAL, "x=y"),
    ]
    for wrong in ("a", "==1", 'a=="'):
        with pytest.raises(UsageError, match="filter refused"):
            conditions_of([wrong])


async def test_an_instant_is_written_alike_over_every_surface(tmp_path: Path) -> None:
    """Dates and words are those of the command line; a word means another instant each time."""
    async with web(tmp_path) as asked:
        at = await asked.insert()
        day = datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")
        for path in ("/v1/collections/late/late?", "/v1/ask?goal=late(p,d)&"):
            dated = await asked.ask(f"{path}as_of={quote(day)}&wait_s=60")
            assert (dated.status, dated.headers["Tidemill-As-Of"]) == (200, str(at)), dated.body
            kept = await asked.ask(dated.headers["Content-Location"])
            assert "immutable" in kept.headers["Cache-Control"]
            for word, before_ms in (("latest", 0), ("now", 0), ("now-1ms", 1)):
                said = await asked.ask(f"{path}as_of={word}&wait_s=60")
                assert said.headers["Cache-Control"] == "no-cache"
                assert int(said.headers["Tidemill-As-Of"]) >= at - before_ms
        for call in ("why", "why-not"):
            said = await asked.ask(f'/v1/{call}?record=late("N2",45)&as_of={quote(day)}')
            assert (said.status, "absent" in said.json["text"]) == (200, False), said.body
        stream = await asked.ask(f"/v1/subscribe?goal=late(p,d)&start={at - 1}&until={quote(day)}")
        assert stream.status == 200
        refused = await asked.ask("/v1/subscribe?goal=late(p,d)&until=latest")
        assert (refused.status, "no end of a stream" in refused.json["detail"]) == (400, True)


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/v1/collections/none", 404, "none"),
        ("/v1/collections/delays?as_of=never", 400, "write milliseconds"),
        ("/v1/collections/delays?as_of=-1", 400, "outside of the timeline"),
        ("/v1/collections/delays?limit=3", 400, "`limit`"),
        ("/v1/collections/delays?as_of=1&as_of=2", 400, "twice"),
        ("/v1/collections/delays?where=speed==3", 400, "speed"),
        ("/v1/collections/delays?where=delay==fast", 400, "delay"),
        ("/v1/ask?goal=late(p", 400, "1:7"),
        ("/v1/ask", 400, "goal"),
        ("/v1/nothing", 404, "/v1/nothing"),
    ],
)
async def test_a_refusal_is_a_problem_that_says_what_to_do(
    tmp_path: Path, path: str, status: int, says: str
) -> None:
    async with web(tmp_path) as asked:
        said = await asked.ask(path)
        assert said.status == status
        assert said.headers["Content-Type"] == "application/problem+json"
        problem = said.json
        assert problem["status"] == status
        assert problem["type"].startswith("urn:tidemill:")
        assert says in problem["detail"]
        assert problem["title"].endswith(".")


async def test_head_has_the_headers_of_get_and_no_body(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        at = await asked.insert()
        for path in (
            "/v1/openapi.json", "/v1/resources", "/healthz", "/metrics", "/v1/nothing",
            f"/v1/collections/late/late?as_of={at}&wait_s=60", "/v1/collections/none",
            f"/v1/ask?goal=late(p,d)&as_of={at}", "/v1/subscribe?goal=late(p,d)",
        ):  # fmt: skip
            if path.startswith("/v1/subscribe"):
                head = await asked.ask(path, "HEAD")
                assert (head.status, head.headers["Content-Type"]) == (200, "text/event-stream")
                continue
            get, head = await asked.ask(path), await asked.ask(path, "HEAD")
            assert (head.status, head.body) == (get.status, b""), path
            if get.status == 200 and path not in ("/metrics", "/v1/resources"):  # they move on
                volatile = {"Date"}
                assert {n: v for n, v in head.headers.items() if n not in volatile} == {
                    n: v for n, v in get.headers.items() if n not in volatile
                }


async def test_what_is_not_there_is_told_with_what_there_is(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        near = await asked.ask("/v1/colections")
        assert near.json["detail"] == "GET /v1/colections; did you mean /v1/collections?"
        far = await asked.ask("/metrics/of/nothing/" + "x" * 5_000)
        assert far.json["detail"].endswith("GET /v1/openapi.json lists every route")
        assert len(far.json["detail"]) < 300
        for path in ("/v1/collections/none", "/v1/ask?goal=none(x)", "/v1/resources/View/none"):
            said = await asked.ask(path)
            assert said.status == 404
            assert "GET /v1/collections" in said.json["advice"]
        later = await asked.ask("/v1/collections/delays?as_of=99999999999999")
        assert (later.status, "wait_s" in later.json["advice"]) == (425, True)


async def test_a_form_or_a_method_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        said = await asked.ask("/v1/collections/delays", headers={"Accept": "image/png"})
        assert said.status == 406
        assert "text/csv" in said.json["detail"]
        wrong = await asked.ask("/v1/collections/delays", "PUT")
        assert (wrong.status, wrong.headers["Allow"]) == (405, "GET,HEAD")
        form = await asked.ask(
            "/v1/apply", "POST", data=b"a,b", headers={"Content-Type": "text/csv"}
        )
        assert form.status == 415


def test_accept_is_weighed() -> None:
    assert accepted("") == accepted("*/*") == "application/json"
    assert accepted("text/html, text/csv;q=0.5, */*;q=0.1") == "text/csv"
    assert accepted("application/json;q=0, */*") == "application/x-ndjson"
    assert accepted("text/*") == "text/csv"
    assert accepted("image/png, application/json;q=none") is None


@given(st.text())
def test_any_header_accept_has_an_answer(said: str) -> None:
    assert accepted(said) in (*FORMS, None)


async def test_roles_are_those_of_grpc(tmp_path: Path) -> None:
    users = Named(
        rita=Grant(Role.reader, ("late", "delays")),
        walt=Grant(Role.writer, ("events",)),
        anna=Grant(Role.admin),
    )
    async with web(tmp_path, users) as asked:
        await asked.whole.controller.apply([ResourceDocument(SOURCE, "test.yaml")])
        await asked.insert()

        async def status(path: str, who: str, method: str = "GET", **sent: Any) -> int:
            bearer = {"Authorization": f"Bearer {who}"}
            return (await asked.ask(path, method, headers=bearer, **sent)).status

        stranger = await asked.ask("/v1/collections/delays")
        assert (stranger.status, stranger.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert await status("/v1/collections/delays", "nobody") == 401
        assert await status("/v1/collections/delays", "rita") == 200
        assert await status("/v1/collections/delays", "walt") == 403
        assert await status("/v1/collections/events", "rita") == 403
        row = {"data": b'{"n": 1}\n'}
        assert await status("/v1/sources/events/rows", "rita", "POST", **row) == 403
        assert await status("/v1/sources/events/rows", "walt", "POST", **row) == 200
        assert await status("/v1/apply", "walt", "POST", data=TABLE.encode()) == 403
        assert await status("/v1/apply", "anna", "POST", data=TABLE.encode()) == 200
        assert await status("/v1/resources/View/late", "walt", "DELETE") == 403
        bearer = {"Authorization": "Bearer rita"}
        seen = await asked.ask("/v1/collections", headers=bearer)
        assert {each["id"].partition("/")[0] for each in seen.json} == {"delays", "late"}
        own = await asked.ask("/v1/collections/delays", headers=bearer)
        assert own.headers["Vary"] == "Accept, Authorization"


async def test_an_answer_for_a_token_is_kept_by_no_shared_cache(tmp_path: Path) -> None:
    async with web(tmp_path, Named(rita=Grant(Role.reader))) as asked:
        at = await asked.insert()
        said = await asked.ask(
            f"/v1/collections/delays?as_of={at}&wait_s=60", headers={"Authorization": "Bearer rita"}
        )
        assert said.headers["Cache-Control"].startswith("private, ")


async def test_resources_are_applied_described_explained_and_deleted(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        at = await asked.insert()
        document = VIEW.replace("late", "tardy")
        applied = await asked.ask(
            "/v1/apply",
            "POST",
            data=document.encode(),
            headers={"Content-Type": "application/yaml"},
        )
        assert applied.json == [{"kind": "View", "name": "tardy", "outcome": "created"}]
        names = {each["name"] for each in (await asked.ask("/v1/resources?kind=View")).json}
        assert names == {"late", "tardy"}
        one = await asked.ask("/v1/resources/View/tardy")
        assert one.json["document"].startswith("apiVersion")
        await asked.ask(f"/v1/collections/tardy/tardy?as_of={at}&wait_s=60")
        proof = await asked.ask('/v1/why?record=tardy("N2",45)')
        assert "delays" in proof.json["text"]
        assert proof.json["tree"]["children"]
        missing = await asked.ask('/v1/why-not?record=tardy("N1",5)')
        assert "the guard is false for d = 5" in missing.json["text"]
        assert "delays" in (await asked.ask("/v1/views/tardy/plan")).json["text"]
        gone = await asked.ask("/v1/resources/View/tardy", "DELETE")
        assert (gone.status, gone.body) == (204, b"")
        assert (await asked.ask("/v1/resources/View/tardy")).status == 404


async def test_a_document_is_written_once_however_often_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A console asks for all each second: a thousand took two seconds of the processor."""
    written: list[str] = []

    def write(document: dict[str, Any]) -> str:
        written.append(document["metadata"]["name"])
        return yaml_of(document)

    monkeypatch.setattr(resource_status, "yaml_of", write)
    async with web(tmp_path) as asked:
        for _ in range(3):
            found = (await asked.ask("/v1/resources")).json
            await asked.ask("/v1/resources/View/late")
        assert sorted(written) == ["delays", "late"]
        changed = VIEW.replace("d >= 30", "d >= 40")
        await asked.whole.controller.apply([ResourceDocument(changed, "test.yaml")])
        again = {each["name"]: each["document"] for each in (await asked.ask("/v1/resources")).json}
        assert "d >= 40" in again["late"]
        assert again["delays"] == next(x["document"] for x in found if x["name"] == "delays")
        assert sorted(written) == ["delays", "late", "late"]
    written.clear()
    async with web(tmp_path / "short") as asked:
        path = "/v1/resources?documents="
        assert {each["document"] for each in (await asked.ask(path + "false")).json} == {""}
        assert written == []  # also at the first look, when none is known
        assert {each["name"] for each in (await asked.ask(path + "true")).json if each["document"]}
        assert sorted(written) == ["delays", "late"]


async def test_rows_are_inserted_and_removed_by_objects_of_json(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        path = "/v1/tables/delays/rows"

        async def insert(body: bytes, **headers: str) -> Any:
            headers = {"Content-Type": "application/json", **headers}
            return await asked.ask(path, "POST", data=body, headers=headers)

        lines = b'{"plane": "N1", "delay": 5, "gate": "A"}\n{"plane": "N2", "delay": 45}\n'
        once = {"Idempotency-Key": "a-token-of-this-call"}
        first = (await insert(lines, **once)).json
        assert first["rows"] == 2
        assert (await insert(lines, **once)).json == first
        at = (await insert(b'[{"plane": "N1", "delay": 5, "gate": "A", "_diff": -1}]')).json["time"]
        said = await asked.ask(f"/v1/collections/delays?as_of={at}&wait_s=60")
        row = {"plane": "N2", "delay": 45, "gate": None, "_diff": 1}
        assert said.json["rows"] == [row]
        for body, says in (
            (b'{"plane": "N1"}', "lack the columns delay"),
            (b"[1]", "Expected `object`"),
            (b'{"plane": "N1"', "truncated"),
            (b"[" * 5_000, "no objects of JSON"),
            (b'[{"plane": 1, "delay": 1}, {"plane": "a", "delay": 1}]', "no common type"),
            (b'[{"plane": "a", "delay": 99999999999999999999}]', "no common type|delay"),
            # each row has its own column, which all others have as well: 100 million values
            (b"".join(b'{"x%d": 1}\n' % n for n in range(10_000)), "10000 rows .* 10000 columns"),
        ):
            refused = await insert(body)
            assert refused.status == 400, refused.body
            assert re.search(says, refused.json["detail"]), refused.body


async def test_mistakes_of_a_program_come_with_their_places(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        wrong = VIEW.replace("d >= 30", "d >= thirty")
        said = await asked.ask("/v1/apply", "POST", data=wrong.encode())
        assert said.status == 400
        assert re.search(r"View/late:1:53: S102 `thirty`", said.json["detail"])
        said = await asked.ask("/v1/apply", "POST", data=VIEW.encode() + b"# gr\xfcn\n")
        assert (said.status, said.json["reason"]) == (400, "text")
        line = VIEW.count("\n") + 1
        assert said.json["detail"].startswith(f"body:{line}:5: not UTF-8: the byte 0xFC")


async def test_a_check_says_what_an_apply_would_do_and_does_nothing(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        at = await asked.insert()

        async def check(text: str, path: str = "/v1/check") -> Any:
            headers = {"Content-Type": "application/yaml"}
            return await asked.ask(path, "POST", data=text.encode(), headers=headers)

        changed = VIEW.replace("d >= 30", "d >= 40")
        documents = f"{VIEW.replace('late', 'tardy')}---{changed}---{TABLE}"
        for path in ("/v1/check", "/v1/check", "/v1/apply"):
            found = {each["name"]: each["outcome"] for each in (await check(documents, path)).json}
            wanted = {"tardy": "created", "late": "configured", "delays": "unchanged"}
            assert found == wanted, path
            if path == "/v1/apply":
                break
            assert (await asked.ask("/v1/resources/View/tardy")).status == 404
            assert (await asked.ask("/v1/ask?goal=tardy(p, d)")).status == 404
            said = await asked.ask(f"/v1/ask?goal=late(p, d)&as_of={at}&wait_s=60")
            assert {row["d"] for row in said.json["rows"]} == {30, 45}
        refused = await check(VIEW.replace("d >= 30", "d >= thirty"))
        assert refused.status == 400
        assert "View/late:1:53: S102" in refused.json["detail"]


async def test_a_large_answer_comes_in_pieces_and_is_whole(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        count = 120_000
        at = await asked.insert(
            pa.table({"plane": [f"N{n}" for n in range(count)], "delay": [1] * count,
                      "gate": ["a gate with a long name"] * count})
        )  # fmt: skip
        for form in FORMS:
            said = await asked.ask(
                f"/v1/collections/delays?as_of={at}&wait_s=60", headers={"Accept": form}
            )
            assert said.headers["Transfer-Encoding"] == "chunked"
            assert len({row["plane"] for row in decoded(form, said.body)}) == count


async def test_a_client_that_does_not_read_is_cut_off_and_others_are_answered(
    tmp_path: Path,
) -> None:
    async with web(tmp_path, limits=HttpLimits(answer_s=0.3)) as asked:
        count = 200_000
        await asked.insert(
            pa.table({"plane": [f"N{n}" * 10 for n in range(count)], "delay": [1] * count,
                      "gate": ["g" * 50] * count})
        )  # fmt: skip
        slow = await asked.session.get(f"{asked.address}/v1/collections/delays")
        assert slow.status == 200
        assert (await asked.ask("/v1/collections")).status == 200
        await asked.whole.context.clock.sleep(1.0)
        with pytest.raises(aiohttp.ClientError):
            await slow.read()


async def test_what_one_caller_may_have_under_way_counts_over_both_ports(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        text = asked.whole.exposed()
        assert 'grpc_server_handled_total{grpc_code="OK",grpc_method="Collections"' not in text
        await asked.ask("/v1/collections")
        text = asked.whole.exposed()
        assert 'grpc_method="Collections"' in text


async def test_a_caller_beyond_a_limit_is_refused_by_its_setting(tmp_path: Path) -> None:
    limits = LimitSettings(calls_per_s=1.0)
    async with web(tmp_path, system={"limits": limits}) as asked:
        found = [await asked.ask("/v1/collections") for _ in range(5)]
        refused = next(each for each in found if each.status != 200)
        assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
        assert refused.json["setting"] == "limits.calls_per_s"


def test_the_document_of_openapi_has_every_operation_and_refusal() -> None:
    told = document()
    assert told["openapi"] == "3.1.0"
    for each in OPERATIONS:
        operation = told["paths"][each.path][each.method.lower()]
        assert operation["summary"].endswith(".")
        refusals = {int(s) for s in operation["responses"] if s >= "400"}
        assert refusals <= {s for _, s in STATUSES} | set(FORM_STATUSES)
        assert {401, 403, 429} <= refusals
    assert json.loads(json.dumps(told)) == told
