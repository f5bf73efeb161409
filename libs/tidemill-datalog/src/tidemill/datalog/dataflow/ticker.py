"""Ticked programs on the dataflow: inputs sampled at ticks, and `@next` as a feedback edge.

A tick is an instant of the timeline. Collections hold on intervals; only their values at ticks
count. A row of `#next:p` that is present at one tick is fed to `p` from the following tick on. Of a
fact that is handed on from tick to tick nothing moves, for its row comes and goes once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from tidemill.arrangement.interval_updates import END_WORD, Change, delayed, net_moves
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.engine import DataflowEngine
from tidemill.datalog.dataflow.kept_plans import kept_plan
from tidemill.datalog.dataflow.output_changes import OutputChanges
from tidemill.datalog.dataflow.schema import Schema, record_of, rows_of_presences
from tidemill.datalog.lattices import inject_given, observe_parafacts
from tidemill.datalog.limits import Limits
from tidemill.datalog.logical.plan import NEXT, SENT
from tidemill.datalog.presence import END, Instant, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.state import StateRow
from tidemill.datalog.strategy import Strategy
from tidemill.datalog.tick_state import ENTERED, LEFT, Handed, carried_row, fact_of
from tidemill.datalog.ticks import Given, Message, TickAnswer
from tidemill.errors import Corrupt


@dataclass(frozen=True, slots=True)
class TickGiven:
    """One tick to run: its instant, the input records that come to it, and those that go."""

    at: int
    come: Given
    gone: Given


class DataflowTicker:
    """The ticks of one program at one node, one or many in a step; a `TickNode`.

    A restart goes on from what the last tick before it handed on. Raises: NotInDataflow for a
    construct that is not here yet.
    """

    def __init__(
        self,
        checked: CheckedProgram,
        *,
        handed: Handed | None = None,
        strategy: Strategy = "strata",
        limits: Limits | None = None,
        allowance: Allowance | None = None,
        texts: Texts | None = None,
        told: Iterable[str] | None = None,
        keeps_state: bool = False,
        carrying: Iterable[str] = (),
        may_go_on: bool = False,
    ) -> None:
        """Changes are told of `told`, by default all derived predicates.

        Facts of the inputs in `carrying` may carry any lattice. With `keeps_state` `take_state` has
        to be asked now and then; a state from which a tick `may_go_on` says what it was handed.
        """
        carrying = frozenset(carrying)
        _, plan = kept_plan(checked, carrying)
        self._next = frozenset(name for name in plan.collections if name.startswith(NEXT))
        self._sent = frozenset(name for name in plan.collections if name.startswith(SENT))
        told = checked.derived if told is None else told
        self.engine = DataflowEngine(
            checked, strategy=strategy, limits=limits, ticked=True, texts=texts,
            allowance=allowance, told=(*told, *self._next, *self._sent),
            keeps_state=keeps_state, carrying=carrying,
        )  # fmt: skip
        self._lattices = checked.vocabulary.lattices
        self._last = np.empty(0, np.int64)
        self._anew: bool | None = None
        self._handed: dict[str, I64Array] = {}
        self._restored = handed
        self._taken: list[tuple[str, Change]] = []
        self._as_rows: frozenset[str] = frozenset()
        self._told: list[tuple[str, I64Array]] = []
        self._unsaved: dict[str, list[I64Array]] = {}
        self._owed: Counter[StateRow] = Counter()
        self._keeps_state, self._may_go_on = keeps_state, may_go_on
        known = handed or Handed()
        self._differing = {(row, ENTERED) for row in known.entered}
        self._differing |= {(row, LEFT) for row in known.left}
        self._sending: Counter[Record] = Counter()

    def tick(self, at: int, come: Given, gone: Given) -> TickAnswer:
        """The tick at an instant."""
        return self.run([TickGiven(at, come, gone)])[0]

    def go_on(self, at: int, come: Given) -> TickAnswer:
        """The last tick goes on at an instant, where records join it; all that it sends.

        The facts that it was handed stay. Cost: those that follow from the records; after a
        restart the tick runs anew.
        """
        return self.run([TickGiven(at, come, {})], anew=False)[0]

    def take_rows(self, predicate: str, rows: Change) -> None:
        """Rows of an input that come and go at the next tick, beside its records.

        Shapes: those of the schema of the engine, of which ends count and no starts.
        """
        self._taken.append((predicate, rows))

    def tell_rows(self, predicates: Iterable[str]) -> None:
        """Changes of these are rows for `take_told` from the next tick on, and in no answer.

        IMPORTANT: of none with values that have numbers of their own, which the engine forgets.
        """
        self._as_rows = frozenset(predicates)

    def take_told(self) -> list[tuple[str, OutputChanges]]:
        """The changes of ticks since the last call, as rows."""
        told, self._told = self._told, []
        return [
            (name, OutputChanges(self.engine.schemas[name], moves, self.engine.texts))
            for name, moves in told
        ]

    def run(self, ticks: Sequence[TickGiven], anew: bool = True) -> list[TickAnswer]:
        """Run ticks, whose instants ascend; what each has changed.

        Of input records each may come several times. Cost: what follows from the changes. A fact
        that changes from tick to tick costs a round for each of them.
        """
        engine, instants = self.engine, np.array([tick.at for tick in ticks], np.int64)
        engine.begin_ticks(instants)
        restored = self._restored is not None
        before = self._restore(int(instants[0]), anew)
        borders = np.concatenate([self._last, instants[:1]]) if self._handed else instants
        going_on = {} if anew or restored else self._handed
        for name, moves in self._handed.items() if not going_on else ():
            self._hand_on(name, moves, borders)
        for tick in ticks:
            found: dict[str, list[tuple[Record, int, int, int]]] = {}
            for moved, diff in ((tick.come, 1), (tick.gone, -1)):
                for name, records in moved.items():
                    found.setdefault(name, []).extend(
                        (r, tick.at, END_WORD if r.expires is None else r.expires, diff)
                        for r in records
                        if r.expires is None or r.expires > tick.at
                    )
            for name, changed in found.items():
                engine.feed_records(name, changed)
        for name, rows in self._taken:
            rows[:, -3] = instants[0]
            engine.feed(name, rows[rows[:, -3] < rows[:, -2]])
        self._taken = []
        while engine.settle():
            if len(instants) > 1:
                among = int(instants[-2]) + 1
                for name in [*self._next_of(engine.due(among)), *before]:
                    self._hand_on(name, self._moves(name, among, before), instants)
        return self._finished(instants, before, going_on)

    def _next_of(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self._next]

    def _finished(
        self, instants: I64Array, before: dict[str, I64Array], going_on: Mapping[str, I64Array]
    ) -> list[TickAnswer]:
        """Changes of each tick, once all of them are at rest."""
        engine, upper = self.engine, int(instants[-1]) + 1
        due = engine.due(upper)
        self._last, self._anew = instants[-1:], None
        names = dict.fromkeys([*self._next_of(due), *before, *going_on])
        found = {name: self._moves(name, upper, before) for name in names}
        for name, moves in going_on.items():
            found[name] = np.concatenate([moves, found[name]])
            found[name][:, -2] = instants[-1]
            found[name] = net_moves(found[name])
        self._handed = {name: moves for name, moves in found.items() if len(moves)}
        told: list[list[tuple[Record, int]]] = [[] for _ in instants]
        sent: list[list[tuple[Record, int]]] = [[] for _ in instants]
        for name in due:
            if name in self._as_rows:
                self._told.append((name, self._at_ticks(name, instants, upper)))
            elif name not in self._next:
                self._by_tick(name, instants, upper, sent if name in self._sent else told)
        engine.finish(upper)
        engine.forget_values(self._in_hand())
        failed = self._failed(instants)
        return [
            TickAnswer(told[number], failed[number], self._messages(sent[number], at))
            for number, at in enumerate(instants.tolist())
        ]

    def _in_hand(self) -> Iterable[tuple[Schema, I64Array]]:
        """Rows that are handed on, and those that were and are not written yet."""
        for name, moves in self._handed.items():
            yield self.engine.schemas[name], moves
        for name, parts in self._unsaved.items():
            yield from ((self.engine.schemas[name], moves) for moves in parts)

    def _restore(self, at: int, anew: bool) -> dict[str, I64Array]:
        """Go on at the first tick after a restart; moves that take away what was handed to it.

        The tick says anew what is handed on, so the difference is what has changed.
        """
        handed, self._restored = self._restored, None
        if handed is None:
            return {}
        if not anew:
            self._owed.subtract(handed.entered)
            self._owed.update(handed.left)
            handed = handed.begun()
        self.engine.restore(handed.solutions, at)
        present: dict[str, list[Presence]] = {}
        for row in sorted(handed.carried):
            (name, key), values = fact_of(row)
            records = []
            for expires, parafacts in values:
                end = None if expires == END else int(expires)
                seen = observe_parafacts(parafacts, self._lattices)
                records.append(Record(NEXT + name, tuple(key[1:]), key[0], end, seen))
            found = present.setdefault(NEXT + name, [])
            found += [Presence(record, at - 1, END) for record in records]
            # A state may have several reasons for a fact, which is one row here.
            self._owed.update(map(self._row_of, records))
            self._owed[row] -= 1
        self._last = np.array([at - 1])
        self._handed, gone = {}, {}
        for name, presences in present.items():
            schema = self.engine.schemas.get(name)
            if schema is None:
                raise Corrupt(f"the state hands on {name}, which no rule derives")
            rows = rows_of_presences(schema, presences, self.engine.texts)
            self._handed[name] = rows[:, [*range(schema.columns), -3, -1]]
            gone[name] = self._handed[name].copy()
            gone[name][:, -2], gone[name][:, -1] = at, -1
        return gone

    def _moves(self, name: str, upper: int, before: dict[str, I64Array]) -> I64Array:
        """Moves of facts that are handed on, below an instant, each told once."""
        moves = self.engine.moves(name, upper)
        if name in before:
            moves = net_moves(np.concatenate([before.pop(name), moves]))
        if self._keeps_state and len(moves):
            self._unsaved.setdefault(name, []).append(moves)
        return moves

    def take_state(self) -> tuple[set[StateRow], set[StateRow]]:
        """Which rows have left what is handed on, and which have come to it, since the last call.

        Cost: O(changes since).
        """
        left, entered = self.engine.tell_state()
        owed, self._owed = self._owed, Counter()
        for name, parts in self._unsaved.items():
            schema, moves = self.engine.schemas[name], np.concatenate(parts)
            moves[:, -2] = 0
            for move in net_moves(moves).tolist():
                owed[self._row_of(record_of(schema, move, self.engine.texts))] += move[-1]
        self._unsaved = {}
        gone = {*left, *(row for row, count in owed.items() if count < 0)}
        come = {*entered, *(row for row, count in owed.items() if count > 0)}
        if self._may_go_on and self._restored is None:
            differing, self._differing = self._differing, self._difference()
            gone |= {(row[0], kind, row[2]) for row, kind in differing - self._differing}
            come |= {(row[0], kind, row[2]) for row, kind in self._differing - differing}
        return gone, come

    def _difference(self) -> set[tuple[StateRow, str]]:
        """By which rows the last tick hands on something else than it was handed."""
        found: Counter[StateRow] = Counter()
        for name, moves in self._handed.items():
            for move in moves.tolist():
                record = record_of(self.engine.schemas[name], move, self.engine.texts)
                found[self._row_of(record)] += move[-1]
        return {(row, ENTERED if count > 0 else LEFT) for row, count in found.items() if count}

    def _row_of(self, record: Record) -> StateRow:
        """A fact that is handed on, as a row of the state."""
        ends = END if record.expires is None else record.expires
        inner = inject_given(record, self._lattices) if record.parafacts else None
        fact = record.predicate.removeprefix(NEXT), (record.time, *record.arguments)
        return carried_row(fact, (ends, inner))

    def _hand_on(self, name: str, moves: I64Array, ticks: I64Array) -> None:
        """Feed what some ticks say of the ones that follow them, each row one tick later."""
        if len(moves):
            change = delayed(moves, ticks, self.engine.schemas[name].expiry)
            schema, into = self.engine.schemas[name], self.engine.schema_of(name.removeprefix(NEXT))
            if into is not None and into.carrying and not schema.carrying:
                bare = np.zeros((len(change), into.columns + 3), np.int64)
                bare[:, : into.carried] = change[:, : schema.nulls]
                bare[:, into.nulls :] = change[:, schema.nulls :]
                change = bare
            self.engine.feed(name.removeprefix(NEXT), change)

    @property
    def unsettled(self) -> bool:
        """Whether a tick that changes no input may still answer differently, or sends something.

        Changes by time alone are told by `soonest`.
        """
        return bool(self._sending) or self.hands_on_anew

    @property
    def hands_on_anew(self) -> bool:
        """Whether the next tick is handed something else than the last one was."""
        if self._anew is None:
            self._anew = any(map(self._stirs, self._handed))
        return self._anew

    @property
    def soonest(self) -> Instant:
        """The instant from which on time alone may change an answer."""
        return self.engine.soonest

    def _stirs(self, name: str) -> bool:
        """True if two ticks hand on different rows of a predicate; those that end by then apart."""
        moves, expiry = self._handed[name], self.engine.schemas[name].expiry
        if moves[0, -2] == moves[-1, -2]:  # no two of one row
            return bool(moves[:, expiry].max() > self._last[-1])
        moves = moves[moves[:, expiry] > self._last[-1]]
        moves[:, -2] = 0
        return len(net_moves(moves)) > 0

    def _by_tick(
        self, name: str, instants: I64Array, upper: int, into: Sequence[list[tuple[Record, int]]]
    ) -> None:
        """Tell the changes of a predicate, tick by tick."""
        moves = self._at_ticks(name, instants, upper)
        schema, texts, number = self.engine.schemas[name], self.engine.texts, 0
        for move in moves.tolist():
            while instants[number] < move[-2]:
                number += 1
            into[number].append((record_of(schema, move, texts), move[-1]))

    def _at_ticks(self, name: str, instants: I64Array, upper: int) -> I64Array:
        """The changes of a predicate, each at the tick that sees it."""
        moves = self.engine.moves(name, upper)
        if len(moves) and moves[0, -2] != moves[-1, -2]:
            moves[:, -2] = instants[instants.searchsorted(moves[:, -2])]
            moves = net_moves(moves)
        return moves

    def _messages(self, change: Iterable[tuple[Record, int]], at: int) -> tuple[Message, ...]:
        """The messages of a tick: one for each row that it derives, new or not."""
        if change:
            for record, diff in change:
                self._sending[record] += diff
            self._sending = +self._sending
        return tuple(
            Message(record.arguments[0], _as_sent(record))
            for record in self._sending
            if record.expires is None or record.expires > at
        )

    def _failed(self, instants: I64Array) -> list[list[tuple[str, int]]]:
        """Errors that begin or end with each tick; those between two ticks have never been."""
        found = self.engine.tell_errors()
        changes: list[Counter[str]] = [Counter() for _ in instants] if found else []
        for text, at, diff in found:
            changes[int(np.searchsorted(instants, at))][text] += diff
        return [
            sorted((item for item in each.items() if item[1]), key=itemgetter(1, 0))
            for each in changes
        ] or [[] for _ in instants]


def _as_sent(record: Record) -> Record:
    return replace(
        record, predicate=record.predicate.removeprefix(SENT), arguments=record.arguments[1:]
    )
