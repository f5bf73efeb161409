"""One process: what it opens, in order, and what it runs until it is asked to stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TypeAlias

import typer

from tidemill.arrangement.machine_code import FOLDERS
from tidemill.catalog.catalog import Catalog
from tidemill.catalog.made.making import Making
from tidemill.catalog.revisions import Revisions
from tidemill.catalog.store import ResourceStore
from tidemill.errors import UsageError
from tidemill.host.announcements import Announcements
from tidemill.host.auditing import Audit
from tidemill.host.claimed_work import ClaimedWork
from tidemill.host.context import Context
from tidemill.host.exposing import (
    answers_users,
    exposed,
    refuse_exposure,
    services_warning,
)
from tidemill.host.feeds import Feeds
from tidemill.host.last_tried import LastTried
from tidemill.host.launching import check_launching, launcher_of
from tidemill.host.no_log import NoLog
from tidemill.host.observing import expect_refusals, observed_calls, watch, watch_loop
from tidemill.host.own_places import places_of_process
from tidemill.host.peers import Peers
from tidemill.host.predecessors import Predecessors
from tidemill.host.readers import Readers
from tidemill.host.reports import Reports
from tidemill.host.roles import ROLES, roles_of
from tidemill.host.service import Ports, Process, Service
from tidemill.host.settings import LimitSettings, ProcessSettings
from tidemill.host.state_folder import check_files, own_folder
from tidemill.host.unmade import erase_deleted
from tidemill.host.works import Works
from tidemill.rpc.admission import Admissions
from tidemill.rpc.audited import REASON_CHARS_MAX, AuditedCall, RefusalsAlone
from tidemill.rpc.channel import Dialer
from tidemill.rpc.identity import Authenticator, OneRun, Open, ServicesOnly, Tokens, address_of_run
from tidemill.rpc.server import Server, ServiceHandlers, serve
from tidemill.rpc.tls import ServerCredentials, server_context
from tidemill.rpc.turns import on_thread, threads_for_many
from tidemill.runtime import logs
from tidemill.runtime.clock import Clock, SystemClock
from tidemill.runtime.documents import parse_yaml
from tidemill.runtime.http_guard import HttpGuard, is_loopback
from tidemill.runtime.http_messages import HttpRequest
from tidemill.runtime.http_server import HttpServer
from tidemill.runtime.ids import random_id
from tidemill.runtime.kafka_access import access_of, brokers_of, egress_of, kafka_files
from tidemill.runtime.lifecycle import (
    Failed,
    Scope,
    Supervisor,
    exit_code,
    forget_overloads,
    tend_memory,
)
from tidemill.runtime.log import Log
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.runtime.log_kafka import KafkaLog
from tidemill.runtime.metrics import Metrics
from tidemill.runtime.places import Places
from tidemill.runtime.resources import KafkaOrigin
from tidemill.shard import Collections, Limits
from tidemill.shard.claims import Claimant, Claiming, Keeper, KeptClaimant, SoleClaimant
from tidemill.shard.offloading import TO_THREAD
from tidemill.shard.state import KEEP_ALL_MS
from tidemill.shard.stores import open_blob, open_claims, open_consensus
from tidemill.spark.board import JobBoard

log = logs.get_logger("up")

ANSWER_SHARE = 1 / 3
"""Of a lease: who asks Consensus for a claim waits so long for an answer before asking again."""


def _kafka_opener(places: Places, deadline_s: float) -> Callable[[KafkaOrigin], Awaitable[Log]]:
    """Opens the brokers of a source, if it may name them. Raises: UsageError."""

    async def open_kafka(origin: KafkaOrigin) -> Log:
        access = access_of(kafka_files(origin, places), egress_of(origin, places))
        return KafkaLog(origin.bootstrap or "", access=access, deadline_s=deadline_s)

    return open_kafka


def _own_log(chosen: ProcessSettings, places: Places) -> Log:
    """The log for pushed rows. Raises: UsageError for an address that is none."""
    if chosen.log:
        scheme, _, bootstrap = chosen.log.partition(":")
        if scheme != "kafka" or not bootstrap:
            raise UsageError(f"{chosen.log} is no log: say kafka:HOST:PORT", reason="log")
        files = chosen.log_kafka
        if files.mechanism == "PLAIN" and not files.encrypted:
            for host, port in brokers_of(bootstrap):
                places.check_clear(host, port, "the password of log_kafka")
        return KafkaLog(bootstrap, access=access_of(files), deadline_s=chosen.kafka_deadline_s)
    return EmbeddedLog(chosen.root / "log") if chosen.embeds_log else NoLog()


def checked(chosen: ProcessSettings) -> tuple[str, ...]:
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
async def opened(
    chosen: ProcessSettings, services: Sequence[Service], config: Path | None = None
) -> AsyncIterator[Process]:
    """The stores and the parts of one process; alone, only one may have the state directory open.

    `config` is the file of the settings, which no resource may name.
    """
    roles = checked(chosen)
    missing = set(roles) - {each.role for each in services}
    if missing and chosen.role:
        raise UsageError(
            f"this program does not have the role {', '.join(sorted(missing))}: start tidemill up "
            "with it",
            reason="role",
        )
    asyncio.get_running_loop().set_default_executor(threads_for_many())
    TO_THREAD.set(on_thread)
    own_folder(chosen.root)
    check_files(chosen.root, chosen.embeds_log)
    FOLDERS.keep_beside(chosen.root / "machine-code")
    async with AsyncExitStack() as stack:
        risks, claims, board, context = await _context(chosen, config, stack)
        audit = Audit(
            context.collections, context.clock, chosen.audit, chosen.name_of_process,
            tends=answers_users(chosen),
        )  # fmt: skip
        for risk in risks:
            log.warning("acknowledged writes may be lost", risk=risk)
        parts = {each.role: each.parts(context) for each in services if each.parts is not None}
        for part in parts.values():
            stack.push_async_callback(part.close)

        @cache
        def work_at(address: str) -> ClaimedWork:
            return ClaimedWork(
                context, roles, lambda role: claims.claimants(role, address),
                Works(context, parts).part, chosen.name_of_process,
            )  # fmt: skip

        run, internal, address = random_id(), None, ""
        if chosen.role:
            internal = await _answer(chosen, run, context, audit, work_at, stack)
            address = address_of_run(_advertised(chosen, internal.port), run)
        work = work_at(address)
        process = Process(
            context, roles, work, Reports(work, claims.peers, address), tuple(parts.values()),
            risks, board, audit, internal,
        )  # fmt: skip
        stack.push_async_callback(stop, process)
        yield process


async def start(process: Process) -> None:
    """Run everything that was applied before and is granted, or let it be claimed."""
    context = process.context
    await context.store.open()
    context.tried.open()
    await erase_deleted(context)
    await context.discover()
    await process.work.start()


async def stop(process: Process) -> None:
    """Stop all work; nothing durable changes."""
    await process.work.stop()
    process.context.tried.close()


async def _context(
    chosen: ProcessSettings, config: Path | None, stack: AsyncExitStack
) -> tuple[tuple[str, ...], _Claims, JobBoard, Context]:
    """Stores, log and connections of one process, and the risks of its stores."""
    clock, root = SystemClock(), chosen.root
    places = places_of_process(chosen, config)
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
        limits=Limits(
            row_bytes_max=chosen.limits.row_bytes_max, cache_bytes_max=chosen.limits.cache_bytes
        ),
    )
    stack.push_async_callback(collections.close)
    forget_overloads()  # the library of a store comes with its address
    roles = set(roles_of(chosen.role or ROLES))
    judges = bool({"query", "compute"} & roles)
    catalog = Catalog(chosen.limits.plugin_load_s, judges=judges)
    keep_ms = int(min(max(0.0, chosen.catalog.keep_s) * 1000, KEEP_ALL_MS))
    store = ResourceStore(collections, clock, keep_ms=keep_ms if "query" in roles else None)
    claims, readers, board = _claims(chosen, clock, stack), Readers(), JobBoard()
    launcher = await launcher_of(chosen, clock, board.record)
    stack.push_async_callback(launcher.close)
    context = Context(
        collections, own, _kafka_opener(places, chosen.kafka_deadline_s), clock,
        Metrics(clock), chosen, catalog, store,
        Revisions(catalog, store), Making(collections, catalog, store, clock), readers,
        Feeds(readers, claims.peers, clock), launcher, places,
        LastTried(root / "last_tried.json", clock, chosen.without),
    )  # fmt: skip
    await collections.open()
    return consensus.risks, claims, board, context  # known once the stores are open


Claimants: TypeAlias = Callable[[str, str], Claiming]
"""A function from a role and the address of a process to its claimant."""


@dataclass(frozen=True, slots=True)
class _Claims:
    """Claims of this process by role, and the other processes."""

    claimants: Claimants
    peers: Peers


def _claims(chosen: ProcessSettings, clock: Clock, stack: AsyncExitStack) -> _Claims:
    """Claims by role for a process that answers at an address; alone it is the sole claimant."""
    if not chosen.role:
        return _Claims(lambda role, _: SoleClaimant(role), _peers(chosen, SoleClaimant, stack))
    services = chosen.services
    consensus = open_claims(
        chosen.consensus_address,
        allow_non_durable=chosen.store.allow_non_durable,
        timeout_s=services.lease_s * ANSWER_SHARE,
    )
    past = Predecessors(chosen.root / "sessions")
    stack.callback(past.close)
    keeper = Keeper(clock)
    stack.push_async_callback(keeper.close, consensus.close)

    def made(role: str, address: str) -> Claimant:
        return Claimant(
            consensus, role, clock, random_id, name=chosen.name_of_process, details=address,
            lease_s=services.lease_s, dead=past.dead, noted=past.note,
        )  # fmt: skip

    @cache
    def asked(role: str) -> KeptClaimant:
        return keeper.asked(made(role, ""))

    peers = _peers(chosen, asked, stack)
    return _Claims(lambda role, address: keeper.kept(made(role, address)), peers)


def _peers(
    chosen: ProcessSettings, asked: Callable[[str], Claiming], stack: AsyncExitStack
) -> Peers:
    """The other processes, if there are any."""
    services = chosen.services
    peers = Peers(asked, Dialer(services.tls.files, services.server_name).checked())
    stack.push_async_callback(peers.close)
    return peers


async def _answer(
    chosen: ProcessSettings,
    run: str,
    context: Context,
    audit: Audit,
    work_at: Callable[[str], ClaimedWork],
    stack: AsyncExitStack,
) -> Server:
    """Answer other processes that call this run, at an address which the claims of its work
    name.
    """

    def handlers(port: int) -> ServiceHandlers:
        work = work_at(address_of_run(_advertised(chosen, port), run))
        return ServiceHandlers(context.readers, work)

    files = chosen.services.tls.files
    credentials = None if files is None else ServerCredentials(files, _told("services.tls"))
    server = await serve(
        chosen.services.address,
        services=handlers,
        observer=observed_calls(context.metrics),
        authenticator=OneRun(run, Open() if files is None else ServicesOnly(chosen.services.names)),
        credentials=None if credentials is None else credentials.credentials(),
        reflect=chosen.reflection,
        auditor=RefusalsAlone(audit),
    )
    stack.push_async_callback(server.stop, 0.5)
    log.info(
        "joined", roles=",".join(roles_of(chosen.role)), address=_advertised(chosen, server.port)
    )
    return server


def _advertised(chosen: ProcessSettings, port: int) -> str:
    """The address at which others reach this process."""
    told = chosen.services.advertise
    host, _, fixed = told.rpartition(":") if ":" in told else (told, "", "")
    return f"{host or chosen.services.address.rpartition(':')[0]}:{fixed or port}"


def _told(what: str) -> Callable[[str], None]:
    return lambda says: log.warning("files not taken over", what=what, error=says)


def users_of(chosen: ProcessSettings, clock: Clock | None = None) -> Authenticator | None:
    """The check of callers as users; None lets everybody in. Raises: UsageError for an unusable
    file.
    """
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


def _open_doors(chosen: ProcessSettings) -> list[str]:
    """Doors that are open to unknown callers, in words."""
    doors = [f"insecure: {each}" for each in exposed(chosen)]
    return [*doors, *filter(None, [services_warning(chosen) if chosen.role else None])]


def _guard(chosen: ProcessSettings) -> HttpGuard:
    """Tokens keep pages out by themselves; without them the server has to be asked by a name of its
    own.
    """
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

    def __init__(
        self, process: Process, services: Sequence[Service], files: tuple[Path, ...]
    ) -> None:
        self._process = process
        self._joined = [each.join(process) for each in services if each.join is not None]
        self._files = files
        chosen = process.context.settings
        self._users = users_of(chosen, process.context.clock)
        files_of_http = chosen.http_tls.files
        self._http = HttpServer(
            chosen.http_host, chosen.http_port, process.context.metrics,
            None if files_of_http is None else server_context(files_of_http, _told("http_tls")),
            _guard(chosen), chosen.limits.of_http, partial(_refused_over_http, process.audit),
        )  # fmt: skip
        clock = process.context.clock
        limits = chosen.limits.of_calls(named=self._users is not None)
        self._admissions = Admissions(limits, clock.monotonic_s, clock.sleep)
        self._audit = process.audit
        self._supervisor = Supervisor(process.context.clock)

    def added(self) -> Supervisor:
        """Everything that this process is to run."""
        process, http, chosen = self._process, self._http, self._process.context.settings
        for risk in process.risks:
            http.add_warning(f"acknowledged writes may be lost: {risk}")
        for warning in _open_doors(chosen):
            http.add_warning(warning)
            log.warning("open to others", risk=warning)
        ready: list[str] = []
        http.add_ready_check("started", lambda: None if ready else "the process is starting")

        async def last(scope: Scope) -> None:
            ready.append("ready")
            scope.ready()
            await scope.until_stopping()
            ready.clear()

        expect_refusals(process.context.metrics, LimitSettings.__struct_fields__)
        add = self._supervisor.add
        add("loop", self._watch)
        add("memory", self._rest)
        add("resources", self._resources)
        if process.internal is not None and chosen.log:
            add("announcements", self._announcements)
        if process.context.launcher.remote:
            add("jobs", self._jobs)
        add("audit", self._audit_calls)
        add("http", self._web)
        ports = Ports(http, self._users, self._admissions)
        for joined in self._joined:
            for name, run in joined.components(ports):
                add(name, run)
        add("ready", last)
        return self._supervisor

    async def _resources(self, scope: Scope) -> None:
        process = self._process
        await start(process)
        watch(process)
        for joined in self._joined:
            await joined.begin(self._files)
        scope.ready()
        await scope.until_stopping_or(process.work.running)
        await stop(process)

    async def _watch(self, scope: Scope) -> None:
        context = self._process.context
        task = asyncio.create_task(watch_loop(context.metrics, context.clock))
        scope.ready()
        await scope.until_stopping_or(task)

    async def _rest(self, scope: Scope) -> None:
        task = asyncio.create_task(tend_memory(self._process.context.clock))
        scope.ready()
        await scope.until_stopping_or(task)

    async def _jobs(self, scope: Scope) -> None:
        task = asyncio.create_task(self._process.context.launcher.tend_forever())
        scope.ready()
        await scope.until_stopping_or(task)

    async def _announcements(self, scope: Scope) -> None:
        context = self._process.context
        announcements = Announcements(context.collections, context.log, context.clock, random_id())
        announcements.watch(context.metrics)
        task = asyncio.create_task(announcements.run(scope.ready))
        await scope.until_stopping_or(task)

    async def _audit_calls(self, scope: Scope) -> None:
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
        chosen = self._process.context.settings
        port = await self._http.start()
        scheme = "http" if chosen.http_tls.files is None else "https"
        address = f"{scheme}://{chosen.http_host}:{port}"
        (chosen.root / "http.address").write_text(f"{address}\n")
        log.info("metrics", address=f"{address}/metrics")
        if "query" in checked(chosen):
            log.info("console", address=f"{address}/")
        scope.ready()
        await scope.until_stopping()
        await self._http.close()


async def run_process(
    chosen: ProcessSettings, services: Sequence[Service], files: tuple[Path, ...],
    config: Path | None = None,
) -> int:  # fmt: skip
    """Run until a signal or a failure; the exit code. `config` is the file of the settings.

    Raises: UsageError for files where no service applies them.
    """
    if files and all(each.role != "query" for each in services):
        raise UsageError("only a process with the role query applies files", reason="role")
    async with opened(chosen, services, config) as process:
        outcome = await _Running(process, services, files).added().run()
    if isinstance(outcome, Failed):
        typer.echo(f"tidemill up: {outcome}", err=True)
    return exit_code(outcome)
