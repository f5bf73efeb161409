"""Exit codes of subcommands."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes, the same for every subcommand."""

    OK = 0
    """The work is done."""

    REFUSED = 1
    """The server, or the check of a document, has refused."""

    COMMAND_LINE = 2
    """The command line is wrong, or no command knows a variable that begins with TIDEMILL_."""

    OUTSIDE_OF_TIME = 3
    """The instant is not definite yet, or no longer known."""

    UNREACHABLE = 4
    """No server answers."""

    FAILED = 5
    """An error that nobody foresaw."""

    INTERRUPTED = 130
    """The user has pressed Ctrl-C."""
