"""Solutions with an end of their own as rows of a view's state, for an engine that begins again.

A solution may outlive the facts that established it, so they do not give it back. The solutions
that one step establishes are one row: a *block* of columns. A block is gone when all of them are.
The bytes of a block depend on its solutions, and not on the order in which they came. In a ticked
program each is a row by itself.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from threading import Lock
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.interval_updates import BEGIN_WORD, END_WORD, Change
from tidemill.arrangement.kernels import BoolArray, I64Array, compiled
from tidemill.arrangement.kernels.numbering import number
from tidemill.arrangement.row_order import ROWS_MIN, order_of
from tidemill.datalog.columns.packed_texts import packed_texts
from tidemill.datalog.columns.spelling import TEXTS
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.operators.matching import Matches
from tidemill.datalog.dataflow.operators.output import Output
from tidemill.datalog.dataflow.schema import (
    NUMBERED,
    Schema,
    column_of,
    instant_of,
    record_of,
    value_of,
    word_of,
)
from tidemill.datalog.lattices import TALLIES
from tidemill.datalog.logical.forms import Type, carried_variables, matched_variables
from tidemill.datalog.presence import END
from tidemill.datalog.state import (
    AHEAD,
    ESTABLISHED,
    LINGERING,
    OPEN,
    EstablishedSolution,
    Share,
    StateRow,
    decode_fields,
    encode_fields,
    established_row,
)
from tidemill.errors import Corrupt

BLOCK_ROWS_MAX = 1 << 16
"""Solutions in one row of the state."""
_CODEC = pa.Codec("zstd", compression_level=1)


class _Packed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`words` hold column after column; those of texts are places in `texts`."""

    rows: int
    size: int
    words: bytes
    texts: list[str]


class _ToPack(msgspec.Struct, frozen=True, array_like=True):
    """The same as `_Packed`, with bytes in the place of texts: no object is made of each."""

    rows: int
    size: int
    words: bytes
    texts: msgspec.Raw


class LateRow:
    """A row of the state, made when somebody asks for it first. For any thread."""

    __slots__ = ("_asking", "_make", "_row", "nbytes")

    def __init__(self, make: Callable[[], StateRow], nbytes: int) -> None:
        """`nbytes` are held until the row is made."""
        self._make: Callable[[], StateRow] | None = make
        self._row: StateRow | None = None
        self._asking = Lock()
        self.nbytes = nbytes

    def row(self) -> StateRow:
        """The row. Cost: of a block some 150 ns a solution, at the first call."""
        with self._asking:
            if self._row is None:
                assert self._make is not None
                self._row, self._make = self._make(), None
                self.nbytes = len(self._row[2])
            return self._row


def _same(row: StateRow) -> StateRow:
    return row


