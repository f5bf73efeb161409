"""Which calls are told to an auditor: what changed something, and whatever was refused.

An entry names who called, from where, what it was about and why it was refused. It has no contents
of rows and documents, and nothing of what was sent as a token.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from tidemill.errors import Denied, Unauthenticated
from tidemill.rpc.identity import NEEDS, Role, caller

REASON_CHARS_MAX = 300
TARGETS_MAX = 100
"""Of one call; what it names beyond them is counted."""


@dataclass(frozen=True, slots=True)
class AuditedCall:
    """One call about one thing.

    `action` is the name of the method; `outcome` is done, refused or failed.
    """

    who: str
    address: str
    action: str
    target: str
    outcome: str
    reason: str = ""


class Auditor(Protocol):
    """Receiver of audit records; returns at once."""

    def called(self, call: AuditedCall) -> None:
        """Keep it."""
        ...


class NoAuditor:
    """Keeps nothing: for tests."""

    def called(self, call: AuditedCall) -> None:
        """No effect."""


@dataclass(frozen=True, slots=True)
class RefusalsAlone:
    """Tells `kept` of what was refused: for ports on which services do each other's work all the
    time.
    """

    kept: Auditor

    def called(self, call: AuditedCall) -> None:
        """Keep it if it was refused."""
        if call.outcome == "refused":
            self.kept.called(call)


_touched: ContextVar[list[str] | None] = ContextVar("touched", default=None)


def touch(*names: str, instead: bool = False) -> None:
    """The call that is being answered is about these, or about these alone."""
    found = _touched.get()
    if found is not None:
        if instead:
            found.clear()
        found += names


def begin() -> None:
    """A call begins; it is about nothing yet."""
    _touched.set([])


def tell(auditor: Auditor, method: str, peer: str, error: BaseException | None) -> None:
    """Tell of a call that has ended, if it is one that is told of."""
    action = method.rpartition("/")[2]
    refused = isinstance(error, Denied | Unauthenticated)
    if not refused and NEEDS.get(method, Role.admin) < Role.writer:
        return
    targets = list(dict.fromkeys(_touched.get() or ()))
    if not targets and error is None:
        return  # it has changed nothing
    if isinstance(error, Denied) and (missing := error.details.get("collection")):
        targets = [str(missing)]
    if len(targets) > TARGETS_MAX:
        targets = [*targets[:TARGETS_MAX], f"{len(targets) - TARGETS_MAX} more"]
    who = "" if isinstance(error, Unauthenticated) else caller.get().name
    outcome = "refused" if refused else "done" if error is None else "failed"
    reason = _reason(error, refused)
    for target in targets or [""]:
        auditor.called(AuditedCall(who, host_of(peer), action, target, outcome, reason))


def _reason(error: BaseException | None, refused: bool) -> str:
    """Why; of a failure only its class and rule, since what it says may be rows."""
    if error is None:
        return ""
    if refused:
        return f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
    rule = getattr(error, "details", {}).get("reason", "")
    return f"{type(error).__name__} {rule}".strip()[:REASON_CHARS_MAX]


def host_of(peer: str) -> str:
    """The address of a peer as gRPC writes it (`ipv4:10.0.0.7:5000`), without its port."""
    scheme, _, rest = peer.partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return peer
    return rest.replace("%5B", "[").replace("%5D", "]").rpartition(":")[0].strip("[]")
