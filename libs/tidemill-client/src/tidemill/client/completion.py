"""The subcommand that prints a shell's completion script."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # typer's own, not re-exported


class Shell(StrEnum):
    """A shell that typer can complete for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"
    powershell = "powershell"


def add_to(app: typer.Typer) -> None:
    """Register the subcommand."""
    app.command()(completion)


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell to complete in.")],
) -> None:
    """Print the completion script of a shell.

    \b
        tidemill completion bash > ~/.local/share/bash-completion/completions/tidemill
        tidemill completion zsh > ~/.zfunc/_tidemill
    """
    script = get_completion_script(
        prog_name="tidemill", complete_var="_TIDEMILL_COMPLETE", shell=shell.value
    )
    typer.echo(script)
