"""Solutions with an expiry of their own, on columns: established once, gone at their end and not before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, TypeAlias, overload

import numpy as np

from tidemill.arrangement.kernels import BoolArray, I64Array
from tidemill.arrangement.relational import Groups, best_by_group, extent, within
from tidemill.datalog.columnar.columns import (
    END_WORD,
    Column,
    Texts,
    Unsuited,
    aligned_words,
    concatenated,
    instants_of,
    python_instants,
    words_of,
)
from tidemill.datalog.columnar.deriving import Derived
from tidemill.datalog.columnar.joining import wideness
from tidemill.datalog.evaluation.forms import Type
from tidemill.datalog.evaluation.state import EstablishedSolution


@dataclass(frozen=True, slots=True)
class Shape:
    """How the identity of a solution of a rule is made of columns.

    `widths` are the columns of the key of each atom; what is left are the parafacts that it matched.
    """

    rule: int
    widths: tuple[int, ...]
    kinds: tuple[Type, ...]

    def identity_of(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The identity as the row engine has it."""
        borders = [0, *accumulate(self.widths)]
        keys = tuple(tuple(values[a:b]) for a, b in pairwise(borders))
        return self.rule, keys, tuple(values[borders[-1] :])


class Solutions(Sequence[EstablishedSolution]):
    """Living solutions on columns; the objects are made only if somebody looks at them.

    `start` of each is the first instant at which its body held. `origin` says which of the solutions of the window
    before, known by their `mark`, each one is, -1 for one that is new.
    """

    def __init__(
        self,
        shape: Shape,
        derived: Derived,
        texts: Texts,
        since: object = None,
        origin: I64Array | None = None,
    ) -> None:
        self.shape = shape
        self.derived = derived
        self.texts = texts
        self.mark = object()
        self._since = since
        self._origin = origin
        self._made: tuple[EstablishedSolution, ...] | None = None

    def __len__(self) -> int:
        return len(self.derived)

    @overload
    def __getitem__(self, at: int) -> EstablishedSolution: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[EstablishedSolution]: ...
    def __getitem__(self, at: int | slice) -> EstablishedSolution | Sequence[EstablishedSolution]:
        return self._solutions()[at]

    def __iter__(self) -> Iterator[EstablishedSolution]:
        return iter(self._solutions())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(self._solutions())

    def take(self, rows: I64Array) -> Solutions:
        """The solutions with these numbers."""
        return Solutions(self.shape, self.derived.take(rows), self.texts)

    def moved(
        self, before: Sequence[EstablishedSolution]
    ) -> tuple[Sequence[EstablishedSolution], Sequence[EstablishedSolution]] | None:
        """Which of the solutions of the window before are gone, and which are new; None if that is not known."""
        if not before:
            return (), self
        if not isinstance(before, Solutions) or before.mark is not self._since:
            return None
        assert self._origin is not None
        kept = np.zeros(len(before), np.bool_)
        kept[self._origin[self._origin >= 0]] = True
        gone = before.take(np.flatnonzero(~kept))
        return gone, self.take(np.flatnonzero(self._origin < 0))

    def _solutions(self) -> tuple[EstablishedSolution, ...]:
        if self._made is None:
            self._made = tuple(self._make())
        return self._made

    def _make(self) -> Iterator[EstablishedSolution]:
        derived, texts = self.derived, self.texts
        n = len(derived)
        rows = [_rows(columns, texts, n) for columns in (derived.identity, derived.arguments, derived.values)]  # fmt: skip
        times = derived.time.python(texts)
        expires, starts = python_instants(derived.expires), python_instants(derived.start)
        for identity, arguments, values, time, end, start in zip(
            *rows, times, expires, starts, strict=True
        ):
            yield EstablishedSolution(
                self.shape.identity_of(identity), arguments, time, end, values, ((start, None),)
            )


def _rows(columns: Sequence[Column], texts: Texts, count: int) -> list[tuple[Any, ...]]:
    if not columns:
        return [()] * count
    return list(zip(*(column.python(texts) for column in columns), strict=True))


def solutions_of(
    known: Sequence[EstablishedSolution], shape: Shape, like: Derived, texts: Texts
) -> Derived:
    """Solutions of an earlier window as columns of the types of `like`. Raises: Unsuited."""
    if isinstance(known, Solutions) and known.texts is texts and known.shape == shape:
        return known.derived
    if any(len(each.versions) != 1 or each.versions[0][1] is not None for each in known):
        raise Unsuited
    identities = [
        [value for key in each.identity[1] for value in key] + list(each.identity[2])
        for each in known
    ]
    starts = instants_of([each.versions[0][0] for each in known])
    return Derived(
        starts, np.full(len(known), END_WORD, np.int64),
        instants_of([each.expires for each in known]),
        Column.of_values(Type.INT, [each.time for each in known], texts),
        _columns([each.arguments for each in known], [c.kind for c in like.arguments], texts),
        _columns([each.values for each in known], [c.kind for c in like.values], texts),
        _columns(identities, shape.kinds, texts),
    )  # fmt: skip


