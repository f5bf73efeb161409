"""The keys that changes touch in one range, and where rows of these are looked up.

Heavy keys are in all ranges. A change touches the piece of its own columns. It touches
all pieces where its facts are in all ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.catalog.record_rows import PredicateShape
from tidemill.datalog.placement import Fragment, Place
from tidemill.datalog.placement.column_hashes import spots_of_columns
from tidemill.datalog.placement.places import Read
from tidemill_compute.views.range_history import RangeHistory, key_of
from tidemill_compute.views.told_wire import spots_in
from tidemill_compute.views.windows.part_rows import Key, Spots, Wanted

SPOTS = 1 << 32
_NONE = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Touched:
    """Ascending spots of keys: of light ones, of heavy ones, of pieces of these (None for all)."""

    light: Spots
    heavy: Spots
    pieces: Spots | None


@dataclass(frozen=True, slots=True)
class Looks:
    """Look-ups of the rows of one range, from a spot on and below another one."""

    begin: int
    end: int
    touched: Touched | None
    """None where all keys are looked at."""

    def of(self, place: Place, shape: PredicateShape) -> Iterator[tuple[Key, Wanted]]:
        """The look-ups of rows at a place that has columns: each row is found once."""
        name = ",".join(map(str, (place.positions, shape.timed, shape.arguments)))
        key = Key(name, partial(key_of, shape, place))
        heavy = np.array(sorted(place.heavy), np.uint64)
        touched = self.touched
        spots = None if touched is None else np.setdiff1d(touched.light, heavy)
        yield key, Wanted(self.begin, self.end, spots, but=heavy)
        if not place.heavy or (touched is not None and not len(touched.heavy)):
            return
        among = partial(_rows_of, shape, place, heavy)
        name = f"{name},{place.pieces},{heavy.tolist()}"
        if place.pieces:
            by = Key(name, partial(key_of, shape, Place(place.pieces)), among)
            pieces = None if touched is None else touched.pieces
            yield by, Wanted(self.begin, self.end, pieces)
        else:
            by = Key(name, key.columns, among)
            yield by, Wanted(0, SPOTS, None if touched is None else touched.heavy)


def touched_by(
    divided: RangeHistory, fragment: Fragment, given: Mapping[str, Sequence[bytes]]
) -> Touched | None:
    """The keys that changes of a range touch; None for all of them."""
    light, heavy, pieces, whole = [_NONE], [_NONE], [_NONE], False
    for read in fragment.reads:
        payloads = given.get(read.name, ())
        if payloads and not read.place.positions:
            return None
        for payload in payloads:
            spots = _spots(divided, read, read.place, payload)
            heavies = np.isin(spots, np.fromiter(read.place.heavy, np.uint64))
            light.append(spots[~heavies])
            heavy.append(spots[heavies])
            if heavies.any() and read.place.pieces:
                pieces.append(_spots(divided, read, Place(read.place.pieces), payload)[heavies])
            else:
                whole = whole or bool(heavies.any())
    return Touched(_ascending(light), _ascending(heavy), None if whole else _ascending(pieces))


def _spots(divided: RangeHistory, read: Read, place: Place, payload: bytes) -> Spots:
    """The spots of rows that were dealt out, by the columns of a place."""
    known = divided.input_of(read.predicate)
    return spots_in(payload, place, None if known is None else partial(key_of, known[1], place))


def _ascending(spots: Sequence[Spots]) -> Spots:
    found: Spots = np.unique(np.concatenate(spots))
    return found


def _rows_of(
    shape: PredicateShape, place: Place, spots: npt.NDArray[np.uint64], rows: pa.Table
) -> pa.Table:
    """The rows whose keys have one of some spots."""
    found = spots_of_columns(key_of(shape, place, rows))
    return rows.filter(pa.array(np.isin(found, spots)))
