"""The groups of one rule whose head aggregates, and the facts that they support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tidemill.datalog.incremental.facts import Value
from tidemill.datalog.incremental.groups import Group, Member
from tidemill.datalog.incremental.surroundings import Present
from tidemill.datalog.logical.forms import RuleForm
from tidemill.datalog.tables import TIME, Key
from tidemill.datalog.values import Failed


class GroupTarget(Protocol):
    """Where the facts of groups go."""

    def support(self, predicate: str, key: Key, source: Any, value: Value) -> None:
        """The fact has this support from now on, or this value of it."""
        ...

    def withdraw(self, predicate: str, key: Key, source: Any) -> None:
        """The fact has this support no longer."""
        ...

    def touch(self) -> None:
        """A group has changed and is to be settled."""
        ...


class RuleGroups:
    """Groups by name: the arguments of the head, and its time if it has one of its own.

    With `keeps`, a group knows its members; without, who takes one away says what it was.
    """

    def __init__(
        self,
        form: RuleForm,
        predicate: str,
        present: Present,
        target: GroupTarget,
        *,
        remembers: bool,
        keeps: bool = True,
    ) -> None:
        self._names: Sequence[str] = [name for name, _ in form.head.lattices]
        self._number = form.number
        self._predicate = predicate
        self._shown = form.head.predicate
        self._timed = bool(form.head.time)
        self._present = present
        self._target = target
        self._remembers = remembers
        self._keeps = keeps
        self._groups: dict[Any, Group] = {}
        self._dirty: dict[Any, Group] = {}

    def group(self, arguments: tuple[Any, ...], time: int | None) -> Group:
        """The group that a solution belongs to; it is settled next time."""
        name = (arguments, time) if self._timed else (arguments,)
        group = self._groups.get(name)
        if group is None:
            lattices = self._present.lattices
            group = Group(self._names, arguments, lattices, self._remembers, self._keeps)
            self._groups[name] = group
        self._dirty[name] = group
        self._target.touch()
        return group

    def enter(self, source: Any, arguments: tuple[Any, ...], member: Member) -> Any:
        """Add a solution; the name of its group."""
        self.group(arguments, member[0]).enter(source, member)
        return (arguments, member[0]) if self._timed else (arguments,)

    def leave(self, source: Any, name: Any) -> None:
        """Take a solution out of the group of this name."""
        group = self._dirty[name] = self._groups[name]
        group.leave(source)
        self._target.touch()

    def settle(self) -> None:
        """Let the groups that changed support what they now say."""
        if not self._dirty:
            return
        for name, group in self._dirty.items():
            home, value = None, None
            if group.count:
                home = (group.time(), *group.arguments)
                value = self._value(group, home)
            else:
                self._value(group, None)
                del self._groups[name]
            if group.home is not None and (value is None or group.home != home):
                self._target.withdraw(self._predicate, group.home, group)
                group.home = None
            if value is not None:
                assert home is not None
                self._target.support(self._predicate, home, group, value)
                group.home = home
        self._dirty.clear()

    def _value(self, group: Group, key: Key | None) -> Value | None:
        """What the group says; None, and an error, where an aggregate has no value."""
        errors = self._present.errors
        if group.error is not None:
            errors.remove(self._number, group.error)
            group.error = None
        if key is None:
            return None
        try:
            return group.value()
        except Failed as failed:
            group.error = self._present.match_text(
                failed.reason, [self._shown], ((None,) * TIME + key,)
            )
            errors.add(self._number, group.error)
            return None


__all__ = ["GroupTarget", "RuleGroups"]
