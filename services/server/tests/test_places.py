"""Places that resources may name, asked of a whole server by an admin of some names who is no
friend of the process.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from aiohttp import web

from tidemill.errors import TidemillError, UsageError
from tidemill.host.settings import StoreSettings
from tidemill.rpc.messages import ResourceDocument
from tidemill.runtime.kafka_access import KafkaFiles, access_of
from tidemill.runtime.places import PlaceSettings
from tidemill.runtime.places.settings import FileSettings, SecretSettings, TopicSettings
from tidemill.testkit.certificates import Certificates
from tidemill.testkit.documents import FLIGHTS, document, told_to
from tidemill.testkit.http_endpoints import served
from tidemill.testkit.whole import Whole, opened
from tidemill_server.settings import ServerSettings

PLANTED = "PLANTED-1f3a"


def source(spec: str) -> str:
    return document("Source", "ops", spec)


def action(sink: str) -> str:
    return document("Action", "tell", told_to(sink))


@asynccontextmanager
async def running(
    folder: Path, places: PlaceSettings, *, alone: bool = False
) -> AsyncIterator[Whole]:
    """A server with its state in `folder/state`; unless `alone`, its settings say what resources
    may name.
    """
    settings = ServerSettings(
        directory=str(folder / "state"), grpc="127.0.0.1:0" if alone else "0.0.0.0:0", insecure=True,
        places=places, retry_s_min=0.05, retry_s_max=0.1,
    )  # fmt: skip
    async with opened(settings, folder / "etc" / "settings.yaml") as process:
        await process.start()
        yield process


async def apply(process: Whole, text: str) -> None:
    await process.controller.apply([ResourceDocument(text, "all.yaml")])


async def refusal(process: Whole, text: str) -> str:
    """Why it is not applied; nothing that was planted is said."""
    with pytest.raises(UsageError) as refused:
        await apply(process, text)
    assert PLANTED not in str(refused.value)
    return str(refused.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Data, keys and settings of a server, each in a folder of its own."""
    for name in ("data", "etc", "sinks"):
        (tmp_path / name).mkdir()
    (tmp_path / "data/rows.csv").write_text("plane\nN1\n")
    (tmp_path / "etc/server.key").write_text(f"{PLANTED},key\n")
    (tmp_path / "etc/settings.yaml").write_text("{}\n")
    (tmp_path / "outside.csv").write_text(f"{PLANTED}\n1\n")
    (tmp_path / "data/link.csv").symlink_to(tmp_path / "etc/server.key")
    return tmp_path


FILES = ["{f}/etc/server.key", "{f}/outside.csv", "{f}/data/../outside.csv", "{f}/data/link.csv",
         "/etc/passwd", "{f}/state/*", "/proc/self/environ", "{f}/data/../etc/*"]  # fmt: skip


@pytest.mark.parametrize("path", FILES)
async def test_a1_a_source_reads_no_file_that_nobody_named(folder: Path, path: str) -> None:
    places = PlaceSettings(files=FileSettings(read=(str(folder / "data"),)))
    async with running(folder, places) as process:
        file = f"file: {{path: '{path.format(f=folder)}', format: csv}}"
        says = await refusal(process, source(f"{{{file}, infer: {{}}}}"))
        assert "is refused" in says
        if "link" not in path:
            assert "places.files.read" in says
        # Columns that are wrong are not told from those of the file.
        says = await refusal(process, source(f"{{{file}, columns: [{{name: x, type: text}}]}}"))
        assert "is refused" in says
        await apply(
            process,
            source(f"{{file: {{path: {folder}/data/rows.csv, format: csv}}, infer: {{}}}}"),
        )


