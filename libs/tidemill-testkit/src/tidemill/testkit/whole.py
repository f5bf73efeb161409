"""A whole system in the process of a test, without ports: handlers are called directly."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tidemill.client.rows import table_of
from tidemill.host import process as host
from tidemill.host.observing import watch
from tidemill.host.service import Ports, Process
from tidemill.rpc.admission import Admissions
from tidemill.rpc.identity import Authenticator
from tidemill.rpc.messages import Outcome, ResourceDocument
from tidemill.runtime.http_server import HttpLimits, HttpServer
from tidemill_compaction.service import Compaction
from tidemill_query.service import Answers
from tidemill_server.services import services_of
from tidemill_server.settings import ServerSettings


class Whole:
    """The parts and the handlers of an open process."""

    def __init__(self, settings: ServerSettings, process: Process) -> None:
        answers = Answers(settings.query, process)
        self.answers = answers
        self.process = process
        self.context = process.context
        self.work = process.work
        self.controller = answers.controller
        self.query = answers.query
        self.storage = answers.storage
        self.maintaining = answers.maintaining
        self.compaction = Compaction(settings.compaction, process)

    async def start(self) -> None:
        """Run everything that was applied before and is granted."""
        await host.start(self.process)

    async def apply(self, *texts: str) -> list[Outcome]:
        """The outcome of each resource of some documents."""
        documents = [ResourceDocument(text, "test.yaml") for text in texts]
        return [applied.outcome for applied in await self.controller.apply(documents)]

    async def insert(self, name: str, *rows: Mapping[str, object]) -> int:
        """The time of rows that are inserted into a table."""
        return (await self.controller.insert(name, table_of(rows))).time

    async def answer(self, goal: str, at: int | None = None) -> list[tuple[object, ...]]:
        """Rows that match a goal, or those of a collection, once the instant is definite."""
        ask = self.query.ask if "(" in goal else self.query.snapshot
        found = (await ask(goal, at, 120.0)).table.drop_columns(["_diff"])
        return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True), key=repr)

    def exposed(self) -> str:
        """The metrics of the process as text."""
        watch(self.process)
        return self.context.metrics.expose()[0].decode()


@asynccontextmanager
async def served_over_http(
    whole: Whole, users: Authenticator | None = None, limits: HttpLimits | None = None
) -> AsyncIterator[str]:
    """The address at which the calls of a system are answered over HTTP.

    Tokens of `users` are taken in the clear: both ends are this process.
    """
    context = whole.context
    http = HttpServer("127.0.0.1", 0, context.metrics, limits=limits)
    named = context.settings.limits.of_calls(named=users is not None)
    admissions = Admissions(named, context.clock.monotonic_s, context.clock.sleep)
    whole.answers.add_operations(Ports(http, users, admissions), clear=False)
    port = await http.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await http.close()


@asynccontextmanager
async def opened(settings: ServerSettings, config: Path | None = None) -> AsyncIterator[Whole]:
    """The process, as `tidemill up` opens it before it answers anybody."""
    async with host.opened(settings, services_of(settings), config) as process:
        yield Whole(settings, process)


@asynccontextmanager
async def running(folder: Path, *texts: str, **settings: Any) -> AsyncIterator[Whole]:
    """A process at work with what the texts say; its state is below the folder."""
    async with opened(ServerSettings(directory=str(folder / "state"), **settings)) as process:
        await process.start()
        if texts:
            await process.apply(*texts)
        yield process
