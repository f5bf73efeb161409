"""The role query in a process: users are answered, and their resources applied."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path

from tidemill.catalog.names import resource_of
from tidemill.host.exposing import SAID, exposed
from tidemill.host.observing import observed_calls
from tidemill.host.questions.limits import QuestionLimits
from tidemill.host.service import Ports, Process, Run, Service
from tidemill.host.settings import ProcessSettings
from tidemill.rpc.calls import Calls, DeadlinePolicy
from tidemill.rpc.handlers import CatalogHandlers, QueryHandlers
from tidemill.rpc.identity import Open, Role, caller
from tidemill.rpc.messages import ResourceDocument
from tidemill.rpc.server import serve
from tidemill.rpc.tls import ServerCredentials
from tidemill.runtime import logs
from tidemill.runtime.lifecycle import Scope
from tidemill.runtime.problems import text_of
from tidemill.time import Frontier
from tidemill_query.authorizing import (
    AuthorizedCatalog,
    AuthorizedCompute,
    AuthorizedQueries,
    AuthorizedStorage,
    may_explain,
)
from tidemill_query.contents import VERSION_AGE_S_MAX
from tidemill_query.controller import Controller
from tidemill_query.driver import QueryDriver
from tidemill_query.frontier_history import FrontierHistory, Sample
from tidemill_query.goals import prepare_reading, split_name
from tidemill_query.listing import ALONE_AGE_S
from tidemill_query.maintaining import Maintaining
from tidemill_query.observing import ObservedQueries
from tidemill_query.settings import QuerySettings
from tidemill_query.storage import StorageDriver
from tidemill_query.web.console import Console
from tidemill_query.web.door import Door, Handlers
from tidemill_query.web.following import Feeds
from tidemill_query.web.openapi import OPERATIONS, show_openapi
from tidemill_query.web.webhooks import Webhooks

ROLE = "query"
log = logs.get_logger("up")


class QueryProcess(ProcessSettings, frozen=True, forbid_unknown_fields=True):
    """Settings of a process with this role alone."""

    role: tuple[str, ...] = (ROLE,)

    query: QuerySettings = QuerySettings()


class Answers:
    """Handlers of the calls of users."""

    def __init__(self, settings: QuerySettings, process: Process) -> None:
        context = process.context
        collections, clock, catalog = context.collections, context.clock, context.catalog
        limits = context.settings.limits
        self._process = process
        self.controller = Controller(context, process.work, process.reports)
        self.query = QueryDriver(
            collections, catalog, clock, settings, context.learn_created,
            QuestionLimits.of(limits), lambda view: may_explain(catalog, view),
            ALONE_AGE_S if process.reports.sole else None,
        )  # fmt: skip
        self.history = FrontierHistory(collections, clock)
        self.storage = StorageDriver(
            collections, clock, catalog, limits.lease_ms, limits.row_bytes, limits.capabilities
        )
        self.maintaining = Maintaining(
            self.controller, self.storage, context.store, catalog, collections, limits.of_documents
        )

    async def _looks(self, name: str) -> Sequence[Sample]:
        """The frontiers of a collection that the caller may read. Raises: Denied,
        UnknownCollection.
        """
        caller.get().demand(Role.reader, name)
        return await self.history.of(self._process.context.catalog.find(name).collection)

    async def _identify(self, goal: str) -> str:
        """The id of the collection that a goal is about, for a reader of it.

        Raises: Denied, UnknownCollection, UsageError.
        """
        context, (written, _) = self._process.context, split_name(goal)
        if not context.catalog.knows(written):
            await context.learn_created()
        known = context.catalog.knows(written)
        name = context.catalog.named(written).name if known else written
        caller.get().demand(Role.reader, name, shown=written)
        return context.catalog.named(written).collection

    def _birth(self, collection: str) -> str:
        """The id of a collection, with the instant at which its resource was made.

        Ids do not come again, but in a system that is set up anew.
        """
        context = self._process.context
        name = context.catalog.name_of(collection)
        stored = None
        if context.catalog.knows(name):
            stored = context.store.get(context.catalog.named(name).kind, resource_of(name))
        return f"{collection} {0 if stored is None else stored.created_ms}"

    async def _identity(self, collection: str) -> str:
        """The identity of a collection with the columns that it has now."""
        collections = self._process.context.collections
        state = await collections.newest(collection, VERSION_AGE_S_MAX)
        columns = [(each.name, str(each.type)) for each in state.description.schema]
        told = f"{self._birth(collection)} {columns}"
        return blake2b(told.encode(), digest_size=12).hexdigest()

    async def _upper_of(self, collection: str) -> Frontier:
        return (await self._process.context.collections.newest(collection)).upper

    async def begin(self, files: Sequence[Path]) -> None:
        """Apply the resources of `files`; a first question finds its grammar loaded."""
        await asyncio.to_thread(prepare_reading)
        if files:
            documents = [ResourceDocument(text_of(f), str(f)) for f in _expanded(files)]
            await self.controller.apply(documents)

    def components(self, ports: Ports) -> Iterable[tuple[str, Run]]:
        """The server of gRPC; the operations of HTTP are added to the port that is there."""
        self.add_operations(ports, clear=self._process.context.settings.http_tls.files is None)
        return [("grpc", partial(self._serve, ports)), ("frontiers", self.history.run)]

    def add_operations(self, ports: Ports, clear: bool) -> None:
        """Offer the calls over HTTP; `clear` says that tokens would be sent as they are."""
        context = self._process.context
        calls = Calls(
            observed_calls(context.metrics), DeadlinePolicy(), ports.users or Open(),
            ports.admissions, self._process.audit,
        )  # fmt: skip
        query, catalog = self._authorized()
        rows_max = context.settings.limits.push_rows
        self.feeds = Feeds(query)
        webhooks = Webhooks(self.controller, context.places, context.clock.now_ms)
        handlers = Handlers(
            query,
            catalog,
            self.feeds,
            webhooks,
            self.controller.check,
            rows_max,
            public=ports.users is None,
            now_ms=context.clock.now_ms,
            history=self._looks,
            identify=self._identify,
            birth=self._birth,
            identity=self._identity,
            upper_of=self._upper_of,
        )
        door = Door(calls, handlers, closed=clear and ports.users is not None)
        for operation in OPERATIONS:
            door.add(ports.http, operation)
        Console().add_to(ports.http)
        ports.http.add_route("GET", "/v1/openapi.json", show_openapi)

    def _authorized(self) -> tuple[QueryHandlers, CatalogHandlers]:
        """The handlers that both ports ask."""
        context = self._process.context
        observed = ObservedQueries(self.query, context.metrics)
        return (
            AuthorizedQueries(observed, context.catalog),
            AuthorizedCatalog(self.controller, context.catalog),
        )

    async def _serve(self, ports: Ports, scope: Scope) -> None:
        context, chosen = self._process.context, self._process.context.settings
        metrics, catalog, files = context.metrics, context.catalog, chosen.tls.files
        credentials = None if files is None else ServerCredentials(files, _told)
        server = await serve(
            chosen.grpc,
            *self._authorized(),
            AuthorizedStorage(self.storage, catalog),
            AuthorizedCompute(self.maintaining, catalog),
            reflect=chosen.reflection, observer=observed_calls(metrics),
            authenticator=ports.users, admissions=ports.admissions,
            credentials=None if credentials is None else credentials.credentials(),
            auditor=self._process.audit, states=(SAID,) if exposed(chosen) else (),
        )  # fmt: skip
        host = chosen.grpc.rpartition(":")[0]
        (chosen.root / "grpc.address").write_text(f"{host}:{server.port}\n")
        log.info("listening", grpc=f"{host}:{server.port}", directory=str(chosen.root))
        scope.ready()
        await scope.until_stopping()
        await server.stop()


def _told(says: str) -> None:
    log.warning("files not taken over", what="tls", error=says)


def _expanded(files: Sequence[Path]) -> list[Path]:
    """Files, and the YAML files of folders."""
    found: list[Path] = []
    for file in files:
        found += sorted(file.glob("*.yaml")) if file.is_dir() else [file]
    return found


def service(settings: QuerySettings) -> Service:
    """The role as a process takes it on."""
    return Service(ROLE, join=partial(Answers, settings))
