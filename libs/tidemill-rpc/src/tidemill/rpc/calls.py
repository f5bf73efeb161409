"""The frame of every call, whatever port it came by: caller, rights, limits, turns, time, audit.

A port translates: its requests into the arguments of a handler, its errors into its own words.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tidemill.errors import BeforeSince, Denied, Exhausted, NotYet, TidemillError
from tidemill.rpc.admission import Admissions, of_call
from tidemill.rpc.audited import Auditor, begin, tell
from tidemill.rpc.identity import NEEDS, Authenticator, Principal, Role, caller
from tidemill.rpc.status import code_of
from tidemill.time import Antichain, unit_doubt

T = TypeVar("T")


class CallObserver(Protocol):
    """Receiver of counts and log events of calls; `code` is a name of gRPC's, such as `OK`."""

    def started(self, method: str) -> None:
        """A call of `method` arrived."""
        ...

    def sent(self, method: str) -> None:
        """A message of a stream was sent."""
        ...

    def refused(self, limit: str) -> None:
        """A call reached the limit of this setting."""
        ...

    def ended(self, method: str, code: str, seconds: float, error: BaseException | None) -> None:
        """The call ended; `error` is set only if it was none of Tidemill's own: a bug."""
        ...


class SilentObserver:
    """Observes nothing."""

    def started(self, method: str) -> None:
        """No effect."""

    def sent(self, method: str) -> None:
        """No effect."""

    def refused(self, limit: str) -> None:
        """No effect."""

    def ended(self, method: str, code: str, seconds: float, error: BaseException | None) -> None:
        """No effect."""


@dataclass(frozen=True, slots=True)
class DeadlinePolicy:
    """Seconds that a call may take: `default_s` without a deadline, at most `cap_s` with one.

    Subscriptions have no end of their own: `endless` names the methods that need no deadline.
    """

    default_s: float = 30.0
    cap_s: float = 600.0
    endless: frozenset[str] = frozenset(
        {
            "/tidemill.query.v1.QueryService/Subscribe",
            "/tidemill.storage.v1.StorageService/SubscribeAt",
            "/tidemill.ingest.v1.IngestService/Deliver",
        }
    )

    def seconds(self, method: str, remaining: float | None) -> float | None:
        """The time that the call gets; None for an endless one."""
        if method in self.endless:
            return remaining
        return self.default_s if remaining is None else min(remaining, self.cap_s)


@dataclass(frozen=True, slots=True)
class Origin:
    """A call as its port knows it before it is read.

    `sent` are its metadata or headers, with names in lower case; `identities` gives the names that
    its certificate proves. `request_bytes` is None for a body whose bytes were throttled as they
    came, `remaining_s` for a call without a deadline. `principal` is the caller where the port has
    proved it.
    """

    method: str
    peer: str
    sent: Mapping[str, str]
    identities: Callable[[], Iterable[str]] = tuple
    request_bytes: int | None = None
    remaining_s: float | None = None
    principal: Principal | None = None


@dataclass(slots=True)
class Answering:
    """A call that is let in: `sent` is told the bytes of its answers.

    `waited` is set where the caller gave time to wait.
    """

    sent: Callable[[int], None]
    waited: bool = False


