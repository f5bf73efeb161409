"""Rules of one atom whose solutions depend on nothing else: nothing is kept for a match.

What a fact contributes depends on the fact alone, so when it goes the same is worked out once more
and taken away.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

from tidemill.datalog.incremental.facts import PLAIN
from tidemill.datalog.incremental.grouping import GroupTarget, RuleGroups
from tidemill.datalog.incremental.groups import Member
from tidemill.datalog.incremental.joining import Joins
from tidemill.datalog.incremental.surroundings import Present, Told
from tidemill.datalog.lattices import TALLIES
from tidemill.datalog.logical.forms import RuleForm
from tidemill.datalog.presence import END, Instant
from tidemill.datalog.tables import TIME, Key, Row
from tidemill.datalog.values import Failed

_TOGETHER = 4_096
"""So many rows are worked out together."""


def folds(form: RuleForm, recursive: bool) -> bool:
    """Whether the solutions of a rule can be taken back from its facts alone."""
    head = form.head
    return (
        not (head.time or head.expires or form.absent or form.outlives or recursive)
        and len(form.atoms) == 1
        and not form.atoms[0].is_clock
    )


class Folded:
    """What one rule says at the present instant, its groups if it has any, and what it takes to
    change that by facts.
    """

    def __init__(
        self,
        form: RuleForm,
        present: Present,
        target: GroupTarget,
        *,
        predicate: str | None = None,
        remembers: bool = False,
        told: Told | None = None,
    ) -> None:
        self.form = form
        self._told = told
        self.joins = Joins(form, present)
        self.predicate = form.head.predicate if predicate is None else predicate
        self.found = 0
        self.seconds = 0.0
        self._present = present
        tallied = any(name in TALLIES for name, _ in form.head.lattices)
        self._keeps = tallied and remembers
        self._target = target
        self._groups = (
            RuleGroups(
                form, self.predicate, present, target, remembers=remembers, keeps=self._keeps
            )
            if form.head.aggregates
            else None
        )

    def __len__(self) -> int:
        """No match is kept."""
        return 0

    def leave(self, rows: Collection[Row]) -> None:
        """These rows are no more."""
        self._fold_all(rows, -1)

    def join(self, rows: Collection[Row]) -> None:
        """These rows are there now."""
        self._fold_all(rows, 1)

    def settle(self) -> None:
        """Let the groups that changed support what they now say."""
        if self._groups is not None:
            self._groups.settle()

    def _fold_all(self, rows: Collection[Row], sign: int) -> None:
        """Let rows come or go, so many at a time that what they are for a moment is no burden."""
        left = iter(rows)
        while part := list(islice(left, _TOGETHER)):
            self._fold(part, sign)

    def _fold(self, rows: Sequence[Row], sign: int) -> None:
        timer = self._present.timer
        began = timer() if timer is not None else 0.0
        if self._groups is None:
            self._say(rows, sign)
        else:
            self._fold_into(self._groups, rows, sign)
        if timer is not None:
            self.seconds += timer() - began

    def _say(self, rows: Sequence[Row], sign: int) -> None:
        """Let each fact support what the rule says of it, or no longer."""
        join, target, number = self.joins.join(0), self._target, self.form.number
        head, predicate, said = join.names["head"], self.predicate, 0

        def take(found: tuple[Row, ...], values: tuple[Any, ...], _: Instant, __: Instant) -> None:
            nonlocal said
            try:
                arguments, time, expires, _inner, passed = head(found, values)
            except Failed as failed:
                self._fail(failed.reason, found, sign)
                return
            said += 1
            source = number, found[0][TIME:]
            if sign < 0:
                target.withdraw(predicate, (time, *arguments), source)
                return
            value = PLAIN if expires == END and passed is None else (expires, passed)
            target.support(predicate, (time, *arguments), source, value)

        def fail(reason: str, _: Instant, __: Instant, found: tuple[Row, ...]) -> None:
            self._fail(reason, found, sign)

        join.run(rows, take, fail, fail, self.joins.absent, self._present.now + 1)
        self.found += said if sign > 0 else 0

    def _fold_into(self, groups: RuleGroups, rows: Sequence[Row], sign: int) -> None:
        """Let each fact be a member of its group, or no longer."""
        join = self.joins.join(0)
        head = join.names["head"]
        identity = join.names["identity"] if self._keeps else None
        moved: dict[tuple[Any, ...], list[tuple[Key, Member]]] = {}

        def take(found: tuple[Row, ...], values: tuple[Any, ...], _: Instant, __: Instant) -> None:
            try:
                arguments, time, expires, inner, passed = head(found, values)
            except Failed as failed:
                self._fail(failed.reason, found, sign)
                return
            named = identity(found, values) if identity is not None else ()
            member = (found[0][TIME:], (time, expires, inner, passed, named))
            mine = moved.get(arguments)
            if mine is None:
                moved[arguments] = [member]
            else:
                mine.append(member)

        def fail(reason: str, _: Instant, __: Instant, found: tuple[Row, ...]) -> None:
            self._fail(reason, found, sign)

        join.run(rows, take, fail, fail, self.joins.absent, self._present.now + 1)
        for arguments, members in moved.items():
            groups.group(arguments, None).change(members, sign)
            self.found += len(members) if sign > 0 else 0

    def _fail(self, reason: str, found: tuple[Row, ...], sign: int) -> None:
        """An error begins with its fact, and ends with it."""
        names = [self.form.atoms[0].predicate]
        text = self._present.match_text(reason, names, found, self._told)
        errors = self._present.errors
        (errors.add if sign > 0 else errors.remove)(self.form.number, text)


__all__ = ["Folded", "folds"]
