"""Rest of tables: while nobody writes one, it goes with the clock by the pace of all of them."""

from __future__ import annotations

from tidemill.catalog.table_writer import TableWriter
from tidemill.host.pace import Pace
from tidemill.shard import Collections
from tidemill.shard.pacing import Patience


class TableRest:
    """Rest of one table that follows the clock, and has no writer but the one of the table.

    An insert ends it, in whatever process, and is there at the instant of the clock as ever.
    """

    def __init__(self, writer: TableWriter, collections: Collections, pace: Pace) -> None:
        self._writer = writer
        self._collections = collections
        self._pace = pace
        self._patience = Patience()

    async def rest_if_idle(self, news: bool) -> bool:
        """Rest if nothing has come for long enough; whether there was a rest, which is over then.

        To be told of each advance of the table, and whether there was `news`. Cost: a commit for
        the table; while it rests none.
        """
        if not self._patience.due(news):
            return False
        self._patience.begun()
        held = await self._writer.stands_at()
        group, steps, stood = held.collection, 0, held.frontier
        try:
            await self._pace.open()
            number = await self._collections.follow(group, (self._pace.name,), stood, held.id)
            if number is not None and await self._pace.join(group, {group: number}):
                while self._pace.follows(group):
                    stood = self._pace.upper
                    await self._pace.next_step()
                    steps += 1
        finally:
            self._pace.leave(group)
        written = (await self._writer.stands_at()).frontier != stood
        self._patience.ended(steps, news=steps > 0 and written)
        return steps > 0
