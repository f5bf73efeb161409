"""`tidemill up`: the whole system in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tidemill.rpc.messages import ResourceDocument
from tidemill.rpc.server import serve
from tidemill.runtime import logs, settings
from tidemill.runtime.clock import SystemClock
from tidemill.runtime.http_server import HttpReply, HttpRequest, HttpServer
from tidemill.runtime.ids import random_id
from tidemill.runtime.lifecycle import Failed, Scope, Supervisor, exit_code
from tidemill.runtime.log import Log
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.runtime.log_kafka import KafkaLog
from tidemill.runtime.metrics import Metrics
from tidemill.shard import Collections
from tidemill.shard.stores import open_blob, open_consensus
from tidemill.time import TidemillError, UsageError
from tidemill_compaction.driver import CompactionDriver
from tidemill_embedded.observing import ObservedQueries, observed_calls, watch
from tidemill_embedded.resource_store import ResourceStore
from tidemill_embedded.settings import EmbeddedSettings
from tidemill_embedded.shapes import Shapes
from tidemill_embedded.system import System
from tidemill_embedded.world import World
from tidemill_query.driver import QueryDriver
from tidemill_query.storage import StorageDriver

log = logs.get_logger("up")


class LogLevel(Enum):
    """What is logged at least."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(slots=True)
class Process:
    """Everything of one process, opened in order."""

    settings: EmbeddedSettings
    world: World
    system: System
    query: QueryDriver
    storage: StorageDriver
    compaction: CompactionDriver
    risks: tuple[str, ...]


async def _open_kafka(bootstrap: str) -> Log:
    return KafkaLog(bootstrap)


@asynccontextmanager
async def opened(chosen: EmbeddedSettings) -> AsyncIterator[Process]:
    """The stores and the services on one state directory; only one process may have it open."""
    clock = SystemClock()
    root = chosen.root
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the state directory {root} cannot be made: {error.strerror}") from error
    embedded = EmbeddedLog(root / "log")
    consensus = open_consensus(
        chosen.consensus_address, allow_non_durable=chosen.store.allow_non_durable
    )
    collections = Collections(consensus, open_blob(chosen.blob_place, random_id), clock, random_id)
    metrics = Metrics(clock)
    shapes = Shapes()
    world = World(collections, embedded, _open_kafka, clock, metrics, chosen, shapes)
    system = System(world, ResourceStore(collections, clock))
    query = QueryDriver(collections, shapes, clock, chosen.query)
    storage = StorageDriver(collections, clock)
    compaction = CompactionDriver(
        collections, clock, chosen.compaction,
        lambda collection, message: log.warning("compaction", collection=collection, error=message),
    )  # fmt: skip
    try:
        await collections.open()
        for risk in consensus.risks:
            log.warning("acknowledged writes may be lost", risk=risk)
        yield Process(chosen, world, system, query, storage, compaction, consensus.risks)
    finally:
        await system.stop()
        await collections.close()
        await embedded.close()


async def _push(system: System, request: HttpRequest) -> HttpReply:
    """Rows pushed over HTTP, one to a line, are in the log before the answer."""
    rows = [line for line in request.body.splitlines() if line.strip()]
    pushed = await system.push(request.parts["name"], rows)
    return HttpReply.json({"accepted": pushed.accepted})


