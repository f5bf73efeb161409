"""Aggregates of one rule: the solutions of each group, and the record that they make.

Counts and sums of whole numbers move by what changes (`Sums`). Groups of other lattices are read
again from the first instant of a change. A compiled loop merges the greatest and the least of
words and sums of floats and decimals; others are merged value by value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tidemill.arrangement.interval_updates import (
    COUNT,
    FLOAT_SUM,
    GREATEST,
    LEAST,
    LOWER_SUM,
    MEAN,
    SUM,
    SUM_WORDS,
    UPPER_SUM,
    Arrangement,
    Change,
    Sums,
    base_of,
    contribute,
    finish,
    merged_stretches,
    no_change,
    replaced,
    rounded,
)
from tidemill.arrangement.kernels import BoolArray, I64Array
from tidemill.arrangement.looks import look
from tidemill.datalog.columns.spelling import MOMENTS, TEXTS
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.carried import merged_all
from tidemill.datalog.dataflow.operators.contributing import (
    Sources,
    sources_of,
    straight_sources,
)
from tidemill.datalog.dataflow.operators.decimal_sums import in_two_words, sums_of
from tidemill.datalog.dataflow.operators.errors import Errors
from tidemill.datalog.dataflow.operators.iterating import joined
from tidemill.datalog.dataflow.operators.matching import PIECE_ROWS, Matches
from tidemill.datalog.dataflow.operators.ranks import RANKED, put_ranks
from tidemill.datalog.dataflow.operators.regrouping import Regrouped, Touched, words_in
from tidemill.datalog.dataflow.operators.stretches import Observed
from tidemill.datalog.dataflow.plan import DeltaPlan, Reduce
from tidemill.datalog.dataflow.schema import COLUMNS_MAX, TIME, Schema, value_of, word_of
from tidemill.datalog.lattices import TALLIES, Lattice, Tally, tally
from tidemill.datalog.logical.forms import Expression, Type
from tidemill.datalog.logical.partial import COUNTED, LOWER, UPPER, kind_of
from tidemill.datalog.presence import END, fact_text
from tidemill.datalog.sums import among_floats
from tidemill.datalog.values import INT_MAX, INT_MIN, OVERFLOW, Failed

_KINDS = {
    "count": COUNT, "sum": SUM, "average": MEAN,
    COUNTED: COUNT, UPPER: UPPER_SUM, LOWER: LOWER_SUM,
}  # fmt: skip
_EXTREMES = {"max": GREATEST, "latest": GREATEST, "min": LEAST, "earliest": LEAST}
_IN_ORDER = MOMENTS | {Type.INT, Type.BOOL, Type.FLOAT}
"""Types of which the greatest and the least word are known, floats by `_turned`.

