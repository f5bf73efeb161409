"""When the clocks of a program tick: one entry on the agenda for each pair (offset, period) that
some rule needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.datalog.incremental.facts import Value
from tidemill.datalog.incremental.matches import Matches
from tidemill.datalog.incremental.surroundings import DEMAND, Present
from tidemill.datalog.instants import usable_clock
from tidemill.datalog.logical.forms import (
    Constant,
    HeadForm,
    RuleForm,
    variables_of,
)
from tidemill.datalog.presence import Instant
from tidemill.datalog.tables import Key
from tidemill.datalog.values import Failed

Take = Callable[[int, int, int], None]


class Ticking:
    """One clock atom of one rule: gives every tick at its instant while the rule can match at all.

    It rests while the guards of the rule say which ticks can match: then they are matched in
    advance.

    Ticks that were due before are no matter of this class: a join with the clock finds them all.
    """

    def __init__(self, rule: Matches, present: Present, take: Take) -> None:
        self._rule = rule
        self._present = present
        self._take = take
        self._pairs: dict[tuple[int, int], int] = {}
        self._running: set[tuple[int, int]] = set()

    def need(self, offset: Any, period: Any) -> None:
        """The rule needs this clock from now on."""
        try:
            pair = usable_clock(offset, period)
        except Failed:
            return
        self._pairs[pair] = self._pairs.get(pair, 0) + 1
        self.wake()

    def release(self, offset: Any, period: Any) -> None:
        """The rule needs it once less."""
        try:
            pair = usable_clock(offset, period)
        except Failed:
            return
        self._pairs[pair] -= 1
        if not self._pairs[pair]:
            del self._pairs[pair]

    def wake(self) -> None:
        """Let the clocks run whose ticks can match something again."""
        if self._rule.foresees or self._pairs.keys() <= self._running or self._rule.joins.empty:
            return
        for pair in self._pairs:
            if pair not in self._running:
                self._running.add(pair)
                self._next(*pair, self._present.now)

    def _next(self, offset: int, period: int, after: Instant) -> None:
        passed = 0 if after < offset else (int(after) - offset) // period + 1
        time = offset + passed * period
        self._present.agenda.add(time, lambda: self._tick(time, offset, period))

    def _tick(self, time: int, offset: int, period: int) -> None:
        pair = (offset, period)
        if pair not in self._pairs or self._rule.joins.empty:
            self._running.discard(pair)
            return
        self._take(time, offset, period)
        self._next(offset, period, time)


class Demand:
    """Takes the heads of a rule that says which clocks another rule needs."""

    def __init__(self, ticking: Ticking) -> None:
        self._ticking = ticking
        self._supports: dict[Key, dict[Any, Value]] = {}

    def support(self, predicate: str, key: Key, source: Any, value: Value) -> None:
        """A match needs the clock in the head."""
        known = self._supports.setdefault(key, {})
        if not known:
            self._ticking.need(key[1], key[2])
        known[source] = value

    def withdraw(self, predicate: str, key: Key, source: Any) -> None:
        """A match needs it no longer."""
        known = self._supports[key]
        del known[source]
        if not known:
            del self._supports[key]
            self._ticking.release(key[1], key[2])

    def touch(self) -> None:
        """Demands are no groups."""

    def defer(self, happen: Callable[[], None]) -> None:
        """A demand may come at any point of an instant."""
        happen()


def demand_form(form: RuleForm, atom: int) -> RuleForm | None:
    """A rule that derives the clocks which a clock atom needs; None where they are constants."""
    clock = form.atoms[atom].clock
    assert clock is not None
    needed = variables_of(clock[0]) | variables_of(clock[1])
    if all(isinstance(argument, Constant) for argument in clock):
        return None
    chosen: dict[int, None] = {}
    waiting = sorted(needed)
    while waiting:
        name = waiting.pop()
        binding = [
            i for i, other in enumerate(form.atoms) if i != atom and name in other.variables()
        ]
        binding.sort(key=lambda i: form.atoms[i].is_clock)
        if not binding or binding[0] in chosen:
            continue
        chosen[binding[0]] = None
        known = form.atoms[binding[0]].clock
        if known is not None:
            waiting += [
                v for v in variables_of(known[0]) | variables_of(known[1]) if v not in waiting
            ]
    head = HeadForm(DEMAND, clock, suppressed=frozenset(("time",)))
    atoms = tuple(form.atoms[i] for i in sorted(chosen))
    return RuleForm(form.number, head, atoms, (), (), 0, form.types)
