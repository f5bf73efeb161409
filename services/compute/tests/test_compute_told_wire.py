"""Changes that cross between fragments as columns are those that cross one by one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from unittest.mock import patch
from uuid import UUID

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.interval_updates import END_WORD, Change
from tidemill.datalog.check import check
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow import DataflowEngine, OutputChanges
from tidemill.datalog.dataflow.schema import instant_word, record_of
from tidemill.datalog.elements import element
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.lattices import Tally, tally
from tidemill.datalog.logical.partial import PARTIAL
from tidemill.datalog.parser import parse
from tidemill.datalog.placement import Fragment, Placement, placement_of
from tidemill.datalog.placement.hashing import spot_of
from tidemill.datalog.placement.places import Read
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record, Value
from tidemill.datalog.state import encode_fields
from tidemill.errors import Corrupt
from tidemill.testkit.drawing import drawn
from tidemill.time.typed import Json
from tidemill_compute.views import told_wire
from tidemill_compute.views.packed_values import pack_values, unpack_values
from tidemill_compute.views.told_wire import (
    Told,
    dealt_told,
    feed_told,
    spots_in,
    told_before,
    told_between,
)

RANGES = 3
UPPER = 40
ODD = [
    0, 1, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**64, -(2**70), True, False, None,
    0.0, -0.0, 1.0, -1.5, 1e300, 5e-324, math.inf, -math.inf,
    "", "a", "\u00e9", "e\u0301", "\U0001f300", "1", "x" * 300,
    Decimal("1.50"), Decimal(1), b"\x00\xff", UUID(int=7), Json('{"a":1}'),
    date(2020, 2, 29), datetime(2020, 1, 1, tzinfo=UTC), timedelta(microseconds=-1),
]  # fmt: skip
ONE = st.sampled_from(ODD) | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
ELEMENTS = ONE.filter(lambda value: value is not None).map(element)
SETS = st.frozensets(ELEMENTS, max_size=5)
NESTED = st.frozensets(SETS | ELEMENTS, max_size=3)
TALLIES = st.dictionaries(
    st.tuples(st.integers(0, 3), st.text(max_size=2)), st.integers(-5, 5), max_size=3
).map(lambda members: tally("sum", members))
CARRIED = st.fixed_dictionaries(
    {"min": ONE}, optional={"set": SETS, "max": ONE, "extent": st.tuples(ONE, ONE, SETS)}
).map(lambda each: tuple(sorted(each.items())))
VALUES = st.lists(ONE | SETS | NESTED | TALLIES | CARRIED | st.tuples(ONE, ONE), max_size=12)


def told_apart(value: object) -> str:
    """A text that tells values and their types apart; that of equal sets is the same."""
    return encode_fields((value,))


@settings(drawn(400))
@given(VALUES)
def test_values_come_back_as_they_are_in_their_types(values: list[object]) -> None:
    found = unpack_values(pack_values(values))
    assert [*map(told_apart, found)] == [*map(told_apart, values)]
    signs = [(math.copysign(1, v), v) for v in values if type(v) is float]
    assert [(math.copysign(1, v), v) for v in found if type(v) is float] == signs
    for one, other in zip(found, values, strict=True):
        if isinstance(other, frozenset):
            assert one == other
            assert Counter(map(type, one)) == Counter(map(type, other))


@settings(drawn(100))
@given(st.lists(SETS, min_size=1, max_size=6), st.randoms())
def test_equal_sets_have_equal_bytes_in_any_order_of_their_elements(
    values: list[frozenset[object]], random: Random
) -> None:
    shuffled = []
    for each in values:
        elements = [*each]
        random.shuffle(elements)
        shuffled.append(frozenset(elements))
    assert pack_values(shuffled) == pack_values(values)


@pytest.mark.parametrize("packed", [
    b"", b"\xc1", msgspec.msgpack.encode([9, []]), msgspec.msgpack.encode([1, [2], [0, []]]),
    msgspec.msgpack.encode([4, b"\x00", []]), msgspec.msgpack.encode([3, ["{"]]),
])  # fmt: skip
def test_bytes_that_are_no_values_are_refused_or_empty(packed: bytes) -> None:
    try:
        found = unpack_values(packed)
    except Corrupt:
        return
    assert len(found) < 2


TEXTS = {
    "sets that are keys": """
        all(o) @set(v) := line(o, v, _);
        alike(s, o) := all(o) @set(s) ^ not never(o);
        never(o) := line(o, _, 7);
        many(s) @count(o) := alike(s, o);
    """,
    "sets that ride along": """
        all(o, c) @set(v) @min(v) := line(o, v, c) ^ not never(o);
        never(o) := line(o, _, 7);
        closed(c) := line(_, 3, c);
        some(c, s) := all(_, c) @set(s) ^ not closed(c);
        each(c) := all(_, c) ^ not closed(c);
    """,
    "values of facts, seen": """
        first(o, c) @min(v) @count(v) := line(o, v, c) ^ not never(o);
        never(o) := line(o, _, 7);
        closed(c) := line(_, 3, c);
        low(c, o, m, n) := first(o, c) @min(m) @count(n) ^ not closed(c);
    """,
    "values of facts, passed on": """
        first(o, c) @min(v) @max(v) @count(v) := line(o, v, c) ^ not never(o);
        never(o) := line(o, _, 7);
        closed(c) := line(_, 3, c);
        least(c) ~count := first(_, c) ^ not closed(c);
        all(c) ~min ~max := first(_, c) ^ not closed(c);
    """,
    "facts of several rules that carry values": """
        any(o, c) @max(v) := line(o, v, c) ^ not never(o);
        any(o, c) @min(v) := line(o, v, c) ^ not never(o) if c > 1;
        never(o) := line(o, _, 7);
        closed(c) := line(_, 3, c);
        least(c) := any(_, c) ^ not closed(c);
    """,
    "groups of which each range has a part": """
        every() @set(v) @min(v) @count(v) := line(_, v, _);
        kinds(1) @set(v) @extent(v, v, v) := line(_, v, _);
    """,
    "columns alone": """
        open(o, v, c) := line(o, v, c) ^ not never(o);
        never(o) := line(o, _, 7);
        load(c) @count(o) := open(o, _, c);
    """,
}  # fmt: skip
KINDS: dict[str, list[Value]] = {"int": [-(2**63), 0, 1, 3, 2**63 - 1], "float": [-0.0, 0.0, 1.0, 2.5, -1e300],
         "text": ["", "\u00e9", "e\u0301", "b"], "bool": [True, False]}  # fmt: skip
CROSSED: Counter[str] = Counter()


def program_of(text: str, kind: str) -> Placement:
    """The fragments of a program whose values are of some type."""
    text = text.replace("line(_, 3, c)", "line(_, _, c) ^ shut(c)")
    columns = (("o", "int"), ("v", kind), ("c", "int"))
    schemas = {
        "line": InputSchema("line", "relation", columns),
        "shut": InputSchema("shut", "relation", (("c", "int"),)),
    }
    parsed = parse(text)
    used = {atom.application.name for rule in parsed.rules for atom in rule.atoms}
    inputs = InputSchemas({n: s for n, s in schemas.items() if n in used})
    return placement_of(check(parsed, inputs))


def lines(kind: str, random: Random) -> list[Presence]:
    found = []
    for o in range(9):
        for v in random.sample(KINDS[kind], random.randrange(1, len(KINDS[kind]) + 1)):
            begin = random.randrange(30)
            end = begin + random.randrange(1, 12)
            record = Record("line", (o, None if random.random() < 0.1 else v, o % 4))
            found.append(Presence(record, begin, end))
    return found


def engine_of(placement: Placement, fragment: Fragment) -> DataflowEngine:
    told = dict.fromkeys(placement.crossing(fragment))
    return DataflowEngine(
        fragment.plan.checked, plan=fragment.plan, texts=Texts(), told=told, whole=fragment.whole
    )


def first_told(placement: Placement, kind: str, random: Random) -> dict[str, OutputChanges]:
    """The changes of the first fragment, which has all of its inputs."""
    fragment = placement.fragments[0]
    engine = engine_of(placement, fragment)
    for read in fragment.reads:
        if read.predicate == "line":
            presences = lines(kind, random)
            random.shuffle(presences)
            engine.feed_presences(read.name, presences)
    return engine.step(UPPER)


def sums(rows: Iterator[tuple[Record, int, int]]) -> dict[tuple[str, int], int]:
    """The differences of records at instants."""
    found: Counter[tuple[str, int]] = Counter()
    for record, at, diff in rows:
        fields = (record.arguments, record.time, record.expires, record.parafacts)
        found[encode_fields(fields), at] += diff
    return {key: diff for key, diff in found.items() if diff}


def rows_in(engine: DataflowEngine, name: str, payloads: Sequence[bytes]) -> Iterator[
    tuple[Record, int, int]
]:  # fmt: skip
    """The changes that an engine would be given, one by one."""
    given = list[Change]()
    with patch.object(engine, "feed", lambda _, rows: given.append(rows)):
        feed_told(engine, name, payloads, engine.texts)
    schema = engine.schemas[name]
    for row in np.concatenate(given).tolist() if given else []:
        record = record_of(schema, row, engine.texts)
        yield record, row[-3], row[-1]
        if row[-2] < END_WORD:
            yield record, row[-2], -row[-1]


def shown_by_records(told: OutputChanges, read: Read, whole: bool) -> Iterator[
    tuple[Record, int, int]
]:  # fmt: skip
    """The twin: each change with the record that it shows, as other fragments read it."""
    for at, record, diff in told.contributions() if whole else told.records():
        arguments, parafacts = record.arguments, list[tuple[str, object]]()
        for name, value in record.parafacts:
            if read.predicate.startswith(PARTIAL):
                arguments += value if isinstance(value, tuple) else (value,)
            else:
                parafacts.append((name, value.value if isinstance(value, Tally) else value))
        shown = Record(read.name, arguments, record.time, record.expires, tuple(parafacts))
        yield shown, instant_word(at), diff


def crossings(
    text: str, kind: str, random: Random
) -> Iterator[tuple[DataflowEngine, Read, OutputChanges, bool]]:
    """Each read of what crosses, by the engine that reads it."""
    placement = program_of(text, kind)
    told = first_told(placement, kind, random)
    for later in placement.fragments[1:]:
        for read in later.reads:
            if read.predicate in told:
                whole = read.predicate in placement.fragments[0].whole
                yield engine_of(placement, later), read, told[read.predicate], whole


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEXTS)
def test_changes_cross_as_they_do_one_by_one(name: str, kind: str) -> None:
    for engine, read, told, whole in crossings(TEXTS[name], kind, Random(name + kind)):
        sent = Told.of(told, whole=whole, parts=read.predicate.startswith(PARTIAL))
        dealt = [*dealt_told(1, read.name, read.place, RANGES, sent)]
        assert {each.range for each in dealt} <= set(range(RANGES))
        for at in range(RANGES):
            payloads = [each.payload for each in dealt if each.range == at]
            wanted = (
                each
                for each in shown_by_records(told, read, whole)
                if at in read.place.ranges_of(each[0], RANGES)
            )
            assert sums(rows_in(engine, read.name, payloads)) == sums(wanted)
            CROSSED[name] += len(payloads)


def test_every_program_had_something_that_crossed() -> None:
    assert CROSSED.keys() == TEXTS.keys()


@pytest.mark.parametrize("name", TEXTS)
def test_spots_of_what_crosses_are_those_of_its_records(name: str) -> None:
    for _, read, told, whole in crossings(TEXTS[name], "float", Random(name)):
        if not read.place.positions:
            continue
        sent = Told.of(told, whole=whole, parts=read.predicate.startswith(PARTIAL))
        for each in dealt_told(1, read.name, read.place, 1, sent):
            spots = spots_in(each.payload, read.place, None)
            records = [record for record, _, _ in shown_by_records(told, read, whole)]
            keys = {spot_of(read.place.key_of(record)) for record in records}
            assert {*spots.tolist()} == keys


@pytest.mark.parametrize("name", TEXTS)
def test_changes_of_eras_are_those_of_their_instants(name: str) -> None:
    lower = 17
    for engine, read, told, whole in crossings(TEXTS[name], "int", Random(name)):
        sent = Told.of(told, whole=whole, parts=read.predicate.startswith(PARTIAL))
        payloads = [e.payload for e in dealt_told(1, read.name, read.place, 1, sent)]
        before = [part for each in payloads for part in told_before(each, lower)]
        later = [part for each in payloads for part in told_between(each, lower, UPPER)]
        wanted = sums(shown_by_records(told, read, whole))
        present: Counter[str] = Counter()
        for (fact, at), diff in wanted.items():
            present[fact] += diff if at < lower else 0
        found = sums(rows_in(engine, read.name, [*before, *later]))
        at_lower: Counter[str] = Counter()
        for (fact, at), diff in found.items():
            at_lower[fact] += diff if at < lower else 0
        assert +at_lower == +present
        came = {key: diff for key, diff in wanted.items() if key[1] >= lower}
        assert {key: diff for key, diff in found.items() if key[1] >= lower} == came


def test_the_law_notices_values_in_another_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The companion: values that are swapped between rows are found out."""
    monkeypatch.setattr(told_wire, "pack_values", lambda values: pack_values(values[::-1]))
    with pytest.raises(AssertionError):
        test_changes_cross_as_they_do_one_by_one("sets that ride along", "int")


def test_opposite_changes_that_show_the_same_are_none() -> None:
    moves = np.array([[1, 5, 3, 1], [1, 6, 3, -1], [1, 5, 3, -1], [2, 5, 4, 1]])
    assert sorted(told_wire.summed(moves).tolist()) == [[1, 6, 3, -1], [2, 5, 4, 1]]