Those of `RANKED` are known by ranks."""
_SUMMED = frozenset({Type.INT, Type.FLOAT, Type.DECIMAL})
_ADDED = TALLIES - {"count"}


class Reduction:
    """The aggregates of one rule, whose predicate nothing else derives.

    A contribution has the columns of its group, then time, expiry, values and nulls. The group is
    the head without its time, or with it where the head says it.
    """

    def __init__(
        self, reduce: Reduce, matches: Matches, schema: Schema, errors: Errors, texts: Texts,
        lattices: Mapping[str, Lattice],
    ) -> None:  # fmt: skip
        self._plan = reduce
        self._matches = matches
        self._schema = schema
        self._errors = errors
        self._texts = texts
        self._lattices = lattices
        self._first = TIME if reduce.by_time else TIME + 1
        self._groups = schema.expiry - self._first
        self._terms = () if reduce.carried else _terms_of(reduce)
        values = 1 if reduce.carried else len(self._terms)
        self._value_kinds = np.array(
            [_KINDS.get(kind_of(name), COUNT) for name, _ in reduce.lattices], np.int64
        )
        self._together = _all_at_once(reduce, schema)
        self._decimals = [
            at for at, kind in enumerate(reduce.kinds)
            if self._together and kind is Type.DECIMAL and reduce.lattices[at][0] in _ADDED
        ]  # fmt: skip
        self._ranked = [
            at for at, kind in enumerate(reduce.kinds)
            if self._together and kind in RANKED and reduce.lattices[at][0] in _EXTREMES
        ]  # fmt: skip
        if self._together:
            named = zip(reduce.lattices, reduce.kinds, strict=True)
            kinds = [_merged_kind(name, kind) for (name, _), kind in named]
            finished = [
                GREATEST if at in self._decimals or kind == FLOAT_SUM else kind
                for at, kind in enumerate(kinds)
            ]
            self._value_kinds = np.array(finished, np.int64)
            self._merged_kinds = np.array(kinds + [SUM] * len(self._decimals), np.int64)
        self._sums: Sums | None = None
        if reduce.linear:
            self._sums = Sums(self._groups, values, reduce.timed)
        self._width = self._groups + 2 + values + 1
        self._group_columns = np.arange(self._first, schema.expiry)
        self._sources = sources_of(reduce, matches.plan, schema, self._first, self._terms)
        each = [straight_sources(self._sources, matches.plan, d) for d in matches.plan.deltas]
        self._straight = {
            id(delta): found for delta, found in zip(matches.plan.deltas, each, strict=True)
            if found is not None
        }  # fmt: skip
        self._contributions = Regrouped(self._width, self._groups)
        self._observed = Observed(reduce, schema, self._groups, texts, lattices)
        self._failing = Failing(schema, errors, matches.plan.form.number, texts, self._first)
        self.contributes_ahead = False
        """Whether matches are shown to `ahead` before what that makes of them is taken."""
        self.waiting = 0
        """Contributions to sums that wait for `take`."""
        self.told_net = False
        """Whether the last changes of `take` have no row with its opposite."""

    @property
    def nbytes(self) -> int:
        """The bytes of what is kept of the solutions."""
        sums = self._sums.nbytes if self._sums is not None else 0
        return sums + self._contributions.kept.nbytes

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the contributions that wait, as they came."""
        return 8 * self.waiting * (self._width + 3)

    def take(
        self, matches: Change, facts: Arrangement, since: int, in_place: bool
    ) -> tuple[Change, int]:
        """Changes of facts of the head by matches with their times and expiries, and a place.

        Facts that come, from the place on, are to be merged. `facts` are those of the predicate so
        far. With `in_place` they have the changes before the place already, else these take facts
        away alone. Cost: of counts and sums O(change + later ends in its groups), else the
        solutions of these. A group whose latest time is taken back is read whole.
        """
        self.told_net = False
        change = matches if self.contributes_ahead else self.contributed(matches)
        if self._sums is None:
            if not len(change):
                return no_change(self._schema.columns), 0
            touched = self._contributions.take(change)
            gone = self._before(touched.groups, touched.since, facts, in_place)
            return _together([gone], [self._read_again(touched)])
        if not self.contributes_ahead:
            self._sums.add(change, since)
        self.waiting = 0
        heads, starts = self._sums.touched()
        changed: list[Change] = []
        fresh: list[Change] = []
        if in_place and self._stands(facts):
            self._look([], 16 * len(heads) * (self._schema.columns + 3))
            said, many, made, rest = self._sums.change_standing(
                heads, starts, facts, self._first, self._value_kinds
            )
            if not len(rest):
                self.told_net = True
                return said, made
            heads, starts = heads.take(rest), starts.take(rest)
            changed, fresh = [said[:many], said[many:made]], [said[made:]]
        if len(facts) or self._failing.some:
            groups = self._sums.rows.rows.take(heads, axis=0)
            changed.insert(1, self._before(groups, starts, facts, in_place))
        for first in range(0, max(len(heads), 1), PIECE_ROWS):
            self._look(fresh)
            last = first + PIECE_ROWS
            stretches = self._sums.stretches(heads[first:last], starts[first:last])
            fresh.append(self._finished(stretches))
        return _together(changed, fresh)

    def _stands(self, facts: Arrangement) -> bool:
        """Whether facts of groups may change where they stand, as far as all of them are alike."""
        if not len(facts) or self._plan.merges or self._failing.some:
            return False
        return facts.is_indexed_within(range(self._first, self._schema.expiry))

    def _look(self, found: Sequence[Change], copied: int = 0) -> None:
        """`found` and so many bytes beside have room. Raises: as `look`, `Allowance.require`."""
        look()
        self._matches.allowance.require(sum(part.nbytes for part in found) + copied)

    def numbers(self) -> set[int]:
        """Words of the solutions that are kept which may be numbers of values."""
        columns = [at - self._first for at in self._schema.numbered if at < self._schema.expiry]
        columns = [at for at in columns if at >= 0]
        if self._sums is not None and columns:
            return set(words_in(self._sums.rows.rows[: len(self._sums.rows)], columns))
        columns += [self._groups + 2] if self._plan.carried else []
        return self._contributions.numbers(columns) if columns else set()

    def cut(self, first: int) -> None:
        """Forget what holds from an instant on."""
        self._contributions.kept.cut(first)
        self._failing.cut(first)

    def compact(self, since: int) -> None:
        """Forget what has ended by `since`."""
        self._contributions.kept.compact(since)
        if self._sums is not None:
            self._sums.compact(since)

    def straight(self, delta: DeltaPlan) -> Sources | None:
        """The sources of contributions in the change of a delta plan, None if it makes matches."""
        return self._straight.get(id(delta))

    def ahead(self, matches: Change, since: int, sources: Sources | None = None) -> Change:
        """Take a piece of matches in where sums move by it, else its contributions.

        With `sources` the rows of a change stand for their matches. Cost: O(matches).
        """
        change = self.contributed(matches, sources)
        if self._sums is None:
            return change
        self._sums.add(change, since)
        self.waiting += len(change)
        return no_change(self._width)  # a part of the change would keep all of its memory

    def contributed(self, matches: Change, sources: Sources | None = None) -> Change:
        """Matches as contributions; those of which a value fails are errors. Cost: O(matches)."""
        if not len(matches):
            return no_change(self._width)
        sources = sources or self._sources
        if sources is not None:
            return sources.contributions(matches, self._width)
        values: list[tuple[I64Array, BoolArray | None]] = []
        if self._plan.carried:
            numbers, failures = self._injected(matches)
            kept = self._matches.fail(failures, matches)
            if kept is not None:
                matches, numbers = matches[kept], numbers[kept]
            values.append((numbers, None))
        for term, kind in zip(self._terms, self._plan.kinds, strict=True):
            words, nulls, failures = self._matches.expressions.words(term, kind, matches)
            kept = self._matches.fail(failures, matches)
            if kept is not None:
                return self.contributed(matches[kept])
            values.append((words, nulls))
        rows = self._matches.rows(matches)
        time = -1 if self._first == TIME else TIME
        none = np.empty(0, np.int64)
        out = contribute(rows, self._group_columns, time, self._schema.expiry, none, self._width)
        for at, (words, null) in enumerate(values, self._groups + 2):
            out[:, at] = words
            if null is not None:
                out[:, self._width - 1] |= null.astype(np.int64) << at
        return out

    def _injected(self, matches: Change) -> tuple[I64Array, list[tuple[int, str]]]:
        """The parafacts of each match: what it passes on, and what the head says of it."""
        numbers, failures = np.zeros(len(matches), np.int64), []
        values, passes = self._schema.values, self._matches.plan.head.passes
        for row, match in enumerate(matches):
            try:
                found = [values.value(int(match[passes.into]))] if passes is not None else []
                for at, (name, terms) in enumerate(self._plan.lattices):
                    found.append(((name, self._inner(at, name, terms, match)),))
                numbers[row] = values.number(merged_all(found, values.lattices))
            except Failed as failed:
                failures.append((row, failed.reason))
        return numbers, failures

    def _inner(self, at: int, name: str, terms: Sequence[Expression], match: I64Array) -> Any:
        """The value of a lattice for one match. Raises: Failed."""
        given = [self._matches.expressions.value(term, match) for term in terms]
        if name not in TALLIES:
            return self._lattices[name].inject(*given)
        identity = (self._matches.plan.form.number, at, *self._identity(match))
        value = among_floats(given[0]) if self._plan.floats and name == "sum" else given[0]
        if value == END and name != "count":  # an overflow of the group, and not of this match
            return Tally(name, END, lambda: {identity: value})
        return tally(name, {identity: value})

    def _identity(self, match: I64Array) -> Iterator[Any]:
        """Values that tell a match from all others of its rule, the same in every engine.

        IMPORTANT: contributions leave an engine, in facts for another one and in rows of a state.
        """
        columns = self._matches.plan.columns
        nulls = int(match[columns.nulls])
        for column in columns.identity:
            word, kind = int(match[column]), columns.numbers.get(column)
            if nulls >> column & 1:
                yield None
            elif kind is None:
                yield word
            elif kind in TEXTS:
                yield self._texts.texts(np.array([word]))[0]
            else:
                value = columns.values.value(word)
                yield value if kind is Type.SET else (type(value).__name__, value)

    def _before(
        self, groups: I64Array, since: I64Array, facts: Arrangement, in_place: bool
    ) -> Change:
        """Facts of the groups and what fails of them, each from an instant on, taken away."""
        self._failing.forget(groups, since)
        return replaced(groups, since, facts, self._first, self._schema.expiry, in_place)

    # Counts and sums.

    def _finished(self, stretches: I64Array) -> Change:
        """Stretches of sums as rows of the predicate; sums that overflow are errors."""
        columns = self._schema.columns
        if self._plan.merges:
            stretches = self._put_together(stretches)
        rows = finish(stretches, self._groups, self._first, self._value_kinds, columns)
        return self._one_by_one(stretches) if rows is None else rows

    def _put_together(self, stretches: I64Array) -> I64Array:
        """Stretches of sums over parts as those of all values: count, upper and lower halves."""
        begin, lattices = self._groups + 3, self._plan.lattices
        size = len(stretches)
        given = stretches[:, begin:-3].reshape(size, len(self._terms), SUM_WORDS)
        totals = (given[:, :, 1] << 32) + given[:, :, 2]
        sums = np.zeros((size, len(lattices), SUM_WORDS), np.int64)
        at = 0
        for place, (_, terms) in enumerate(lattices):
            sums[:, place, : len(terms)] = totals[:, at : at + len(terms)]
            at += len(terms)
        flat = sums.reshape(size, len(lattices) * SUM_WORDS)
        return np.concatenate([stretches[:, :begin], flat, stretches[:, -3:]], axis=1)

    def _one_by_one(self, stretches: I64Array) -> Change:
        """Rows of stretches with sums of any size; see `_finished`."""
        schema, groups = self._schema, self._groups
        rows = []
        for stretch in stretches.tolist():
            row = self._observed.row_of(stretch, stretch[-3], stretch[groups], stretch[groups + 1])
            row[-3:] = [stretch[-2], stretch[-1], 1]
            for at, (name, _) in enumerate(self._plan.lattices):
                place, column = groups + 3 + SUM_WORDS * at, schema.expiry + 1 + at
                count = stretch[place]
                total = (stretch[place + 1] << 32) + stretch[place + 2]
                if name == "count":
                    row[column] = count
                elif not count:
                    row[schema.nulls] |= 1 << column
                elif self._value_kinds[at] in (GREATEST, LEAST):
                    row[column] = stretch[place + 1]
                elif name == "average":
                    row[column], _ = word_of(total / count, Type.FLOAT, self._texts, schema.values)
                elif INT_MIN <= total <= INT_MAX:
                    row[column] = total
                else:
                    self._failing.note(row, OVERFLOW)
                    break
            else:
                rows.append(row)
        return np.array(rows, np.int64).reshape(-1, schema.columns + 3)

    # Other lattices.

    def _read_again(self, touched: Touched) -> Change:
        parts: list[Change] = []
        for piece in touched.pieces(PIECE_ROWS):
            self._look([*parts, piece.rows] if self._decimals else parts)  # which are copied
            together = self._read_together(piece, parts) if self._together else None
            parts.append(self._read_one_by_one(piece) if together is None else together)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _read_one_by_one(self, touched: Touched) -> Change:
        rows = []
        if self._plan.carried:
            rows = [self._blended(*alive) for alive in touched.stretches()]
        else:
            for alive in touched.alive():
                for row, failed in self._observed.rows(alive):
                    if failed is None:
                        rows.append(row)
                    else:
                        self._failing.note(row, failed)
        kept = [row for row in rows if row is not None]
        return np.array(kept, np.int64).reshape(-1, self._schema.columns + 3)

    def _read_together(self, touched: Touched, parts: Sequence[Change]) -> Change | None:
        """Rows of lattices whose words a compiled loop merges; None for sums it cannot tell."""
        room = partial(self._look, parts)
        rows, lattices = touched.rows, self._plan.lattices
        floats = [at for at, kind in enumerate(self._plan.kinds) if kind is Type.FLOAT]
        bases = np.zeros(len(lattices) + len(self._decimals), np.int64)
        for at in floats:
            column = self._groups + 2 + at
            if lattices[at][0] in TALLIES:
                base = base_of(rows[:, column], rows[:, self._width - 1] >> column & 1 == 1)
                if base is None:
                    return None
                bases[at] = base
        if self._decimals:  # else nothing reads the rows again, and they are turned in place
            columns = [self._groups + 2 + at for at in self._decimals]
            rows = in_two_words(rows, columns, self._texts)
        for at in floats:
            if lattices[at][0] in _EXTREMES:
                rows[:, self._groups + 2 + at] = _turned(rows[:, self._groups + 2 + at])
        ranks = {
            at: put_ranks(rows, self._groups + 2 + at, self._plan.kinds[at], self._texts, room)
            for at in self._ranked
        }
        found = merged_stretches(rows, touched.firsts, self._groups, self._merged_kinds, bases)
        for at in floats:
            place, name = self._place(at), lattices[at][0]
            count, upper, lower = found.T[place : place + SUM_WORDS]
            if name in _EXTREMES:
                upper[:] = _turned(upper)
            elif name != "count":
                sums = rounded(count, upper, lower, int(bases[at]), name == "average")
                upper[:] = sums.view(np.int64)
        for at, words in ranks.items():
            upper = found[:, self._place(at) + 1]
            upper[:] = words[upper]
        for beside, at in enumerate(self._decimals, len(lattices)):
            mean = lattices[at][0] == "average"
            totals = sums_of(found, self._place(at), self._place(beside), mean, self._texts)
            if totals is None:
                return None
            found[:, self._place(at) + 1] = totals
        last = self._place(len(lattices))
        if self._decimals:
            found = np.concatenate([found[:, :last], found[:, -3:]], axis=1)
        return self._finished(found)

    def _place(self, value: int) -> int:
        """The column of a stretch with the count of a value, before its halves."""
        return self._groups + 3 + SUM_WORDS * value

    def _blended(self, alive: Sequence[list[int]], start: int, end: int) -> list[int] | None:
        """A row with the parafacts of solutions that hold together, which have to be seen."""
        groups, values = self._groups, self._schema.values
        time, expiry = max(each[groups] for each in alive), min(each[groups + 1] for each in alive)
        row = self._observed.row_of(alive[0], alive[0][-4], time, expiry)
        row[-3:] = [start, end, 1]
        try:
            number = values.merged([each[groups + 2] for each in alive])
            for name, inner in values.value(number) or ():
                (seen, *_) = values.lattices[name].observe(inner)
                if seen == END and name in TALLIES:
                    raise Failed(OVERFLOW)
        except Failed as failed:
            self._failing.note(row, failed.reason)
            return None
        row[self._schema.carried] = number
        return row


