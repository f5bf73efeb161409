"""The facts of an input at one instant after the other, each a value of its own that shares all it
can with the last.

A *fact version* is never changed: a change makes the next one, in time and memory of what it
changes. So engines at different instants look at one input without taking notice of each other, and
what one of them has made for an instant, the next version or an index, is there for all that come
to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from sys import getsizeof
from threading import Lock
from typing import Any, TypeAlias, TypeVar

from immutables import Map

from tidemill.datalog.incremental.facts import row_of
from tidemill.datalog.presence import Instant
from tidemill.datalog.tables import EXPIRES, TIME, Key, Positions, Row
from tidemill.errors import Corrupt

Each = TypeVar("Each")
Given: TypeAlias = "tuple[Key, Instant, int]"
"""Key and expiry of an input record, and how much its multiplicity changes."""
Turn: TypeAlias = "tuple[Key, Row | None, Row | None]"
"""A fact with its row before and after."""
Several: TypeAlias = "tuple[tuple[Instant, int], ...]"
Bucket: TypeAlias = "tuple[Row, ...] | Map[Row, None]"

Pause: TypeAlias = "Callable[[], None]"
"""What somebody is asked between two parts of a long work; raises if there is to be no other part."""
_PART = 512
"""So many rows are a part."""
_SMALL = 8
"""So many rows of a bucket are kept side by side."""


class FactVersion:
    """The facts of one input with all changes up to `at`: rows by key, and the indexes that anybody
    asked for.

    Only for facts that carry nothing but a time and an expiry. For any number of threads, except
    that whoever makes a `later` version sees to it that nobody else does at the same time.
    """

    __slots__ = ("__weakref__", "_indexes", "_making", "_several", "at", "later", "rows")

    def __init__(self, at: Instant, rows: Map[Key, Row], several: Map[Key, Several]) -> None:
        self.at = at
        self.rows = rows
        self.later: Later | None = None
        self._several = several
        self._indexes: dict[Positions, Map[Any, Bucket]] = {}
        self._making = Lock()

    @classmethod
    def of(cls, at: Instant, given: Iterable[Given]) -> FactVersion:
        """The facts of the records that are present at an instant."""
        rows = Map[Key, Row]().mutate()
        again: list[Given] = []
        for record in given:
            key, expires, copies = record
            if copies == 1 and key not in rows:
                rows[key] = row_of(key, (expires, None))
            else:
                again.append(record)
        version = cls(at, rows.finish(), Map())
        return version._changed(at, again, []) if again else version

    def __len__(self) -> int:
        return len(self.rows)

    def records(self) -> Iterable[Given]:
        """Every record that is present, with its multiplicity."""
        several = self._several
        for key, row in self.rows.items():
            known = several.get(key)
            if known is None:
                yield key, row[EXPIRES], 1
            else:
                for expires, copies in known:
                    yield key, expires, copies

    # What comes after it.

    def change(self, at: Instant, given: Iterable[Given]) -> Later:
        """The version after the changes of one instant, which all that look at this one come to.

        Raises: Corrupt if a record is taken away more often than it was put in; then nothing has
        happened.
        """
        turns: list[Turn] = []
        version = self._changed(at, given, turns)
        self.later = Later(at, tuple(turns), version)
        return self.later

    def join(self, at: Instant, given: Iterable[Given], known: FactVersion) -> Later:
        """As `change`, where somebody has come to the same facts from elsewhere: go on with theirs."""
        turns: list[Turn] = []
        self._changed(at, given, turns)
        theirs = known.rows
        self.later = Later(at, tuple((key, old, theirs.get(key)) for key, old, _ in turns), known)
        return self.later

    def _changed(self, at: Instant, given: Iterable[Given], turns: list[Turn]) -> FactVersion:
        counts: dict[Key, dict[Instant, int]] = {}
        for key, expires, diff in given:
            mine = counts.get(key)
            if mine is None:
                mine = counts[key] = self._counts(key)
            mine[expires] = mine.get(expires, 0) + diff
        rows, several = self.rows.mutate(), self._several.mutate()
        for key, mine in counts.items():
            found = tuple([(expires, copies) for expires, copies in mine.items() if copies])
            if any(copies < 0 for _, copies in found):
                raise Corrupt(
                    f"a row of {key} is taken away more often than it was put in, first at {at}",
                    row=key, time=at,
                )  # fmt: skip
            if len(found) == 1 and found[0][1] == 1:
                several.pop(key, None)
            elif found:
                several[key] = found
            else:
                several.pop(key, None)
            old = self.rows.get(key)
            if not found:
                if old is not None:
                    del rows[key]
                    turns.append((key, old, None))
                continue
            expires = found[0][0] if len(found) == 1 else max(expires for expires, _ in found)
            if old is None or old[EXPIRES] != expires:
                row = rows[key] = row_of(key, (expires, None))
                turns.append((key, old, row))
        return FactVersion(at, rows.finish(), several.finish())

    def _counts(self, key: Key) -> dict[Instant, int]:
        known = self._several.get(key)
        if known is not None:
            return dict(known)
        row = self.rows.get(key)
        return {} if row is None else {row[EXPIRES]: 1}

    # Indexes.

    def index(self, positions: Positions, pause: Pause | None = None) -> Map[Any, Bucket]:
        """Rows by their values at `positions`; made once, by who asks first."""
        with self._making:
            known = self._indexes.get(positions)
            if known is None and pause is None:
                known = self._indexes[positions] = _indexed(self.rows.values(), key_at(positions))
        if known is None:
            # Whoever is asked to pause keeps nobody from what is there.
            made = _indexed(paused(self.rows.values(), pause), key_at(positions))
            with self._making:
                known = self._indexes.setdefault(positions, made)
        return known

    def index_after(
        self, positions: Positions, before: Map[Any, Bucket], turns: Sequence[Turn]
    ) -> Map[Any, Bucket]:
        """As `index`, from that of the version before. Cost: O(turns)."""
        with self._making:
            known = self._indexes.get(positions)
            if known is None:
                known = self._indexes[positions] = _moved(before, key_at(positions), turns)
            return known

    @property
    def indexed(self) -> Mapping[Positions, Map[Any, Bucket]]:
        """The indexes that are there."""
        return dict(self._indexes)


class Later:
    """The way from one version to the next: at which instant, and which facts it changes."""

    __slots__ = ("at", "turns", "version")

    def __init__(self, at: Instant, turns: tuple[Turn, ...], version: FactVersion) -> None:
        self.at = at
        self.turns = turns
        self.version = version


def paused(rows: Iterable[Each], pause: Pause | None) -> Iterable[Each]:
    """The same, asking between two parts of them."""
    return rows if pause is None else _in_parts(rows, pause)


def _in_parts(rows: Iterable[Each], pause: Pause) -> Iterator[Each]:
    left = iter(rows)
    while part := list(islice(left, _PART)):
        pause()
        yield from part


def key_at(positions: Positions) -> Callable[[Row], Any]:
    """What stands for a row in the index on `positions`."""
    if not positions:
        return lambda _: ()
    return itemgetter(*(TIME + position for position in positions))


def _indexed(rows: Iterable[Row], key_of: Callable[[Row], Any]) -> Map[Any, Bucket]:
    buckets: dict[Any, Bucket] = {}
    large: dict[Any, list[Row]] = {}
    for row in rows:
        place = key_of(row)
        known = buckets.get(place)
        if known is None:
            buckets[place] = (row,)
        elif place in large:
            large[place].append(row)
        elif len(known) < _SMALL:
            buckets[place] = (*known, row)
        else:
            large[place] = [*known, row]
    for place, mine in large.items():
        buckets[place] = Map(dict.fromkeys(mine))
    return Map(buckets)


def _moved(
    before: Map[Any, Bucket], key_of: Callable[[Row], Any], turns: Sequence[Turn]
) -> Map[Any, Bucket]:
    index = before.mutate()
    for _, old, new in turns:
        if old is not None:
            place = key_of(old)
            rest = _without(index[place], old)
            if rest:
                index[place] = rest
            else:
                del index[place]
        if new is not None:
            place = key_of(new)
            index[place] = _with(index.get(place, ()), new)
    return index.finish()


def _with(bucket: Bucket, row: Row) -> Bucket:
    if isinstance(bucket, tuple):
        more = (*bucket, row)
        return more if len(more) <= _SMALL else Map((each, None) for each in more)
    return bucket.set(row, None)


def _without(bucket: Bucket, row: Row) -> Bucket:
    if isinstance(bucket, tuple):
        return tuple([each for each in bucket if each != row])
    rest = bucket.delete(row)
    return rest if len(rest) > _SMALL // 2 else tuple(rest)


def size_bytes(version: FactVersion, sample: int) -> int:
    """About how many bytes the rows and indexes of a version take, from a sample of the rows."""
    rows = [row for row, _ in zip(version.rows.values(), range(sample), strict=False)]
    if not rows:
        return 0
    row = sum(getsizeof(row) + sum(map(getsizeof, row)) for row in rows) / len(rows)
    entry = getsizeof(rows[0][TIME:]) + _ENTRY
    return int(len(version.rows) * (row + entry + _ENTRY * len(version.indexed)))


_ENTRY = 48
"""About what an entry of a map takes, with its share of the nodes above it."""

__all__ = ["FactVersion", "Given", "Later", "Pause", "Turn", "key_at", "paused", "size_bytes"]
