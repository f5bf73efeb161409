"""Ticks as they are wanted: when a tick runs, and which external events it takes in (language.md
7.5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tidemill.datalog.admission import Admission, Batch, Skew
from tidemill.datalog.incremental.engine import IncrementalEngine
from tidemill.datalog.incremental.shared import JoinUnit
from tidemill.datalog.incremental.ticks import IncrementalTick, IncrementalTicker
from tidemill.datalog.records import Record

Arrivals: TypeAlias = Callable[[], Iterable[tuple[str, Record]]]


@dataclass(slots=True)
class _Waiting:
    record: Record
    since_ms: int


class TickRunner:
    """Runs ticks 0, 1, 2, … of a program over events that come at any time.

    An event is present in the one tick that takes it in. What a tick answers depends only on the
    set of events it took, not on when they came. `now_ms` is the clock for `Batch`; `arrivals` is
    asked between the strata of a running tick for what has come meanwhile.
    """

    def __init__(
        self,
        engine: IncrementalEngine,
        now_ms: Callable[[], int],
        admissions: Mapping[str, Admission] | None = None,
        arrivals: Arrivals | None = None,
    ) -> None:
        self._engine = engine
        self._ticker = IncrementalTicker(engine)
        self._now_ms = now_ms
        self._admissions = dict(admissions or {})
        self._arrivals = arrivals
        self._waiting: dict[str, list[_Waiting]] = {}
        self._runs_before: list[int] = []
        self.current_tick = 0

    def offer(self, predicate: str, record: Record) -> None:
        """An external event has come; it waits for the tick that its input's admission names."""
        self._waiting.setdefault(predicate, []).append(_Waiting(record, self._now_ms()))

    @property
    def wants_tick(self) -> bool:
        """Whether a tick is justified: an eager event waits, a batch is due, or something was
        deferred.
        """
        for predicate, waiting in self._waiting.items():
            admission = self._admissions.get(predicate, "tick")
            if admission == "eager" and waiting:
                return True
            if isinstance(admission, Batch) and self._due(predicate):
                return True
        return self._ticker.defers

    def run_tick(self) -> IncrementalTick:
        """Run the current tick to its end.

        The number of the tick rises even if there was nothing to do.
        """
        given: dict[str, list[Record]] = {}
        for predicate in list(self._waiting):
            due = self._due(predicate)
            if due:
                given[predicate] = [each.record for each in due]
                kept = [each for each in self._waiting[predicate] if each not in due]
                self._waiting[predicate] = kept
        self._runs_before = [unit.runs for unit in self._engine.units]
        self._engine.between_levels(self._take_arrivals if self._arrivals is not None else None)
        answer = self._ticker.tick(self.current_tick, given)
        self.current_tick += 1
        return answer

    def run_available(self, ticks_max: int | None = None) -> list[IncrementalTick]:
        """Run one tick, and further ones while a tick is justified, at most `ticks_max`.

        An answer in the list is only valid until the next tick has run; its `changes` stay.
        """
        found = [self.run_tick()]
        while self.wants_tick and (ticks_max is None or len(found) < ticks_max):
            found.append(self.run_tick())
        return found

    def _due(self, predicate: str) -> list[_Waiting]:
        """The waiting events that the next tick takes in."""
        waiting = self._waiting.get(predicate, [])
        admission = self._admissions.get(predicate, "tick")
        if isinstance(admission, Skew):
            times = [each.record.time for each in waiting if each.record.time is not None]
            border = max(times, default=0) - admission.ms
            return [e for e in waiting if e.record.time is None or e.record.time < border]
        if not isinstance(admission, Batch) or not waiting:
            return waiting
        if len(waiting) >= admission.rows:
            return waiting[: admission.rows]
        patience = admission.wait_ms
        late = patience is not None and self._now_ms() - waiting[0].since_ms >= patience
        return waiting if late else []

    def _take_arrivals(self) -> None:
        """Take in what has come while the tick runs, where that contradicts nothing; hold the rest."""
        assert self._arrivals is not None
        for predicate, record in self._arrivals():
            admission = self._admissions.get(predicate, "tick")
            if admission in ("stratum", "eager") and self._open(predicate):
                self._ticker.admit(predicate, record)
            else:
                self.offer(predicate, record)

    def _open(self, predicate: str) -> bool:
        """Whether no stratum that is complete has read the input, and nobody has read it otherwise
        than by more.
        """
        ran = [
            unit
            for unit, before in zip(self._engine.units, self._runs_before, strict=True)
            if unit.runs > before and not isinstance(unit, JoinUnit)
        ]
        readers = self._engine.readers(predicate)
        if any(unit in ran and not unit.monotone_in(predicate) for unit in readers):
            return False
        running = max((unit.stratum for unit in ran), default=0)
        return min((unit.stratum for unit in readers), default=running) >= running