def _together(changed: Sequence[Change], come: Sequence[Change]) -> tuple[Change, int]:
    """Changes as one, and how many rows are in the first of them."""
    parts = [*changed, *come]
    return joined([part for part in parts if len(part)] or parts[:1]), sum(map(len, changed))


def _all_at_once(reduce: Reduce, schema: Schema) -> bool:
    """Whether a compiled loop merges all lattices of a rule whose groups are read again."""
    one_each = len(reduce.kinds) == len(reduce.lattices)
    if reduce.linear or reduce.carried or reduce.merges or not one_each:
        return False
    if schema.columns + len(reduce.kinds) > COLUMNS_MAX:  # of which each has a bit for its nulls
        return False
    return all(
        kind in _IN_ORDER | RANKED and schema.kind(column) is kind
        if name in _EXTREMES
        else name == "count" or (name in TALLIES and kind in _SUMMED)
        for column, ((name, _), kind) in enumerate(
            zip(reduce.lattices, reduce.kinds, strict=True), schema.expiry + 1
        )
    )


def _merged_kind(name: str, kind: Type) -> int:
    """The way in which a compiled loop merges the words of a lattice."""
    if name in _EXTREMES:
        return _EXTREMES[name]
    if kind is Type.DECIMAL and name in _ADDED:
        return SUM
    return FLOAT_SUM if kind is Type.FLOAT and name != "count" else _KINDS[name]


