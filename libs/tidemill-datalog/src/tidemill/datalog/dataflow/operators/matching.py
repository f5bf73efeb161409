"""The matches of one rule: what the change of a collection becomes on its way to the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from tidemill.arrangement.interval_updates import (
    BEGIN_WORD,
    END_WORD,
    Arrangement,
    Change,
    Facts,
    begin,
    join,
    no_change,
    project,
    subtract,
)
from tidemill.arrangement.kernels import BoolArray
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.expressions import Expressions
from tidemill.datalog.dataflow.operators.clock import OpenClock, Ticks, first_tick
from tidemill.datalog.dataflow.operators.errors import Errors
from tidemill.datalog.dataflow.operators.seeing import pass_on, see
from tidemill.datalog.dataflow.ordering import put_in_order
from tidemill.datalog.dataflow.plan import (
    Clock,
    Compute,
    DeltaPlan,
    Filter,
    Join,
    Operator,
    RulePlan,
    See,
    Subtract,
    Untick,
)
from tidemill.datalog.dataflow.schema import TIME, Schema, value_of
from tidemill.datalog.logical.forms import Expression, Type
from tidemill.datalog.presence import fact_text
from tidemill.datalog.values import OVERFLOW, WRONG_TYPE, Failed

PIECE_ROWS = 1 << 15
"""Rows of a change that are matched at once."""


class Matches:
    """The stateless operators of one rule, from the change of a collection to rows of its head."""

    def __init__(
        self, plan: RulePlan, schemas: Mapping[str, Schema], texts: Texts, errors: Errors,
        allowance: Allowance,
    ) -> None:  # fmt: skip
        self.plan = plan
        self._schemas = schemas
        self._texts = texts
        self._errors = errors
        self.allowance = allowance
        self.expressions = Expressions(plan.columns, plan.scope, texts, allowance)
        self._ticks: dict[int, Ticks] = {}
        self._open: dict[int, OpenClock] = {}
        self._upper = BEGIN_WORD

    def solutions(
        self, delta: DeltaPlan, change: Change, facts: Mapping[str, Facts],
        then: Callable[[Change], Change] = lambda matches: matches,
    ) -> Change:  # fmt: skip
        """The matches of a change of which no argument of the head fails, from when they derive it.

        A large change is matched in pieces that stay in the processor's cache, and `then` makes
        something else of each of these.
        """
        if any(
            isinstance(step, Join) and not step.changed and not len(facts[step.collection])
            for step in delta.steps
        ):
            return then(no_change(self.plan.columns.width))
        parts = []
        size = PIECE_ROWS if delta.alone else max(len(change), 1)
        for first in range(0, max(len(change), 1), size):
            matches = self.of_change(delta, change[first : first + size], facts)
            parts.append(then(self.solved(matches)))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def solved(self, matches: Change) -> Change:
        """The matches of which no argument of the head fails, from when they derive it."""
        return self.timed(self.sound(matches)) if len(matches) else matches

    def of_change(self, delta: DeltaPlan, change: Change, facts: Mapping[str, Facts]) -> Change:
        """The matches that come and go with the change of the source of a delta plan."""
        matches = begin(change, self.plan.columns.template, delta.begin)
        if delta.sign < 0:
            matches[:, -1] *= -1
        return self.completed(matches, delta.steps, change, facts)

    def completed(
        self, matches: Change, steps: Sequence[Operator], change: Change,
        facts: Mapping[str, Facts],
    ) -> Change:  # fmt: skip
        """Matches completed by steps; `change` is what changed in the first place."""
        changed: Arrangement | None = None
        for step in steps:
            if not len(matches):
                break
            match step:
                case Join():
                    right = facts[step.collection]
                    if step.changed:
                        right = changed = changed or Arrangement.of_change(change)
                    matches = join(matches, right, step.shape, self.allowance.require)
                case Subtract():
                    matches = subtract(matches, facts[step.collection], step.columns, step.theirs)
                case Filter():
                    matches = self._filter(step, matches)
                case Compute():
                    matches = self._compute(step, matches)
                case Clock():
                    matches = self._clock(step, matches)
                case Untick():
                    matches = self._untick(step, matches)
                case See():
                    matches = see(step, matches, self.plan.columns, self._texts)
        return matches

    def _filter(self, step: Filter, matches: Change) -> Change:
        kept, failures = self.expressions.truth(step.condition, matches)
        self.fail(failures, matches, step.silent)
        rest: Change = matches if kept.all() else matches[kept]
        return rest

    def _compute(self, step: Compute, matches: Change) -> Change:
        words, nulls, failures = self.expressions.words(step.expression, step.kind, matches)
        kept = self.fail(failures, matches, step.silent)
        column, mask = step.column, matches[:, self.plan.columns.nulls]
        null = np.zeros(len(matches), np.int64) if nulls is None else nulls.astype(np.int64)
        if step.check:
            same = (matches[:, column] == words) & ((mask >> column & 1) == null)
            agreeing: Change = matches[same if kept is None else same & kept]
            return agreeing
        matches[:, column] = words
        matches[:, self.plan.columns.nulls] = mask & ~(1 << column) | null << column
        sound: Change = matches if kept is None else matches[kept]
        return sound

    def _ticks_of(self, step: Clock) -> Ticks:
        ticks = self._ticks.get(id(step))
        if ticks is None:
            ticks = self._ticks[id(step)] = Ticks(step, self.expressions)
        return ticks

    def _clock(self, step: Clock, matches: Change) -> Change:
        ticks = self._ticks_of(step)

        def fail(reason: str, failed: Change) -> None:
            for match in failed.tolist() if not step.silent else ():
                self._report(reason, match, clocks=False)

        return ticks.apply(matches, fail, self._open_clock(ticks), not step.silent)

    def _untick(self, step: Untick, matches: Change) -> Change:
        """Matches until a clock ticks as asked: a tick is there from its time on for ever."""
        ends, failures = np.full(len(matches), END_WORD), list[tuple[int, str]]()
        for row, match in enumerate(matches):
            try:
                ends[row] = first_tick(step, partial(self.expressions.value, match=match))
            except Failed as failed:
                failures.append((row, failed.reason))
        kept = self.fail(failures, matches, step.silent)
        matches[:, -2] = np.minimum(matches[:, -2], ends)
        holds = matches[:, -3] < matches[:, -2]
        return matches[holds if kept is None else holds & kept]

    def _open_clock(self, ticks: Ticks) -> OpenClock:
        known = self._open.get(ticks.atom)
        if known is None:
            known = self._open[ticks.atom] = OpenClock(self.plan.columns.width)
            known.upper = self._upper
        return known

    def go_on(self, upper: int, facts: Mapping[str, Facts]) -> Change:
        """The solutions by ticks that a later frontier has reached.

        It is called before the facts of the step are told. Cost: the matches of clocks without an
        upper limit.
        """
        self._upper = upper
        if not self._open:
            return no_change(self.plan.columns.width)
        for open_ in self._open.values():
            open_.go_on(upper)
        nothing = no_change(self.plan.columns.width)
        steps, found = self.plan.deltas[0].steps, [nothing]
        for at in range(len(steps) - 1, -1, -1):  # the last clock first: it keeps what others tell
            step = steps[at]
            if isinstance(step, Clock) and step.columns[1] in self._open:
                ticks = self._ticks_of(step)
                due = ticks.due(self._open[ticks.atom])
                found.append(self.solved(self.completed(due, steps[at + 1 :], nothing, facts)))
        return np.concatenate(found)

    def soonest(self) -> int:
        """The first tick to come of a clock without an upper limit."""
        return min((open_.soonest for open_ in self._open.values()), default=END_WORD)

    def words(self) -> set[int]:
        """The words of the matches that open clocks keep, which may be numbers of values."""
        return {word for open_ in self._open.values() for word in open_.words()}

    def compact(self, since: int) -> None:
        """Forget what has ended by `since`."""
        for open_ in self._open.values():
            open_.compact(since)

    # Errors.

    def fail(
        self, failures: list[tuple[int, str]], matches: Change, silent: bool = False
    ) -> BoolArray | None:
        """Note what fails; the flags of the other matches, None where nothing does."""
        if not failures:
            return None
        kept = np.ones(len(matches), np.bool_)
        for row, reason in failures:
            kept[row] = False
            if not silent:
                self._report(reason, matches[row].tolist())
        return kept

    def _report(self, reason: str, match: list[int], clocks: bool = True) -> None:
        """Note that a match fails, by its facts in the order of the atoms."""
        form, columns = self.plan.form, self.plan.columns
        facts = []
        for atom, places in zip(form.atoms, columns.facts, strict=True):
            if atom.is_clock:
                if clocks:
                    facts.append(fact_text(atom.predicate, tuple(match[at] for at in places)))
                continue
            schema = self._schemas[atom.predicate]
            key = [
                None if column < 0 or match[columns.nulls] >> column & 1
                else value_of(match[column], schema.kind(at), self._texts, schema.values)
                for at, column in enumerate(places)
            ]  # fmt: skip
            facts.append(fact_text(schema.predicate, tuple(key)))
        text = f"{reason}: {' ^ '.join(facts)}"
        self._errors.add(form.number, text, match[-3], match[-2], match[-1])

    # Heads.

    def sound(self, matches: Change) -> Change:
        """The matches of which no argument of the head fails; the others are errors.

        The parafacts that they pass on are written into a column.
        """
        passes, values = self.plan.head.passes, self.plan.columns.values
        if passes is not None:
            failures = pass_on(passes, matches, values)
            kept = self.fail(failures, matches)
            if kept is not None:
                matches = matches[kept]
        for _, expression, kind in self.plan.head.computed:
            _, _, failures = self.expressions.words(expression, kind, matches)
            kept = self.fail(failures, matches)
            if kept is not None:
                matches = matches[kept]
        return matches

    def timed(self, matches: Change) -> Change:
        """Matches with the time and expiry of what they derive, from when on they derive it."""
        head, columns = self.plan.head, self.plan.columns
        time, ends = columns.time, columns.expiry
        if head.time:
            matches = self._instants(head.time, time, matches, False)
            matches[:, columns.nulls] &= ~(1 << time)
            if not (head.asked or head.ahead):
                matches[:, -3] = np.maximum(matches[:, -3], matches[:, time])
        if head.asked if head.time else not head.timed:
            matches[:, time] = 0
            matches[:, columns.nulls] |= 1 << time
        if head.expires:
            matches = self._instants(head.expires, ends, matches, True)
        if head.asked if head.expires else not head.expiring:
            matches[:, ends] = END_WORD
        if not head.time or head.outlives or head.asked:
            return matches
        return matches[matches[:, -3] < matches[:, -2]]

    def _instants(
        self, written: tuple[Expression, ...], column: int, matches: Change, ends: bool
    ) -> Change:
        """Write the greatest of some times, or the least of some expiries, into a column."""
        for at, expression in enumerate(written):
            words, nulls, failures = self.expressions.words(expression, Type.INT, matches)
            if nulls is not None:
                known = {row for row, _ in failures}
                rows = [row for row in nulls.nonzero()[0].tolist() if row not in known]
                failures = failures + [(row, WRONG_TYPE) for row in rows]
            if not ends and self.expressions.endless(expression):
                rows = (words == END_WORD).nonzero()[0].tolist()
                failures = failures + [(row, OVERFLOW) for row in rows]
            if at:
                pick = np.minimum if ends else np.maximum
                words = pick(words, matches[:, column])
            kept = self.fail(failures, matches)
            matches[:, column] = words
            if kept is not None:
                matches = matches[kept]
        return matches

    def seen(self, matches: Change) -> Change:
        """Established matches from the time of their head on, if that is later."""
        if not self.plan.head.ahead or not self.plan.head.time:
            return matches
        start = np.maximum(matches[:, -3], matches[:, self.plan.columns.time])
        holds = start < matches[:, -2]
        matches = matches[holds]
        matches[:, -3] = start[holds]
        return matches

    def rows(self, matches: Change) -> Change:
        """The rows that matches derive of which no argument fails."""
        head = self.plan.head
        schema = self._schemas[self.plan.form.head.predicate]
        if not len(matches):
            return no_change(schema.columns)
        found = project(matches, head.copies, schema.columns, TIME, schema.expiry)
        for column, expression, kind in head.computed:
            words, nulls, _ = self.expressions.words(expression, kind, matches)
            found[:, column] = words
            if nulls is not None:
                found[:, schema.nulls] |= nulls.astype(np.int64) << column
        if schema.ordered:
            put_in_order(schema, found)
        return found
