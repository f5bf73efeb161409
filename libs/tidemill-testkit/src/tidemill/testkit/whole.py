"""A whole system in the process of a test, without ports: handlers are called directly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tidemill.host import process as host
from tidemill.host.observing import watch
from tidemill.host.service import Process
from tidemill_compaction.service import Compaction
from tidemill_query.service import Answers
from tidemill_server.services import services_of
from tidemill_server.settings import ServerSettings


class Whole:
    """The parts and the handlers of an open process."""

    def __init__(self, settings: ServerSettings, process: Process) -> None:
        answers = Answers(settings.query, process)
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

    def exposed(self) -> str:
        """The metrics of the process as text."""
        watch(self.process)
        return self.context.metrics.expose()[0].decode()


@asynccontextmanager
async def opened(settings: ServerSettings, config: Path | None = None) -> AsyncIterator[Whole]:
    """The process, as `tidemill up` opens it before it answers anybody."""
    async with host.opened(settings, services_of(settings), config) as process:
        yield Whole(settings, process)