class Calls:
    """Authenticates, authorizes, limits, times and observes calls.

    Handlers find the caller in `identity.caller`, and the limits in `admission.of_call`.
    """

    def __init__(
        self,
        observer: CallObserver,
        deadlines: DeadlinePolicy,
        authenticator: Authenticator,
        admissions: Admissions | None,
        auditor: Auditor,
    ) -> None:
        """Without `admissions` nothing is counted: a port of services."""
        self.observer = observer
        self.admissions = admissions
        self._deadlines = deadlines
        self._authenticator = authenticator
        self._auditor = auditor

    @asynccontextmanager
    async def around(self, origin: Origin) -> AsyncIterator[Answering]:
        """Surround one call; its errors are counted, told to the auditor, and raised on.

        An error that nobody foresaw becomes a TidemillError. Raises: Unauthenticated, Denied;
        Exhausted if the caller has too much under way; TimeoutError at the deadline.
        """
        loop, method = asyncio.get_running_loop(), origin.method
        began = loop.time()
        code, fault = "OK", None
        ended: BaseException | None = None
        answering = Answering(lambda size: None)
        self.observer.started(method)
        begin()
        try:
            principal = self.admit(origin)
            of_call.set(self.admissions)
            if self.admissions is not None:
                self.admissions.strangers.know(origin.peer)
            with self._counted(principal, origin) as answering.sent:
                async with asyncio.timeout(self._deadlines.seconds(method, origin.remaining_s)):
                    yield answering
        except TidemillError as error:
            ended = error
            if isinstance(error, Exhausted):
                self.observer.refused(str(error.details.get("setting", "")))
            if isinstance(error, BeforeSince | NotYet):
                _add_doubt(error)
            code = code_of(error, waited=answering.waited)[1].name
            raise
        except TimeoutError as error:
            ended, code = error, "DEADLINE_EXCEEDED"
            raise
        except (asyncio.CancelledError, GeneratorExit) as error:
            ended, code = error, "CANCELLED"
            raise
        except Exception as error:
            # The outermost frame of a call: the server goes on, the observer reports the bug.
            ended, code, fault = error, "INTERNAL", error
            raise TidemillError(f"the server failed: {type(error).__name__}: {error}") from error
        finally:
            self.observer.ended(method, code, loop.time() - began, fault)
            tell(self._auditor, method, origin.peer, ended)
            del ended, fault  # an error holds this frame: in it they would be a cycle

    def admit(self, origin: Origin) -> Principal:
        """The principal of a call, made known to the code that serves it. Raises: Unauthenticated,
        Denied.
        """
        principal = origin.principal or self._authenticator.principal(
            origin.sent, origin.identities
        )
        caller.set(principal)
        needed = NEEDS.get(origin.method)
        if needed is None or not principal.has(needed):
            raise Denied(
                f"{principal.name} may not call {origin.method.rpartition('/')[2]}: it needs the "
                f"role {(needed or Role.admin).name} over some collections",
                principal=principal.name,
            )
        return principal

    def tell_refusal(self, origin: Origin, error: TidemillError) -> None:
        """Tell of a call that was refused before it was surrounded."""
        tell(self._auditor, origin.method, origin.peer, error)

    def in_steps(self, call: Awaitable[T]) -> Awaitable[T]:
        """The call of the caller, in turn with those of others; a port of services has no turns."""
        if self.admissions is None:
            return call
        return self.admissions.steps.steps_of(caller.get().name, call)

    async def count_sent(self, method: str) -> None:
        """Return when the caller may be sent more of a stream of which a message was sent."""
        if self.admissions is not None:
            await self.admissions.throttle_bytes(caller.get().name)
        self.observer.sent(method)

    def _counted(
        self, principal: Principal, origin: Origin
    ) -> AbstractContextManager[Callable[[int], None]]:
        if self.admissions is None:
            return nullcontext(lambda size: None)
        endless = origin.method in self._deadlines.endless
        return self.admissions.admitted(principal.name, endless, origin.request_bytes)


def _add_doubt(error: BeforeSince | NotYet) -> None:
    """Add to the message that the instant looks like one of another unit, if it does."""
    asked = error.details.get("requested")
    frontiers = (error.details.get(name) for name in ("since", "upper"))
    whole = [each for each in frontiers if isinstance(each, Antichain) and _is_of_ms(each)]
    doubt = unit_doubt(asked, *whole) if isinstance(asked, int) else ""
    if doubt and doubt not in error.message:
        error.message += f"; {doubt}"


def _is_of_ms(held: Antichain[int]) -> bool:
    """Whether a frontier is one of instants, and none of offsets."""
    return all(isinstance(time, int) for time in held)
