"""Solutions that outlive facts: established ones with their own expiry, and lingering ones
(language.md 4.3, 3.5).

A *living* solution is (identity, arguments, time, values, parts): what it derives and when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tidemill.datalog.evaluation.compiled import Fail, Prepared, Surroundings, carried_variables
from tidemill.datalog.lattices import Parafacts
from tidemill.datalog.logical.forms import Constant, RuleForm, Variable
from tidemill.datalog.presence import (
    BEGINNING,
    END,
    Instant,
    Interval,
    intersect,
    normalise,
)
from tidemill.datalog.state import EstablishedSolution, LingeringSolution
from tidemill.datalog.tables import Part, Row, Table
from tidemill.datalog.values import Failed, equal

Living: TypeAlias = "tuple[Any, tuple[Any, ...], int | None, tuple[Any, ...], list[Part]]"


class Established:
    """The solutions of one rule whose head has its own expiry.

    A solution is established at the first instant at which its body holds and its head time has
    come, and is gone at its own expiry and not before.
    """

    def __init__(
        self,
        carried: Iterable[EstablishedSolution],
        lower: Instant,
        upper: Instant,
        frozen: bool = False,
    ) -> None:
        self._lower = lower
        self._upper = upper
        self._frozen = frozen
        self._known: dict[Any, tuple[Any, ...]] = {}
        self._versions: dict[Any, list[tuple[Instant, Parafacts]]] = {}
        for solution in carried:
            if solution.expires > lower and not (frozen and solution.expires < upper):
                for start, parafacts in solution.versions:
                    self._note(
                        solution.identity, start, solution.time, solution.expires,
                        solution.arguments, solution.values, parafacts,
                    )  # fmt: skip

    def add(
        self,
        identity: Any,
        start: Instant,
        end: Instant,
        time: int | None,
        expires: Instant,
        arguments: tuple[Any, ...],
        values: tuple[Any, ...],
        parafacts: Parafacts,
    ) -> Part | None:
        """The body holds from `start` on; the part that this adds, None if it was known."""
        if self._frozen:
            start = max(start, self._upper - 1)
        return self._note(identity, start, time, expires, arguments, values, parafacts)

    def _note(
        self,
        identity: Any,
        start: Instant,
        time: int | None,
        expires: Instant,
        arguments: tuple[Any, ...],
        values: tuple[Any, ...],
        parafacts: Parafacts,
    ) -> Part | None:
        if start >= expires:
            return None
        versions = self._versions.get(identity)
        if versions is None:
            self._known[identity] = (arguments, time, expires, values)
            self._versions[identity] = [(start, parafacts)]
            return self._part(start, expires, parafacts)
        for i, (first, mine) in enumerate(versions):
            if mine is parafacts or mine == parafacts:
                if first <= start:
                    return None
                versions[i] = (start, parafacts)
                return self._part(start, expires, parafacts)
        versions.append((start, parafacts))
        return self._part(start, expires, parafacts)

    def _part(self, start: Instant, expires: Instant, parafacts: Parafacts) -> Part:
        if self._frozen:
            return BEGINNING, END, expires, parafacts
        end = expires if expires < self._upper else END
        return max(start, self._lower), end, expires, parafacts

    def living(self) -> Iterable[Living]:
        """Every solution with the parts of its life, one for each version of its parafacts."""
        for identity, (arguments, time, expires, values) in self._known.items():
            parts = [
                self._part(start, expires, parafacts)
                for start, parafacts in self._versions[identity]
            ]
            yield identity, arguments, time, values, parts

    def known(self) -> tuple[EstablishedSolution, ...]:
        """Every solution of the window, living at its end or not."""
        return tuple(
            EstablishedSolution(
                identity, arguments, time, expires, values,
                tuple(sorted(self._versions[identity], key=_first)),
            )
            for identity, (arguments, time, expires, values) in self._known.items()
        )  # fmt: skip

    def carried(self) -> tuple[EstablishedSolution, ...]:
        """The solutions that live at the end of the window."""
        return tuple(solution for solution in self.known() if solution.expires >= self._upper)


def _first(version: tuple[Instant, Parafacts]) -> Instant:
    return version[0]


@dataclass(frozen=True, slots=True)
class Life:
    """One stretch in which a lingering solution lives, and what it derives then."""

    end: Instant
    solution: LingeringSolution
    arguments: tuple[Any, ...]
    time: int | None


class Lingering:
    """The matches of one rule with `~expires` in its body, and how long each lives.

    A solution lives from the first instant at which all its facts are present while the others,
    those without `~expires`, stay present and the atoms under `not` hold.
    """

    def __init__(
        self,
        form: RuleForm,
        prepared: Prepared,
        carried: Iterable[LingeringSolution],
        tables: Callable[[str], Table],
        seen: Callable[..., Any],
        around: Surroundings,
        fail: Fail,
    ) -> None:
        self._form = form
        self._prepared = prepared
        self._tables = tables
        self._seen = seen
        self._lower = around.lower
        self._upper = around.upper
        self._frozen = around.frozen
        self._fail = fail
        self._leaving = [i for i, a in enumerate(form.atoms) if "expires" in a.suppressed]
        self._staying = [i for i, a in enumerate(form.atoms) if "expires" not in a.suppressed]
        self._matches: dict[Any, list[tuple[Instant, Instant, tuple[Row, ...]]]] = {}
        self._carried = {(each.keys, each.values): each.versions for each in carried}
        self.lives: list[Life] = []

    def add(
        self, rows: tuple[Row, ...], values: tuple[Any, ...], start: Instant, end: Instant
    ) -> None:
        """All facts of a match are present together on [start, end)."""
        keys = tuple(row[4:] for row in rows)
        self._matches.setdefault((keys, values), []).append((start, end, rows))

    def living(self) -> list[Living]:
        """Every solution with the parts of its life."""
        found = []
        for keys, values in dict.fromkeys((*self._matches, *self._carried)):
            living = self._solution(keys, values)
            if living is not None and living[4]:
                found.append(living)
        return found

    def carried(self) -> tuple[LingeringSolution, ...]:
        """The solutions that live at the end of the window; call after `living`."""
        return tuple(life.solution for life in self.lives if life.end == END)

    def _solution(self, keys: tuple[Any, ...], values: tuple[Any, ...]) -> Living | None:
        matches = self._matches.get((keys, values), [])
        rows = matches[0][2] if matches else self._stand_ins(keys)
        staying = {i: self._segments(i, keys[i], rows[i], values) for i in self._staying}
        runs = self._runs(rows, values, matches, list(staying.values()))
        pieces: list[tuple[Instant, Instant, tuple[Row, ...]]] = []
        lives: list[tuple[Instant, LingeringSolution]] = []
        for start, end in runs:
            versions = self._versions(keys, values, matches, start, end)
            for first, _, leaving in versions:
                pieces.extend(self._pieces(keys, rows, staying, leaving, first, end))
            if versions:
                kept = {
                    tuple((row[2], row[3]) for row in leaving): since
                    for _, since, leaving in versions
                }
                said = tuple((since, version) for version, since in kept.items())
                lives.append((end, LingeringSolution(keys, values, said)))
        living = self._derived(keys, values, matches, pieces)
        if living is not None:
            self.lives += [Life(end, kept, living[1], living[2]) for end, kept in lives]
        return living

    def _stand_ins(self, keys: tuple[Any, ...]) -> tuple[Row, ...]:
        return tuple((self._lower, END, END, None, *key) for key in keys)

    def _segments(
        self, i: int, key: tuple[Any, ...], row: Row, values: tuple[Any, ...]
    ) -> list[Row]:
        """The rows of a staying fact that carry the parafacts which the solution matched."""
        atom = self._form.atoms[i]
        if atom.is_clock:
            return [(BEGINNING if self._frozen else key[0], END, END, None, *key)]
        asked = [name for name, _ in atom.lattices if name != "time"]
        rows = self._tables(atom.predicate).of_key(key)
        if not asked:
            return rows
        bound = dict(zip(carried_variables(self._form), values, strict=True))
        return [each for each in rows if self._agrees(i, each, bound)]

    def _agrees(self, i: int, row: Row, bound: dict[str, Any]) -> bool:
        for name, terms in self._form.atoms[i].lattices:
            if name == "time":
                continue
            found = (row[2],) if name == "expires" else self._seen(row[3], name)
            if found is None:
                return False
            for term, value in zip(terms, found, strict=True):
                if isinstance(term, Constant) and not equal(term.value, value):
                    return False
                if isinstance(term, Variable) and not equal(bound[term.name], value):
                    return False
        return True

    def _runs(
        self,
        rows: tuple[Row, ...],
        values: tuple[Any, ...],
        matches: Sequence[tuple[Instant, Instant, tuple[Row, ...]]],
        staying: Sequence[Sequence[Row]],
    ) -> list[Interval]:
        """When all staying facts are present and nothing under `not` is."""
        together: list[Interval] = [(self._lower, END)]
        for segments in staying:
            together = intersect(together, normalise((row[0], row[1]) for row in segments))
        if not self._form.absent:
            return together

        def fail(reason: str, start: Instant, end: Instant, failed: tuple[Row, ...]) -> None:
            for first, last, _ in matches:
                if first < end and last > start:
                    self._fail(reason, max(first, start), min(last, end), failed)

        assert self._prepared.absences is not None
        return normalise(
            piece
            for start, end in together
            for piece in self._prepared.absences(rows, values, start, end, fail)
        )

    def _versions(
        self,
        keys: tuple[Any, ...],
        values: tuple[Any, ...],
        matches: Sequence[tuple[Instant, Instant, tuple[Row, ...]]],
        start: Instant,
        end: Instant,
    ) -> list[tuple[Instant, Instant, tuple[Row, ...]]]:
        """For each state of the facts that may leave: since when the solution lives with it.

        (first instant in this window, first instant at all, rows of the facts that may leave)
        """
        found: dict[tuple[Any, ...], tuple[Instant, Instant]] = {}
        if start <= self._lower < end:
            for since, version in self._carried.get((keys, values), ()):
                found[version] = (start, since)
        for first, last, rows in matches:
            if first < end and last > start:
                version = tuple((rows[i][2], rows[i][3]) for i in self._leaving)
                begin = max(first, start)
                since = max(begin, self._upper - 1) if self._frozen else begin
                known = found.get(version)
                if known is None or known[1] > since:
                    found[version] = (begin, since)
        return [
            (
                begin,
                since,
                tuple(
                    (begin, end, *said, *keys[i])
                    for i, said in zip(self._leaving, version, strict=True)
                ),
            )
            for version, (begin, since) in found.items()
        ]

    def _pieces(
        self,
        keys: tuple[Any, ...],
        rows: tuple[Row, ...],
        staying: dict[int, list[Row]],
        leaving: tuple[Row, ...],
        start: Instant,
        end: Instant,
    ) -> list[tuple[Instant, Instant, tuple[Row, ...]]]:
        """The life [start, end) cut where a staying fact changes, each piece with its rows."""
        pieces: list[tuple[Instant, Instant, dict[int, Row]]] = [(start, end, {})]
        for i, segments in staying.items():
            cut = [
                (max(first, row[0]), min(last, row[1]), {**chosen, i: row})
                for first, last, chosen in pieces
                for row in segments
                if row[0] < last and row[1] > first
            ]
            pieces = cut
        left = dict(zip(self._leaving, leaving, strict=True))
        return [
            (first, last, tuple({**left, **chosen}[i] for i in range(len(rows))))
            for first, last, chosen in pieces
        ]

    def _derived(
        self,
        keys: tuple[Any, ...],
        values: tuple[Any, ...],
        matches: Sequence[tuple[Instant, Instant, tuple[Row, ...]]],
        pieces: Sequence[tuple[Instant, Instant, tuple[Row, ...]]],
    ) -> Living | None:
        assert self._prepared.head is not None
        parts: list[Part] = []
        head: Any = None
        for start, end, rows in pieces:
            try:
                head = self._prepared.head(rows, values)
            except Failed as failed:
                for first, last, matched in matches:
                    if first < end and last > start:
                        self._fail(failed.reason, max(first, start), min(last, end), matched)
                continue
            time, expires, parafacts = head[1], head[2], head[4]
            if self._form.head.time and time >= self._upper:
                continue
            if self._form.head.time and time > start and not self._frozen:
                start = time
            if start < end:
                parts.append((start, end, expires, parafacts))
        if head is None:
            return None
        identity = self._form.number, keys, values
        return identity, head[0], head[1], head[3], parts
