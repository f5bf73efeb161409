"""Engines that share the rows of their inputs say what engines with rows of their own say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.arrangement.interval_updates import Change, SharedRows, Sharing, arranged, shared
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow import holdings
from tidemill.datalog.dataflow.schema import rows_of_records
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END
from tidemill.datalog.records import Record
from tidemill.errors import Corrupt, Exhausted, UsageError
from tidemill.testkit.drawing import Presences, drawn
from tidemill.testkit.held import Held
from tidemill.testkit.tidelog import UPPER, Example, inputs, programs

LAW = drawn(60)
Update = tuple[int, str, Record, int]
"""An instant, an input, a record that lasts as long as it says, and a diff."""


def updates_of(given_: Presences) -> list[Update]:
    """Presences as a log tells them: without lattices, and no end before it has come."""
    found: list[Update] = []
    for name, presences in given_.items():
        for presence in presences:
            record = replace(presence.record, parafacts=())
            last = END if record.expires is None else record.expires
            found.append((max(int(presence.start), 0), name, record, 1))
            if presence.end < last:
                found.append((int(presence.end), name, record, -1))
    return sorted(found, key=lambda each: each[0])


class Reader:
    """An engine among others that read one log, beside one that reads it alone."""

    def __init__(
        self, checked: CheckedProgram, log: Sequence[Update], at: int, meeting: Meeting,
        fresh: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        """It begins at an instant, with what holds just before it, or at it when it is fresh."""
        self.log, self.meeting, self.upper = log, meeting, at
        first = at + fresh
        options = {"keeps_state": True, "carrying": (), **options}
        self.held = Held(checked, texts=meeting.texts, shares=True, **options)
        self.alone = Held(checked, texts=meeting.texts, **options)
        for name, rows in self.held.engine.shared.items():
            meeting.sharing(name).begin(rows, first)
            rows.go_to(first)
        known = [each for each in log if each[0] < first and _lasts(each[2], first)]
        self._feed([(first - 1, *each[1:]) for each in known])
        self._step(at)
        self.upper = first

    def step(self, upper: int) -> None:
        """Both take what the log has below an instant, and say the same; so do the rows it has."""
        self._feed([each for each in self.log if self.upper <= each[0] < upper])
        self._step(upper)
        for name, rows in self.held.engine.shared.items():
            assert sorted(rows.present().tolist()) == sorted(self._present(name).tolist())

    def _step(self, upper: int) -> None:
        self.held.step(upper)
        self.alone.step(upper)
        self.upper = upper
        assert self.held.now() == self.alone.now()
        assert self.held.state == self.alone.state
        for name, rows in self.held.engine.shared.items():
            self.meeting.sharing(name).meet(rows)

    def _present(self, name: str) -> Change:
        """The rows of an input just before the upper, from all that the log has told."""
        counts: Counter[Record] = Counter()
        for at, each, record, diff in self.log:
            if each == name and at < self.upper and _lasts(record, self.upper):
                counts[record] += diff
        last = (1 << 63) - 1
        known = [
            (record, self.upper - 1, last if record.expires is None else record.expires, 1)
            for record, count in counts.items()
            for _ in range(count)
        ]
        engine = self.held.engine
        return rows_of_records(engine.schemas[name], known, engine.texts)

    def _feed(self, updates: Sequence[Update]) -> None:
        """Each input in one piece."""
        named: dict[str, list[tuple[Record, int, int, int]]] = {}
        for at, name, record, diff in updates:
            last = (1 << 63) - 1 if record.expires is None else record.expires
            if at < last:
                named.setdefault(name, []).append((record, at, last, diff))
        for each in (self.held, self.alone):
            for name, rows in named.items():
                each.engine.feed_records(name, rows)

    def leave(self) -> None:
        """Nothing is kept for it any more."""
        for rows in self.held.engine.shared.values():
            rows.leave()

    @property
    def stores(self) -> dict[str, SharedRows]:
        """The rows of each input."""
        return {name: rows.store for name, rows in self.held.engine.shared.items()}


class Meeting:
    """The meeting places of the readers, by input."""

    def __init__(self) -> None:
        self.texts = Texts()
        self._inputs: dict[str, Sharing] = {}

    def sharing(self, name: str) -> Sharing:
        """The one of an input."""
        return self._inputs.setdefault(name, Sharing())


def _lasts(record: Record, at: int) -> bool:
    return record.expires is None or record.expires > at - 1


@pytest.fixture(autouse=True)
def _compacted_at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arranged, "_COMPACT_ROWS_MIN", 1)
        patch.setattr(holdings, "_STEPS", 1)
        yield


@LAW
@given(st.lists(programs(), min_size=2, max_size=4), inputs(rows_min=4, rows_max=8), st.integers(0))
def test_engines_that_share_rows_say_what_each_says_alone(
    examples: list[Example], given_: Presences, seed: int
) -> None:
    """Whichever goes on first, begins late or behind, or goes; in the end there is one store."""
    rng, meeting, log = Random(seed), Meeting(), updates_of(given_)
    options: dict[str, Any] = {"strategy": rng.choice(("strata", "retraction"))}

    def begin(example: Example, at: int) -> Reader:
        return Reader(example.checked, log, at, meeting, rng.random() < 0.5, **options)

    readers = [begin(each, rng.choice((0, 0, 3, 6))) for each in examples]
    while any(reader.upper < UPPER for reader in readers):
        place = rng.randrange(len(readers))
        reader = readers[place]
        if rng.random() < 0.15:
            reader.leave()
            readers[place] = begin(examples[place], rng.randint(0, min(reader.upper, UPPER - 1)))
        elif reader.upper < UPPER:
            reader.step(min(reader.upper + rng.choice((1, 1, 2, 3, 6)), UPPER))
    for _ in range(2):
        for reader in readers:
            reader.step(UPPER)
    stores: dict[str, set[int]] = {}
    for reader in readers:
        for name, store in reader.stores.items():
            stores.setdefault(name, set()).add(id(store))
    assert all(len(each) == 1 for each in stores.values())


TEXT = "t(x, y) := r(x, y) ^ s(y);"
OTHER = "u(x) := s(x) ^ not r(x, _);"


def program(text: str) -> CheckedProgram:
    columns = {"r": ("c0", "c1"), "s": ("c0",)}
    schemas = {
        name: InputSchema(name, "relation", tuple((each, "int") for each in kinds))
        for name, kinds in columns.items()
    }
    return check(parse(text), InputSchemas(schemas))


def rows(name: str, at: int, *pairs: tuple[int, ...], diff: int = 1) -> list[Update]:
    return [(at, name, Record(name, each), diff) for each in pairs]


def test_readers_keep_one_store_and_count_it_in_equal_parts() -> None:
    log = rows("r", 0, *((n, n % 7) for n in range(2_000))) + rows("s", 1, (3,), (4,))
    meeting = Meeting()
    readers = [Reader(program(text), log, 0, meeting) for text in (TEXT, OTHER, TEXT)]
    for reader in readers:
        reader.step(2)
    (store,) = {reader.stores["r"] for reader in readers}
    assert len(store.readers) == 3
    parts = [reader.held.engine.shared["r"].nbytes for reader in readers]
    assert parts == [store.merged.nbytes // 3] * 3


def test_a_reader_far_behind_is_given_up_when_others_keep_too_much_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared, "LAGGING_ROWS_MAX", 50)
    log: list[Update] = []
    for at in range(40):
        log += rows("r", at, *((at, n) for n in range(20)))
        log += rows("r", at + 1, *((at, n) for n in range(20)), diff=-1)
    meeting = Meeting()
    ahead, behind = (Reader(program(text), log, 0, meeting) for text in (TEXT, OTHER))
    for reader in (ahead, behind):
        reader.step(1)
    for upper in range(2, 40):
        ahead.step(upper)
    assert len(ahead.stores["r"].merged.facts) < 200
    assert behind.held.engine.shared["r"].outdated
    with pytest.raises(Exhausted, match="so far behind"):
        behind.step(2)
    again = Reader(program(OTHER), log, behind.upper, meeting)
    again.step(40)
    ahead.step(40)
    again.step(40)
    assert again.stores["r"] is ahead.stores["r"]


def test_rows_that_cannot_be_taken_in_fail_who_reads_them_and_nobody_before_them() -> None:
    log = rows("r", 0, (1, 1)) + rows("r", 5, (2, 2), diff=-1) + rows("s", 3, (1,))
    meeting = Meeting()
    first, second = (Reader(program(TEXT), log, 0, meeting) for _ in range(2))
    for reader in (first, second):
        reader.step(2)
    assert first.stores["r"] is second.stores["r"]
    with pytest.raises(Corrupt):
        first.step(6)
    assert second.held.engine.shared["r"].outdated
    again = Reader(program(TEXT), log, second.upper, meeting)
    again.step(4)
    assert again.held.texts("t") == {"t(1, 1)"}
    with pytest.raises(Corrupt):
        again.step(6)


def test_a_reader_behind_that_overtakes_brings_only_what_nobody_has_taken() -> None:
    log = rows("s", 0, (1,)) + rows("r", 1, (1, 1), (2, 1)) + rows("r", 3, (3, 1))
    log += rows("r", 5, (1, 1), diff=-1)
    meeting = Meeting()
    ahead, behind = (Reader(program(TEXT), log, 0, meeting) for _ in range(2))
    ahead.step(1)
    behind.step(1)
    ahead.step(2)
    behind.step(4)
    assert ahead.stores == behind.stores
    for reader in (ahead, behind):
        reader.step(6)
        assert reader.held.texts("t") == {"t(2, 1)", "t(3, 1)"}


def test_a_reader_before_the_first_row_walks_through_none_that_others_have() -> None:
    """A cross product walked through all rows of the other side before their first instant."""
    log = rows("s", 0, (1,)) + rows("r", 3, *((n, 1) for n in range(100)))
    meeting = Meeting()
    ahead, behind = (Reader(program(TEXT), log, 0, meeting) for _ in range(2))
    for reader in (ahead, behind):
        reader.step(1)
    ahead.step(4)
    behind.step(2)
    seen, store = behind.held.engine.shared["r"], behind.stores["r"]
    assert store is ahead.stores["r"]
    assert len(store.merged.facts) == len(ahead.held.engine.shared["r"]) == 100
    assert len(seen) == len(seen.living()) == 0
    behind.step(4)
    assert len(seen) == len(seen.living()) == 100


def test_a_fresh_reader_meets_what_all_its_inputs_hold_at_its_first_instant() -> None:
    log = rows("r", 0, (1, 1), (2, 1)) + rows("s", 3, (1,)) + rows("r", 5, (1, 1), diff=-1)
    meeting = Meeting()
    ahead, fresh = (Reader(program(TEXT), log, 3, meeting, fresh=True) for _ in range(2))
    for reader in (ahead, fresh):
        reader.step(5)
        assert reader.held.texts("t") == {"t(1, 1)", "t(2, 1)"}
    for reader in (ahead, fresh):
        reader.step(6)
        assert reader.held.texts("t") == {"t(2, 1)"}


def test_an_input_comes_in_one_piece_for_each_step() -> None:
    held = Held(program(TEXT), shares=True, carrying=(), strategy="retraction")
    for pair in ((1, 1), (2, 2)):
        held.update("r", Record("r", pair), 0, 1)
    with pytest.raises(UsageError, match="one piece"):
        held.step(1)