def _columns(
    rows: Sequence[Sequence[Any]], kinds: Sequence[Type], texts: Texts
) -> tuple[Column, ...]:
    if any(len(row) != len(kinds) for row in rows):
        raise Unsuited
    return tuple(
        Column.of_values(kind, values, texts)
        for kind, values in zip(kinds, zip(*rows, strict=True), strict=True)
    )


class EstablishedColumns:
    """The solutions of one rule over a window: those carried into it, and those that its matches establish.

    With `different`, no two of the matches are of one solution: each can only be one that was carried.
    """

    def __init__(
        self,
        shape: Shape,
        carried: tuple[Sequence[EstablishedSolution], Derived | None],
        derived: Derived,
        texts: Texts,
        window: tuple[int, int],
        *,
        different: bool = False,
    ) -> None:
        self._shape = shape
        self._texts = texts
        self._lower, self._upper = window
        before, known = carried
        self._since = before.mark if isinstance(before, Solutions) else None
        fresh = (derived, np.full(len(derived), -1, np.int64))
        parts = [fresh] if known is None else [(known, np.arange(len(before))), fresh]
        parts = [_kept(part, self._lives(part[0])) for part in parts]
        if not different:
            parts = [_once(parts)]
        elif len(parts) > 1:
            flags = _met_once(parts[0][0], parts[1][0])
            parts = [_kept(part, kept) for part, kept in zip(parts, flags, strict=True)]
        self._parts: list[_Part] = parts

    def _lives(self, solutions: Derived) -> BoolArray:
        lives: BoolArray = (solutions.start < solutions.expires) & (solutions.expires > self._lower)
        return lives

    def parts(self) -> Derived:
        """What each solution derives in the window."""
        living = joined([replace(part, identity=()) for part, _ in self._parts])
        stop = np.where(living.expires < self._upper, living.expires, END_WORD)
        return replace(living, start=np.maximum(living.start, self._lower), stop=stop)

    def known(self) -> tuple[EstablishedSolution, ...]:
        """Every solution of the window, living at its end or not."""
        living, _ = _together(self._parts)
        return tuple(Solutions(self._shape, living, self._texts))

    def carried(self) -> Solutions:
        """The solutions that live at the end of the window."""
        on = [_kept(part, part[0].expires >= self._upper) for part in self._parts]
        living, origin = _together(on)
        return Solutions(self._shape, living, self._texts, self._since, origin)


_Part: TypeAlias = "tuple[Derived, I64Array]"
"""Solutions, and which of those of the window before each of them is, -1 for none."""


def _kept(part: _Part, flags: BoolArray) -> _Part:
    if flags.all():
        return part
    rows = np.flatnonzero(flags)
    return part[0].take(rows), part[1][rows]


def _together(parts: Sequence[_Part]) -> _Part:
    if len(parts) == 1:
        return parts[0]
    return joined([part for part, _ in parts]), np.concatenate([origin for _, origin in parts])


def _once(parts: Sequence[_Part]) -> _Part:
    """Each solution once, as it was established first."""
    living, origin = _together(parts)
    groups = Groups.of(words_of(living.identity), len(living))
    if len(groups) == len(living):
        return living, origin
    known = np.ones(len(living), np.bool_)
    first = best_by_group(groups.ids, living.start, known, len(groups))
    return living.take(first), origin[first]


def _met_once(before: Derived, derived: Derived) -> tuple[BoolArray, BoolArray]:
    """Which rows of both to keep, so that a solution in both is there once, as it was established first.

    Each of them has it once at most. Raises: Unsuited if their types differ.
    """
    kept = np.ones(len(before), np.bool_), np.ones(len(derived), np.bool_)
    if not len(before) or not len(derived):
        return kept
    least, greatest = extent(before.expires)  # of one solution there is one expiry
    near = within(derived.expires, least, greatest)
    mine = [column.take(near) for column in derived.identity]
    if any(a.kind is not b.kind for a, b in zip(before.identity, mine, strict=True)):
        raise Unsuited
    wide = wideness(before.identity, mine)
    groups = Groups.of(aligned_words(before.identity, wide), len(before))
    ids = groups.find(aligned_words(mine, wide), len(near))
    met = np.flatnonzero(ids >= 0)
    ours, theirs = near[met], groups.firsts[ids[met]]
    later = before.start[theirs] <= derived.start[ours]
    kept[1][ours[later]] = False
    kept[0][theirs[~later]] = False
    return kept


def joined(parts: Sequence[Derived]) -> Derived:
    """The rows of several, one after the other. Raises: Unsuited if their types differ."""
    first = parts[0]

    def stack(of: Any) -> tuple[Column, ...]:
        columns = list(zip(*(of(part) for part in parts), strict=True))
        if any(len({column.kind for column in each}) > 1 for each in columns):
            raise Unsuited
        return tuple(concatenated(each) for each in columns)

    if len(parts) == 1:
        return first
    return Derived(
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.stop for part in parts]),
        np.concatenate([part.expires for part in parts]),
        concatenated([part.time for part in parts]),
        stack(lambda part: part.arguments), stack(lambda part: part.values),
        stack(lambda part: part.identity),
    )  # fmt: skip


__all__ = ["EstablishedColumns", "Shape", "Solutions", "joined", "solutions_of"]
