"""`tidemill up`: the whole system in one process, or some of its roles."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from tidemill.errors import UsageError
from tidemill.host.command import command
from tidemill.host.state_folder import check_files, own_folder
from tidemill.runtime import settings
from tidemill_server.samples import Sample, generating
from tidemill_server.services import services_of
from tidemill_server.settings import ServerSettings

_PLAIN = command(ServerSettings, services_of, "")
_SAMPLE = Annotated[
    Sample | None,
    typer.Option(help="Apply a sample of `tidemill init`, and push rows to it while this runs."),
]


def up(*, sample: Sample | None = None, **options: Any) -> None:
    """Run everything in this process, with its state in one folder; or some roles on shared stores.

    Then, in another shell: tidemill apply -f FILE · tidemill get · tidemill query 'late(f, d)'
    """
    if sample is None:
        _PLAIN(**options)
        return
    try:
        chosen = settings.load(ServerSettings, options["config"], "TIDEMILL_UP_")
        state = Path(options["directory"] or chosen.directory)
        own_folder(state)
        check_files(state, chosen.embeds_log)
        with generating(sample, state) as resources:
            options["file"] = [*(options["file"] or ()), resources]
            _PLAIN(**options)
    except UsageError as error:
        typer.echo(f"tidemill up: {error}", err=True)
        raise typer.Exit(1) from None


def _with_sample(plain: inspect.Signature, hints: dict[str, Any]) -> None:
    """Give `up` the options of the plain command and its own, as typer reads them."""
    named = [each.replace(annotation=hints[name]) for name, each in plain.parameters.items()]
    own = inspect.Parameter(
        "sample", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_SAMPLE
    )
    up.__annotations__ = {**hints, "sample": _SAMPLE}
    up.__signature__ = plain.replace(parameters=[*named, own])  # type: ignore[attr-defined]


_with_sample(inspect.signature(_PLAIN), get_type_hints(_PLAIN, include_extras=True))
