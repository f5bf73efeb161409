"""Interface of services: the parts of resources that a role has, and components beside them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from tidemill.catalog.made.making import Made
from tidemill.catalog.store import Key
from tidemill.host.auditing import Audit
from tidemill.host.claimed_work import ClaimedWork
from tidemill.host.context import Context
from tidemill.host.reports import Reports
from tidemill.host.supervised import Runner, Supervised
from tidemill.host.unmade import inner
from tidemill.rpc.admission import Admissions
from tidemill.rpc.identity import Authenticator
from tidemill.rpc.server import Server
from tidemill.runtime.http_server import HttpServer
from tidemill.runtime.lifecycle import Scope
from tidemill.spark.board import JobBoard

Confirm: TypeAlias = Callable[[], Awaitable[None]]
"""Raises Fenced once the claim on a part is lost."""

Run: TypeAlias = Callable[[Scope], Awaitable[None]]
"""Runs one component of a process, until its scope is to stop."""

R = TypeVar("R")


class Parts(Protocol):
    """The parts of one role in the work on resources."""

    def make(self, made: Made, share: int | None, confirm: Confirm) -> Runner:
        """The part in the work on what a resource makes, or one share of it.

        Effects outside the stores wait for `confirm`. Raises: why the part cannot be made.
        """

    def watch(self, running: RunningParts) -> None:
        """Register what is read of running parts at each scrape."""

    async def close(self) -> None:
        """Give up what the parts share."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process, opened: claims, parts and what is said of them. `internal` answers others."""

    context: Context
    roles: tuple[str, ...]
    work: ClaimedWork
    reports: Reports
    parts: Sequence[Parts]
    risks: tuple[str, ...]
    board: JobBoard
    audit: Audit
    internal: Server | None

    @property
    def running(self) -> RunningParts:
        """The parts that run now."""
        return RunningParts(self.work)


@dataclass(frozen=True, slots=True)
class RunningParts:
    """The parts of a process that run now, for metrics."""

    work: ClaimedWork

    def each(self) -> Iterator[tuple[Key, Supervised, Runner]]:
        """Kind and name of the resource, supervision and work of each part."""
        for held in self.work.held():
            resource, runner = held.stored.resource, held.supervised.runner
            yield (resource.kind, resource.name), held.supervised, inner(runner)

    def of(self, kind: type[R]) -> Iterator[tuple[str, R]]:
        """Parts of one kind, with the name of their resource."""
        for (_, name), _, runner in self.each():
            if isinstance(runner, kind):
                yield name, runner


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of a process for users: HTTP, their names, and the calls that are let in."""

    http: HttpServer
    users: Authenticator | None
    admissions: Admissions


class OpenService(Protocol):
    """A service in an open process, by its components beside the parts."""

    async def begin(self, files: Sequence[Path]) -> None:
        """Apply `files` once claimed work has begun, or do nothing."""

    def components(self, ports: Ports) -> Iterable[tuple[str, Run]]:
        """Names and components, in the order of their start."""


@dataclass(frozen=True, slots=True)
class Service:
    """One role, as a process takes it on."""

    role: str
    parts: Callable[[Context], Parts] | None = None
    """Makes the parts in the work on resources."""
    join: Callable[[Process], OpenService] | None = None
    """Makes the components beside them."""
