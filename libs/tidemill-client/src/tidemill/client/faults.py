"""Messages and exit codes of refusals and failures."""

from __future__ import annotations

import sys

from tidemill.client.exits import Exit
from tidemill.client.instants import shown_frontier
from tidemill.errors import (
    BeforeSince,
    Corrupt,
    Fenced,
    Indeterminate,
    NotYet,
    TidemillError,
    Unavailable,
    UnknownCollection,
    UsageError,
)
from tidemill.time import Antichain


def exit_code(error: TidemillError) -> Exit:
    """The code that says what the caller can do next."""
    match error:
        case NotYet() | BeforeSince():
            return Exit.OUTSIDE_OF_TIME
        case UsageError() | Fenced():
            return Exit.REFUSED
        case Unavailable() | Indeterminate():
            return Exit.UNREACHABLE
        case Corrupt():
            return Exit.FAILED
        case _:
            # The two errors of the wire alone; importing their module would load gRPC.
            outside = type(error).__name__ in ("DeadlinePassed", "CutOff")
            return Exit.OUTSIDE_OF_TIME if outside else Exit.FAILED


def advice(error: TidemillError, address: str) -> str:
    """The next act of the user; empty where the message names it already."""
    match error:
        case NotYet() if error.details.get("reason") == "first":
            return "Wait for it with --wait."
        case NotYet() if error.details.get("reason") == "waited":
            return (
                "`tidemill get` shows how far what it reads has come, and `tidemill timestamp` what "
                "decides the instant; --timeout waits longer."
            )
        case NotYet():
            return (
                f"The upper is {_frontier(error, 'upper')}: choose an earlier instant, leave "
                "--as-of out for the latest, or wait with --wait."
            )
        case BeforeSince():
            holder = error.details.get("holder")
            moved = f", moved by {holder}" if holder else ""
            return (
                f"The since is {_frontier(error, 'since')}{moved}: choose a later instant, and "
                "keep more history next time with `retain` or a Hold."
            )
        case UnknownCollection():
            return "`tidemill get` and `tidemill get collections` list what there is."
        case Unavailable() if error.details.get("reason") == "tls":
            return "docs/how-to/security.md says how certificates and tokens are given."
        case Unavailable():
            if error.details.get("reason") != "unreachable":
                return "Nothing happened: try again in a moment."
            return (
                f"No server answers at {address}. Start it with: tidemill up; "
                "or name another with --address or TIDEMILL_ADDRESS."
            )
        case Indeterminate():
            return "It may have happened: look with `tidemill get` or `query` before a second try."
        case Fenced():
            return "Another writer took over: start again."
        case Corrupt():
            return "Stop the server, keep its state directory, and read its log."
        case UsageError():
            return ""
        case _:
            resume = error.details.get("resume_at")
            if resume is not None:
                return f"Go on with --from {resume} --no-snapshot."
            if exit_code(error) is Exit.OUTSIDE_OF_TIME:
                return "Ask again, with a longer --timeout."
            return "The server's log says more."


def report(error: Exception, address: str) -> Exit:
    """Print the error and what to do about it; the exit code that fits."""
    if not isinstance(error, TidemillError):
        text = " ".join(str(error).split())
        print(f"tidemill: the command failed: {type(error).__name__}: {text}", file=sys.stderr)
        return Exit.FAILED
    rendered = error.details.get("rendered")
    print(f"tidemill: {rendered or error.message}", file=sys.stderr)
    hint = advice(error, address)
    if hint:
        print(f"  {hint}", file=sys.stderr)
    return exit_code(error)


def _frontier(error: TidemillError, name: str) -> str:
    held = error.details.get(name)
    return shown_frontier(held) if isinstance(held, Antichain) else str(held)
