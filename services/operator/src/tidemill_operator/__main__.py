"""`tidemill operator`, `python -m tidemill_operator`: custom resources of Kubernetes become
resources of Tidemill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from tidemill.errors import TidemillError
from tidemill.kubernetes.api import KubernetesApi, in_this_place
from tidemill.runtime import logs, settings
from tidemill.runtime.clock import SystemClock
from tidemill.runtime.http_server import HttpServer
from tidemill.runtime.lifecycle import Failed, Scope, Supervisor, closing, exit_code
from tidemill.runtime.metrics import Metrics
from tidemill.runtime.rng import new_rng
from tidemill_operator.driver import MANAGER, Operator
from tidemill_operator.election import Election
from tidemill_operator.objects import PLURALS, Declared
from tidemill_operator.settings import OperatorSettings
from tidemill_operator.tidemill_side import Users
from tidemill_operator.watching import Mirror


async def run_process(chosen: OperatorSettings, api: KubernetesApi) -> int:
    """Run until a signal, a failure or the loss of the Lease; the exit code."""
    clock = SystemClock()
    supervisor = Supervisor(clock)
    leading = asyncio.Event()
    election = Election(api, chosen.home, chosen.lease, chosen.identity, chosen.lease_s, clock)
    mirrors: list[Mirror] = []

    def objects() -> Iterator[Declared]:
        return (each for mirror in mirrors for each in mirror.objects.values())

    users = Users(chosen)
    operator = Operator(
        api, users.acting_for, lambda: list(objects()), lambda: election.leading, clock, chosen
    )
    mirrors += [
        Mirror(api, kind, namespace, clock, new_rng(), chosen.watch_s, operator.wake)
        for kind in PLURALS
        for namespace in chosen.namespaces or ("",)
    ]
    http = HttpServer(chosen.http_host, chosen.http_port, Metrics(clock))
    http.add_ready_check(
        "mirrors", lambda: None if all(m.filled for m in mirrors) else "objects are being listed"
    )

    async def web(scope: Scope) -> None:
        await http.start()
        scope.ready()
        await scope.until_stopping()
        await http.close()

    async def watch(scope: Scope) -> None:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(mirror.follow_forever()) for mirror in mirrors]
            scope.ready()
            await scope.until_stopping()
            for task in running:
                task.cancel()

    async def lead(scope: Scope) -> None:
        async def began() -> None:
            leading.set()

        holding = asyncio.create_task(election.hold_forever(chosen.renew_s, began))
        scope.ready()
        await scope.until_stopping_or(holding)
        await election.give_up()

    async def reconcile(scope: Scope) -> None:
        async def work() -> None:
            await leading.wait()
            while not all(mirror.filled for mirror in mirrors):
                await clock.sleep(0.1)
            await operator.reconcile_forever()

        working = asyncio.create_task(work())
        scope.ready()
        await scope.until_stopping_or(working)

    for name, component in (("http", web), ("watch", watch), ("lead", lead), ("work", reconcile)):
        supervisor.add(name, component)
    async with closing(users), closing(api):
        outcome = await supervisor.run()
    if isinstance(outcome, Failed):
        typer.echo(f"tidemill operator: {outcome}", err=True)
    return exit_code(outcome)


def operator(
    config: Annotated[Path | None, typer.Option(help="Settings as TOML or YAML.")] = None,
    log_format: Annotated[str, typer.Option(help="console or json.")] = "console",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Make the Sources, Tables, Views, Actions, Arrangements and Holds of a Kubernetes cluster so
    in Tidemill.
    """
    logs.configure(log_format, log_level)

    async def main() -> int:
        chosen = settings.load(OperatorSettings, config, "TIDEMILL_OPERATOR_")
        return await run_process(chosen, KubernetesApi(await in_this_place(), MANAGER))

    try:
        code = asyncio.run(main())
    except TidemillError as error:
        typer.echo(f"tidemill operator: {error}", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


if __name__ == "__main__":
    settings.check_environment()
    typer.run(operator)
