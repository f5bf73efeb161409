"""Solutions of one rule that live until their own expiry, whatever ends (language.md 4.3), as they
are now.
"""

from __future__ import annotations

from typing import Any, Protocol

from tidemill.datalog.incremental.surroundings import Present
from tidemill.datalog.lattices import Parafacts, merge_parafacts
from tidemill.datalog.presence import END, Instant
from tidemill.datalog.state import EstablishedSolution


class _Living:
    """One solution with the parafacts it has passed so far, each since when."""

    __slots__ = ("home", "passed", "solution")

    def __init__(self, solution: EstablishedSolution, passed: Parafacts) -> None:
        self.solution = solution
        self.passed = passed
        self.home: Any = None


class Contributing(Protocol):
    """The rule that living solutions contribute for."""

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
        ...

    def leave(self, source: Any, home: Any) -> None:
        """Take back what `enter` contributed."""
        ...


class Established:
    """The living solutions by identity; each leaves at its own expiry and not before."""

    def __init__(self, rule: Contributing, present: Present) -> None:
        self._rule = rule
        self._present = present
        self._living: dict[Any, _Living] = {}
        self._before: dict[Any, EstablishedSolution | None] = {}

    def note(
        self,
        identity: Any,
        arguments: tuple[Any, ...],
        time: int | None,
        expires: Instant,
        values: tuple[Any, ...],
        passed: Parafacts,
    ) -> None:
        """The body holds now: the solution lives, if it does not yet, and has passed these
        parafacts.
        """
        now = self._present.now
        known = self._living.get(identity)
        if known is None:
            versions = ((now, passed),)
            self._before.setdefault(identity, None)
            self._begin(
                EstablishedSolution(identity, arguments, time, expires, values, versions), passed
            )
            return
        said = known.solution.versions
        if any(mine is passed or mine == passed for _, mine in said):
            return
        merged = merge_parafacts(known.passed, passed, self._present.lattices)
        before = known.solution
        known.solution = EstablishedSolution(
            identity, arguments, time, known.solution.expires, values, (*said, (now, passed))
        )
        known.passed = merged
        self._before.setdefault(identity, before)
        self._leave(known)
        self._enter(known)

    def restore(self, solution: EstablishedSolution) -> None:
        """A solution that an earlier run established; those that are over by now are ignored."""
        present = self._present
        if solution.expires <= present.now or solution.identity in self._living:
            return
        passed: Parafacts = None
        for _, mine in solution.versions:
            passed = merge_parafacts(passed, mine, present.lattices)
        self._begin(solution, passed)

    def _begin(self, solution: EstablishedSolution, passed: Parafacts) -> None:
        living = self._living[solution.identity] = _Living(solution, passed)
        if solution.expires != END:
            agenda = self._present.agenda
            agenda.add(solution.expires, lambda: self._end(living))
        self._enter(living)

    def _enter(self, living: _Living) -> None:
        solution = living.solution
        living.home = self._rule.enter(
            living, solution.arguments, solution.time, solution.expires, solution.values,
            living.passed, solution.identity,
        )  # fmt: skip

    def _leave(self, living: _Living) -> None:
        self._rule.leave(living, living.home)

    def _end(self, living: _Living) -> None:
        if self._living.get(living.solution.identity) is living:
            del self._living[living.solution.identity]
            self._before.setdefault(living.solution.identity, living.solution)
            self._leave(living)

    def take_changes(self) -> tuple[list[EstablishedSolution], list[EstablishedSolution]]:
        """Which solutions have gone and which have come since the last call; a changed one does
        both.
        """
        gone, come = [], []
        for identity, before in self._before.items():
            living = self._living.get(identity)
            now = living.solution if living is not None else None
            if before is now:
                continue
            if before is not None:
                gone.append(before)
            if now is not None:
                come.append(now)
        self._before.clear()
        return gone, come

    def solutions(self) -> tuple[EstablishedSolution, ...]:
        """Every solution that lives now."""
        return tuple(living.solution for living in self._living.values())
