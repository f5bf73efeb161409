"""Solutions with an expiry of their own, on columns: established once, gone at their end and not
before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, overload

import numpy as np

from tidemill.arrangement.kernels import I64Array
from tidemill.arrangement.relational import Groups, best_by_group, extent, within
from tidemill.datalog.columnar.blocks import Block
from tidemill.datalog.columnar.columns import END_WORD, concatenated, instants_of, python_instants
from tidemill.datalog.columnar.deriving import Derived
from tidemill.datalog.columns.column import Column, Unsuited
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.logical.forms import Type
from tidemill.datalog.state import EstablishedSolution

_START, _EXPIRES, _TIME, _ARGUMENTS = range(4)


@dataclass(frozen=True, slots=True)
class Shape:
    """How the identity of a solution of a rule is made of columns.

    `widths` are the columns of the key of each atom; what is left are the parafacts that it
    matched.
    """

    rule: int
    widths: tuple[int, ...]
    kinds: tuple[Type, ...]

    def identity_of(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The identity as the row engine has it."""
        borders = [0, *accumulate(self.widths)]
        keys = tuple(tuple(values[a:b]) for a, b in pairwise(borders))
        return self.rule, keys, tuple(values[borders[-1] :])


@dataclass(frozen=True, slots=True)
class Kept:
    """Solutions side by side: their start, expiry, time, arguments, values, and what tells them
    apart.

    `values` is the number of the first column of the values, `identity` that of what tells them
    apart.
    """

    block: Block
    values: int
    identity: int

    def __len__(self) -> int:
        return len(self.block)

    @classmethod
    def of(cls, derived: Derived) -> Kept:
        """What matches derive."""
        ends = Column(Type.INT, derived.start), Column(Type.INT, derived.expires)
        columns = (*ends, derived.time, *derived.arguments, *derived.values, *derived.identity)
        values = _ARGUMENTS + len(derived.arguments)
        return cls(Block.of(columns, len(derived)), values, values + len(derived.values))

    @property
    def start(self) -> I64Array:
        """The first instant of each."""
        start: I64Array = self.block.words[_START]
        return start

    @property
    def expires(self) -> I64Array:
        """The last one's successor."""
        expires: I64Array = self.block.words[_EXPIRES]
        return expires

    def apart(self, rows: I64Array) -> list[I64Array]:
        """Words that are equal for equal solutions, of some rows."""
        return self.block.telling(self.identity, rows)

    def take(self, rows: I64Array) -> Kept:
        """The solutions with these numbers."""
        return Kept(self.block.take(rows), self.values, self.identity)

    def followed_by(self, other: Kept) -> Kept:
        """Both, one after the other. Raises: Unsuited if their types differ."""
        return Kept(self.block.followed_by(other.block), self.values, self.identity)


