"""Recursion: the facts of predicates that are derived from each other, to their fixed point.

Changes go round by round: each round matches the changes of the round before. Each fact has an
age, by the order in which facts came. It was derived from older facts, or from facts that end later
than it. A fact that has lost a derivation stays where it has another one from older facts, which do
not rest on it. All others go, and what was derived from them may have lost a derivation too. The
rules then derive again, on the intervals that were lost, the facts that still hold. Facts that end
by themselves cost nothing when they end, for their derivations end with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tidemill.arrangement.interval_updates import (
    AT_MOST,
    BEGIN_WORD,
    Arrangement,
    Change,
    JoinShape,
    Merged,
    join,
    net_moves,
    subtract,
)
from tidemill.arrangement.looks import look
from tidemill.datalog.dataflow.plan import DeltaPlan, RulePlan
from tidemill.datalog.dataflow.schema import Schema
from tidemill.datalog.limits import Limits

Derive = Callable[[int, DeltaPlan, Change], Change]
"""The rows that a rule, by its number in the recursion, derives from a change."""
Parts = dict[str, list[Change]]
"""Rows by predicate."""
_NONE = np.empty((2, 0), np.int64)


class Iteration:
    """The facts of one recursive component.

    `rules` derive the predicates of `merged`, which are aged. `again` derives rows for facts that a
    rule, by its number, may derive from older facts than they ask for. `lost` are the parts of rows
    of a collection that no later end replaces. Each change is told at once, so readers match it
    with what holds just then. Facts are kept without spare derivations, which may rest on each
    other.
    """

    def __init__(
        self,
        merged: Mapping[str, Merged],
        schemas: Mapping[str, Schema],
        rules: Sequence[RulePlan],
        derive: Derive,
        again: Callable[[int, Change], Change],
        lost: Callable[[str, Change], Change],
        tell: Callable[[str, Change], None],
        limits: Limits,
    ) -> None:
        self._merged = merged
        self._schemas = schemas
        self._youngest = 0
        self._lost = lost
        self._tell = tell
        self._rules = rules
        self._heads = [rule.form.head.predicate for rule in rules]
        self._derive = derive
        self._again = again
        self._limits = limits
        self._inner: dict[str, list[tuple[int, DeltaPlan]]] = {name: [] for name in merged}
        for number, rule in enumerate(rules):
            for delta in rule.deltas:
                if delta.source in self._inner:
                    self._inner[delta.source].append((number, delta))
        self._unruly = any(
            self._schemas[rule.form.head.predicate].ordered
            and sum(atom.predicate in merged for atom in rule.form.atoms) > 1
            for rule in rules
        )
        self._waiting: Parts = {}
        self._keys = {name: np.arange(schemas[name].expiry) for name in merged}
        self._supports = {name: _supports(schemas[name]) for name in merged}
        self._known = [_asked_columns(rule) for rule in rules]

    def put(self, rule: int, delta: DeltaPlan, change: Change) -> None:
        """Take a change of what a rule reads outside of the recursion; what it derives waits.

        Each change is matched with what holds once it is taken in, so that errors are counted.
        A fact that only ends later than before is no loss, but to a rule that is exact.
        """
        if self._rules[rule].exact:
            self._wait(rule, self._derived(rule, delta, change))
            return
        goes = change[:, -1] > 0 if delta.absent else change[:, -1] < 0
        if goes.any():
            gone = change[goes]
            if not delta.absent:
                gone = self._lost(delta.source, gone)
            self._wait(rule, self._derived(rule, delta, gone))
            change = change[~goes]
        if delta.alone:
            self._wait(rule, self._derived(rule, delta, change))

    def _wait(self, rule: int, rows: Change) -> None:
        if len(rows):
            self._waiting.setdefault(self._heads[rule], []).append(rows)

    def take(self) -> None:
        """Take in all that waits.

        Raises: LimitPassed beyond the rounds that are allowed. Cost: the matches that come; those
        that go, and twice what rests on them.
        """
        waiting, self._waiting = self._waiting, {}
        gains, losses = Parts(), Parts()
        for name, parts in waiting.items():
            rows = joined(parts)
            comes = rows[:, -1] > 0
            gains[name] = [rows[comes]]
            if not comes.all():
                losses[name] = [rows[~comes]]
        if losses:
            self._retract(losses, gains)
        self._extend(gains)

    def _extend(self, gains: Parts) -> None:
        """Take derivations in, and what follows from them."""
        rounds = 0
        while gains:
            found, gains = gains, {}
            for name, parts in found.items():
                change = self._merged[name].take(self._aged(name, joined(parts)))
                for number, delta in self._inner[name]:
                    part = change
                    if not self._rules[number].exact:
                        part = change[change[:, -1] > 0]
                        if not delta.alone:
                            continue
                    # A fact that ends later replaces each one that goes, and so on in the head.
                    rows = self._derived(number, delta, part)
                    rows = rows[rows[:, -1] > 0]
                    if len(rows):
                        gains.setdefault(self._heads[number], []).append(rows)
                self._tell_ageless(name, change)
            rounds += 1
            self._limits.require_rounds(rounds)
            look()

    def _derived(self, rule: int, delta: DeltaPlan, change: Change) -> Change:
        """The rows that a rule derives; whether one wins over the fact that it follows from."""
        rows = self._derive(rule, delta, change)
        schema = self._schemas[self._heads[rule]]
        if schema.ordered and not self._unruly and len(rows):
            self._unruly = bool((rows[:, schema.order] > rows[:, schema.age]).any())
        return rows

    def _aged(self, name: str, rows: Change) -> Change:
        """Rows of facts that come now, with their age."""
        self._youngest -= len(rows)
        rows[:, self._schemas[name].age] = np.arange(self._youngest + len(rows), self._youngest, -1)
        return rows

    def _tell_ageless(self, name: str, change: Change) -> None:
        change[:, self._schemas[name].age] = 0
        self._tell(name, change)

    def _retract(self, losses: Parts, gains: Parts) -> None:
        """Take away the facts that may have no derivation left, and what was derived from them.

        Derivations of them that are left are put to `gains`, of which those of lost facts go.
        """
        gone: Parts = {}
        lost: Parts = {}
        rounds = 0
        while losses:
            found, losses = losses, {}
            for name, parts in found.items():
                rows = joined(parts)
                lost.setdefault(name, []).append(rows)
                change = self._merged[name].drop(self._unsupported(name, rows))
                if not len(change):
                    continue
                gone.setdefault(name, []).append(change.copy())
                for number, delta in self._inner[name]:
                    rows = self._derive(number, delta, change)
                    if len(rows):
                        losses.setdefault(self._heads[number], []).append(rows)
                self._tell_ageless(name, change)
            rounds += 1
            self._limits.require_rounds(rounds)
        for name, parts in gains.items():
            if name in lost:
                self._without(name, parts, joined(lost[name]), gone)
        for number, name in enumerate(self._heads):
            if name in gone:
                asked = joined(gone[name])
                asked[:, self._schemas[name].age] = BEGIN_WORD
                rows = self._again(number, self._asked(number, asked))
                if len(rows):
                    gains.setdefault(name, []).append(rows)

    def _unsupported(self, name: str, lost: Change) -> Change:
        """Facts that have lost derivations, where they have none from older facts.

        In an unruly recursion they are all facts of which any derivation is lost.
        """
        nulls, order = self._schemas[name].nulls, self._schemas[name].order
        key, shape = self._keys[name], self._supports[name][self._unruly]
        asking = np.empty((len(lost), lost.shape[1] + 1), np.int64)
        asking[:, :nulls], asking[:, nulls] = lost[:, :nulls], lost[:, order]
        asking[:, nulls + 1 :], asking[:, -1] = lost[:, nulls:], 1
        met = join(asking, self._merged[name].facts, shape)
        facts = np.empty((len(met), lost.shape[1]), np.int64)
        facts[:, :nulls], facts[:, nulls:] = met[:, :nulls], met[:, nulls + 1 :]
        facts = net_moves(facts)
        facts[:, -1] = 1
        for number, head in enumerate(self._heads):
            if head == name and len(facts) and not self._unruly:
                found = self._again(number, self._asked(number, facts))
                if len(found):
                    supported = Arrangement.of_change(found)
                    facts = subtract(facts, supported, key, key, (order, order))
        return facts

    def _without(self, name: str, parts: list[Change], lost: Change, gone: Parts) -> None:
        """Take what may rest on lost facts from derivations; it is asked for again."""
        order, key = self._schemas[name].order, self._keys[name]
        least = (-1, -1) if self._unruly else (order, order)
        rows = joined(parts)
        kept = subtract(rows, Arrangement.of_change(lost), key, key, least)
        rest = subtract(rows, Arrangement.of_change(kept), key, key, least)
        parts[:] = [kept]
        if len(rest):
            gone.setdefault(name, []).append(rest)

    def _asked(self, number: int, gone: Change) -> Change:
        """Facts as a rule asks for them: once for the columns that it knows of them.

        The age of the oldest of them is in the place of the expiry.
        """
        known, schema = self._known[number], self._schemas[self._heads[number]]
        expiry = schema.expiry
        gone = gone.copy()
        gone[:, expiry], gone[:, -1] = gone[:, schema.age], 1
        untimed = bool((gone[:, -4] & 1).all())
        if known.issuperset(range(untimed, expiry)):
            return gone
        asked = Merged(gone.shape[1] - 3, sorted(known - {expiry}), expiry, best_only=True)
        asked.take(gone)
        rows = asked.facts.living()
        found = np.ones((len(rows), rows.shape[1] + 1), np.int64)
        found[:, :-1] = rows
        return found


def _supports(schema: Schema) -> tuple[JoinShape, JoinShape]:
    """Facts of lost rows, which have an order before their nulls: as old at most, and any."""
    key, values = np.arange(schema.expiry), np.arange(schema.expiry, schema.nulls)
    any_ = JoinShape(np.stack([key, key]), np.stack([values, values]), _NONE, False, -1)
    older = np.array([[AT_MOST, schema.order, schema.nulls, 0]])
    return replace(any_, guards=older), any_


def _asked_columns(rule: RulePlan) -> frozenset[int]:
    """The columns of facts of its head that a rule knows when it is asked for them again."""
    assert rule.again is not None
    shape = rule.again.begin
    return frozenset(
        [*shape.keys[1].tolist(), *shape.copies[1].tolist(), *shape.checks[1].tolist()]
    )


def joined(parts: Sequence[Change]) -> Change:
    """Changes as one."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