def _turned(words: I64Array) -> I64Array:
    """Words of floats in an order as that of the floats, and back; there is no NaN among them."""
    return np.where(words < 0, words ^ np.int64(INT_MAX), words)


def _terms_of(reduce: Reduce) -> tuple[Expression, ...]:
    return tuple(term for _, terms in reduce.lattices for term in terms)


class Failing:
    """Facts of a collection that are errors instead, by group: their key from a column on."""

    def __init__(
        self, schema: Schema, errors: Errors, rule: int, texts: Texts, first: int = TIME
    ) -> None:
        self._schema = schema
        self._errors = errors
        self._rule = rule
        self._texts = texts
        self._first = first
        self._failed: dict[tuple[int, ...], list[tuple[str, int, int]]] = {}

    def note(self, row: Sequence[int], reason: str) -> None:
        """A value of a fact fails, on the interval of its row."""
        schema, nulls = self._schema, row[self._schema.nulls]
        key = [
            None if nulls >> column & 1
            else value_of(row[column], schema.kind(column), self._texts, schema.values)
            for column in schema.key
        ]  # fmt: skip
        text = f"{reason}: {fact_text(schema.predicate, tuple(key))}"
        mask = (1 << (schema.expiry - self._first)) - 1
        group = (*row[self._first : schema.expiry], nulls >> self._first & mask)
        self._failed.setdefault(group, []).append((text, row[-3], row[-2]))
        self._errors.add(self._rule, text, row[-3], row[-2], 1)

    @property
    def some(self) -> bool:
        """Whether anything fails."""
        return bool(self._failed)

    def forget(self, groups: I64Array, since: I64Array) -> None:
        """Take back what was said to fail in groups, each from an instant on."""
        if not self._failed:
            return
        size = self._schema.expiry - self._first
        for row, first in zip(groups.tolist(), since.tolist(), strict=True):
            self._end((*row[:size], row[-3] & ((1 << size) - 1)), first)

    def cut(self, first: int) -> None:
        """Take back all that was said to fail from an instant on."""
        for group in list(self._failed):
            self._end(group, first)

    def _end(self, group: tuple[int, ...], first: int) -> None:
        kept = []
        for text, start, end in self._failed.pop(group, ()):
            if end > first:
                self._errors.add(self._rule, text, max(start, first), end, -1)
            if start < first:
                kept.append((text, start, min(end, first)))
        if kept:
            self._failed[group] = kept
