"""Lives of matches that go on without some of their facts (`~expires` in a body).

A life begins when its match holds, and ends when the rest of the match does. A row of the lives
has an expiry as long as its match lives. For one instant after that it has none, so that a rest
that comes back at once is seen: then the life goes on. In a recursion it has none for ever after,
since there nothing may be said that is taken back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from tidemill.arrangement.interval_updates import (
    BEGIN_WORD,
    END_WORD,
    Change,
    Facts,
    JoinShape,
    join,
    net_moves,
)
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.lingering import Lives
from tidemill.datalog.dataflow.operators.output import Output
from tidemill.datalog.dataflow.schema import Schema, value_of, word_of
from tidemill.datalog.logical.forms import Constant
from tidemill.datalog.presence import BEGINNING, END
from tidemill.datalog.state import LINGERING, Share, StateRow, decode_fields, encode_fields
from tidemill.datalog.values import Failed
from tidemill.errors import Corrupt

_LIVES, _ENDED = END_WORD, BEGIN_WORD
"""Words in the place of an expiry: of a match that lives, and of one that did just before."""
_Key = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """A row of one match: its interval, time (a word, and whether it is null), expiry, values."""

    start: int
    end: int
    time: tuple[int, int]
    expiry: int
    carried: int


class Opening:
    """The rows of the lives of one rule's matches."""

    def __init__(
        self, name: str, lives: Lives, schemas: Mapping[str, Schema], texts: Texts
    ) -> None:
        self.lives = lives
        self._name = name
        self._schemas = schemas
        self._schema = schemas[name]
        self._texts = texts
        self._size = len(self._schema.kinds)
        self._state = Output(self._schema.columns)
        self._restored: dict[_Key, StateRow] = {}
        self._kept: dict[_Key, StateRow] = {}

    def take(self, touched: Change, facts: Mapping[str, Facts]) -> Change:
        """Changes of the lives that rows touch, each from the first instant of one on.

        Cost: the rows of these matches from then on.
        """
        since: dict[_Key, int] = {}
        for row in touched.tolist():
            key = self._key(row)
            since[key] = min(since.get(key, END_WORD), row[-3])
        if not since:
            return touched
        lives = self.lives
        met = self._found(since, lives.met, facts)
        stays = self._found(since, lives.stays, facts)
        before = self._found(dict.fromkeys(since, BEGIN_WORD), self._name, facts)
        rows: list[list[int]] = []
        for key, first in since.items():
            known = before.get(key, ())
            parts = self._parts(first, met.get(key, ()), stays.get(key, ()), known)
            rows += [self._row(key, part, part.start, 1) for part in parts]
            rows += [self._row(key, p, max(p.start, first), -1) for p in known if p.end > first]
        return net_moves(np.array(rows, np.int64).reshape(-1, self._schema.columns + 3))

    def _parts(
        self, since: int, met: Sequence[_Part], stays: Sequence[_Part], before: Sequence[_Part]
    ) -> Iterable[_Part]:
        """The rows of one match from an instant on, where some are known from before.

        A life goes on until something says that it ends: that changes then.
        """
        alive = [p for p in before if p.start < since <= p.end and p.expiry == _LIVES]
        known = [p for p in before if p.start < since]
        ever = self.lives.looped and bool(known)
        carried, time, at = None, known[0].time if known else (0, 1), since
        if alive:
            carried, time = alive[0].carried, alive[0].time
        cover = sorted((part.start, part.end) for part in (*met, *stays))
        while True:
            if carried is None:
                begun = [part for part in met if part.end > at]
                begin = min((max(part.start, at) for part in begun), default=END_WORD)
                if ever and at < begin:
                    yield _Part(at, begin, time, _ENDED, 0)
                if not begun:
                    return
                first = next(part for part in begun if part.start <= begin)
                carried, time, at = first.carried, first.time, begin
            end = at
            for start, stop in cover:
                if start <= end:
                    end = max(end, stop)
            ends = any(part.start <= end < part.end for part in before)
            last = end if ends or self.lives.looped else END_WORD
            for part in sorted(met, key=lambda part: part.start):
                if part.start < last and part.end > at:
                    merged = self._merged(carried, part.carried)
                    if merged != carried and part.start > at:
                        yield _Part(at, part.start, time, _LIVES, carried)
                        at = part.start
                    carried = merged
            if at < last:
                yield _Part(at, last, time, _LIVES, carried)
            if last == END_WORD:
                return
            if not self.lives.looped:
                yield _Part(last, last + 1, time, _ENDED, 0)
            ever, carried, at = self.lives.looped, None, last

    def _merged(self, known: int, more: int) -> int:
        """Values of facts with others that the same match has met. A merge that fails is none."""
        try:
            return self._schema.values.merged((known, more))
        except Failed:
            return known

    def _found(
        self, since: Mapping[_Key, int], name: str, facts: Mapping[str, Facts]
    ) -> dict[_Key, list[_Part]]:
        """The rows of some matches in a collection, each from an instant on."""
        schema, size = self._schemas[name], self._size
        places = [0, schema.expiry, *([schema.carried] if schema.carrying else [])]
        at, rest = np.arange(size), np.arange(size, size + len(places))
        shape = JoinShape(
            np.stack([at, at + 1]), np.stack([rest, np.array(places)]), np.empty((2, 0), np.int64),
            False, -1,
        )  # fmt: skip
        left = np.zeros((len(since), size + len(places) + 6), np.int64)
        for row, (key, first) in enumerate(since.items()):
            left[row, :size] = key[:-1]
            left[row, -4:] = key[-1], first, END_WORD, 1
        found: dict[_Key, list[_Part]] = {}
        for row in join(left, facts[name], shape).tolist():
            key = (*row[:size], row[-4] & ((1 << size) - 1))
            time = row[size], row[-4] >> size & 1
            carried = row[size + 2] if schema.carrying else 0
            found.setdefault(key, []).append(_Part(row[-3], row[-2], time, row[size + 1], carried))
        return found

    def _key(self, row: Sequence[int]) -> _Key:
        """The arguments of a row, and which of them are null."""
        nulls = row[self._schema.nulls] >> 1 & ((1 << self._size) - 1)
        return (*row[1 : self._size + 1], nulls)

    def _row(self, key: _Key, part: _Part, start: int, diff: int) -> list[int]:
        word, null = part.time
        carried = [part.carried] if self._schema.carrying else []
        nulls = key[-1] << 1 | null
        return [word, *key[:-1], part.expiry, *carried, nulls, start, part.end, diff]

    def ended_at(self, first: int, facts: Facts) -> Change:
        """The rows that have been cut at an instant, for `take`: it says how they go on."""
        rows = facts.living()
        found = np.ones((int((rows[:, -1] == first).sum()), rows.shape[1] + 1), np.int64)
        found[:, :-1] = rows[rows[:, -1] == first]
        found[:, -3], found[:, -2] = first, END_WORD
        return found

    # The state: lives that go on at the frontier, each as a row.

    def note(self, change: Change) -> None:
        """Changes of the rows."""
        lives = change[change[:, self._schema.expiry] == _LIVES]
        lives[:, -3] += 1
        lives[:, -2] += lives[:, -2] < END_WORD
        self._state.take(lives)

    def words(self, columns: Sequence[int]) -> set[int]:
        """The words that stand in some columns of the lives that are to be written."""
        return self._state.words(columns)

    def tell(self, upper: int) -> tuple[list[StateRow], list[StateRow]]:
        """The rows of the state that are gone and those that have come, at `upper`.

        A life that began and ended since the last call is in neither.
        """
        gone, come = list[StateRow](), dict[_Key, StateRow]()
        # Ends come before the beginnings of their instant.
        for move in sorted(
            self._state.tell(min(upper, END_WORD - 1) + 1).tolist(), key=itemgetter(-2, -1)
        ):
            key = self._life(move)
            if move[-1] < 0:
                if come.pop(key, None) is None:
                    kept = self._kept.pop(key) if key in self._kept else self._written(move)
                    gone.append(kept)
            elif key in self._restored:
                self._kept[key] = self._restored.pop(key)
            else:
                come[key] = self._written(move)
        gone += self._restored.values()
        self._restored.clear()
        return gone, list(come.values())

    def _life(self, row: Sequence[int]) -> _Key:
        carried = row[self._schema.carried] if self._schema.carrying else 0
        return (*self._key(row), carried)

    def _written(self, row: Sequence[int]) -> StateRow:
        lives, schema = self.lives, self._schema
        nulls = row[schema.nulls]

        def value(place: int | Constant) -> Any:
            if isinstance(place, Constant):
                return place.value
            if nulls >> place & 1:
                return None
            return value_of(row[place], schema.kind(place), self._texts, schema.values)

        carried = schema.values.value(row[schema.carried]) if schema.carrying else None
        keys = tuple(tuple(map(value, key)) for key in lives.keys)
        version = BEGINNING, ((END, carried),) * lives.leaving
        fields = keys, tuple(map(value, lives.values)), (version,)
        return lives.rule, LINGERING, encode_fields(fields)

    @property
    def soonest(self) -> int:
        """The first instant at which a row of the state is known to go or to come."""
        return END_WORD if self._state.soonest is None else self._state.soonest

    def restore(self, rows: Iterable[StateRow], lower: int, share: Share | None = None) -> Change:
        """Matches that have lived before `lower`, as rows of those that are met just then.

        Those of a `share` alone. Raises: Corrupt for a row that cannot be read.
        """
        schema, values, found = self._schemas[self.lives.met], self._schema.values, []
        for row in rows:
            try:
                keys, carried, versions = decode_fields(row[2])
                if share and not share.holds([keys[share.atom][at] for at in share.columns]):
                    continue
                words, nulls = self._words(keys, carried)
            except (ValueError, TypeError) as error:
                raise Corrupt(f"the state of rule {row[0]} cannot be read: {error}") from error
            times = [keys[at][0] for at in self.lives.times if keys[at][0] is not None]
            for at in range(self._size + 1, schema.expiry):
                nulls |= 1 << at
            nulls |= not times
            start = [
                max(times, default=0),
                *words,
                *[0] * (schema.expiry - self._size - 1),
                END_WORD,
            ]
            passed = [values.number(each) for _, facts in versions for _, each in facts]
            for number in {*passed} if schema.carrying else {0}:
                told = [number] if schema.carrying else []
                found.append([*start, *told, nulls, lower - 1, lower, 1])
            merged = values.merged(passed) if schema.carrying else 0
            self._restored[(*words, nulls >> 1 & ((1 << self._size) - 1), merged)] = row
        return np.array(found, np.int64).reshape(-1, schema.columns + 3)

    def _words(self, keys: Sequence[Sequence[Any]], values: Sequence[Any]) -> tuple[list[int], int]:
        """The arguments of a match as words, and the bits of its nulls, from those of a state."""
        words, nulls = [0] * self._size, 0
        places = [place for key in self.lives.keys for place in key] + list(self.lives.values)
        given = [value for key in keys for value in key] + list(values)
        for place, value in zip(places, given, strict=True):
            if isinstance(place, int):
                kind = self._schema.kind(place)
                word, null = word_of(value, kind, self._texts, self._schema.values)
                words[place - 1] = word
                nulls |= null << place
        return words, nulls