async def run_process(chosen: EmbeddedSettings, files: tuple[Path, ...]) -> int:
    """Run until a signal or a failure; the exit code."""
    async with opened(chosen) as process:
        supervisor = Supervisor(process.world.clock)
        http = HttpServer(chosen.http_host, chosen.http_port, process.world.metrics)
        http.add_route(
            "POST", "/v1/sources/{name}/rows", lambda request: _push(process.system, request)
        )

        for risk in process.risks:
            http.add_warning(f"acknowledged writes may be lost: {risk}")

        async def resources(scope: Scope) -> None:
            await process.system.start()
            watch(
                process.world.metrics, process.world.collections, process.system,
                process.compaction, process.risks,
            )  # fmt: skip
            if files:
                documents = [ResourceDocument(f.read_text(), str(f)) for f in _expanded(files)]
                await process.system.apply(documents)
            scope.ready()
            stopping = asyncio.create_task(scope.until_stopping())
            await asyncio.wait(
                (stopping, process.system.broken), return_when=asyncio.FIRST_COMPLETED
            )
            await process.system.stop()
            stopping.cancel()
            if process.system.broken.done():
                raise process.system.broken.result()

        async def compaction(scope: Scope) -> None:
            task = asyncio.create_task(process.compaction.compact_forever())
            scope.ready()
            await scope.until_stopping_or(task)

        async def web(scope: Scope) -> None:
            port = await http.start()
            (chosen.root / "http.address").write_text(f"http://{chosen.http_host}:{port}\n")
            log.info("metrics", address=f"http://{chosen.http_host}:{port}/metrics")
            scope.ready()
            await scope.until_stopping()
            await http.close()

        async def rpc(scope: Scope) -> None:
            metrics = process.world.metrics
            server = await serve(
                chosen.grpc, ObservedQueries(process.query, metrics), process.system,
                process.storage, reflect=True, observer=observed_calls(metrics),
            )  # fmt: skip
            host = chosen.grpc.rpartition(":")[0]
            (chosen.root / "grpc.address").write_text(f"{host}:{server.port}\n")
            log.info("listening", grpc=f"{host}:{server.port}", directory=str(chosen.root))
            scope.ready()
            await scope.until_stopping()
            await server.stop()

        supervisor.add("resources", resources)
        supervisor.add("compaction", compaction)
        supervisor.add("http", web)
        supervisor.add("grpc", rpc)
        outcome = await supervisor.run()
    if isinstance(outcome, Failed):
        typer.echo(f"tidemill up: {outcome}", err=True)
    return exit_code(outcome)


def _expanded(files: tuple[Path, ...]) -> list[Path]:
    """Files, and the YAML files of folders."""
    found: list[Path] = []
    for file in files:
        found += sorted(file.glob("*.yaml")) if file.is_dir() else [file]
    return found


def up(
    directory: Annotated[
        str | None, typer.Option("--dir", help="Folder of all state (default ./.tidemill).")
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", "-f", help="Resources to apply at the start.")
    ] = None,
    grpc: Annotated[
        str | None, typer.Option(help="Where clients connect (default 127.0.0.1:7474).")
    ] = None,
    http_port: Annotated[
        int | None, typer.Option(help="Port of /metrics and pushed rows (default 7475).")
    ] = None,
    consensus: Annotated[
        str | None,
        typer.Option(help="redis://HOST:PORT/DB for versions, instead of a file in --dir."),
    ] = None,
    blob: Annotated[
        str | None, typer.Option(help="s3://BUCKET/PREFIX?endpoint=URL for objects, likewise.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings as TOML or YAML.")] = None,
    log_format: Annotated[
        logs.Style, typer.Option(help="How events are written.")
    ] = logs.Style.CONSOLE,
    log_level: Annotated[
        LogLevel, typer.Option(help="Events below it are left out.")
    ] = LogLevel.INFO,
) -> None:
    """Run everything in this process, with its state in one folder.

    Then, in another shell: tidemill apply -f examples/… · tidemill get · tidemill query 'late(f, d)'
    """
    logs.configure(log_format.value, log_level.value)
    try:
        chosen = settings.load(EmbeddedSettings, config, "TIDEMILL_UP_")
        given = {"directory": directory, "grpc": grpc, "http_port": http_port}
        changes = {name: value for name, value in given.items() if value is not None}
        stores = {"consensus": consensus or "", "blob": blob or ""}
        store = msgspec.structs.replace(chosen.store, **{n: v for n, v in stores.items() if v})
        chosen = msgspec.structs.replace(chosen, store=store, **changes)
        code = asyncio.run(run_process(chosen, tuple(file or ())))
    except TidemillError as error:
        typer.echo(f"tidemill up: {error}", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(code)
