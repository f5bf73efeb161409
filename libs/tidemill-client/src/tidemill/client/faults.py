"""What the command says and how it exits when something is refused or fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import typer

from tidemill.client.instants import shown_frontier
from tidemill.time import (
    Antichain,
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


class Exit(IntEnum):
    """Exit codes, the same for every subcommand."""

    OK = 0
    REFUSED = 1
    COMMAND_LINE = 2
    OUTSIDE_OF_TIME = 3
    UNREACHABLE = 4
    FAILED = 5
    INTERRUPTED = 130


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
    """What to do about it; empty where the message says it already."""
    match error:
        case NotYet():
            return (
                f"The upper is {_frontier(error, 'upper')}: choose an earlier instant, leave "
                "--as-of out for the latest, or wait with --timeout SECONDS."
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
        case Unavailable():
            return (
                f"Is `tidemill up` running at {address}? "
                "--address or TIDEMILL_ADDRESS names another server."
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
                return f"Subscribe again with --start {resume}."
            if exit_code(error) is Exit.OUTSIDE_OF_TIME:
                return "Ask again, with a longer --timeout."
            return "The server's log says more."


@contextmanager
def reported(address: str = "") -> Iterator[None]:
    """Turn an error of the body into one clear line, the advice, and the exit code."""
    try:
        yield
    except TidemillError as error:
        rendered = error.details.get("rendered")
        print(f"tidemill: {rendered or error.message}", file=sys.stderr)
        hint = advice(error, address)
        if hint:
            print(f"  {hint}", file=sys.stderr)
        raise typer.Exit(exit_code(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None
    except BrokenPipeError:
        # The reader of our output has seen enough; nothing may be flushed to it at exit.
        sys.stdout = None
        raise typer.Exit(Exit.OK) from None


def _frontier(error: TidemillError, name: str) -> str:
    held = error.details.get(name)
    return shown_frontier(held) if isinstance(held, Antichain) else str(held)
