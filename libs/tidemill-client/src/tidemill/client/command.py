"""The `tidemill` command. Subcommands import what they need when they run, so that help is fast."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # typer's own, not re-exported

from tidemill.client import commands_catalog, commands_read
from tidemill.client.plugins import PluginGroup
from tidemill.client.settings import (
    ADDRESS_VARIABLE,
    TLS_CA_VARIABLE,
    TLS_CERT_VARIABLE,
    TLS_KEY_VARIABLE,
    TLS_NAME_VARIABLE,
    TOKEN_FILE_VARIABLE,
    check_environment,
    place_from_environment,
)

HELP = """\
Views over changing data that are exactly right, and that say for which instants.

A first round:

\b
    tidemill up                              # a server; state in ./.tidemill
    tidemill apply -f views.yaml             # sources, tables, views, actions
    tidemill get                             # what there is, and its lag
    tidemill query 'late(flight, delay)'     # at the latest definite instant
    tidemill query 'late(flight, delay)' --as-of 2013-02-01T06:00:00Z
    tidemill why 'late("UA1545", 42)'        # the proof, down to the inputs

Instants are milliseconds, ISO-8601 (UTC), or latest: the last instant that is definite. The words now
and now-5m are read by this machine's clock. Options of the connection (--address, --tls-…,
--token-file) may stand anywhere on the line.

Exit codes: 0 done, 1 refused, 2 wrong command line or variable, 3 not definite yet or no
longer known, 4 server not reachable, 5 failed.
"""

app = typer.Typer(
    cls=PluginGroup,
    name="tidemill",
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
commands_catalog.add_to(app)
commands_read.add_to(app)


class Shell(StrEnum):
    """A shell that typer can complete for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"
    powershell = "powershell"


@app.command()
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


@app.callback()
def tidemill(
    context: typer.Context,
    address: Annotated[
        str | None,
        typer.Option(
            help=f"Server to call, host:port; also by {ADDRESS_VARIABLE}. [default: 127.0.0.1:7474]",
            show_default=False,
        ),
    ] = None,
    tls_ca: Annotated[
        str | None,
        typer.Option(
            help="Call over TLS: file with the authority of the server's certificate, or the word "
            f"system for those of this machine; also by {TLS_CA_VARIABLE}."
        ),
    ] = None,
    tls_cert: Annotated[
        str | None,
        typer.Option(
            help=f"File with our certificate, where servers ask for one; also by {TLS_CERT_VARIABLE}."
        ),
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(help=f"File with its key; also by {TLS_KEY_VARIABLE}.")
    ] = None,
    tls_name: Annotated[
        str | None,
        typer.Option(
            help="Name that the server's certificate is for, if the address is another; also by "
            f"{TLS_NAME_VARIABLE}."
        ),
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(help=f"File with the token of the caller; also by {TOKEN_FILE_VARIABLE}."),
    ] = None,
) -> None:
    """Remember how the server is called for the subcommand; refuse unknown variables."""
    check_environment()
    context.obj = place_from_environment(address, tls_ca, tls_cert, tls_key, tls_name, token_file)


def main() -> None:
    """Run the command line of this process."""
    app(prog_name="tidemill")
