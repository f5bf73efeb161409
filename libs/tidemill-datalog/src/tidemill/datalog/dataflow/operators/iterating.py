"""Recursion: the facts of predicates that are derived from each other, to their fixed point.

Additions go round by round: the facts that are new in a round are matched in the next one. Facts
that end by themselves cost nothing when they end, for their derivations end with them. A retraction
from an input of the recursion makes it find its facts again from that instant on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tidemill.arrangement.interval_updates import Arrangement, Change, Merged
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.dataflow.operators.regrouping import differing
from tidemill.datalog.dataflow.plan import DeltaPlan
from tidemill.datalog.evaluation.limits import LimitPassed

Derive = Callable[[int, DeltaPlan, Change], Change]
"""The rows that a rule, by its number in the recursion, derives from a change."""


class Iteration:
    """The facts of one recursive component.

    `rules` are the predicate and the delta plans of each rule, those that begin with one changed
    atom. `forget` takes back from an instant on the errors of a rule. Facts are kept without spare
    derivations, which may rest on each other.
    """

    def __init__(
        self,
        merged: Mapping[str, Merged],
        rules: Sequence[tuple[str, Sequence[DeltaPlan]]],
        derive: Derive,
        forget: Callable[[int, int], None],
        rounds_max: int,
    ) -> None:
        self._forget = forget
        self._merged = merged
        self._rules = rules
        self._derive = derive
        self._rounds_max = rounds_max
        self._inner: dict[str, list[tuple[int, DeltaPlan]]] = {name: [] for name in merged}
        self._outer: list[tuple[int, DeltaPlan]] = []
        for number, (_, deltas) in enumerate(rules):
            for delta in deltas:
                if delta.source in merged:
                    self._inner[delta.source].append((number, delta))
            if not any(delta.source in merged for delta in deltas):
                self._outer.append((number, deltas[0]))
        self._waiting: list[tuple[int, DeltaPlan, Change]] = []

    def put(self, rule: int, delta: DeltaPlan, change: Change) -> None:
        """A change of what a rule reads outside of the recursion waits."""
        self._waiting.append((rule, delta, change))

    def take(self, facts: Mapping[str, Arrangement]) -> Iterable[tuple[str, Change]]:
        """Take in all that waits; what that changes of the predicates.

        Raises: LimitPassed beyond the rounds that are allowed. Cost: the matches that come; with
        a retraction, all facts that hold from then on.
        """
        waiting, self._waiting = self._waiting, []
        if any(bool((change[:, -1] * delta.sign < 0).any()) for _, delta, change in waiting):
            first = min(int(change[:, -3].min()) for _, _, change in waiting)
            return self._anew(first, facts)
        told: dict[str, list[Change]] = {}
        new: dict[str, list[Change]] = {}
        for number, delta, change in waiting:
            self._add(number, self._derive(number, delta, change), new, told)
        self._rounds(new, told)
        return [(name, np.concatenate(parts)) for name, parts in told.items()]

    def _add(
        self, number: int, rows: Change, new: dict[str, list[Change]],
        told: dict[str, list[Change]],
    ) -> None:  # fmt: skip
        """Take derived facts in; new ones are matched in the next round."""
        if not len(rows):
            return
        name = self._rules[number][0]
        change = self._merged[name].take(rows)
        if len(change):
            told.setdefault(name, []).append(change)
            new.setdefault(name, []).append(change[change[:, -1] > 0])

    def _rounds(self, new: dict[str, list[Change]], told: dict[str, list[Change]]) -> None:
        rounds = 0
        while new:
            rounds += 1
            if rounds > self._rounds_max:
                raise LimitPassed(f"a recursion took more than {self._rounds_max:,} rounds")
            found, new = new, {}
            for name, parts in found.items():
                change = parts[0] if len(parts) == 1 else np.concatenate(parts)
                for number, delta in self._inner[name]:
                    self._add(number, self._derive(number, delta, change), new, told)

    def _anew(self, first: int, facts: Mapping[str, Arrangement]) -> list[tuple[str, Change]]:
        """Find the facts from an instant on again; what differs."""
        for number in range(len(self._rules)):
            self._forget(number, first)
        before = {}
        for name, merged in self._merged.items():
            rows = merged.facts.living()
            before[name] = from_instant(rows, first, -1)
            kept = rows[rows[:, -2] < first].copy()
            kept[:, -1] = np.minimum(kept[:, -1], first)
            merged.begin_again(kept)
        new: dict[str, list[Change]] = {}
        told: dict[str, list[Change]] = {}
        for number, delta in self._outer:
            source = from_instant(facts[delta.source].living(), first, 1)
            self._add(number, self._derive(number, delta, source), new, told)
        self._rounds(new, told)
        found = []
        for name, merged in self._merged.items():
            after = from_instant(merged.facts.living(), first, 1)
            found.append((name, differing(np.concatenate([before[name], after]))))
        return found


def from_instant(rows: I64Array, first: int, diff: int) -> Change:
    """Rows as a change, their intervals from an instant on."""
    rows = rows[rows[:, -1] > first]
    found = np.empty((len(rows), rows.shape[1] + 1), np.int64)
    found[:, :-1], found[:, -1] = rows, diff
    found[:, -3] = np.maximum(found[:, -3], first)
    return found
