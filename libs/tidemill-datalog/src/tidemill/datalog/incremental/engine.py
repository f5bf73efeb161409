"""The engine `incremental`: a program kept up to date instant by instant, at the cost of what
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from tidemill.datalog.allowance import Allowance
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.evaluation.sharing import Sharing
from tidemill.datalog.incremental.anew import AnewUnit
from tidemill.datalog.incremental.changes import (
    Changes,
    ErrorChange,
    FactBlock,
    FactChange,
    netted,
)
from tidemill.datalog.incremental.facts import (
    GIVEN,
    PLAIN,
    Value,
    merged_value,
    row_of,
    same_value,
)
from tidemill.datalog.incremental.lent import Arrived, LentTable
from tidemill.datalog.incremental.program import AnyUnit, Shares, build_units, shares_of
from tidemill.datalog.incremental.scheduling import Strategy, scheduler_of
from tidemill.datalog.incremental.shared import JoinUnit
from tidemill.datalog.incremental.sizes import Sizes
from tidemill.datalog.incremental.surroundings import Present, Update
from tidemill.datalog.incremental.unit import Unit
from tidemill.datalog.incremental.versions import FactVersion, Later, Pause
from tidemill.datalog.incremental.weighing import weigh
from tidemill.datalog.lattices import inject_given, observe_parafacts
from tidemill.datalog.limits import Limits
from tidemill.datalog.logical.plan import LogicalPlan, logical_plan
from tidemill.datalog.presence import BEGINNING, END, Instant, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.state import EngineState
from tidemill.datalog.tables import Key, Row
from tidemill.datalog.values import Failed, widen
from tidemill.errors import UsageError


class _Input:
    """One record of an input, and how often it is there."""

    __slots__ = ("copies", "key", "value")

    def __init__(self, key: Key, value: Any) -> None:
        self.copies = 0
        self.key = key
        self.value = value


class IncrementalEngine:
    """At every instant below `upper`, the derived facts are what the program says of the inputs.

    Inputs are given as updates at instants at or after `upper`; `advance` goes through the instants
    in order and returns what changed. The answers are those of the engine `scratch` at each of
    them. Cost: of an instant, the matches that come or go and the supports of the facts they touch;
    rules with `~expires` in the body, and recursions that group facts with times, cost the facts
    they read.

    Changes are reported of derived predicates, and of the inputs in `watch`. A restart begins at
    the instant `begin`, with what `state` an earlier run left and the inputs present then. With a
    `timer` (seconds), units and rules note how long they run. A `plan` made of the program's is
    kept in its place. Joins that rules have in common are done once as `sharing` says. Inputs in
    `lent` are kept by somebody else, who says by `move` when they change; they are neither fed,
    updated nor watched. Until the engine has begun it asks `pause` now and then while it looks at
    them. Not for use by several threads at once.
    """

    def __init__(
        self,
        checked: CheckedProgram,
        *,
        limits: Limits | None = None,
        strategy: Strategy = "strata",
        begin: Instant = BEGINNING,
        state: EngineState | None = None,
        watch: Collection[str] = (),
        timer: Callable[[], float] | None = None,
        plan: LogicalPlan | None = None,
        lent: Mapping[str, FactVersion] | None = None,
        sharing: Sharing = "auto",
        pause: Pause | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        self.plan = plan or logical_plan(checked)
        self.checked = checked = self.plan.checked
        self.strategy = strategy
        self.sharing = sharing
        self.present = Present.of(checked, timer, allowance)
        self._weigh_from = 0
        self.present.now = begin
        self._lent = self._borrowed(lent or {}, pause)
        self._limits = limits or Limits()
        self._watched = frozenset(watch)
        self._assemble(shares_of(self.plan, sharing, Sizes({})))
        self._state = state
        self._begun = False
        self._upper: Instant = begin
        self._inputs: dict[tuple[str, Record], _Input] = {}
        self._negative: dict[tuple[str, Record], None] = {}
        self._copies: dict[str, dict[Key, int]] = {}
        """How often facts are given; of those of inputs that are given once their table tells."""
        self._given: dict[str, dict[Key, None]] = {}
        self._before: dict[tuple[str, Key], Row | None] = {}
        self._blocks: dict[str, list[FactBlock]] = {}
        self._reported = frozenset((*checked.derived, *watch))
        self._floats: dict[str, list[int]] = {
            name: [at for at, (_, kind) in enumerate(columns) if kind == "float"]
            for name, columns in checked.columns.items()
        }

    @property
    def upper(self) -> Instant:
        """Everything below this instant is done."""
        return self._upper

    def _assemble(self, shares: Shares) -> None:
        """Make the units, and note who derives and who reads what; before anything has happened."""
        self.shares = shares
        for joins in self.present.joined.values():
            for name in joins:
                self.present.tables.pop(name, None)
        self.present.joined.clear()
        self.units = build_units(self.plan, self.present, self, self._limits, shares)
        levels = 1 + max((unit.level for unit in self.units), default=0)
        self._scheduler = scheduler_of(self.strategy, levels)
        self._owner: dict[str, AnyUnit] = {n: u for u in self.units for n in u.component}
        self._readers: dict[str, list[AnyUnit]] = {}
        for unit in self.units:
            for name in unit.reads:
                self._readers.setdefault(name, []).append(unit)
        self._known = {*self._owner, *self._readers, *self.checked.derived, *self._watched}

    def _share_by_size(self) -> None:
        """Choose the joins to share by the facts that the engine begins with, where rules have any
        in common.
        """
        if self.sharing != "auto" or not (self.shares.joins or self.shares.left):
            return
        sizes = Sizes.of(self.present.agenda.updates(), self._lent.values())
        shares = shares_of(self.plan, self.sharing, sizes)
        if [each.join for each in shares.joins] == [each.join for each in self.shares.joins]:
            self.shares = shares
            return
        self._assemble(shares)

    # Inputs.

    def _borrowed(
        self, lent: Mapping[str, FactVersion], pause: Pause | None
    ) -> dict[str, LentTable]:
        """The tables of inputs that somebody else keeps, as they are when the engine begins."""
        found = {}
        for name, version in lent.items():
            kinds = [kind for _, kind in self.checked.columns.get(name, ())]
            found[name] = self.present.tables[name] = LentTable(name, kinds, version, pause)
        return found

    def move(self, predicate: str, later: Later) -> None:
        """Let the facts of an input that is lent go on to their next version, at its instant.

        Raises: UsageError where that is below `upper`.
        """
        if later.at < self._upper:
            raise UsageError(
                f"update refused: instant {later.at} is below the upper {self._upper}",
                reason="BelowUpper", at=later.at, upper=self._upper,
            )  # fmt: skip
        self.present.agenda.update(later.at, (predicate, later, 0))

    def feed(self, predicate: str, presences: Iterable[Presence]) -> None:
        """Let input facts be present as given; what begins before `upper` begins at `upper`."""
        for presence in presences:
            start = max(presence.start, self._upper)
            if start < presence.end:
                self.update(predicate, presence.record, start, 1)
                if presence.end != END:
                    self.update(predicate, presence.record, presence.end, -1)

    def update(self, predicate: str, record: Record, at: Instant, diff: int) -> None:
        """Let the multiplicity of an input record change at an instant that is not done yet.

        Raises: UsageError where the instant is below `upper`; `advance` raises it where a record is
        taken away more often than it was put in.
        """
        if at < self._upper:
            raise UsageError(
                f"update refused: instant {at} is below the upper {self._upper}",
                reason="BelowUpper", at=at, upper=self._upper,
            )  # fmt: skip
        if predicate in self._known:
            self.present.agenda.update(at, (predicate, record, diff))

    def _apply(self, update: Update) -> None:
        predicate, record, diff = update
        if isinstance(record, Later):
            self._tell(self, predicate, self._lent[predicate].move(record))
            if self._scheduler.eager:
                self._scheduler.flow()
            return
        if record.expires is not None or record.parafacts:
            self._apply_marked(predicate, record, diff)
            return
        key = (record.time, *self._widened(predicate, record))
        copies = self._copies.setdefault(predicate, {})
        derived = predicate in self._owner
        before = copies.pop(key, None)
        if before is None:
            before = 0 if derived else int(self.present.table(predicate).given(key))
        after = before + diff
        if after and (derived or after != 1):
            copies[key] = after
        if (before > 0) != (after > 0):
            if after > 0:
                self.support(predicate, key, GIVEN, PLAIN)
            else:
                self.withdraw(predicate, key, GIVEN)
        if before < 0 or after < 0:
            self._note_negative(predicate, record, after)

    def _apply_marked(self, predicate: str, record: Record, diff: int) -> None:
        """A record that ends or carries something is told apart from others of its fact."""
        known = self._inputs.get((predicate, record))
        if known is None:
            known = self._inputs[predicate, record] = self._input(predicate, record)
        before = known.copies
        known.copies += diff
        if (before > 0) != (known.copies > 0):
            if known.copies > 0:
                self.support(predicate, known.key, known, known.value)
            else:
                self.withdraw(predicate, known.key, known)
        if not known.copies:
            del self._inputs[predicate, record]
        self._note_negative(predicate, record, known.copies)

    def _note_negative(self, predicate: str, record: Record, copies: int) -> None:
        if copies < 0:
            self._negative[predicate, record] = None
        else:
            self._negative.pop((predicate, record), None)

    def _widened(self, predicate: str, record: Record) -> tuple[Any, ...]:
        """The arguments of a record, as the columns have them."""
        floats = self._floats.get(predicate)
        if not floats:
            return record.arguments
        values = list(record.arguments)
        for at in floats:
            values[at] = widen(values[at])
        return tuple(values)

    def _input(self, predicate: str, record: Record) -> _Input:
        parafacts = inject_given(record, self.present.lattices) if record.parafacts else None
        expires = END if record.expires is None else record.expires
        key = (record.time, *self._widened(predicate, record))
        return _Input(key, (expires, parafacts))

    def support(self, predicate: str, key: Key, source: Any, value: Value) -> None:
        """A fact is given from outside at this instant, for this reason."""
        unit = self._owner.get(predicate)
        if unit is not None:
            unit.support(predicate, key, source, value)
        else:
            table = self.present.table(predicate)
            table.support(key, source, value)
            self._given.setdefault(predicate, {})[key] = None
        self._flow()

    def withdraw(self, predicate: str, key: Key, source: Any) -> None:
        """It is given no longer."""
        unit = self._owner.get(predicate)
        if unit is not None:
            unit.withdraw(predicate, key, source)
        else:
            table = self.present.table(predicate)
            table.withdraw(key, source)
            self._given.setdefault(predicate, {})[key] = None
        self._flow()

    def _flow(self) -> None:
        """Where changes flow at once, let this one."""
        if self._scheduler.eager:
            self._settle_inputs()
            self._scheduler.flow()

    def _settle_inputs(self) -> None:
        """Give the facts of inputs what their records say together."""
        given, self._given = self._given, {}
        for predicate, keys in given.items():
            table, olds = self.present.table(predicate), []
            for key in keys:
                old, supports = table.get(key), table.supports.get(key)
                new = None if supports is None else self._row(key, old, supports)
                if new is not old:
                    table.put(key, new)
                    olds.append((key, old))
            self._tell(self, predicate, olds)
            if predicate in self._reported:
                for key, old in olds:
                    self._before.setdefault((predicate, key), old)

    def _row(self, key: Key, old: Row | None, supports: Mapping[Any, Value]) -> Row | None:
        """The row that supports make together: the old one if it says the same."""
        try:
            value = merged_value(supports, self.present.lattices)
        except Failed:
            return None
        assert value is not None
        return old if old is not None and same_value(old, value) else row_of(key, value)

    # One instant after the other.

    def advance(self, upper: int) -> Changes:
        """Go through all instants below `upper`; what changed at them.

        Raises: LimitPassed; UsageError for an input record taken away too often. After an error the
        engine cannot be used any more.
        """
        found = Changes()
        self.present.horizon = upper
        if not self._begun:
            self._share_by_size()
            self._begin(found)
        agenda = self.present.agenda
        while (soonest := agenda.soonest) is not None and soonest < upper:
            self.present.now = max(self.present.now, soonest)
            agenda.happen_until(self.present.now, self._apply)
            self._run(found)
        self._upper = max(self._upper, upper)
        return found

    def _begin(self, found: Changes) -> None:
        self._begun = True
        for name, table in self._lent.items():
            for reader in self._readers.get(name, ()):
                reader.inbox[name] = Arrived(table)
                self._scheduler.schedule(reader)
        self.present.agenda.happen_until(self.present.now, self._apply)
        state = self._state
        if state is not None:
            self._restore(state)
        for unit in self.units:
            unit.begin()
        self._run(found)
        for table in self._lent.values():
            table.pause = None

    def _restore(self, state: EngineState) -> None:
        for unit in self.units:
            if isinstance(unit, AnewUnit):
                unit.restore(state)
            for rule in unit.rules if isinstance(unit, Unit) else ():
                if rule.established is not None:
                    for solution in state.established.get(rule.form.number, ()):
                        rule.established.restore(solution)

    def _run(self, found: Changes) -> None:
        """Let everything that is queued at this instant run, and collect what changed."""
        for predicate, record in self._negative:
            raise UsageError(
                f"input {predicate}: {record} is taken away more often than it was put in, "
                f"first at {self.present.now}",
                reason="NegativeMultiplicity", record=record, at=self.present.now,
            )  # fmt: skip
        self._settle_inputs()
        self._scheduler.run()
        if self.present.around.allowance.held >= self._weigh_from:
            self._weigh_from = weigh(self.present, self.units)
        self._collect(found)

    def changed(self, unit: object, predicate: str, key: Key, old: Row | None) -> None:
        """A row is no longer `old`: tell the units that read it, and remember it for the answer."""
        for reader in self._readers.get(predicate, ()):
            if reader is not unit:
                inbox = reader.inbox.setdefault(predicate, {})
                if not isinstance(inbox, Arrived):
                    inbox.setdefault(key, old)
                self._scheduler.schedule(reader)
        if predicate in self._reported:
            self._before.setdefault((predicate, key), old)

    def changed_together(
        self, unit: object, block: FactBlock, rows: Callable[[], Collection[tuple[Key, Row | None]]]
    ) -> None:
        """Facts have changed: remember them for the answer, and tell the units that read them by
        `rows`.
        """
        predicate = block.predicate
        if predicate in self._reported:
            self._blocks.setdefault(predicate, []).append(block)
        if any(reader is not unit for reader in self._readers.get(predicate, ())):
            self._tell(unit, predicate, rows())

    def _tell(self, unit: object, predicate: str, olds: Collection[tuple[Key, Row | None]]) -> None:
        """Let the units that read a predicate see which rows have changed, and what they were."""
        for reader in self._readers.get(predicate, ()):
            if reader is not unit and olds:
                inbox = reader.inbox.setdefault(predicate, {})
                if not isinstance(inbox, Arrived):
                    for key, old in olds:
                        inbox.setdefault(key, old)
                self._scheduler.schedule(reader)

    def schedule(self, unit: AnyUnit) -> None:
        """The unit has something to do at this instant."""
        self._scheduler.schedule(unit)

    def tick(
        self, at: int, given: Mapping[str, Iterable[Record]], gone: Mapping[str, Iterable[Record]]
    ) -> Changes:
        """Go to one instant of a ticked program, where these input records come and those go."""
        found = Changes()
        self.present.now = self.present.horizon = at
        self.present.agenda.happen_until(at, self._apply)
        for records, diff in ((gone, -1), (given, 1)):
            for name, each in records.items():
                for record in each:
                    if name in self._known:
                        self._apply((name, record, diff))
        if not self._begun and self._state is not None:
            self._restore(self._state)
        for unit in self.units:
            if not self._begun:
                unit.begin()
            elif isinstance(unit, AnewUnit):
                self.schedule(unit)
        self._begun = True
        self._run(found)
        self._upper = at + 1
        return found

    def admit(self, predicate: str, record: Record) -> None:
        """Let an input record be present at the instant that is running."""
        if predicate in self._known:
            self._apply((predicate, record, 1))
            self._settle_inputs()

    def between_levels(self, happen: Callable[[], None] | None) -> None:
        """Let something happen before each level of a run, as taking in what has arrived meanwhile."""
        self._scheduler.between = happen

    def readers(self, predicate: str) -> Sequence[AnyUnit]:
        """The units that read a predicate, themselves or through a shared join."""
        names = (predicate, *self.present.joined.get(predicate, ()))
        found = dict.fromkeys(unit for name in names for unit in self._readers.get(name, ()))
        return [unit for unit in found if not isinstance(unit, JoinUnit)]

    def _collect(self, found: Changes) -> None:
        at = self.present.now
        before, self._before = self._before, {}
        found_blocks, self._blocks = self._blocks, {}
        blocks = [netted(parts) for parts in found_blocks.values()]
        ends: list[FactChange] = []
        begins: list[FactChange] = []
        for (predicate, key), old in before.items():
            new = self.present.table(predicate).get(key)
            if new is old:
                continue
            was = self._record(predicate, key, old) if old is not None else None
            now = self._record(predicate, key, new) if new is not None else None
            if was == now:
                continue
            if was is not None:
                ends.append(FactChange(at, was, -1))
            if now is not None:
                begins.append(FactChange(at, now, 1))
        for facts, sign in ((ends, -1), (begins, 1)):
            found.facts.add(facts)
            for block in blocks:
                found.facts.add(block.take(block.diffs == sign))
        for text, rule, diff in self.present.errors.take():
            found.errors.append(ErrorChange(at, text, rule, diff))

    def _record(self, predicate: str, key: Key, row: Row) -> Record:
        seen = observe_parafacts(row[3], self.present.lattices) if row[3] is not None else ()
        return Record(predicate, key[1:], key[0], None if row[2] == END else int(row[2]), seen)

    # What holds now.

    def records(self, predicate: str) -> list[Record]:
        """The records of a predicate at the last instant done, as they are maintained."""
        table = self.present.table(predicate)
        return [self._record(predicate, row[4:], row) for row in table.rows]

    def errors(self) -> list[tuple[str, int]]:
        """The errors at the last instant done, each with its first rule."""
        return self.present.errors.standing()

    def take_state_changes(self) -> tuple[EngineState, EngineState]:
        """What has left the state and what has come to it since the last call.

        Cost: O(changes), and O(state) of rules that are evaluated anew.
        """
        established: tuple[dict[int, Any], dict[int, Any]] = ({}, {})
        lingering: tuple[dict[int, Any], dict[int, Any]] = ({}, {})
        for unit in self.units:
            if isinstance(unit, AnewUnit):
                for way, part in enumerate(unit.take_state_changes()):
                    established[way].update(part.established)
                    lingering[way].update(part.lingering)
            for rule in unit.rules if isinstance(unit, Unit) else ():
                if rule.established is not None:
                    for way, moved in enumerate(rule.established.take_changes()):
                        if moved:
                            established[way][rule.form.number] = tuple(moved)
        return (
            EngineState(established[0], lingering[0]),
            EngineState(established[1], lingering[1]),
        )

    def state(self) -> EngineState:
        """The solutions that live on without the facts that established them."""
        established: dict[int, Any] = {}
        lingering: dict[int, Any] = {}
        for unit in self.units:
            if isinstance(unit, Unit):
                for rule in unit.rules:
                    if rule.established is not None and (kept := rule.established.solutions()):
                        established[rule.form.number] = kept
            elif isinstance(unit, AnewUnit):
                numbers = {rule.form.number for rule in unit.compiled}
                for mine, theirs in (
                    (established, unit.state.established), (lingering, unit.state.lingering)
                ):  # fmt: skip
                    mine.update({n: kept for n, kept in theirs.items() if n in numbers})
        return EngineState(established, lingering)


def presences_of_changes(changes: Sequence[FactChange]) -> dict[str, list[Presence]]:
    """The stretches that a sequence of changes from the beginning draws, by predicate."""
    found: dict[str, list[Presence]] = {}
    since: dict[Record, Instant] = {}
    for change in changes:
        record = change.record
        if change.diff > 0:
            since[record] = change.at
        else:
            start = since.pop(record)
            found.setdefault(record.predicate, []).append(Presence(record, start, change.at))
    for record, start in since.items():
        found.setdefault(record.predicate, []).append(Presence(record, start, END))
    return found
