"""Recursion of facts that carry lattices: values only grow until nothing changes.

A fact that grows is matched anew, and its old matches are taken back, in one change. Every rule
gives more for more, so no value is ever less than before on the way. An input of the recursion that
says less makes it find its facts again from that instant on. A rule that remembers has a clock or
an end of its own. It is told of all facts that go, and says which of its rows go on without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tidemill.arrangement.interval_updates import Change, Facts, net_moves
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.dataflow.operators.iterating import Derive
from tidemill.datalog.dataflow.plan import DeltaPlan
from tidemill.datalog.limits import Limits


class Growth:
    """The facts of a recursive component in which some carry lattices, or some rules remember.

    `rules` are the predicate and the delta plans of each rule. `merge` takes in what rules derive
    of a predicate, and gives the change of its facts. `cut` forgets what holds of one from an
    instant on, and gives rows of lives that this has cut. `forget` takes back from an instant on
    the errors of a rule. `kept` are the rows that a rule which `remembers` derives from then on.
    """

    def __init__(
        self,
        predicates: Sequence[str],
        rules: Sequence[tuple[str, Sequence[DeltaPlan]]],
        derive: Derive,
        merge: Callable[[str, Change], Change],
        cut: Callable[[str, int], Change],
        forget: Callable[[int, int], None],
        kept: Callable[[int, int], Change],
        remembers: Sequence[bool],
        limits: Limits,
    ) -> None:
        self._predicates = predicates
        self._merge = merge
        self._cut = cut
        self._rules = rules
        self._derive = derive
        self._forget = forget
        self._kept = kept
        self._remembers = remembers
        self._limits = limits
        self._inner: dict[str, list[tuple[int, DeltaPlan]]] = {name: [] for name in predicates}
        self._outer: list[tuple[int, DeltaPlan]] = []
        for number, (_, deltas) in enumerate(rules):
            mine = [delta for delta in deltas if delta.source in predicates]
            for delta in mine:
                self._inner[delta.source].append((number, delta))
            if not mine and not remembers[number]:
                self._outer.append((number, deltas[0]))
        self._waiting: dict[str, list[Change]] = {}
        self._since: int | None = None
        self._anew_from: int | None = None

    def put(self, rule: int, delta: DeltaPlan, change: Change) -> None:
        """A change of what a rule reads outside of the recursion: its matches wait."""
        first = int(change[:, -3].min())
        self._since = first if self._since is None else min(first, self._since)
        if self._anew_from is not None or (change[:, -1] * delta.sign < 0).any():
            self._anew_from = self._since
        if self._anew_from is None or self._remembers[rule]:
            self._hand_on(rule, delta, change)

    def wait(self, rule: int, rows: Change) -> None:
        """Rows that a rule derives by itself, in the course of time, wait."""
        if len(rows):
            first = int(rows[:, -3].min())
            self._since = first if self._since is None else min(first, self._since)
            self._anew_from = None if self._anew_from is None else self._since
            self._waiting.setdefault(self._rules[rule][0], []).append(rows)

    def _hand_on(self, rule: int, delta: DeltaPlan, change: Change) -> None:
        rows = self._derive(rule, delta, change)
        if len(rows):
            self._waiting.setdefault(self._rules[rule][0], []).append(rows)

    def take(self, facts: Mapping[str, Facts]) -> Iterable[tuple[str, Change]]:
        """Take in all that waits; what that changes of the predicates.

        Raises: LimitPassed beyond the rounds that are allowed. Cost: the matches that come; where
        something is taken away, all facts that hold from then on.
        """
        anew, self._anew_from, self._since = self._anew_from, None, None
        before = {}
        if anew is not None:
            before = self._begin_again(anew, facts)
        told = self._grow()
        if anew is not None:
            for name in self._predicates:
                after = from_instant(facts[name].living(), anew, 1)
                told[name] = [before[name], after]
        return [(name, net_moves(np.concatenate(parts))) for name, parts in told.items()]

    def _begin_again(self, first: int, facts: Mapping[str, Facts]) -> dict[str, Change]:
        """Forget what holds from an instant on, and what waits, and match the inputs again."""
        before, living = {}, {}
        for name in self._predicates:
            before[name] = from_instant(facts[name].living(), first, -1)
            living[name] = self._cut(name, first)
            for number, delta in self._inner[name]:
                if self._remembers[number]:
                    self._derive(number, delta, before[name])
        self._waiting = {name: [cut] for name, cut in living.items() if len(cut)}
        for number, (name, _) in enumerate(self._rules):
            if not self._remembers[number]:
                self._forget(number, first)
            elif len(rows := self._kept(number, first)):
                self._waiting.setdefault(name, []).append(rows)
        for number, delta in self._outer:
            self._hand_on(number, delta, from_instant(facts[delta.source].living(), first, 1))
        return before

    def _grow(self) -> dict[str, list[Change]]:
        rounds, told = 0, dict[str, list[Change]]()
        while self._waiting:
            rounds += 1
            self._limits.require_rounds(rounds, len(self._predicates))
            name = next(iter(self._waiting))
            change = self._merge(name, np.concatenate(self._waiting.pop(name)))
            if len(change):
                told.setdefault(name, []).append(change)
                for number, delta in self._inner[name]:
                    self._hand_on(number, delta, change)
        return told


def from_instant(rows: I64Array, first: int, diff: int) -> Change:
    """Rows as a change, their intervals from an instant on."""
    rows = rows[rows[:, -1] > first]
    found = np.empty((len(rows), rows.shape[1] + 1), np.int64)
    found[:, :-1], found[:, -1] = rows, diff
    found[:, -3] = np.maximum(found[:, -3], first)
    return found