class OpenSolutions:
    """The solutions of one rule that live, as rows of the state.

    The columns of a block are time, expiry, the keys of the facts in the order of the atoms. Other
    variables follow by name. The last column has a bit for each null.
    """

    def __init__(
        self, matches: Matches, schemas: Mapping[str, Schema], texts: Texts, *, ticked: bool
    ) -> None:
        self._plan = plan = matches.plan
        self._finds = matches
        self._schema = schemas[plan.form.head.predicate]
        self._texts = texts
        self._ticked = ticked
        self._kind = AHEAD if plan.head.ahead else OPEN
        columns, form = plan.columns, plan.form
        self._taken: list[Change] = []
        """The matches of the step under way, as they came."""
        self._output = Output(columns.width)
        places: list[tuple[int, Type]] = [(columns.time, Type.INT), (columns.expiry, Type.INT)]
        self._keys: list[list[tuple[int, Type]]] = []
        for atom, found in zip(form.atoms, columns.facts, strict=True):
            schema = None if atom.is_clock else schemas[atom.predicate]
            kinds = [Type.INT if schema is None else schema.kind(at) for at in range(len(found))]
            self._keys.append(list(zip(found, kinds, strict=True)))
            places += self._keys[-1]
        known = {column for column, _ in places}
        self._matched = [columns.variables[each.name] for each in matched_variables(form)]
        others = sorted(columns.variables.items())
        places += [place for _, place in others if place[0] not in known]
        passes = plan.head.passes
        self._passed = None if passes is None else (passes.into, Type.ANY)
        self._places = places if self._passed is None else [*places, self._passed]
        self._columns = np.array([column for column, _ in self._places], np.int64)
        self._carried = [columns.variables[name] for name in carried_variables(form)]
        self._blocks: list[tuple[int, int, LateRow]] = []
        self._count = 0
        self._since = BEGIN_WORD

    @property
    def nbytes(self) -> int:
        """The bytes of the blocks that were written."""
        return sum(row.nbytes for *_, row in self._blocks)

    def words(self, columns: Sequence[int]) -> set[int]:
        """The words that stand in some columns of the matches that are to be written."""
        taken = [np.unique(change[:, list(columns)]).tolist() for change in self._taken]
        return self._output.words(columns).union(*taken)

    def take(self, change: Change) -> None:
        """Solutions that are established, or not after all. Nobody writes to the change later."""
        self._taken.append(change)

    def _established_now(self, upper: int) -> I64Array:
        """The columns of the solutions that were established since the last call, and live on.

        A latch says of each match once when it is established. So if none of a step is taken back,
        there is nothing to add up. Cost: O(matches).
        """
        expiry, found = self._plan.columns.expiry, list[I64Array]()
        fresh = [(change[:, -1] == 1) & (change[:, -3] > self._since) for change in self._taken]
        if all(bool(each.all()) for each in fresh):
            now = [change[:, -3] < upper for change in self._taken]
            for change, begun in zip(self._taken, now, strict=True):
                found.append(change[begun & (change[:, expiry] >= upper), :-3])
            self._taken = [change[~begun] for change, begun in zip(self._taken, now, strict=True)]
        return np.concatenate([*found, self._waiting(upper)[:, :-2]])

    def _waiting(self, upper: int) -> I64Array:
        """The solutions of `_established_now` with their instants, each once; see `Output.tell`."""
        for change in self._taken:
            if len(change):
                self._put(change)
        self._taken = []
        moves = self._output.tell(upper)
        return moves[moves[:, self._plan.columns.expiry] >= upper]

    def _put(self, change: Change) -> None:
        endless = change.copy()
        endless[:, -2] = END_WORD
        # A restored solution is not written anew where its facts have held for longer.
        endless[:, -3] = np.maximum(endless[:, -3], self._since)
        self._output.take(endless)

    def tell(self, upper: int) -> tuple[list[StateRow], list[LateRow]]:
        """The rows that are gone and those that have come, at `upper`."""
        gone = []
        while self._blocks and self._blocks[0][0] < upper:
            gone.append(heappop(self._blocks)[-1].row())
        if self._ticked:
            rows = self._waiting(upper)
            ends = rows[:, self._plan.columns.expiry].tolist()
            made = [LateRow(partial(_same, row), len(row[2])) for row in self._singly(rows)]
            found = [*zip(ends, made, strict=True)]
        else:
            rows = self._established_now(upper)
            parts = np.array_split(rows, range(BLOCK_ROWS_MAX, len(rows), BLOCK_ROWS_MAX))
            found = [self._block(part) for part in parts if len(part)]
        for end, row in found:
            self._keep(end, row)
        return gone, [row for _, row in found]

    def _keep(self, end: int, row: LateRow) -> None:
        self._count += 1
        heappush(self._blocks, (end, self._count, row))

    @property
    def soonest(self) -> int:
        """The last instant at which all rows of the state are of use."""
        return self._blocks[0][0] if self._blocks else END_WORD

    def restore(self, rows: Iterable[StateRow], lower: int, share: Share | None = None) -> Change:
        """The solutions of rows, which are the state now, as matches that hold before `lower`.

        Those of a `share` alone. A row is of the range that has its first solution, which says
        when it is gone. Raises: Corrupt for a row that cannot be read.
        """
        found, self._since = list[Change](), lower - 1
        if self._kind == AHEAD:
            rows, anew = self._written_anew([*rows], lower, share)
            found.append(anew)
        for row in rows:
            matches = self._unpacked(row) if row[1] == self._kind else self._established(row)
            ends = matches[:, self._plan.columns.expiry]
            mine = np.ones(len(matches), np.bool_) if share is None else self._held(matches, share)
            if mine[:1].any():
                self._keep(int(ends.max()), LateRow(partial(_same, row), len(row[2])))
            found.append(matches[(ends >= lower) & mine])
        matches = np.concatenate(found) if found else self._matches(0)
        matches[:, -3], matches[:, -2], matches[:, -1] = lower - 1, lower, 1
        return matches

    def _written_anew(
        self, rows: Sequence[StateRow], lower: int, share: Share | None
    ) -> tuple[list[StateRow], Change]:
        """The rows of this form, and matches of an older one, which are written in this one.

        That had each match as a row for ever, and its solution beside it from its time on.
        """
        parts = [self._matches(0)]
        for row in rows:
            if row[1] == AHEAD:
                continue
            part = self._lingering(row) if row[1] == LINGERING else self._matches(0)
            # A row without a match in this form is of any one range.
            mine = share is None or (
                self._held(part, share).all() if len(part) else share.holds([row[2]])
            )
            if mine:
                parts.append(part)
                self._keep(BEGIN_WORD, LateRow(partial(_same, row), len(row[2])))
        matches = np.concatenate(parts)
        matches[:, -3], matches[:, -2], matches[:, -1] = lower - 1, END_WORD, 1
        matches = self._finds.timed(matches)
        matches = matches[matches[:, self._plan.columns.expiry] >= lower]
        self._taken.append(matches.copy())
        return [row for row in rows if row[1] == AHEAD], matches

    def _matches(self, count: int) -> Change:
        matches = np.zeros((count, self._plan.columns.width + 3), np.int64)
        matches[:, :-3] = self._plan.columns.template
        return matches

    def _held(self, matches: Change, share: Share) -> BoolArray:
        """Which matches are of a share. Cost: O(matches), by Python where types are any."""
        nulls, key = matches[:, self._plan.columns.nulls], []
        places = [self._keys[share.atom][at] for at in share.columns]
        if any(kind in NUMBERED for _, kind in places):
            keys = ([self._value(words, each) for each in places] for words in matches.tolist())
            return np.fromiter(map(share.holds, keys), np.bool_, len(matches))
        for column, kind in places:
            words = np.ascontiguousarray(matches[:, column])
            key.append(column_of(words, kind, nulls >> column & 1).to_arrow(self._texts))
        found: BoolArray = share.held(key)
        return found

    # Rows of the state.

    def _singly(self, rows: I64Array) -> list[StateRow]:
        """Solutions of matches (columns, instant, diff), each as a row by itself."""
        matches = self._matches(len(rows))
        matches[:, :-3], matches[:, -3] = rows[:, :-2], rows[:, -2]
        heads = self._finds.rows(matches).tolist()
        return [
            established_row(self._plan.form.number, self._solution(match, head))
            for match, head in zip(matches, heads, strict=True)
        ]

    def _solution(self, match: I64Array, head: list[int]) -> EstablishedSolution:
        columns, words = self._plan.columns, match.tolist()
        value = partial(self._value, words)
        keys = tuple(tuple(map(value, key)) for key in self._keys)
        return EstablishedSolution(
            (self._plan.form.number, keys, tuple(map(value, self._matched))),
            record_of(self._schema, head, self._texts).arguments,
            value((columns.time, Type.INT)),
            instant_of(words[columns.expiry]),
            self._contributed(match),
            ((words[-3], None if self._passed is None else value(self._passed)),),
        )

    def _value(self, words: Sequence[int], place: tuple[int, Type]) -> Any:
        column, kind = place
        columns = self._plan.columns
        null = words[columns.nulls] >> column & 1
        return None if null else value_of(words[column], kind, self._texts, columns.values)

    def _contributed(self, match: I64Array) -> tuple[Any, ...]:
        """Contribution of a solution to each lattice of the head, as groups keep it."""
        reduce, found = self._plan.reduce, []
        if reduce is None:
            return ()
        for (name, terms), kind in zip(reduce.lattices, reduce.kinds, strict=True):
            given = self._finds.expressions.value(terms[0], match)
            if kind is Type.FLOAT and type(given) is int:
                given = float(given)
            tally = name in TALLIES
            found.append(given if tally else self._plan.scope.lattices[name].inject(given))
        return tuple(found)

    def _block(self, rows: I64Array) -> tuple[int, LateRow]:
        """Many solutions as one row, and the expiry of the last of them."""
        words = np.empty((len(self._places) + 1, len(rows)), np.int64)
        _lines(rows, self._columns, self._plan.columns.nulls, words)
        late = LateRow(partial(self._packed, words), words.nbytes)
        if any(kind in NUMBERED for _, kind in self._places):
            late.row()  # others may have the numbers of its values later
        return int(rows[:, self._plan.columns.expiry].max()), late

    def _packed(self, words: I64Array) -> StateRow:
        """A row of the state; for any thread. The words are written to."""
        distinct: list[Any] = []
        met = 0
        for at, (_, kind) in enumerate(self._places):
            if kind in TEXTS or kind in NUMBERED:
                known = words[-1] >> at & 1 == 0
                given = words[at][known]
                places, firsts = number(given[:, None])
                spelled = self._spelled(kind, given[firsts])
                order = _order_of_texts(spelled)
                ranks = np.empty(len(order), np.int64)
                ranks[order] = np.arange(met, met + len(order))
                words[at][known] = ranks[places]
                distinct.append(spelled.take(pa.array(order)))
                met += len(order)
        count = words.shape[1]
        if count > 1:
            words = words[:, _order(words)]
        data = words.tobytes()
        texts = msgspec.Raw(packed_texts(distinct))
        packed = _ToPack(count, len(data), _CODEC.compress(data, asbytes=True), texts)
        text = b64encode(msgspec.msgpack.encode(packed)).decode("ascii")
        return self._plan.form.number, self._kind, text

    def _spelled(self, kind: Type, numbers: I64Array) -> Any:  # pyarrow has no common type
        if kind in TEXTS:
            return self._texts.arrow(numbers)
        values = self._plan.columns.values
        told = [encode_fields((values.value(number),)) for number in numbers.tolist()]
        return pa.array(told, pa.string())

    def _numbers(self, kind: Type, texts: Sequence[str]) -> I64Array:
        """The numbers of texts, or of the values that they spell."""
        if kind in TEXTS:
            return self._texts.numbers(pa.array(texts, pa.string()))
        values = self._plan.columns.values
        return np.array([values.number(decode_fields(text)[0]) for text in texts], np.int64)

    def _unpacked(self, row: StateRow) -> Change:
        try:
            packed = msgspec.msgpack.decode(b64decode(row[2], validate=True), type=_Packed)
            size = 8 * packed.rows * (len(self._places) + 1)
            if packed.size != size or packed.rows > BLOCK_ROWS_MAX:
                raise ValueError(f"{packed.rows} rows in {packed.size} bytes")
            data = _CODEC.decompress(packed.words, size, asbytes=True)
        except (ValueError, OSError, msgspec.MsgspecError) as error:
            raise Corrupt(f"the state of rule {row[0]} cannot be read: {error}") from error
        words, texts = np.frombuffer(data, np.int64).reshape(-1, packed.rows), packed.texts
        matches = self._matches(packed.rows)
        for at, (column, kind) in enumerate(self._places):
            null = words[-1] >> at & 1
            found = words[at]
            if kind in TEXTS or kind in NUMBERED:
                places, known = np.unique(found[null == 0], return_inverse=True)
                if int(places.min(initial=0)) < 0 or int(places.max(initial=-1)) >= len(texts):
                    raise Corrupt(f"the state of rule {row[0]} names texts that it has not")
                numbers = self._numbers(kind, [texts[place] for place in places.tolist()])
                found = np.zeros_like(found)
                found[null == 0] = numbers[known]
            self._write(matches, column, found, null)
        return matches

    def _write(self, matches: Change, column: int, words: I64Array, null: I64Array) -> None:
        nulls = self._plan.columns.nulls
        matches[:, column] = words
        matches[:, nulls] = matches[:, nulls] & ~(1 << column) | null << column

    def _put_value(self, matches: Change, column: int, kind: Type, value: Any) -> None:
        word, null = word_of(value, kind, self._texts, self._plan.columns.values)
        self._write(matches, column, np.array([word]), np.array([int(null)]))

    def _lingering(self, row: StateRow) -> Change:
        """A match that an older form of the state has as a row by itself."""
        keys, carried, _ = decode_fields(row[2])
        matches = self._matches(1)
        for places, key in [*zip(self._keys, keys, strict=True), (self._carried, carried)]:
            for place, value in zip(places, key, strict=True):
                self._put_value(matches, *place, value)
        return matches

    def _established(self, row: StateRow) -> Change:
        """A solution that is a row by itself."""
        if row[1] != ESTABLISHED:
            raise Corrupt(f"the state of rule {row[0]} has a row of the kind {row[1]}")
        identity, _, time, expires, _, versions = decode_fields(row[2])
        columns = self._plan.columns
        end = END_WORD if expires == END else int(expires)
        values = [(columns.time, Type.INT, time), (columns.expiry, Type.INT, end)]
        known = [*zip(self._keys, identity[1], strict=True), (self._matched, identity[2])]
        for places, key in known:
            values += [(*place, value) for place, value in zip(places, key, strict=True)]
        matches = self._matches(1 if self._passed is None else len(versions))
        for column, kind, value in values:
            self._put_value(matches, column, kind, value)
        if self._passed is not None:
            passed = [columns.values.number(parafacts) for _, parafacts in versions]
            self._write(matches, self._passed[0], np.array(passed), np.zeros(1, np.int64))
        return matches


@compiled
def _lines(rows: I64Array, columns: I64Array, nulls: int, out: I64Array) -> None:
    """Some columns of matches as lines, and a last line with a bit for each null in them."""
    for row in range(rows.shape[0]):
        mask = np.int64(0)
        for at in range(columns.size):
            out[at, row] = rows[row, columns[at]]
            mask |= ((rows[row, nulls] >> columns[at]) & 1) << at
        out[columns.size, row] = mask


def _order_of_texts(texts: Any) -> I64Array:
    """The places of texts in their order."""
    order = order_of([texts]) if len(texts) >= ROWS_MIN else None
    return pc.sort_indices(texts).to_numpy() if order is None else order


def _order(words: I64Array) -> I64Array:
    """The places of columns in the order of the last word, then of the one before it, and so on.

    Cost: O(n log n), some 15 ns for each of sixty thousand; without loops 25 times as much.
    Source: twin in tests/test_datalog_open_solutions.py, by `numpy.lexsort`.
    """
    order = order_of([pa.array(line) for line in words[::-1]])
    return np.lexsort(words) if order is None else order
