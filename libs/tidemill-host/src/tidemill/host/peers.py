"""The other processes: who has which work, and how to call them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

from tidemill.errors import Unavailable, UsageError
from tidemill.rpc.channel import Dialer
from tidemill.rpc.client_services import ServiceClient
from tidemill.rpc.identity import place_and_run
from tidemill.rpc.messages import Work
from tidemill.rpc.status import UNREACHABLE
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

        Raises: Unavailable while certificates cannot be used: somebody may be replacing them.
        """
        place, _ = place_and_run(address)
        known = self._clients.get(place)
        if known is None:
            try:
                known = ServiceClient(address, self._dialer)
            except UsageError as error:
                raise Unavailable(error.message, reason="tls") from error
        elif known.address != address:
            known = known.of_run(address)
        self._clients[place] = known
        return known

    @asynccontextmanager
    async def called(self, address: str) -> AsyncIterator[ServiceClient]:
        """Calls of the process at `address`. After one that does not reach it, whoever calls
        connects anew, with the certificates of then.

        Raises: Unavailable, as `client` does.
        """
        client = self.client(address)
        try:
            yield client
        except Unavailable as error:
            if error.details.get("reason") == UNREACHABLE:
                await self.forget(client)
            raise

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
            async with self.called(address) as client:
                return await client.work()
        except Exception:  # whatever one process answers, the others are told of
            return ()

    async def forget(self, failed: ServiceClient) -> None:
        """Connect anew at the next call, unless that has been done since this one was made."""
        place, _ = place_and_run(failed.address)
        known = self._clients.get(place)
        if known is not None and known.shares_connection(failed):
            del self._clients[place]
            await known.close()

    async def close(self) -> None:
        """End all connections."""
        for client in list(self._clients.values()):
            await self.forget(client)