@pytest.mark.parametrize(
    "path", ["{f}/etc/server.key", "{f}/state/consensus.sqlite", "{f}/etc/settings.yaml"]
)
async def test_a1_a_server_that_is_alone_gives_away_no_key_and_no_state(
    folder: Path, path: str
) -> None:
    secrets = {"key": SecretSettings(str(folder / "etc/server.key"))}
    async with running(folder, PlaceSettings(secrets=secrets), alone=True) as process:
        target = Path(path.format(f=folder))
        before = held(target)
        says = await refusal(
            process, source(f"{{file: {{path: {target}, format: csv}}, infer: {{}}}}")
        )
        assert "belongs to the system" in says
        await apply(process, FLIGHTS + action(f"{{file: {{path: {target}}}}}"))
        await until_says(process, "Action", "tell", "belongs to the system")
        assert held(target) == before


def held(path: Path) -> bytes:
    """The bytes of a file that no process writes meanwhile; of a database, its first ones."""
    return path.read_bytes()[: 16 if path.suffix == ".sqlite" else None]


async def until_says(process: Whole, kind: str, name: str, text: str) -> str:
    """The status of a resource, once it says this."""
    async with asyncio.timeout(120):
        while True:
            status = await process.controller.describe(kind, name)
            if text in f"{status.reason} {status.message}":
                return f"{status.reason} {status.message}"
            await asyncio.sleep(0.05)


SINKS = [
    ("{file: {path: '{f}/outside.csv'}}", "places.files.write"),
    ("{file: {path: '{f}/sinks/../etc/server.key'}}", "places.files.write"),
    ("{file: {path: '{f}/state/consensus.sqlite'}}", "places.files.write"),
    ("{sqlite: {path: '{f}/state/consensus.sqlite'}}", "places.files.write"),
    ("{file: {path: /dev/zero}}", "places.files.write"),
    ('{http: {url: "http://169.254.169.254/latest"}}', "credentials"),
    ('{http: {url: "http://10.0.0.1/hook"}}', "places.egress"),
    ('{http: {url: "https://example.com/hook"}}', "places.egress"),
    ('{http: {url: "https://hooks.example.org/x", secretHeaders: {Authorization: broker}}}',
     "places.secrets.broker.hosts"),
    ('{http: {url: "http://hooks.example.org/x", secretHeaders: {Authorization: hook}}}',
     "places.clear_text"),
    ('{http: {url: "https://hooks.example.org/x", secretHeaders: {Authorization: none}}}',
     "places.secrets.none.file"),
    ('{redis: {url: "redis://evil.example.net:6379"}}', "places.egress"),
    ("{log: {topic: payments}}", "places.topics.write"),
    ("{log: {topic: t}}", "places.topics.write"),
]  # fmt: skip
SOURCES = [
    ('{kafka: {topic: t, bootstrap: "evil.example.net:9092"}, columns: C}', "places.egress"),
    ('{kafka: {topic: payments, bootstrap: "kafka.example.org:9092"}, columns: C}',
     "places.topics.read"),
    ('{kafka: {topic: payments}, columns: C}', "places.topics.read"),
    ('{kafka: {topic: told}, columns: C}', "places.topics.read"),
    ('{kafka: {topic: t, bootstrap: "hooks.example.org:9092", tls: {}, '
     "sasl: {mechanism: PLAIN, username: u, secret: broker}}, columns: C}",
     "places.secrets.broker.hosts"),
    ('{kafka: {topic: t, bootstrap: "kafka.example.org:9092", '
     "sasl: {mechanism: PLAIN, username: u, secret: broker}}, columns: C}", "places.clear_text"),
    ('{http: {}, format: {json: {}}, columns: C}', ""),
    ('{kafka: {topic: t}, columns: C, format: {avro: {registry: {url: "http://evil.example.net"}}}}',
     "places.egress"),
    ('{kafka: {topic: t}, columns: C, format: {avro: {registry: {url: "http://hooks.example.org", '
     "username: u, secret: hook}}}}", "places.clear_text"),
]  # fmt: skip


