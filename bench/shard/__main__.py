"""All figures of durable collections in one run: python -m bench.shard [--rows N] [--seed S]."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from bench.shard import reading, writing
from bench.shard.figures import Figure, as_json, as_markdown, machine
from bench.shard.worlds import worlds

RESULTS = Path("bench/results")


async def measure(seed: int, count: int) -> list[Figure]:
    """Every figure, said as soon as it is known."""
    found: list[Figure] = []

    def note(figures: list[Figure]) -> None:
        for figure in figures:
            beside = "" if figure.ratio is None else f" = {figure.ratio:.2f} × {figure.floor_name}"
            print(f"{figure.world}: {figure.what}: {figure.value:.2f} {figure.unit}{beside}")
        found.extend(figures)

    async with worlds() as all_worlds:
        for world in all_worlds:
            note(await writing.latencies(world, seed))
            note(await writing.throughput(world, seed))
            note(await writing.fan_out(world, seed))
            note(await writing.open_long_log(world))
        note(await reading.large(seed, count))
    return found


def _load() -> str:
    """The load average of the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def main() -> None:
    """Measure, and write the results beside this folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=7)
    chosen = parser.parse_args()
    about = {
        **machine(),
        "seed": str(chosen.seed),
        "rows of the large collection": f"{chosen.rows:,}",
    }
    busy = [_load()]
    found = asyncio.run(measure(chosen.seed, chosen.rows))
    busy.append(_load())
    about["load of the machine before and after"] = ", ".join(busy)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "shard.md").write_text(as_markdown(found, about))
    (RESULTS / "shard.json").write_text(as_json(found, about))
    sys.stdout.write(f"written: {RESULTS}/shard.md, {RESULTS}/shard.json\n")


if __name__ == "__main__":
    main()
