"""One node of a ticked program: its ticks, and what each hands to the next, on rows."""

from __future__ import annotations

from tidemill.datalog.allowance import Allowance
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.incremental import IncrementalEngine, Strategy
from tidemill.datalog.incremental.ticks import IncrementalTicker
from tidemill.datalog.limits import Limits
from tidemill.datalog.presence import BEGINNING, END, Instant
from tidemill.datalog.records import Record
from tidemill.datalog.scratch import Engine
from tidemill.datalog.state import StateRow
from tidemill.datalog.tick_node import Given, TickAnswer
from tidemill.datalog.tick_state import Handed, carried_row, handed_from, tick_state_of
from tidemill.datalog.ticks import Fact, Ticker, merged


class IncrementalNode:
    """A node kept up to date: a tick, and what is written of it, cost what changes."""

    def __init__(
        self,
        program: CheckedProgram,
        handed: Handed,
        limits: Limits,
        strategy: Strategy = "strata",
        allowance: Allowance | None = None,
    ) -> None:
        self._engine = IncrementalEngine(
            program, strategy=strategy, limits=limits, state=handed.solutions, allowance=allowance
        )
        self._ticker = IncrementalTicker(self._engine, handed.carried)
        self._rows: dict[Fact, StateRow] = {}
        for fact, values in handed.carried.items():
            row = carried_row(fact, values)
            if row is not None:
                self._rows[fact] = row

    def tick(self, at: int, come: Given, gone: Given) -> TickAnswer:
        answer = self._ticker.tick_changes(at, come, gone)
        return TickAnswer(
            [(change.record, change.diff) for change in answer.changes.facts],
            [(change.text, change.diff) for change in answer.changes.errors],
            answer.messages,
        )

    @property
    def unsettled(self) -> bool:
        return self._ticker.unsettled

    @property
    def hands_on_anew(self) -> bool:
        return self._ticker.hands_on_anew

    @property
    def soonest(self) -> Instant:
        soonest = self._engine.present.agenda.soonest
        return END if soonest is None else soonest

    def take_state(self) -> tuple[set[StateRow], set[StateRow]]:
        gone: set[StateRow] = set()
        come: set[StateRow] = set()
        for fact, values in self._ticker.take_carried().items():
            before, now = self._rows.pop(fact, None), carried_row(fact, values)
            if now is not None:
                self._rows[fact] = now
            if before != now:
                gone |= {before} if before is not None else set()
                come |= {now} if now is not None else set()
        left, entered = self._engine.take_state_changes()
        return gone | set(left.to_rows()), come | set(entered.to_rows())


class ScratchNode:
    """A node that evaluates every tick over all its facts."""

    def __init__(
        self,
        program: CheckedProgram,
        handed: Handed,
        limits: Limits,
        allowance: Allowance | None = None,
    ) -> None:
        engine = Engine(program, limits=limits, allowance=allowance)
        forms = [rule.form for rule in (*engine.rules, *engine.later_rules)]
        clocks = any(atom.is_clock for form in forms for atom in form.atoms)
        clocks = clocks or any(absent.is_clock for form in forms for absent in form.absent)
        self._foresees = clocks or any(form.head.time or form.head.expires for form in forms)
        self._ticker = Ticker(engine)
        self._derived = program.derived
        self._state = tick_state_of(handed)
        self._rows = rows_of(handed)
        self._saved = set(self._rows)
        self._inputs: dict[str, dict[Record, int]] = {}
        self._records: dict[Record, None] = {}
        self._errors: set[str] = set()
        self._unsettled = True
        self._told = _merged(handed, BEGINNING)
        self._anew = False
        self._soonest = END

    def tick(self, at: int, come: Given, gone: Given) -> TickAnswer:
        for records, diff in ((gone, -1), (come, 1)):
            for name, each in records.items():
                for record in each:
                    self._count(name, record, diff)
        answer = self._ticker.tick(at, self._inputs, self._state)
        self._state = answer.state
        before, now = (
            self._records,
            {r: None for name in self._derived for r in answer.records(name)},
        )
        self._records = now
        facts = [(record, -1) for record in before if record not in now]
        facts += [(record, 1) for record in now if record not in before]
        texts = {error.text for error in answer.errors}
        errors = [(text, -1) for text in sorted(self._errors - texts)]
        errors += [(text, 1) for text in sorted(texts - self._errors)]
        self._errors = texts
        handed = handed_from(self._state)
        rows = rows_of(handed)
        self._unsettled = rows != self._rows or bool(answer.messages)
        self._rows = rows
        told = _merged(handed, at)
        self._anew = told != {fact: value for fact, value in self._told.items() if value[0] > at}
        self._told = told
        ends: list[Instant] = [value[0] for values in handed.carried.values() for value in values]
        present = [*now, *(record for held in self._inputs.values() for record in held)]
        ends += [record.expires for record in present if record.expires is not None]
        self._soonest = min((end for end in ends if end > at), default=END)
        return TickAnswer(facts, errors, answer.messages)

    def _count(self, name: str, record: Record, diff: int) -> None:
        held = self._inputs.setdefault(name, {})
        held[record] = held.get(record, 0) + diff
        if not held[record]:
            del held[record]

    @property
    def unsettled(self) -> bool:
        return self._foresees or self._unsettled

    @property
    def hands_on_anew(self) -> bool:
        return self._anew

    @property
    def soonest(self) -> Instant:
        return self._soonest

    def take_state(self) -> tuple[set[StateRow], set[StateRow]]:
        before, self._saved = self._saved, set(self._rows)
        return before - self._saved, self._saved - before


def _merged(handed: Handed, at: float) -> dict[Fact, tuple[Instant, set[str]]]:
    """Facts that the next tick is handed, each with its reasons as one."""
    found = {fact: merged(values, at) for fact, values in handed.carried.items()}
    return {fact: value for fact, value in found.items() if value is not None}


def rows_of(handed: Handed) -> set[StateRow]:
    """What is handed on, as rows."""
    rows = set(handed.solutions.to_rows())
    for fact, values in handed.carried.items():
        row = carried_row(fact, values)
        if row is not None:
            rows.add(row)
    return rows
