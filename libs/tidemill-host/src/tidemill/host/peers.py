"""The other processes: who has which work, and how to call them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from tidemill.errors import DeadlinePassed, Unavailable
from tidemill.rpc.channel import Dialer
from tidemill.rpc.client_services import ServiceClient
from tidemill.rpc.identity import ELSEWHERE, place_and_run
from tidemill.rpc.messages import Work
from tidemill.shard.claims import Claiming, Owned


class Peers:
    """Processes that share the stores with this one, found by what they have claimed."""

    def __init__(self, claimants: Callable[[str], Claiming], dialer: Dialer) -> None:
        self._claimants = claimants
        self._dialer = dialer
        self._clients: dict[str, ServiceClient] = {}
        """By host and port: the run that was called last."""

    def client(self, address: str) -> ServiceClient:
        """Calls of the process at `address`; runs that follow each other share a connection.

        Raises: UsageError for certificates that cannot be used.
        """
        place, _ = place_and_run(address)
        known = self._clients.get(place)
        if known is None:
            known = ServiceClient(address, self._dialer)
        elif known.address != address:
            known = known.of_run(address)
        self._clients[place] = known
        return known

    async def owner(self, role: str, item: str) -> str | None:
        """The address of the process that has claimed an item; None if no process has."""
        for owned in await self._claimants(role).owners():
            if owned.item == item:
                return owned.details
        return None

    async def owners(self, roles: Iterable[str]) -> dict[str, tuple[Owned, ...]]:
        """Everything that is claimed, by role."""
        return {role: await self._claimants(role).owners() for role in roles}

    async def work(self, addresses: Iterable[str]) -> list[Work]:
        """The work of the processes at these addresses, as they report it; without those that are
        away.
        """
        wanted = list(dict.fromkeys(addresses))
        answers = await asyncio.gather(*(self._ask(address) for address in wanted))
        return [work for answer in answers for work in answer]

    async def _ask(self, address: str) -> Sequence[Work]:
        try:
            return await self.client(address).work()
        except (Unavailable, DeadlinePassed) as error:
            if (
                error.details.get("reason") != ELSEWHERE
            ):  # else the connection is that of a run after
                await self.forget(address)
            return ()
        except Exception:  # whatever one process answers, the others are told of
            return ()

    async def forget(self, address: str) -> None:
        """Connect anew at the next call, with the certificates of then."""
        client = self._clients.pop(place_and_run(address)[0], None)
        if client is not None:
            await client.close()

    async def close(self) -> None:
        """End all connections."""
        for address in list(self._clients):
            await self.forget(address)