def named(folder: Path) -> PlaceSettings:
    """Places as an administrator names them."""
    key = str(folder / "etc/server.key")
    return PlaceSettings(
        files=FileSettings(read=(str(folder / "data"),), write=(str(folder / "sinks"),)),
        egress=("*.example.org",), topics=TopicSettings(read=("t", "ops.*"), write=("told", "ops.*")),
        secrets={
            "broker": SecretSettings(key, ("kafka.example.org",)),
            "hook": SecretSettings(key, ("hooks.example.org",)),
        },
    )  # fmt: skip


async def test_a1_neither_sink_nor_source_goes_where_nobody_named(folder: Path) -> None:
    async with running(folder, named(folder)) as process:
        await apply(process, FLIGHTS)
        for sink, setting in SINKS:
            says = await refusal(process, action(sink.replace("{f}", str(folder))))
            assert setting in says, sink
        for spec, setting in SOURCES:
            text = source(spec.replace("columns: C", "columns: [{name: n, type: text}]"))
            if setting:
                assert setting in await refusal(process, text), spec
            else:
                await apply(process, text)
        assert (folder / "etc/server.key").read_text() == f"{PLANTED},key\n"
        assert not list((folder / "sinks").iterdir())
        await apply(process, action(f"{{file: {{path: {folder}/sinks/new/told.jsonl}}}}"))
        await process.controller.insert("flights", _row())
        async with asyncio.timeout(120):
            while not (folder / "sinks/new/told.jsonl").exists():
                await asyncio.sleep(0.05)


def _row() -> pa.Table:
    return pa.table({"plane": ["N1"]})


async def test_a1_a_redirect_is_not_followed_and_a_secret_reaches_its_host_alone(
    folder: Path,
) -> None:
    """An endpoint that sends whoever comes to another one, with what it was given."""
    heard: list[tuple[str, str | None]] = []

    async def hook(request: web.Request) -> web.Response:
        heard.append((request.path, request.headers.get("Authorization")))
        if request.path == "/hook":
            raise web.HTTPTemporaryRedirect("/elsewhere")
        return web.Response()

    (folder / "etc/token").write_text(f"Bearer {PLANTED}\n")
    secrets = {"hook": SecretSettings(str(folder / "etc/token"), ("127.0.0.1",))}
    async with (
        served(web.route("*", "/{path}", hook)) as url,
        running(folder, PlaceSettings(secrets=secrets), alone=True) as process,
    ):
        sink = f'{{http: {{url: "{url}/hook", secretHeaders: {{Authorization: hook}}}}}}'
        await apply(process, FLIGHTS + action(sink))
        await process.controller.insert("flights", _row())
        says = await until_says(process, "Action", "tell", "redirects are not followed")
        assert PLANTED not in says
    assert heard == [("/hook", f"Bearer {PLANTED}")]


async def test_a1_who_may_read_a_topic_does_not_write_it(folder: Path) -> None:
    """Neither by an action, nor by rows that are pushed to the source that reads it."""
    columns = "columns: [{name: n, type: int}], format: {json: {}}"
    reads = source(f"{{kafka: {{topic: t}}, {columns}}}")
    writes = reads.replace("topic: t", "topic: ops.in").replace("name: ops", "name: taken")
    async with running(folder, named(folder)) as process:
        await apply(process, reads + writes)
        with pytest.raises(UsageError, match=r"the topic t is refused: places\.topics\.write"):
            await process.controller.push("ops", [b'{"n": 1}'])
        assert (await process.controller.push("taken", [b'{"n": 2}'])).accepted == 1
        async with asyncio.timeout(120):
            while (await process.query.snapshot("taken", None, 60.0)).table.num_rows != 1:
                await asyncio.sleep(0.05)
        assert (await process.query.snapshot("ops", None, 60.0)).table.num_rows == 0