class Solutions(Sequence[EstablishedSolution]):
    """Living solutions on columns; the objects are made only if somebody looks at them.

    `start` of each is the first instant at which its body held. `origin` says which of the
    solutions of the window before, known by their `mark`, each one is, -1 for one that is new.
    """

    def __init__(
        self,
        shape: Shape,
        kept: Kept,
        texts: Texts,
        since: object = None,
        origin: I64Array | None = None,
    ) -> None:
        self.shape = shape
        self.kept = kept
        self.texts = texts
        self.mark = object()
        self._since = since
        self._origin = origin
        self._made: tuple[EstablishedSolution, ...] | None = None

    def __len__(self) -> int:
        return len(self.kept)

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
        return Solutions(self.shape, self.kept.take(rows), self.texts)

    def moved(
        self, before: Sequence[EstablishedSolution]
    ) -> tuple[Sequence[EstablishedSolution], Sequence[EstablishedSolution]] | None:
        """Which of the solutions of the window before are gone, and which are new; None if that is
        not known.
        """
        if not before:
            return (), self
        if not isinstance(before, Solutions) or before.mark is not self._since:
            return None
        assert self._origin is not None
        kept = np.zeros(len(before), np.bool_)
        kept[self._origin[self._origin >= 0]] = True
        gone = before.take((~kept).nonzero()[0])
        return gone, self.take((self._origin < 0).nonzero()[0])

    def _solutions(self) -> tuple[EstablishedSolution, ...]:
        if self._made is None:
            self._made = tuple(self._make())
        return self._made

    def _make(self) -> Iterator[EstablishedSolution]:
        kept, texts, n = self.kept, self.texts, len(self.kept)
        columns = kept.block.columns(_TIME, len(kept.block.layout.kinds))
        values, identities = kept.values - _TIME, kept.identity - _TIME
        parts = columns[identities:], columns[1:values], columns[values:identities]
        rows = [_rows(part, texts, n) for part in parts]
        times = columns[0].python(texts)
        expires, starts = python_instants(kept.expires), python_instants(kept.start)
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
) -> Kept:
    """Solutions of an earlier window as columns of the types of `like`. Raises: Unsuited."""
    if isinstance(known, Solutions) and known.texts is texts and known.shape == shape:
        return known.kept
    if any(len(each.versions) != 1 or each.versions[0][1] is not None for each in known):
        raise Unsuited
    identities = [
        [value for key in each.identity[1] for value in key] + list(each.identity[2])
        for each in known
    ]
    starts = instants_of([each.versions[0][0] for each in known])
    return Kept.of(
        Derived(
            starts, np.full(len(known), END_WORD, np.int64),
            instants_of([each.expires for each in known]),
            Column.of_values(Type.INT, [each.time for each in known], texts),
            _columns([each.arguments for each in known], [c.kind for c in like.arguments], texts),
            _columns([each.values for each in known], [c.kind for c in like.values], texts),
            _columns(identities, shape.kinds, texts),
        )
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
    """The solutions of one rule over a window: those carried into it, and those that its matches
    establish.

    With `different`, no two of the matches are of one solution: each can only be one that was
    carried.
    """

    def __init__(
        self,
        shape: Shape,
        carried: tuple[Sequence[EstablishedSolution], Kept | None],
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
        self._before = 0 if known is None else len(known)
        if known is None:
            self._all = Kept.of(derived)
        else:  # where nothing is derived, the types are those of what there is
            self._all = known.followed_by(Kept.of(derived)) if len(derived) else known
        start, expires = self._all.start, self._all.expires
        rows = ((start < expires) & (expires > self._lower)).nonzero()[0]
        self._rows = self._different(rows) if different else self._once(rows)
        """The solutions of the window, among all."""

    def _once(self, rows: I64Array) -> I64Array:
        """Each solution once, as it was established first."""
        groups = Groups.of(self._all.apart(rows), len(rows))
        if len(groups) == len(rows):
            return rows
        known = np.ones(len(rows), np.bool_)
        return rows[best_by_group(groups.ids, self._all.start[rows], known, len(groups))]

    def _different(self, rows: I64Array) -> I64Array:
        """The same where each is there once at most of those before, and once of the others."""
        border = int(rows.searchsorted(self._before))
        if border in (0, len(rows)):
            return rows
        start, expires = self._all.start, self._all.expires
        mine, fresh = rows[:border], rows[border:]
        near = fresh[within(expires[fresh], *extent(expires[mine]))]  # a solution has one expiry
        if not len(near):
            return rows
        groups = Groups.of(self._all.apart(mine), len(mine))
        ids = groups.find(self._all.apart(near), len(near))
        met = (ids >= 0).nonzero()[0]
        ours, theirs = near[met], mine[groups.firsts[ids[met]]]
        later = start[theirs] <= start[ours]
        left = np.ones(len(self._all), np.bool_)
        left[ours[later]] = False
        left[theirs[~later]] = False
        return rows[left[rows]]

    def parts(self) -> Derived:
        """What each solution derives in the window."""
        known = self._all
        block = known.block.first(known.identity)
        if len(self._rows) < len(block):
            block = block.take(self._rows)
        start, expires = block.words[_START], block.words[_EXPIRES]
        stop = np.where(expires < self._upper, expires, END_WORD)
        return Derived(
            np.maximum(start, self._lower), stop, expires, block.column(_TIME),
            block.columns(_ARGUMENTS, known.values), block.columns(known.values, known.identity),
            (),
        )  # fmt: skip

    def known(self) -> tuple[EstablishedSolution, ...]:
        """Every solution of the window, living at its end or not."""
        return tuple(Solutions(self._shape, self._all.take(self._rows), self._texts))

    def carried(self) -> Solutions:
        """The solutions that live at the end of the window."""
        rows = self._rows[self._all.expires[self._rows] >= self._upper]
        origin = np.where(rows < self._before, rows, -1)
        return Solutions(self._shape, self._all.take(rows), self._texts, self._since, origin)


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


__all__ = ["EstablishedColumns", "Kept", "Shape", "Solutions", "joined", "solutions_of"]
