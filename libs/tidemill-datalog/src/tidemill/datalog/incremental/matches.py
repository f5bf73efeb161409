"""The matches of one rule, kept: which facts each uses, what must be absent for it, what it
contributes.

A match is found by a join when the last of its facts comes, and is let go through `uses` when one
of them goes; so a change costs its matches, not the facts that are there. What a match
*contributes* (a support of a fact, a member of a group, a solution that lives on) is withdrawn with
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from tidemill.datalog.evaluation.runtime import carries, decorate, observer
from tidemill.datalog.incremental.established import Established
from tidemill.datalog.incremental.facts import PLAIN
from tidemill.datalog.incremental.grouping import GroupTarget, RuleGroups
from tidemill.datalog.incremental.joining import Join, Joins
from tidemill.datalog.incremental.surroundings import Present, Told
from tidemill.datalog.instants import usable_clock
from tidemill.datalog.lattices import TALLIES, Parafacts, merge_parafacts
from tidemill.datalog.logical.forms import AbsentForm, RuleForm, Wildcard
from tidemill.datalog.presence import BEGINNING, END, Instant
from tidemill.datalog.tables import ANY_VALUE, TIME, Key, Row, rows_like
from tidemill.datalog.values import Failed, widen

_NONE: list[Any] = []
"""Shared by all matches of rules without `not`; never changed."""


def _no_head(*_: Any) -> Any:
    raise AssertionError("a rule looks at matches only after a join")


class Match:
    """One fact for each positive atom of a rule, all present now.

    `waits` is for each atom under `not` what it asks for, or the failure of asking; `blocked`
    whether some fact is what it asks for; `begins` is the last tick among its facts, before which
    it does not hold. `home` is where the match contributes, None where it does not.
    """

    __slots__ = (
        "begins",
        "blocked",
        "error",
        "home",
        "keys",
        "of",
        "reason",
        "rows",
        "values",
        "waits",
    )

    def __init__(
        self,
        of: Matches,
        keys: tuple[Key, ...],
        rows: tuple[Row, ...],
        values: tuple[Any, ...] | None,
    ) -> None:
        self.of = of
        self.keys = keys
        self.rows = rows
        self.values = values
        self.begins: Instant = BEGINNING
        self.reason: str | None = None
        self.waits: list[Any] = _NONE
        self.blocked: list[bool] = _NONE
        self.home: Any = None
        self.error: str | None = None


def _put(matches: dict[Any, dict[Match, None] | tuple[Match, ...]], key: Any, match: Match) -> None:
    """Note a match under a key: alone in a tuple, which takes a quarter of the memory, or with
    others in a dict.
    """
    known = matches.get(key)
    if known is None:
        matches[key] = (match,)
    elif isinstance(known, tuple):
        matches[key] = {known[0]: None, match: None}
    else:
        known[match] = None


def _take_out(
    matches: dict[Any, dict[Match, None] | tuple[Match, ...]], key: Any, match: Match
) -> None:
    known = matches[key]
    if isinstance(known, tuple):
        del matches[key]
        return
    del known[match]
    if len(known) == 1:
        matches[key] = (*known,)


class Target(GroupTarget, Protocol):
    """Where the contributions of a rule go."""

    def defer(self, happen: Callable[[], None]) -> None:
        """Something is due at this instant, but not before the changes of the instant are followed."""
        ...


class Matches:
    """All matches of one rule at the present instant."""

    def __init__(
        self,
        form: RuleForm,
        present: Present,
        target: Target,
        *,
        predicate: str | None = None,
        decorates: bool = False,
        remembers: bool = False,
        silent: bool = False,
        told: Told | None = None,
    ) -> None:
        self.form = form
        self._told = told
        self.joins = Joins(form, present)
        self.predicate = form.head.predicate if predicate is None else predicate
        self._present = present
        self._target = target
        self._silent = silent
        self._decorates = decorates and form.head.aggregates
        self._names = [name for name, _ in form.head.lattices]
        self._tallied = any(name in TALLIES for name in self._names)
        self._store: dict[tuple[Key, ...], Match] = {}
        self._failed_clocks: dict[tuple[Key, ...], Match] = {}
        self._uses: list[dict[Key, dict[Match, None] | tuple[Match, ...]]] = [
            {} for _ in form.atoms
        ]
        self._absences = [_Absence(absent, present) for absent in form.absent]
        self._groups = (
            RuleGroups(form, self.predicate, present, target, remembers=remembers)
            if form.head.aggregates and not self._decorates
            else None
        )
        self.established = Established(self, present) if form.outlives else None
        self.foresees = bool(self.joins.clocks) and bool(self.joins.ordinary)
        """Whether ticks are matched before they come, because the guards say which can match."""
        self._shape = -1
        self._names_now: Mapping[str, Any] = {}
        self._head: Callable[..., Any] = _no_head
        self.found = 0
        self.seconds = 0.0
        self.inner: list[int] = []
        """The atoms that read the recursion which the head is part of."""

    def __len__(self) -> int:
        return len(self._store)

    @property
    def predicates(self) -> list[str]:
        """The predicates of the positive atoms, clocks among them."""
        return [atom.predicate for atom in self.form.atoms]

    # What comes.

    def join(self, atom: int | None, rows: Iterable[Row] | None, tick: bool = False) -> None:
        """Find the matches that have one of the rows at an atom (all matches without one)."""
        if self.joins.empty:
            return
        join: Join = self.joins.join(atom, tick)
        self.refresh()
        self.foresees = self.foresees and join.bounded
        upper = END if self.foresees else self._present.now + 1
        timer = self._present.timer
        began = timer() if timer is not None else 0.0
        join.run(
            rows, self._take, self._take_failed, self._take_failed_clock, self.joins.absent, upper
        )
        if timer is not None:
            self.seconds += timer() - began

    def refresh(self) -> None:
        """Look at matches by functions that are made for the tables as they are."""
        shape = self.joins.shape()
        if shape != self._shape and (self._store or not self.joins.empty):
            self._names_now = self.joins.names()
            self._head = self._names_now["head"]
            self._shape = shape

    def _take(
        self, rows: tuple[Row, ...], values: tuple[Any, ...], _: Instant, __: Instant
    ) -> None:
        self.found += 1
        keys = tuple([row[TIME:] for row in rows])
        known = self._store.get(keys)
        if known is not None:
            if known.reason is None and self._same(known.rows, rows):
                return
            self._let_go(known)
            known.rows, known.values, known.reason = rows, values, None
        else:
            known = Match(self, keys, rows, values)
        self._keep(known)

    def _same(self, rows: Sequence[Row], others: Sequence[Row]) -> bool:
        return all(rows[i] is others[i] for i in self.joins.ordinary)

    def _take_failed(self, reason: str, _: Instant, __: Instant, rows: tuple[Row, ...]) -> None:
        keys = tuple([row[TIME:] for row in rows])
        known = self._store.get(keys)
        if known is not None:
            if known.reason == reason and self._same(known.rows, rows):
                return
            self._let_go(known)
        match = Match(self, keys, rows, None)
        match.reason = reason
        self._keep(match)

    def _take_failed_clock(
        self, reason: str, _: Instant, __: Instant, rows: tuple[Row, ...]
    ) -> None:
        keys = tuple([row[TIME:] for row in rows])
        known = self._failed_clocks.get(keys)
        if known is not None:
            if known.reason == reason:
                return
            self._let_go_clock(known)
        match = Match(self, keys, rows, None)
        match.reason = reason
        self._failed_clocks[keys] = match
        for i, key in zip(self.joins.ordinary, keys, strict=True):
            _put(self._uses[i], key, match)
        names = [self.form.atoms[i].predicate for i in self.joins.ordinary]
        self._fail(match, self._present.match_text(reason, names, rows))

    def _keep(self, match: Match) -> None:
        self._store[match.keys] = match
        uses = self._uses
        for i in self.joins.ordinary:
            _put(uses[i], match.keys[i], match)
        if match.reason is None and self._absences:
            self._ask(match)
        if self.joins.clocks:
            match.begins = max(match.rows[i][TIME] for i in self.joins.clocks)
            if match.begins > self._present.now:
                self._later(match.begins, lambda: self._come(match))
        self.reconsider(match)

    def _ask(self, match: Match) -> None:
        """Find out what the atoms under `not` ask for, and whether it is there."""
        names = self._names_now
        match.waits, match.blocked = [], []
        for number, absence in enumerate(self._absences):
            try:
                wanted = names[f"wanted{number}"](match.rows, match.values)
                blocked = absence.blocks(wanted, match, self)
            except Failed as failed:
                match.waits.append(failed)
                match.blocked.append(False)
                continue
            match.waits.append(wanted)
            match.blocked.append(blocked)
            _put(absence.waiting, absence.place(wanted), match)

    # What goes.

    def using(self, atom: int, key: Key) -> Sequence[Match]:
        """The matches that have a fact at an atom."""
        known = self._uses[atom].get(key)
        return list(known) if known else ()

    def remove(self, match: Match) -> None:
        """Let a match go and withdraw what it contributed."""
        if match.values is None and self._failed_clocks.get(match.keys) is match:
            self._let_go_clock(match)
        else:
            self._let_go(match)

    def _let_go(self, match: Match) -> None:
        del self._store[match.keys]
        for i in self.joins.ordinary:
            _take_out(self._uses[i], match.keys[i], match)
        for absence, wanted in zip(self._absences, match.waits, strict=False):
            if not isinstance(wanted, Failed):
                _take_out(absence.waiting, absence.place(wanted), match)
        match.waits = match.blocked = _NONE
        self.withdraw(match)

    def _let_go_clock(self, match: Match) -> None:
        del self._failed_clocks[match.keys]
        for i, key in zip(self.joins.ordinary, match.keys, strict=True):
            _take_out(self._uses[i], key, match)
        self.withdraw(match)

    def holds(self, match: Match) -> bool:
        """Whether the match is still kept."""
        return self._store.get(match.keys) is match

    # What a match contributes.

    def toggled(
        self, absent: int, old: Row | None, new: Row | None
    ) -> Iterator[tuple[Match, bool]]:
        """Matches for which an atom under `not` is answered otherwise since a fact changed."""
        absence = self._absences[absent]
        for place in absence.places(old, new):
            for match in list(absence.waiting.get(place, ())):
                blocked = absence.blocks(match.waits[absent], match, self)
                if blocked != match.blocked[absent]:
                    match.blocked[absent] = blocked
                    yield match, blocked

    def recheck(self, match: Match) -> None:
        """Ask again whether the clocks under `not` have ticked."""
        if not self.holds(match):
            return
        for number, absence in enumerate(self._absences):
            if absence.form.is_clock and not isinstance(match.waits[number], Failed):
                match.blocked[number] = absence.blocks(match.waits[number], match, self)
        self.reconsider(match)

    def reconsider(self, match: Match) -> None:
        """Let the match contribute what it should now."""
        self.withdraw(match)
        if match.begins > self._present.now:
            return
        reason = match.reason
        if reason is None and match.waits:
            for wanted, blocked in zip(match.waits, match.blocked, strict=True):
                if isinstance(wanted, Failed):
                    reason = wanted.reason
                    break
                if blocked:
                    return
        if reason is None:
            try:
                self._contribute(match)
            except Failed as failed:
                reason = failed.reason
        if reason is not None:
            text = self._present.match_text(reason, self.predicates, match.rows, self._told)
            self._fail(match, text)

    def _fail(self, match: Match, text: str) -> None:
        if not self._silent:
            match.error = text
            self._present.errors.add(self.form.number, text)

    def _contribute(self, match: Match) -> None:
        arguments, time, expires, values, passed = self._head(match.rows, match.values)
        head, now = self.form.head, self._present.now
        if head.expires and expires <= now:
            return
        if head.time and time > now:
            self._later(time, lambda: self._come(match))
            return
        if self.established is not None:
            identity = self._names_now["identity"](match.rows, match.values)
            self.established.note(identity, arguments, time, expires, values, passed)
            return
        identity = None
        if self._tallied:
            identity = self._names_now["identity"](match.rows, match.values)
        match.home = self.enter(match, arguments, time, expires, values, passed, identity)

    def _later(self, at: Instant, happen: Callable[[], None]) -> None:
        """Let something happen at a later instant, when what changes then is followed."""
        self._present.agenda.add(at, lambda: self._target.defer(happen))

    def _come(self, match: Match) -> None:
        """The tick, or the head time, of a match has come."""
        if self.holds(match) and match.home is None and match.error is None:
            self.reconsider(match)

    def enter(
        self,
        source: Any,
        arguments: tuple[Any, ...],
        time: int | None,
        expires: Instant,
        values: tuple[Any, ...],
        passed: Parafacts,
        identity: Any,
    ) -> Any:
        """Contribute one living solution; where it went."""
        if self._groups is None:
            key = (time, *arguments)
            if self._decorates:
                lattices = self._present.lattices
                passed = merge_parafacts(passed, decorate(self._names, values, lattices), lattices)
            value = PLAIN if expires == END and passed is None else (expires, passed)
            self._target.support(self.predicate, key, source, value)
            return key
        return self._groups.enter(source, arguments, (time, expires, values, passed, identity))

    def leave(self, source: Any, home: Any) -> None:
        """Take back what `enter` contributed."""
        if self._groups is None:
            self._target.withdraw(self.predicate, home, source)
            return
        self._groups.leave(source, home)

    def withdraw(self, match: Match) -> None:
        """Take back what a match contributes."""
        if match.home is not None:
            self.leave(match, match.home)
            match.home = None
        if match.error is not None:
            self._present.errors.remove(self.form.number, match.error)
            match.error = None

    def settle(self) -> None:
        """Let the groups that changed support what they now say."""
        if self._groups is not None:
            self._groups.settle()


class _Absence:
    """One atom under `not`: the matches that wait for it, by the place where what they ask for
    would be.
    """

    def __init__(self, form: AbsentForm, present: Present) -> None:
        self.form = form
        self._by_columns = form.by_columns
        self.waiting: dict[Any, dict[Match, None] | tuple[Match, ...]] = {}
        self._present = present
        self._arity = len(form.terms)
        self._sizes = [(name, len(terms)) for name, terms in form.lattices]
        self._seen: Callable[..., Any] = observer(present.lattices)
        if form.is_clock:
            return
        self.table = present.table(form.predicate)
        if self._by_columns:
            self._positions = tuple(position for position, _ in form.columns())
        else:
            self._positions = tuple(
                at for at, term in enumerate(form.terms, 1) if not isinstance(term, Wildcard)
            )
        self._key_at = self.table.key_at(self._positions)
        self._index = self.table.index(self._positions)
        if form.widened:
            self._key_at = self._widened_key

    def place(self, wanted: Any) -> Any:
        """The key in the index of what a match asks for."""
        if self._by_columns or self.form.is_clock:
            return wanted
        known = tuple(wanted[position - 1] for position in self._positions)
        return known[0] if len(known) == 1 else known

    def _widened_key(self, row: Row) -> Any:
        """What stands for a row where floats are asked of its whole numbers."""
        known = tuple(
            widen(row[TIME + at]) if at in self.form.widened else row[TIME + at]
            for at in self._positions
        )
        return known[0] if len(known) == 1 else known

    def places(self, old: Row | None, new: Row | None) -> set[Any]:
        """Where the index may answer otherwise after a change of one fact."""
        return {self._key_at(row) for row in (old, new) if row is not None}

    def blocks(self, wanted: Any, match: Match, matches: Matches) -> bool:
        """Whether a fact as asked for is there. Raises: Failed for a clock that cannot be used."""
        if self._by_columns:
            return wanted in self._index
        if self.form.is_clock:
            return self._clock_blocks(wanted, match, matches)
        lattices = wanted[self._arity :]
        if self.form.widened:
            rows = rows_like(self.table, wanted[: self._arity], self.form.widened)
        else:
            rows = self._index.get(self.place(wanted), ())
        return any(self._carries(row, lattices) for row in rows)

    def _carries(self, row: Row, lattices: Sequence[Any]) -> bool:
        at = 0
        for name, size in self._sizes:
            if not carries(row, name, lattices[at : at + size], self._seen):
                return False
            at += size
        return True

    def _clock_blocks(self, wanted: Any, match: Match, matches: Matches) -> bool:
        offset, period = usable_clock(wanted[0], wanted[1])
        first: int | None = offset
        at = 2
        for name, size in self._sizes:
            term = wanted[at]
            at += size
            if term is ANY_VALUE:
                continue
            if name == "time":
                ticks = type(term) is int and term >= offset and not (term - offset) % period
                first = term if ticks else None
            elif name != "expires" or term != float("inf"):
                return False
            if first is None:
                return False
        assert first is not None
        if first > self._present.now:
            matches._later(first, lambda: matches.recheck(match))
            return False
        return True
