"""A campaign: rounds of simulation and of real processes on all stores, until the time is over."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.runtime.clock import Clock
from tidemill.testkit.faults.chaos import Place, Round
from tidemill.testkit.faults.exhaustive import (
    Fault,
    faults_of_every_call,
    faults_of_every_step,
    tell,
)
from tidemill.testkit.faults.forked_processes import ForkedProcesses
from tidemill.testkit.faults.network import OUTCOMES
from tidemill.testkit.faults.simulation import Simulation, Violation
from tidemill.testkit.servers import Server, object_server, redis_server

KINDS = ("story", "simulation", "sqlite", "redis", "s3")
CLIENT = "tidemill.testkit.faults.chaos_client"
VIRTUAL_S = 200.0
ROUND_S = 20.0
FAULTS = (
    *OUTCOMES[1:], "crashes", "pauses", "pauses past the lease", "blackouts", "slow spells", "clocks set", "deaths",
)  # fmt: skip
"""Counts of the simulation that are faults; those of real rounds say so themselves."""


@dataclass(slots=True)
class Report:
    """Events of each kind of round, and violations, each with the command that repeats it."""

    rounds: Counter[str] = field(default_factory=Counter)
    happened: dict[str, Counter[str]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def add(self, kind: str, happened: Counter[str]) -> None:
        """A round is over."""
        self.rounds[kind] += 1
        self.happened.setdefault(kind, Counter()).update(happened)

    def lines(self) -> Iterator[str]:
        """The report as it is printed."""
        for kind, counts in self.happened.items():
            yield f"{kind}: {self.rounds[kind]} rounds"
            for title, faults in (("operations and checks", False), ("faults", True)):
                chosen = {name: n for name, n in sorted(counts.items()) if is_fault(name) == faults}
                if chosen:
                    yield f"  {title}"
                    yield from (f"    {n:>9,}  {name}" for name, n in chosen.items())
        yield f"violations: {len(self.violations) or 'none'}"
        yield from self.violations


def is_fault(name: str) -> bool:
    """Whether a count is of faults."""
    return name in FAULTS or name.startswith("fault: ")


class Campaign:
    """Rounds of the chosen kinds in turn. Each is known by its kind and seed."""

    def __init__(self, seed: int, clock: Clock, say: Callable[[str], None]) -> None:
        self.report = Report()
        self._seed = seed
        self._clock = clock
        self._say = say
        self._stack = ExitStack()
        self._processes: ForkedProcesses | None = None
        self._redis: Server | None = None
        self._objects: Server | None = None

    def run(self, seconds: float, kinds: tuple[str, ...]) -> Report:
        """Rounds until `seconds` are over, at least one of each kind."""
        begin_s = self._clock.monotonic_s()
        with self._stack:
            number = 0
            while number < len(kinds) or self._clock.monotonic_s() - begin_s < seconds:
                kind, seed = kinds[number % len(kinds)], self._seed + number // len(kinds)
                left_s = max(1.0, seconds - (self._clock.monotonic_s() - begin_s))
                before = self.report.happened.get(kind, Counter()).copy()
                self._round(kind, seed, left_s)
                number += 1
                passed_s = self._clock.monotonic_s() - begin_s
                self._say(
                    f"[{_minutes(passed_s)} of {_minutes(seconds)}] {self._line(kind, seed, before)}"
                )
        return self.report

    def _line(self, kind: str, seed: int, before: Counter[str]) -> str:
        gained = self.report.happened.get(kind, Counter()) - before
        faults = sum(n for name, n in gained.items() if is_fault(name))
        done = sum(gained[name] for name in ("versions", "reads", "transactions", "writes: written", "frontiers audited"))  # fmt: skip
        return (
            f"{kind} {seed}: {done:,} operations and checks, {faults:,} faults; "
            f"violations so far: {len(self.report.violations) or 'none'}"
        )

    def _round(self, kind: str, seed: int, left_s: float) -> None:
        match kind:
            case "story":
                self._tell_story(left_s)
            case "simulation":
                self._simulate(seed, min(left_s, ROUND_S))
            case _:
                self._trouble(kind, seed, min(left_s, ROUND_S))

    def _broken(self, kind: str, seed: int, what: str) -> None:
        self.report.violations.append(
            f"{what}\n  replay: make chaos ONLY={kind} SEED={seed} SECONDS=1"
        )

    def _tell_story(self, left_s: float) -> None:
        """Once for each fault, which is the same whatever the seed: one time is enough."""
        if self.report.rounds["story"]:
            return
        plain, happened = tell(Fault()), Counter[str]()
        for fault in (*faults_of_every_step(plain.steps), *faults_of_every_call(plain.calls)):
            told = tell(fault)
            happened += told.happened
            for violation in told.violations:
                self._broken("story", self._seed, f"{fault}: {violation}")
        self.report.add("story", happened)

    def _simulate(self, seed: int, seconds: float) -> None:
        """Seeds from this one on, apart from those of other rounds, for about so long."""
        end_s = self._clock.monotonic_s() + seconds
        while True:
            try:
                self.report.add("simulation", Simulation(seed).run(VIRTUAL_S))
            except Violation as violation:
                self._broken("simulation", seed, str(violation))
            seed += 1_000_000
            if self._clock.monotonic_s() >= end_s:
                return

    def _trouble(self, kind: str, seed: int, seconds: float) -> None:
        folder = Path(tempfile.mkdtemp(prefix=f"chaos-{kind}-{seed}-"))
        if self._processes is None:
            self._processes = self._stack.enter_context(ForkedProcesses(CLIENT))
        place = self._place(kind, seed, folder)
        outcome = asyncio.run(
            Round(place, seed, folder / "histories", self._processes).run(seconds)
        )
        self.report.add(kind, outcome.happened)
        for violation in outcome.violations:
            self._broken(kind, seed, f"{kind} {seed}: {violation}\n  histories: {folder}")
        if not outcome.violations:
            shutil.rmtree(folder)

    def _place(self, kind: str, seed: int, folder: Path) -> Place:
        blob = f"file:{folder}/blob"
        if kind == "sqlite":
            return Place(kind, f"sqlite:{folder}/consensus.sqlite", blob)
        self._redis = self._redis or self._stack.enter_context(redis_server("chaos"))
        if kind == "s3":
            self._objects = self._objects or self._stack.enter_context(
                object_server("chaos-objects")
            )
            blob = f"s3://tidemill/{folder.name}?endpoint={self._objects.address}"
        return Place(kind, f"{self._redis.address}?prefix={folder.name}", blob, self._redis)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
