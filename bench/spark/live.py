"""Views of a bench that windows keep while their inputs change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from secrets import token_hex

import numpy as np
import pyarrow as pa

from bench.spark.worlds import (
    CUSTOMERS,
    HEAVY,
    SCHEMAS,
    TOWNS,
    Numbers,
    Spark,
    World,
    in_process,
)
from tidemill.arrangement.updates import DIFF, TIME
from tidemill.runtime.clock import SystemClock
from tidemill.spark.launcher import SparkLauncher
from tidemill.testkit.jobs import SessionLauncher
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.bulk_spark import SparkHydrate
from tidemill_compute.views.engines import Engines, Windows
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.windows import window_job
from tidemill_compute.views.windows.asking import Ask


class LiveWorld(World):
    """A view that is kept by windows while its inputs change."""

    async def begin(
        self, ask: Ask, alive: int, heavy: float = 0.0, launcher: SparkLauncher | None = None
    ) -> None:
        """So many orders, half of them paid; the view has taken them in, by a job if there are any.

        A share of the orders has one customer. This one moves, or as many as have as many orders.
        """
        self._heavy, self._turned = heavy, 0
        self._moving = np.array([7]) if heavy else np.arange(int(HEAVY * CUSTOMERS))
        await self.create()
        self._next = alive
        orders, paid = np.arange(alive), np.arange(0, alive, 2)
        towns = np.arange(CUSTOMERS)
        moved = changes_of(SCHEMAS["town"], 1, towns, towns % TOWNS)
        await self._put(orders, paid, 1, moved)
        await self.keep(ask, launcher)

    async def keep(self, ask: Ask, launcher: SparkLauncher | None) -> None:
        """Keep the view; it takes in what is there, by a job if there is a launcher."""
        self.view = ViewDriver(
            self.target, self.collections, SystemClock(), ComputeSettings(spark_rows=10_000)
        )
        if launcher is not None:
            self.view.bulk = SparkHydrate(
                launcher, self.collections, SystemClock().now_ms, partial(token_hex, 8)
            )
        self.windows = 0

        async def count(packed: bytes) -> bytes:
            self.windows += 1
            return await ask(packed)

        self.view.engines = Engines(
            "spark", Windows(count, SystemClock().now_ms, partial(token_hex, 8)), 8 << 30
        )
        await self.view.prepare()
        self._task = asyncio.create_task(self.view.maintain_forever())
        await self.reach()

    async def change(self, rows: int) -> None:
        """Half as many new orders, and payments of these."""
        size = rows // 2
        orders = np.arange(self._next, self._next + size)
        self._next += size
        await self._put(orders, orders, self.fed)
        await self.reach()

    async def move(self) -> None:
        """Customers with many orders together have another town, one of them or many."""
        before = self._moving + self._turned
        self._turned += 1
        who, towns = np.tile(self._moving, 2), np.concatenate([before, before + 1]) % TOWNS
        diffs = np.repeat([-1, 1], len(before))
        moved = changes_of(SCHEMAS["town"], self.fed, who, towns, diffs)
        none = np.empty(0, np.int64)
        await self._put(none, none, self.fed, moved)
        await self.reach()

    async def _put(
        self, orders: Numbers, paid: Numbers, at: int, moved: pa.Table | None = None
    ) -> None:
        customers = np.where(orders % 100 < 100 * self._heavy, 7, orders * 7 % CUSTOMERS)
        tables = {
            "order": changes_of(SCHEMAS["order"], at, orders, customers),
            "payment": changes_of(SCHEMAS["payment"], at, paid, paid % 1_000),
        }
        await self.feed(tables if moved is None else tables | {"town": moved}, at + 1)

    async def reach(self) -> None:
        """Wait until the view has taken in everything."""
        while self.view.progress.lower < self.fed:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(0.002)

    async def end(self) -> None:
        """Stop, and compare what windows wrote with what one process says of the same history."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        history = replace(await self.history(), upper=self.fed)
        parts = await in_process(self, history)
        wanted = await self.digests(history, parts)
        states = {name: await self.collections.state(name) for name in history.written}
        mine = {name: state.parts() for name, state in states.items()}
        assert await self.digests(history, mine) == wanted, "windows"


def changes_of(
    schema: pa.Schema, at: int, first: Numbers, second: Numbers,
    diffs: Numbers | Sequence[int] = (1,),
) -> pa.Table:  # fmt: skip
    """Updates of one instant, of rows of two columns."""
    size = len(first)
    words = [first, second, np.full(size, at, np.uint64), np.resize(np.array(diffs), size)]
    return pa.table(dict(zip([*schema.names, TIME, DIFF], words, strict=True)))


def asking(here: Spark, world: World) -> Ask:
    """Evaluates windows in a session."""
    place = here.at(world.place)
    return lambda packed: asyncio.to_thread(window_job.run, packed, place)


def launcher_of(here: Spark, world: World) -> SparkLauncher:
    """Runs jobs in a session."""
    return SessionLauncher(here.session, world.place)
