"""Every error of a subcommand as one line. Nothing heavy is loaded until there is one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from tidemill.client.exits import Exit


@contextmanager
def reported(address: str = "") -> Iterator[None]:
    """Turn an error of the body into one clear line, the advice, and the exit code."""
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None
    except BrokenPipeError:
        # The reader of our output has seen enough; nothing may be flushed to it at exit.
        sys.stdout = None
        raise typer.Exit(Exit.OK) from None
    except Exception as error:  # the outermost frame of a subcommand: no user sees a stack trace
        from tidemill.client.faults import report

        raise typer.Exit(report(error, address)) from None
