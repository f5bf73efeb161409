"""The cost of a round: two recursions over as many rows, of which one takes more rounds.

Nodes are in levels, each with an edge to a node of the next level. Least steps from the first level
take a round for each level. All else is the same, so the difference is what rounds cost.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from unittest.mock import patch

import numpy as np

from bench.spark.live import LiveWorld, asking, changes_of, launcher_of
from bench.spark.worlds import SCHEMAS, Numbers, Spark, Taken, say, taken
from tidemill_compute.views.windows import rounds

EDGES = 120_000
"""More rows than one task takes."""
LEVELS = (10, 30)
TURNS = 1
FAR = """
    far(a) @min(0) := edge(a, _) if a < {width};
    far(b) @min(d + 1) := far(a) @min(d) ^ edge(a, b);
"""


class LevelsWorld(LiveWorld):
    """Edges between levels, and least steps from the first one."""

    def __init__(self, folder: Path, levels: int) -> None:
        self.width = EDGES // levels
        super().__init__(folder, FAR.format(width=self.width))
        self._edges = self.width * levels

    async def build(self, here: Spark) -> None:
        """All edges are there, and the view has taken them in by a job."""
        await self.create()
        begin = np.arange(self._edges)
        await self.feed({"edge": changes_of(SCHEMAS["edge"], 1, begin, self._next_of(begin))}, 2)
        await self.keep(asking(here, self), launcher_of(here, self))

    def _next_of(self, nodes: Numbers) -> Numbers:
        found: Numbers = (nodes // self.width + 1) * self.width + (nodes * 7 + 3) % self.width
        return found

    async def cut(self, node: int) -> None:
        """The edge of a node of the first level goes, and comes back in the next interval."""
        who = np.array([node])
        for diff in (-1, 1):
            edge = changes_of(SCHEMAS["edge"], self.fed, who, self._next_of(who), [diff])
            await self.feed({"edge": edge}, self.fed + 1)
            await self.reach()


async def measure_rounds(here: Spark, folder: Path) -> None:
    """Histories and windows of both recursions: each round a job, and few rows in one task."""
    for title, few in (("each round a job", -1), ("rounds of few bytes in one task", None)):
        with patch.object(rounds, "FEW_BYTES", rounds.FEW_BYTES if few is None else few):
            histories, windows = list[Taken](), list[Taken]()
            for turn, levels in enumerate((LEVELS[0], *LEVELS)):
                world = LevelsWorld(folder / f"{title} {turn}", levels)
                with taken() as history:
                    await world.build(here)
                found = list[Taken]()
                for node in range(TURNS + 1):
                    with taken() as window:
                        await world.cut(node)
                    found += [window] if node else []  # the first one warms up
                await world.end()
                if not turn:  # the first history warms up, too
                    continue
                histories.append(history)
                windows.append(
                    Taken(median(e.processor for e in found) / 2, median(e.wall for e in found) / 2)
                )
        for what, (less, more) in (("history", histories), ("window of one change", windows)):
            each = (more.processor - less.processor) / (LEVELS[1] - LEVELS[0])
            say(
                f"{what} by rounds, {EDGES:,} edges, {title}: {LEVELS[0]} rounds "
                f"{less.processor:.1f} s of processor, {less.wall:.1f} s; {LEVELS[1]} rounds "
                f"{more.processor:.1f} s, {more.wall:.1f} s; a round {each:.3f} s of processor"
            )
