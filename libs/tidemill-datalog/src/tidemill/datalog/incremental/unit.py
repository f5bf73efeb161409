"""One schedulable unit: the rules of one component of predicates, brought up to the present
instant.

Whatever comes or goes is followed through the kept matches. In a recursion a fact that lost a
support may stand on nothing but itself; there what has no *certain* support any longer goes first,
with all that was derived from it, and what can still be derived comes back (delete and re-derive).
A support is certain if it does not need the recursion, or (where facts carry no values) if it only
needs facts that were there before the fact itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from sys import getsizeof
from types import MappingProxyType
from typing import Any, Protocol

from tidemill.datalog.evaluation.compiled import made_texts
from tidemill.datalog.incremental.changes import FactBlock
from tidemill.datalog.incremental.clocks import Ticking
from tidemill.datalog.incremental.facts import (
    PLAIN,
    FactTable,
    Value,
    equal_value,
    grown,
    merged_value,
    row_of,
    same_value,
)
from tidemill.datalog.incremental.folding import Folded
from tidemill.datalog.incremental.lent import Arrived, Olds
from tidemill.datalog.incremental.matches import Match, Matches
from tidemill.datalog.incremental.surroundings import Present
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.logical.forms import Type
from tidemill.datalog.presence import END
from tidemill.datalog.tables import FIRST, Key, Row
from tidemill.datalog.values import Failed

Fact = tuple[str, Key]
_NONE: Mapping[Any, Value] = MappingProxyType({})


class Reporter(Protocol):
    """Who is told of what a unit changed, and who runs units that have something to do."""

    def changed(self, unit: object, predicate: str, key: Key, old: Row | None) -> None:
        """The row of a fact is no longer `old`."""
        ...

    def changed_together(
        self, unit: object, block: FactBlock, rows: Callable[[], Collection[tuple[Key, Row | None]]]
    ) -> None:
        """Facts have changed; `rows` makes their rows and gives, for each, its row before."""
        ...

    def schedule(self, unit: Any) -> None:
        """The unit has something to do at this instant."""
        ...


class Unit:
    """The rules that derive one component, and the reasons for its facts."""

    def __init__(
        self,
        component: Sequence[str],
        present: Present,
        reporter: Reporter,
        limits: Limits,
        number: int,
    ) -> None:
        self.component = tuple(component)
        self.number = number
        self.level = 0
        self.stratum = 0
        self.scheduled = False
        self.recursive = False
        self.runs = 0
        self.seconds = 0.0
        self.present = present
        self.rules: list[Matches] = []
        self.folded: list[Folded] = []
        self.inbox: dict[str, Olds] = {}
        self.ticks: list[tuple[Matches, int, Row]] = []
        self.clocks: list[Ticking] = []
        self.touched: dict[Fact, None] | None = None
        """Where facts are noted whose supports have changed, for who takes them one by one."""
        self._reporter = reporter
        self._limits = limits
        self._reading: dict[str, list[tuple[Matches, int]]] = {}
        self._denying: dict[str, list[tuple[Matches, int]]] = {}
        self._folding: dict[str, list[Folded]] = {}
        self._due: list[Callable[[], None]] = []
        self._tables = {name: present.table(name) for name in self.component}
        self._dirty: dict[str, dict[Key, None]] = {name: {} for name in self.component}
        self._lost: dict[Fact, dict[Any, Value]] = {}
        self._before: dict[str, dict[Key, Row | None]] = {name: {} for name in self.component}
        self._plain = True
        self._decorated: set[str] = set()
        self._stamps: dict[str, dict[Key, int]] = {name: {} for name in self.component}
        self._next_stamp = count()
        self._errors: dict[Fact, str] = {}
        self.texts_held = 0
        """Bytes of the texts that its rules made."""
        self._made: dict[str, set[int]] = {}
        self._sets = any("set" in present.checked.lattices_of(name) for name in self.component)

    @property
    def waits_for_all(self) -> bool:
        """Whether the unit may only see what is final at the instant, because it remembers what it
        saw.
        """
        return any(rule.established is not None for rule in self.rules)

    def add(self, rule: Matches) -> None:
        """Take a rule whose head is in the component."""
        self.rules.append(rule)
        self._note_made(rule)
        for i in rule.joins.ordinary:
            predicate = rule.form.atoms[i].predicate
            self._reading.setdefault(predicate, []).append((rule, i))
            if predicate in self.component and rule.predicate in self.component:
                rule.inner.append(i)
                self.recursive = True
        for j, absent in enumerate(rule.form.absent):
            if not absent.is_clock:
                self._denying.setdefault(absent.predicate, []).append((rule, j))

    def fold(self, rule: Folded) -> None:
        """Take a rule of which no matches are kept."""
        self.folded.append(rule)
        self._note_made(rule)
        self._folding.setdefault(rule.form.atoms[0].predicate, []).append(rule)

    def _note_made(self, rule: Matches | Folded) -> None:
        """Note which columns may hold texts that no fact of a body has."""
        columns = self.present.around.checked.columns.get(rule.predicate, ())
        made = made_texts(rule.form, [Type(kind) for _, kind in columns])
        if made:
            self._made.setdefault(rule.predicate, set()).update(made)

    def _weigh(self, predicate: str, row: Row | None, sign: int) -> None:
        """Count the texts of a row that comes or goes, where rules made them. Raises: Exhausted."""
        if row is not None and predicate in self._made:
            size = sum(getsizeof(row[FIRST + at]) for at in self._made[predicate])
            self.texts_held += sign * size
            self.present.around.allowance.take(sign * size)

    @property
    def every_rule(self) -> list[Matches | Folded]:
        """All rules, in the order of the text."""
        return sorted([*self.rules, *self.folded], key=lambda rule: rule.form.number)

    @property
    def reads(self) -> set[str]:
        """The predicates of other units and inputs that the rules read."""
        return {*self._reading, *self._denying, *self._folding} - set(self.component)

    def monotone_in(self, predicate: str) -> bool:
        """Whether more facts of a predicate can only mean more facts of the component."""
        for name in (predicate, *self.present.joined.get(predicate, ())):
            reading = [rule for rule, _ in self._reading.get(name, ())]
            grouping = [*reading, *self._folding.get(name, ())]
            if name in self._denying or any(rule.form.head.lattices for rule in grouping):
                return False
        return True

    def begin(self) -> None:
        """Derive what needs no facts, clocks that have ticked before among it."""
        for rule in self.rules:
            if not rule.joins.ordinary:
                rule.join(None, None)
        self._reporter.schedule(self)

    # Reasons for facts.

    def support(self, predicate: str, key: Key, source: Any, value: Value) -> None:
        """The fact has this support from now on, or this value of it."""
        if self.recursive:
            self._lessen(predicate, key, source, value)
        self._tables[predicate].support(key, source, value)
        if value is not PLAIN:
            if value[1] is not None:
                self._decorated.add(predicate)
            if value != PLAIN:
                self._plain = False
        self._dirty[predicate][key] = None
        if self._lost:
            self._regain(predicate, key, source, value)
        if not self.scheduled:
            self._reporter.schedule(self)

    def _lessen(self, predicate: str, key: Key, source: Any, value: Value) -> None:
        """A support that says less than before was lost: what it said may have come round to the
        fact.
        """
        before = self._tables[predicate].supports.get(key, _NONE).get(source)
        if before is None or before is value or before == value:
            return
        if not grown(row_of(key, before), row_of(key, value), self.present.lattices):
            self._lost.setdefault((predicate, key), {}).setdefault(source, before)

    def _regain(self, predicate: str, key: Key, source: Any, value: Value) -> None:
        """A support that was lost and says as much again was not lost."""
        fact = (predicate, key)
        lost = self._lost.get(fact)
        if lost is not None and source in lost:
            before = row_of(key, lost[source])
            if grown(before, row_of(key, value), self.present.lattices):
                del lost[source]
                if not lost:
                    del self._lost[fact]

    def withdraw(self, predicate: str, key: Key, source: Any) -> None:
        """The fact has this support no longer."""
        value = self._tables[predicate].withdraw(key, source)
        self._dirty[predicate][key] = None
        if self.recursive:
            self._lost.setdefault((predicate, key), {})[source] = value
        if not self.scheduled:
            self._reporter.schedule(self)

    def touch(self) -> None:
        """A group of some rule has changed and is to be settled."""
        if not self.scheduled:
            self._reporter.schedule(self)

    def defer(self, happen: Callable[[], None]) -> None:
        """Something is due at this instant, after its changes."""
        self._due.append(happen)
        self.touch()

    # One run.

    def run(self) -> None:
        """Bring the component up to what its inputs are now."""
        self.runs += 1
        timer = self.present.timer
        began = timer() if timer is not None else 0.0
        self._catch_up()
        if timer is not None:
            self.seconds += timer() - began

    def _catch_up(self) -> None:
        changes, self.inbox = self.inbox, {}
        rounds = 0
        while True:
            self._follow(changes)
            for clock in self.clocks:
                clock.wake()
            if self.recursive:
                self._overdelete()
            changes = self._settle()
            if not (self.recursive and changes):
                break
            rounds += 1
            if rounds > self._limits.rounds:
                raise LimitPassed(
                    f"evaluation given up: no fixed point of {', '.join(self.component)} within "
                    f"{self._limits.rounds} rounds",
                    reason="LimitPassed", limit="rounds", predicate=self.component[0],
                )  # fmt: skip
        self._report()

    def _follow(self, changes: Mapping[str, Olds]) -> None:
        """Let matches go and find new ones after changes of the facts they read."""
        for rule in self.rules:
            if len(rule):
                rule.refresh()
        stale: list[tuple[Matches, int, Key, FactTable]] = []
        coming: dict[str, Collection[Row]] = {}
        going: dict[str, list[Row]] = {}
        unblocked: list[tuple[Matches, Match]] = []
        for predicate, olds in changes.items():
            if isinstance(olds, Arrived):
                coming[predicate] = olds.table.rows  # before, nothing has matched
                continue
            table, denying = self.present.table(predicate), self._denying.get(predicate, ())
            come, go = list[Row](), list[Row]()
            coming[predicate], going[predicate] = come, go
            for key, old in olds.items():
                new = table.get(key)
                if new is old:
                    continue
                if new is not None:
                    come.append(new)
                if old is not None:
                    go.append(old)
                    self._let_go(predicate, key, old, new, table, stale)
                for rule, j in denying:
                    for match, blocked in rule.toggled(j, old, new):
                        if blocked:
                            rule.reconsider(match)
                        else:
                            unblocked.append((rule, match))
        if self.recursive:
            self._overdelete()
        for predicate, rows in going.items():
            for folded in self._folding.get(predicate, ()) if rows else ():
                folded.leave(rows)
        self._join(coming)
        ticks, self.ticks = self.ticks, []
        for rule, i, row in ticks:
            if rule.joins.beginning_with_ticks(i) is None:
                rule.join(None, None)
            else:
                rule.join(i, [row], tick=True)
        for rule, i, key, table in stale:
            for match in rule.using(i, key):
                if match.rows and match.rows[i] is not table.get(key):
                    rule.remove(match)
        for rule, match in unblocked:
            if rule.holds(match):
                rule.reconsider(match)
        due, self._due = self._due, []
        for happen in due:
            happen()
        for rule in self.rules:
            rule.settle()
        for folded in self.folded:
            folded.settle()

    def _join(self, coming: Mapping[str, Collection[Row]]) -> None:
        """Find the matches of rows that have come.

        Where all rows that an atom has are new, the join that begins with it finds every match of
        the rule, and no other is needed.
        """
        found: dict[str, Collection[Row]] = {}
        whole: dict[int, tuple[int, Matches, int]] = {}
        for predicate, rows in coming.items():
            table = self.present.table(predicate)
            present = rows
            if rows is not table.rows:
                present = [row for row in rows if table.get(row[4:]) is row]
            if not present:
                continue
            found[predicate] = present
            if len(present) == len(table):
                for rule, i in self._reading.get(predicate, ()):
                    best = whole.get(id(rule))
                    if best is None or len(present) < best[0]:
                        whole[id(rule)] = (len(present), rule, i)
        for _, rule, i in whole.values():
            rule.join(i, found[rule.form.atoms[i].predicate])
        for predicate, present in found.items():
            for rule, i in self._reading.get(predicate, ()):
                if id(rule) not in whole:
                    rule.join(i, present)
            for folded in self._folding.get(predicate, ()):
                folded.join(present)

    def _let_go(
        self,
        predicate: str,
        key: Key,
        old: Row,
        new: Row | None,
        table: FactTable,
        stale: list[tuple[Matches, int, Key, FactTable]],
    ) -> None:
        goes = new is None or (self.recursive and not grown(old, new, self.present.lattices))
        for rule, i in self._reading.get(predicate, ()):
            if goes:
                for match in rule.using(i, key):
                    rule.remove(match)
            else:
                stale.append((rule, i, key, table))

    # From supports to facts.

    def _settle(self) -> dict[str, Olds]:
        """Give every fact whose supports changed the value that they have together now."""
        changes: dict[str, Olds] = {}
        for predicate, dirty in self._dirty.items():
            if not dirty:
                continue
            self._dirty[predicate] = {}
            if self.touched is not None:
                self.touched.update(((predicate, key), None) for key in dirty)
            table = self._tables[predicate]
            before = self._before[predicate]
            stamps = self._stamps[predicate]
            moved: dict[Key, Row | None] = {}
            for key in dirty:
                old = table.get(key)
                new = self._row(predicate, key, table, old)
                if new is old:
                    continue
                before.setdefault(key, old)
                table.put(key, new)
                if self._made:
                    self._weigh(predicate, old, -1)
                    self._weigh(predicate, new, 1)
                if self.recursive and old is None:
                    stamps[key] = next(self._next_stamp)
                moved[key] = old
            if moved:
                changes[predicate] = moved
        return changes

    def _row(self, predicate: str, key: Key, table: FactTable, old: Row | None) -> Row | None:
        """The row of a fact by its supports: the old object if it says the same."""
        supports = table.supports.get(key)
        if self._errors:
            self._clear_error((predicate, key))
        if not supports:
            return None
        latest = None if predicate in self._decorated else table.latest_expiry(key)
        if latest is not None:
            value: Value = (latest, None)
        elif len(supports) == 1:
            ((value),) = supports.values()
        else:
            try:
                merged = merged_value(supports, self.present.lattices)
            except Failed as failed:
                self._set_error((predicate, key), failed.reason)
                return None
            assert merged is not None
            value = merged
        # In a recursion tallies come round, merged anew: what they are made of tells when it is
        # settled.
        same = equal_value if self.recursive else same_value
        if old is not None and same(old, value):
            return old
        before = self._before[predicate].get(key)
        if before is not None and same(before, value):
            return before
        if self._sets:
            self._check_sets(predicate, value)
        return row_of(key, value)

    def _check_sets(self, predicate: str, value: Value) -> None:
        most = self._limits.set_values
        if any(name == "set" and len(inner) > most for name, inner in value[1] or ()):
            raise LimitPassed(
                f"evaluation given up: a set of {predicate} has more than {most} values",
                reason="LimitPassed", limit="set_values", predicate=predicate,
            )  # fmt: skip

    def _set_error(self, fact: Fact, reason: str) -> None:
        predicate, key = fact
        text = self.present.match_text(reason, [predicate], ((None,) * 4 + key,))
        self._errors[fact] = text
        self.present.errors.add(self.every_rule[0].form.number, text)

    def _clear_error(self, fact: Fact) -> None:
        text = self._errors.pop(fact, None)
        if text is not None:
            self.present.errors.remove(self.every_rule[0].form.number, text)

    def _report(self) -> None:
        for predicate, before in self._before.items():
            if not before:
                continue
            self._before[predicate] = {}
            table = self._tables[predicate]
            for key, old in before.items():
                if table.get(key) is not old:
                    self._reporter.changed(self, predicate, key, old)
            if len(table) > self._limits.rows:
                raise LimitPassed(
                    f"evaluation given up: {predicate} has more than {self._limits.rows} rows",
                    reason="LimitPassed", limit="rows", predicate=predicate,
                )  # fmt: skip

    # Recursion: what may stand on nothing but itself goes first.

    def _overdelete(self) -> None:
        """Take away every fact that lost a support and is not certain, with all matches that use
        it.
        """
        while self._lost:
            waiting = deque(self._lost)
            self._lost.clear()
            while waiting:
                fact = waiting.popleft()
                predicate, key = fact
                table = self._tables[predicate]
                row = table.get(key)
                if row is None or self._certain(fact, table, row):
                    continue
                self._before[predicate].setdefault(key, row)
                table.put(key, None)
                self._weigh(predicate, row, -1)
                self._stamps[predicate].pop(key, None)
                self._dirty[predicate][key] = None
                for rule, i in self._reading.get(predicate, ()):
                    for match in rule.using(i, key):
                        rule.remove(match)

    def _certain(self, fact: Fact, table: FactTable, row: Row) -> bool:
        """Whether the fact is what it is even without those that may depend on it."""
        supports = table.supports.get(fact[1])
        if not supports:
            return False
        if self._plain:
            mine = self._stamps[fact[0]].get(fact[1], -1)
            return any(self._comes_before(source, mine) for source in supports)
        independent = {
            source: value
            for source, value in supports.items()
            if not (isinstance(source, Match) and source.of.inner)
        }
        try:
            value = merged_value(independent, self.present.lattices)
        except Failed:
            return False
        return value is not None and same_value(row, value)

    def _comes_before(self, source: Any, stamp: int) -> bool:
        if not isinstance(source, Match):
            return True
        for i in source.of.inner:
            predicate = source.of.form.atoms[i].predicate
            known = self._stamps[predicate].get(source.keys[i])
            if known is None or known >= stamp:
                return False
        return True

    def on_tick(self, rule: Matches, atom: int) -> Callable[[int, int, int], None]:
        """A function that takes a tick (time, offset, period) of a clock of a rule."""

        def take(time: int, offset: int, period: int) -> None:
            self.ticks.append((rule, atom, row_of((time, offset, period), (END, None))))
            self._reporter.schedule(self)

        return take
