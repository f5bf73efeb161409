"""Ticked programs kept up to date: a tick costs what differs from the tick before (language.md 7).

What rules with `@next` derive is kept as facts of predicates of their own, `#next:p`; between two
ticks only the difference between what was carried and what is to be carried moves. So a rule
`p(x) @next := p(x)`, also with further conditions, keeps its facts in place: where nothing changes
nothing is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tidemill.datalog.incremental.anew import AnewUnit
from tidemill.datalog.incremental.changes import Changes
from tidemill.datalog.incremental.engine import IncrementalEngine
from tidemill.datalog.incremental.facts import Value
from tidemill.datalog.incremental.program import AnyUnit
from tidemill.datalog.incremental.unit import Fact, Unit
from tidemill.datalog.lattices import observe_parafacts
from tidemill.datalog.logical.plan import NEXT, SENT
from tidemill.datalog.presence import BEGINNING, END
from tidemill.datalog.records import Record
from tidemill.datalog.ticks import Message, merged

Carried: TypeAlias = "Mapping[Fact, Iterable[Value]]"
"""What one tick hands to the next: for each fact of a head with `@next`, what each reason says of
it.
"""


class _Carried:
    """One reason for which a fact is carried, as it is seen in the tick it is carried to."""

    __slots__ = ("present", "value")

    def __init__(self, value: Value) -> None:
        self.present = True
        self.value = value


@dataclass(frozen=True, slots=True)
class IncrementalTick:
    """The answer of one tick: what changed since the last one, and what is sent.

    Valid until the next tick.
    """

    changes: Changes
    messages: tuple[Message, ...]
    engine: IncrementalEngine

    def records(self, predicate: str) -> list[Record]:
        """The records of a predicate in this tick."""
        return self.engine.records(predicate)


class IncrementalTicker:
    """Runs the ticks of one program at one node.

    The answer of a tick is that of `tidemill.datalog.ticks.Ticker`. Cost: O(input records of the
    tick) to see what differs, then what follows from the difference; messages cost their number. A
    restart begins with an engine that has the state of the tick before, and with what that tick
    carried.
    """

    def __init__(self, engine: IncrementalEngine, carried: Carried | None = None) -> None:
        self._engine = engine
        self._inputs: dict[str, dict[Record, None]] = {}
        self._carried: dict[Fact, list[_Carried]] = {}
        self._touched: dict[Fact, None] = {}
        self._restored: Carried | None = carried
        self._unsaved: dict[Fact, None] = {}
        self._at: float = BEGINNING
        self._later = [unit for unit in engine.units if unit.component[0].startswith(NEXT)]
        self._senders = [unit for unit in engine.units if unit.component[0].startswith(SENT)]
        for unit in self._later:
            if isinstance(unit, Unit):
                unit.touched = self._touched

    def tick(self, at: int, inputs: Mapping[str, Iterable[Record]]) -> IncrementalTick:
        """The tick at the instant `at`; `inputs` are the facts present then, messages among them.

        A carried fact that has expired by `at` is gone. Instants ascend from tick to tick.
        """
        return self.tick_changes(at, *self._differences(at, inputs))

    def tick_changes(
        self, at: int, given: Mapping[str, Iterable[Record]], gone: Mapping[str, Iterable[Record]]
    ) -> IncrementalTick:
        """The tick at `at`, where these input records come and those go since the last one.

        Cost: what follows from the difference. Not to be mixed with `tick`.
        """
        self._carry(at)
        self._at = at
        changes = self._engine.tick(at, given, gone)
        return IncrementalTick(changes, tuple(self._messages()), self._engine)

    def admit(self, predicate: str, record: Record) -> None:
        """Let one more input record be present in the tick that is running."""
        self._inputs.setdefault(predicate, {})[record] = None
        self._engine.admit(predicate, record)

    @property
    def defers(self) -> bool:
        """Whether the last tick derived something for the next one that was not carried to it
        itself.
        """
        for fact in self._touched:
            values = self._values(fact)
            if values and values != [carried.value for carried in self._carried.get(fact, ())]:
                return True
        return False

    @property
    def hands_on_anew(self) -> bool:
        """Whether the next tick is handed something else than the last one was."""
        touched = [*self._touched]
        for unit in self._later:
            if not isinstance(unit, Unit):
                touched += self._rows_of(unit)
        for fact in touched:
            carried = [each.value for each in self._carried.get(fact, ()) if each.present]
            if merged(self._values(fact), self._at) != merged(carried, self._at):
                return True
        return False

    @property
    def unsettled(self) -> bool:
        """Whether a tick that changes no input may still answer differently, or sends something.

        What comes with time alone is told by the engine's agenda.
        """
        if any(isinstance(unit, AnewUnit) for unit in self._engine.units):
            return True
        return self.hands_on_anew or any(
            self._engine.present.table(unit.component[0]).rows for unit in self._senders
        )

    def take_carried(self) -> dict[Fact, list[Value]]:
        """The facts of which the next tick may be handed something else than at the last call, with
        what it is.

        The names are those of the head, `p` for `p(x) @next`; nothing is handed on of a fact
        without values.
        """
        unsaved = {**self._unsaved, **self._touched}
        for unit in self._later:
            if not isinstance(unit, Unit):
                unsaved.update((fact, None) for fact in self._rows_of(unit))
        self._unsaved = {}
        return {(name.removeprefix(NEXT), key): self._values((name, key)) for name, key in unsaved}

    def _rows_of(self, unit: AnyUnit) -> Iterator[Fact]:
        """What a unit that is evaluated anew has carried, and what it says now."""
        name = unit.component[0]
        yield from (fact for fact in self._carried if fact[0] == name)
        yield from ((name, row[4:]) for row in self._engine.present.table(name).rows)

    def _differences(
        self, at: int, inputs: Mapping[str, Iterable[Record]]
    ) -> tuple[dict[str, list[Record]], dict[str, list[Record]]]:
        """Which input records come and which go."""
        now = {
            name: {r: None for r in records if r.expires is None or r.expires > at}
            for name, records in inputs.items()
        }
        before, self._inputs = self._inputs, now
        given = {
            name: [record for record in records if record not in before.get(name, {})]
            for name, records in now.items()
        }
        gone = {
            name: [record for record in records if record not in now.get(name, {})]
            for name, records in before.items()
        }
        return given, gone

    def _carry(self, at: int) -> None:
        """Let the facts that the last tick derived for this one support what they are."""
        if self._restored is not None:
            self._carry_restored(at, self._restored)
            return
        touched = list(self._touched)
        self._unsaved.update(self._touched)
        self._touched.clear()
        for unit in self._later:
            if not isinstance(unit, Unit):
                facts = dict.fromkeys(self._rows_of(unit))
                self._unsaved.update(facts)
                touched += facts
        # IMPORTANT: all values first: they are those of the last tick, and giving one may change
        # others.
        for fact, values in [(fact, self._values(fact)) for fact in touched]:
            name, key = fact
            predicate = name.removeprefix(NEXT)
            for carried in self._carried.pop(fact, ()):
                self._drop(predicate, key, carried)
            kept = [self._give(predicate, key, value) for value in values if value[0] > at]
            if kept:
                self._carried[fact] = kept

    def _carry_restored(self, at: int, restored: Carried) -> None:
        """Let what the tick before the restart derived for this one support what it is."""
        self._restored = None
        for (predicate, key), values in restored.items():
            fact = (NEXT + predicate, key)
            kept = [self._give(predicate, key, value) for value in values if value[0] > at]
            if kept:
                self._carried[fact] = kept
            # This tick may not derive it again, and then nobody would say that it has to go.
            self._touched[fact] = None

    def _values(self, fact: Fact) -> list[Value]:
        """What each reason for a fact of the next tick says of it."""
        table = self._engine.present.table(fact[0])
        supports = table.supports.get(fact[1])
        if supports is not None:
            return list(supports.values())
        row = table.get(fact[1])
        return [] if row is None else [(row[2], row[3])]

    def _give(self, predicate: str, key: Any, value: Value) -> _Carried:
        carried = _Carried(value)
        self._engine.support(predicate, key, carried, value)
        if value[0] != END:
            agenda = self._engine.present.agenda
            agenda.add(value[0], lambda: self._drop(predicate, key, carried))
        return carried

    def _drop(self, predicate: str, key: Any, carried: _Carried) -> None:
        if carried.present:
            carried.present = False
            self._engine.withdraw(predicate, key, carried)

    def _messages(self) -> Iterator[Message]:
        """What the rules with `@async` send in this tick."""
        present = self._engine.present
        for unit in self._senders:
            name = unit.component[0]
            for row in present.table(name).rows:
                _, _, expires, parafacts, time, node, *arguments = row
                seen = observe_parafacts(parafacts, present.lattices)
                until = None if expires == END else int(expires)
                record = Record(name.removeprefix(SENT), tuple(arguments), time, until, seen)
                yield Message(node, record)