async def test_a1_topics_that_are_closed_meanwhile_are_neither_read_nor_written(
    folder: Path,
) -> None:
    topics = source("{kafka: {topic: t}, columns: [{name: n, type: int}]}")
    texts = FLIGHTS + topics + action("{log: {topic: told}}")
    async with running(folder, named(folder)) as process:
        await apply(process, texts)
    closed = msgspec.structs.replace(named(folder), topics=TopicSettings())
    async with running(folder, closed) as process:
        assert "places.topics.read" in await until_says(process, "Source", "ops", "topic t is")
        says = await until_says(process, "Action", "tell", "topic told is")
        assert "places.topics.write" in says


async def test_s8_a_pipe_that_took_the_place_of_a_file_is_refused(folder: Path) -> None:
    """Looked at when it is opened, not only when the source was applied."""
    places = PlaceSettings(files=FileSettings(read=(str(folder / "data"),)))
    file = folder / "data/rows.csv"
    async with running(folder, places) as process:
        spec = f"{{file: {{path: {file}, format: csv}}, columns: [{{name: plane, type: text}}]}}"
        await apply(process, source(spec))
        async with asyncio.timeout(120):
            while (await process.query.snapshot("ops", None, 60.0)).table.num_rows != 1:
                await asyncio.sleep(0.05)
        file.unlink()
        os.mkfifo(file)
        await until_says(process, "Source", "ops", "no regular file")
        file.unlink()
        file.symlink_to(folder / "etc/server.key")
        says = await until_says(process, "Source", "ops", "no regular file")
        assert PLANTED not in says


async def test_a1_a_folder_of_the_state_cannot_be_named(folder: Path) -> None:
    for bad in ("state", "state/inner", "etc"):
        places = PlaceSettings(files=FileSettings(read=(str(folder / bad),)))
        with pytest.raises(TidemillError, match="state, keys and settings are no data"):
            async with running(folder, places):
                pass


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"mechanism": "PLAIN", "username": "u", "password_file": "KEY"}, "places.clear_text"),
        ({"mechanism": "SCRAM-SHA-256", "username": "u"}, "go together"),
        ({"authority": "KEY"}, "TLS with Kafka"),
        (
            {"mechanism": "SCRAM-SHA-256", "username": "u", "password_file": "NONE"},
            "cannot be read",
        ),
    ],
)
async def test_a1_the_own_log_says_which_file_of_it_is_wrong(
    folder: Path, told: dict[str, str], says: str
) -> None:
    files = {"KEY": str(folder / "etc/server.key"), "NONE": str(folder / "none")}
    access = KafkaFiles(**{name: files.get(value, value) for name, value in told.items()})
    settings = ServerSettings(
        directory=str(folder / "state"), log="kafka:kafka.example.org:9092", log_kafka=access
    )
    with pytest.raises(UsageError, match=says) as refused:
        async with opened(settings):
            pass
    assert PLANTED not in str(refused.value)


def test_a1_the_own_log_has_tls_and_a_login(tmp_path: Path) -> None:
    made = Certificates.of(tmp_path, "ours")
    mine = made.issued("me")
    (tmp_path / "password").write_text("S3CR3T\n")
    access = access_of(
        KafkaFiles(
            authority=str(made.authority), certificate=str(mine.certificate), key=str(mine.key),
            mechanism="SCRAM-SHA-512", username="me", password_file=str(tmp_path / "password"),
        )
    )  # fmt: skip
    options = access.options()
    assert options["security_protocol"] == "SASL_SSL"
    assert options["ssl_context"].verify_mode is ssl.CERT_REQUIRED
    assert options["sasl_plain_password"] == "S3CR3T"
    assert "S3CR3T" not in repr(access)


@pytest.mark.parametrize("query", ["ssl_cert_reqs=none", "prefix=a&ssl_check_hostname=false"])
def test_s13_the_address_of_redis_does_not_turn_certificates_off(query: str) -> None:
    chosen = ServerSettings(store=StoreSettings(consensus=f"rediss://host:6379/0?{query}"))
    with pytest.raises(UsageError, match="certificates are always checked"):
        assert chosen.consensus_address
