"""One process: what it opens, in order, and what it runs until it is asked to stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TypeAlias

import typer

from tidemill.catalog.catalog import Catalog
from tidemill.catalog.store import ResourceStore
from tidemill.rpc.admission import Admissions
from tidemill.rpc.audited import REASON_CHARS_MAX, AuditedCall, RefusalsAlone
from tidemill.rpc.channel import Dialer
from tidemill.rpc.identity import Authenticator, ServicesOnly, Tokens
from tidemill.rpc.messages import ResourceDocument, Work
from tidemill.rpc.server import Server, ServiceHandlers, serve
from tidemill.rpc.tls import ServerCredentials, server_context
from tidemill.runtime import logs
from tidemill.runtime.clock import Clock, SystemClock
from tidemill.runtime.documents import parse_yaml
from tidemill.runtime.http_guard import HttpGuard, is_loopback
from tidemill.runtime.http_server import HttpRequest, HttpServer
from tidemill.runtime.ids import random_id
from tidemill.runtime.kafka_access import access_of, brokers_of, egress_of, kafka_files
from tidemill.runtime.lifecycle import Failed, Scope, Supervisor, exit_code
from tidemill.runtime.log import Log
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.runtime.log_kafka import KafkaLog
from tidemill.runtime.metrics import Metrics
from tidemill.runtime.places import Places
from tidemill.runtime.resources import KafkaOrigin
from tidemill.shard import Collections, Limits
from tidemill.shard.claims import Claimant, Claiming, Keeper, KeptClaimant, SoleClaimant
from tidemill.shard.stores import open_blob, open_claims, open_consensus
from tidemill.spark.board import JobBoard
from tidemill.time import TidemillError, UsageError
from tidemill_compaction.bulk_spark import SparkMerge
from tidemill_compaction.driver import CompactionDriver
from tidemill_embedded.auditing import Audit
from tidemill_embedded.authorizing import (
    AuthorizedCatalog,
    AuthorizedCompute,
    AuthorizedQueries,
    AuthorizedStorage,
    may_explain,
)
from tidemill_embedded.exposing import (
    SAID,
    answers_users,
    exposed,
    refuse_exposure,
    services_warning,
)
from tidemill_embedded.last_tried import LastTried
from tidemill_embedded.maintaining import Maintaining
from tidemill_embedded.observing import (
    ObservedQueries,
    expect_refusals,
    observed_calls,
    watch,
    watch_claims,
    watch_loop,
)
from tidemill_embedded.own_places import places_of_process
from tidemill_embedded.pushing import HttpPushing
from tidemill_embedded.replicas.announcing import Announcements
from tidemill_embedded.replicas.feeds import Feeds
from tidemill_embedded.replicas.no_log import NoLog
from tidemill_embedded.replicas.peers import Peers
from tidemill_embedded.replicas.roles import ROLES, roles_of
from tidemill_embedded.running.launching import check_launching, launcher_of
from tidemill_embedded.running.runners import Runners
from tidemill_embedded.settings import EmbeddedSettings, LimitSettings
from tidemill_embedded.sharing import ClaimedWork, Reports
from tidemill_embedded.state_folder import own_folder
from tidemill_embedded.system import System
from tidemill_embedded.world import World
from tidemill_ingest.edge import Readers
from tidemill_query.driver import QueryDriver
from tidemill_query.storage import StorageDriver
from tidemill_remap.pace import Paces

log = logs.get_logger("up")

FRESH_S = 1.0
"""How old the frontiers of a collection may be in the metrics of a process that compacts it."""

ANSWER_SHARE = 1 / 3
"""Of a lease: who asks Consensus for a claim waits so long for an answer before asking again."""


@dataclass(slots=True)
class Process:
    """Everything of one process, opened in order. `internal` answers other processes."""

    settings: EmbeddedSettings
    roles: tuple[str, ...]
    world: World
    store: ResourceStore
    system: System
    query: QueryDriver
    storage: StorageDriver
    compaction: CompactionDriver
    risks: tuple[str, ...]
    board: JobBoard
    audit: Audit
    internal: Server | None = None

    @property
    def maintaining(self) -> Maintaining:
        """The commands of views."""
        limits = self.settings.limits.of_documents
        return Maintaining(
            self.system, self.storage, self.store, self.world.catalog, self.world.collections, limits
        )  # fmt: skip


def _kafka_opener(places: Places) -> Callable[[KafkaOrigin], Awaitable[Log]]:
    """Opens the brokers of a source, if it may name them. Raises: UsageError."""

    async def open_kafka(origin: KafkaOrigin) -> Log:
        access = access_of(kafka_files(origin, places), egress_of(origin, places))
        return KafkaLog(origin.bootstrap or "", access=access)

    return open_kafka


def _own_log(chosen: EmbeddedSettings, places: Places) -> Log:
    """The log for pushed rows. Raises: UsageError for an address that is none."""
    if chosen.log:
        scheme, _, bootstrap = chosen.log.partition(":")
        if scheme != "kafka" or not bootstrap:
            raise UsageError(f"{chosen.log} is no log: say kafka:HOST:PORT", reason="log")
        files = chosen.log_kafka
        if files.mechanism == "PLAIN" and not files.encrypted:
            for host, port in brokers_of(bootstrap):
                places.check_clear(host, port, "the password of log_kafka")
        return KafkaLog(bootstrap, access=access_of(files))
    return NoLog() if chosen.role else EmbeddedLog(chosen.root / "log")


def checked(chosen: EmbeddedSettings) -> tuple[str, ...]:
    """The roles, by default all, if settings fit each other.

    Raises: UsageError that says what to set.
    """
    roles = roles_of(chosen.role or ROLES)
    assert chosen.consensus_address  # refuses a password in it
    if chosen.token_file and (chosen.tls.files is None or not chosen.tls.certificate):
        raise UsageError(
            "token_file is set and tls is not: tokens would travel in the clear; set tls.certificate "
            "and tls.key",
            reason="tls",
        )
    files = chosen.services.tls.files
    if files is not None and None in (files.certificate, files.key, files.authority):
        raise UsageError(
            "services.tls needs certificate, key and authority: each service proves itself to the "
            "others",
            reason="tls",
        )
    if files is None and (chosen.services.names or chosen.services.server_name):
        raise UsageError("services.names and server_name need services.tls", reason="tls")
    services_warning(chosen)
    refuse_exposure(chosen)
    check_launching(chosen)
    return roles


@asynccontextmanager
async def opened(chosen: EmbeddedSettings, config: Path | None = None) -> AsyncIterator[Process]:
    """The stores and the work of one process; alone, only one may have the state directory open.

    `config` is the file of the settings, which no resource may name.
    """
    clock = SystemClock()
    roles = checked(chosen)
    root = chosen.root
    own_folder(root)
    places = places_of_process(chosen, config)
    async with AsyncExitStack() as stack:
        own = _own_log(chosen, places)
        stack.push_async_callback(own.close)
        consensus = open_consensus(
            chosen.consensus_address, allow_non_durable=chosen.store.allow_non_durable
        )
        collections = Collections(
            consensus,
            open_blob(chosen.blob_place, random_id),
            clock,
            random_id,
            limits=Limits(row_bytes_max=chosen.limits.row_bytes_max),
        )
        stack.push_async_callback(collections.close)
        metrics, catalog, readers = Metrics(clock), Catalog(chosen.limits.plugin_load_s), Readers()
        asked, claimants = _claims(chosen, clock, stack) if chosen.role else _no_claims()
        peers = _peers(chosen, asked, stack)
        feeds = Feeds(readers, peers, clock)
        board = JobBoard()
        launcher = await launcher_of(chosen, clock, board.record)
        stack.push_async_callback(launcher.close)
        world = World(
            collections, own, _kafka_opener(places), clock, metrics, chosen, catalog, readers, feeds,
            launcher, places, LastTried(root / "last_tried.json", clock, chosen.without),
            Paces(chosen.name_of_process, collections, clock),
        )  # fmt: skip
        stack.push_async_callback(world.paces.close)
        store = ResourceStore(collections, clock)
        audit = Audit(
            collections, clock, chosen.audit, chosen.name_of_process, tends=answers_users(chosen)
        )
        await collections.open()
        risks = consensus.risks
        for risk in risks:
            log.warning("acknowledged writes may be lost", risk=risk)
        said = Said()
        internal = await _answer(chosen, world, audit, said, stack) if chosen.role else None
        address = "" if internal is None else _advertised(chosen, internal.port)
        runners = Runners(world, store)
        work = ClaimedWork(
            world, store, roles, lambda role: claimants(role, address), runners.part,
            chosen.name_of_process,
        )  # fmt: skip
        said.by = work
        process = Process(
            chosen, roles, world, store,
            System(world, store, runners, work, Reports(work, peers, address)),
            *_drivers(world), risks, board, audit, internal,
        )  # fmt: skip
        process.compaction.mine = work.has_slot_of
        stack.push_async_callback(process.system.stop)
        yield process


def _drivers(world: World) -> tuple[QueryDriver, StorageDriver, CompactionDriver]:
    """What answers questions, carries out commands of the formalism, and keeps collections small."""
    collections, clock, chosen, catalog = (
        world.collections,
        world.clock,
        world.settings,
        world.catalog,
    )
    query = QueryDriver(
        collections, catalog, clock, chosen.query, world.discover,
        chosen.limits.of_questions, lambda view: may_explain(catalog, view),
    )  # fmt: skip
    storage = StorageDriver(
        collections, clock, catalog, chosen.limits.lease_ms, chosen.limits.row_bytes,
        chosen.limits.capabilities,
    )  # fmt: skip
    compaction = CompactionDriver(
        collections, clock, chosen.compaction,
        lambda collection, message: log.warning("compaction", collection=collection, error=message),
        bulk=SparkMerge(world.launcher, collections),
    )  # fmt: skip
    return query, storage, compaction


Claimants: TypeAlias = Callable[[str, str], Claiming]
"""Who claims for a role, in a process that answers at an address."""


def _no_claims() -> tuple[Callable[[str], Claiming], Claimants]:
    """Owners and claims of a process that shares its stores with no other one."""
    return SoleClaimant, lambda role, _: SoleClaimant(role)


def _claims(
    chosen: EmbeddedSettings, clock: Clock, stack: AsyncExitStack
) -> tuple[Callable[[str], Claiming], Claimants]:
    """Owners by role, and claims by role for a process that answers at an address."""
    services = chosen.services
    consensus = open_claims(
        chosen.consensus_address,
        allow_non_durable=chosen.store.allow_non_durable,
        timeout_s=services.lease_s * ANSWER_SHARE,
    )
    keeper = Keeper(clock)
    stack.push_async_callback(keeper.close, consensus.close)

    def made(role: str, address: str) -> Claimant:
        return Claimant(
            consensus, role, clock, random_id, name=chosen.name_of_process, details=address,
            lease_s=services.lease_s,
        )  # fmt: skip

    @cache
    def asked(role: str) -> KeptClaimant:
        return keeper.asked(made(role, ""))

    return asked, lambda role, address: keeper.kept(made(role, address))


def _peers(
    chosen: EmbeddedSettings, asked: Callable[[str], Claiming], stack: AsyncExitStack
) -> Peers:
    """The other processes, if there are any."""
    services = chosen.services
    peers = Peers(asked, Dialer(services.tls.files, services.server_name).checked())
    stack.push_async_callback(peers.close)
    return peers


class Said:
    """What this process works on, once it does."""

    def __init__(self) -> None:
        self.by: ClaimedWork | None = None

    async def work(self) -> Sequence[Work]:
        """Its parts, for other processes."""
        return () if self.by is None else await self.by.work()


async def _answer(
    chosen: EmbeddedSettings, world: World, audit: Audit, said: Said, stack: AsyncExitStack
) -> Server:
    """Answer the other processes, so that claims can say where."""
    files = chosen.services.tls.files
    credentials = None if files is None else ServerCredentials(files, _told("services.tls"))
    server = await serve(
        chosen.services.address,
        services=ServiceHandlers(world.readers, said),
        observer=observed_calls(world.metrics),
        authenticator=None if files is None else ServicesOnly(chosen.services.names),
        credentials=None if credentials is None else credentials.credentials(),
        reflect=chosen.reflection,
        auditor=RefusalsAlone(audit),
    )
    stack.push_async_callback(server.stop, 0.5)
    log.info(
        "joined", roles=",".join(roles_of(chosen.role)), address=_advertised(chosen, server.port)
    )
    return server


def _advertised(chosen: EmbeddedSettings, port: int) -> str:
    """How others reach this process."""
    told = chosen.services.advertise
    host, _, fixed = told.rpartition(":") if ":" in told else (told, "", "")
    return f"{host or chosen.services.address.rpartition(':')[0]}:{fixed or port}"


def _told(what: str) -> Callable[[str], None]:
    return lambda says: log.warning("files not taken over", what=what, error=says)


def users_of(chosen: EmbeddedSettings, clock: Clock | None = None) -> Authenticator | None:
    """Who may call as a user; None is everybody. Raises: UsageError for a file that cannot be used."""
    if not chosen.token_file:
        return None

    def decode(text: str) -> dict[str, object]:
        documents, problems = parse_yaml(text, chosen.token_file)
        if problems or len(documents) != 1 or not isinstance(documents[0].value, dict):
            raise UsageError(str(problems[0]) if problems else "it is no mapping with users")
        return dict(documents[0].value)

    now_ms = (clock or SystemClock()).now_ms
    file, grace_s = Path(chosen.token_file), chosen.token_grace_s
    return Tokens(file, decode, _told("token_file"), now_ms, grace_s)


def _open_doors(chosen: EmbeddedSettings) -> list[str]:
    """What is open to whom nobody knows, in words."""
    doors = [f"insecure: {each}" for each in exposed(chosen)]
    return [*doors, *filter(None, [services_warning(chosen) if chosen.role else None])]


def _guard(chosen: EmbeddedSettings) -> HttpGuard:
    """Tokens keep pages out by themselves; without them the server has to be asked by a name of its own."""
    if chosen.token_file:
        return HttpGuard()
    told = (*chosen.http_names, chosen.http_host)
    return HttpGuard(frozenset(map(str.lower, told)), numbers=not is_loopback(chosen.http_host))


def _refused_over_http(audit: Audit, request: HttpRequest, status: int, says: str) -> None:
    """Tell of a request that nobody looked at further: who has sent it is not known."""
    target, reason = f"{request.method} {request.path}", f"{status} {says}"
    audit.called(
        AuditedCall(
            "",
            request.remote,
            "Http",
            target[:REASON_CHARS_MAX],
            "refused",
            reason[:REASON_CHARS_MAX],
        )
    )


class _Running:
    """The components of a process, each started after the one before and stopped before it."""

    def __init__(self, process: Process, files: tuple[Path, ...]) -> None:
        self._process = process
        self._files = files
        chosen = process.settings
        self._users = users_of(chosen, process.world.clock)
        files_of_http = chosen.http_tls.files
        self._http = HttpServer(
            chosen.http_host, chosen.http_port, process.world.metrics,
            None if files_of_http is None else server_context(files_of_http, _told("http_tls")),
            _guard(chosen), chosen.limits.of_http, partial(_refused_over_http, process.audit),
        )  # fmt: skip
        clock = process.world.clock
        limits = chosen.limits.of_calls(named=self._users is not None)
        self._admissions = Admissions(limits, clock.monotonic_s, clock.sleep)
        self._audit = process.audit
        self._supervisor = Supervisor(process.world.clock)

    def added(self) -> Supervisor:
        """Everything that this process is to run."""
        process, http = self._process, self._http
        if "query" in process.roles:
            clear = process.settings.http_tls.files is None
            pushing = HttpPushing(
                process.system, self._users, self._admissions, clear, self._audit,
                process.settings.limits.push_rows,
            )  # fmt: skip
            http.add_route("POST", "/v1/sources/{name}/rows", pushing.push, pushing.admits, pushing)
        for risk in process.risks:
            http.add_warning(f"acknowledged writes may be lost: {risk}")
        for warning in _open_doors(process.settings):
            http.add_warning(warning)
            log.warning("open to others", risk=warning)
        ready: list[str] = []
        http.add_ready_check("started", lambda: None if ready else "the process is starting")

        async def last(scope: Scope) -> None:
            ready.append("ready")
            scope.ready()
            await scope.until_stopping()
            ready.clear()

        expect_refusals(process.world.metrics, LimitSettings.__struct_fields__)
        add = self._supervisor.add
        add("loop", self._watched)
        add("resources", self._resources)
        if "compaction" in process.roles:
            add("compaction", self._compaction)
        if process.internal is not None and process.settings.log:
            add("announcements", self._announcements)
        if process.world.launcher.remote:
            add("jobs", self._jobs)
        add("audit", self._audited)
        add("http", self._web)
        if "query" in process.roles:
            add("grpc", self._rpc)
        add("ready", last)
        return self._supervisor

    async def _resources(self, scope: Scope) -> None:
        process = self._process
        await process.system.start()
        watch(
            process.world.metrics, process.world.collections, process.system,
            process.compaction, process.board, process.risks,
            tuple(each.port for each in exposed(process.settings)),
            process.system.work.has_slot_of,
        )  # fmt: skip
        watch_claims(process.world.metrics, process.system.work.claimants())
        if self._files:
            documents = [ResourceDocument(f.read_text(), str(f)) for f in _expanded(self._files)]
            await process.system.apply(documents)
        scope.ready()
        await scope.until_stopping_or(process.system.work.running)
        await process.system.stop()

    async def _watched(self, scope: Scope) -> None:
        world = self._process.world
        task = asyncio.create_task(watch_loop(world.metrics, world.clock))
        scope.ready()
        await scope.until_stopping_or(task)

    async def _compaction(self, scope: Scope) -> None:
        async def work() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._process.compaction.compact_forever())
                if self._process.internal is not None:
                    tasks.create_task(look_forever(self._process))

        task = asyncio.create_task(work())
        scope.ready()
        await scope.until_stopping_or(task)

    async def _jobs(self, scope: Scope) -> None:
        task = asyncio.create_task(self._process.world.launcher.tend_forever())
        scope.ready()
        await scope.until_stopping_or(task)

    async def _announcements(self, scope: Scope) -> None:
        world = self._process.world
        announcements = Announcements(world.collections, world.log, world.clock, random_id())
        announcements.watch(world.metrics)
        task = asyncio.create_task(announcements.run(scope.ready))
        await scope.until_stopping_or(task)

    async def _audited(self, scope: Scope) -> None:
        """It ends after the calls that it is told of."""
        task = asyncio.create_task(self._audit.run())
        scope.ready()
        try:
            await scope.until_stopping_or(task)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._audit.close()

    async def _web(self, scope: Scope) -> None:
        chosen = self._process.settings
        port = await self._http.start()
        scheme = "http" if chosen.http_tls.files is None else "https"
        (chosen.root / "http.address").write_text(f"{scheme}://{chosen.http_host}:{port}\n")
        log.info("metrics", address=f"{scheme}://{chosen.http_host}:{port}/metrics")
        scope.ready()
        await scope.until_stopping()
        await self._http.close()

    async def _rpc(self, scope: Scope) -> None:
        process, chosen = self._process, self._process.settings
        metrics, catalog = process.world.metrics, process.world.catalog
        files = chosen.tls.files
        credentials = None if files is None else ServerCredentials(files, _told("tls"))
        server = await serve(
            chosen.grpc,
            AuthorizedQueries(ObservedQueries(process.query, metrics), catalog),
            AuthorizedCatalog(process.system, catalog),
            AuthorizedStorage(process.storage, catalog),
            AuthorizedCompute(process.maintaining, catalog),
            reflect=chosen.reflection, observer=observed_calls(metrics),
            authenticator=self._users, admissions=self._admissions,
            credentials=None if credentials is None else credentials.credentials(),
            auditor=self._audit, states=(SAID,) if exposed(chosen) else (),
        )  # fmt: skip
        host = chosen.grpc.rpartition(":")[0]
        (chosen.root / "grpc.address").write_text(f"{host}:{server.port}\n")
        log.info("listening", grpc=f"{host}:{server.port}", directory=str(chosen.root))
        scope.ready()
        await scope.until_stopping()
        await server.stop()


async def look_forever(process: Process) -> None:
    """Know the frontiers of the collections whose metrics this process gives, and which names are no more."""
    world, compaction = process.world, process.compaction
    while True:
        await world.clock.sleep(FRESH_S)
        collections: Sequence[str] = ()
        with suppress(TidemillError):
            collections = await world.collections.ids()
        with suppress(TidemillError):
            await world.forget_deleted()
        seen = world.collections.known()
        for collection in filter(compaction.mine, collections):
            if collection in seen and seen[collection].closed:
                continue
            # One that cannot be looked at has no fresh metrics; compaction tells of it.
            with suppress(Exception):
                await world.collections.state(collection)


async def run_process(
    chosen: EmbeddedSettings, files: tuple[Path, ...], config: Path | None = None
) -> int:
    """Run until a signal or a failure; the exit code. `config` is the file of the settings."""
    async with opened(chosen, config) as process:
        outcome = await _Running(process, files).added().run()
    if isinstance(outcome, Failed):
        typer.echo(f"tidemill up: {outcome}", err=True)
    return exit_code(outcome)


def _expanded(files: tuple[Path, ...]) -> list[Path]:
    """Files, and the YAML files of folders."""
    found: list[Path] = []
    for file in files:
        found += sorted(file.glob("*.yaml")) if file.is_dir() else [file]
    return found
