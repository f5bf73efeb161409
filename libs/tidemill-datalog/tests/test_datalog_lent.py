"""Facts that several engines look at: each answers as if it kept them itself, wherever the others are."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.incremental import FactVersion, Given, IncrementalEngine, Later, Strategy
from tidemill.datalog.incremental.lent import LentTable
from tidemill.datalog.incremental.versions import key_at
from tidemill.datalog.inputs import InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record, format_record
from tidemill.errors import Corrupt, UsageError
from tidemill.testkit.tidelog import (
    DERIVED,
    UPPER,
    Example,
    answers_from_scratch,
    inputs,
    programs,
)

LAW = settings(
    max_examples=int(os.environ.get("LAW_EXAMPLES", "60")), deadline=None,
    derandomize="LAW_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
Inputs = Mapping[str, Sequence[Presence]]
STRATEGIES: st.SearchStrategy[Strategy] = st.sampled_from(["strata", "retraction"])


def plain(given_: Inputs) -> dict[str, list[Presence]]:
    """The same without what rides beside a fact."""
    return {
        name: [replace(p, record=replace(p.record, parafacts=())) for p in presences]
        for name, presences in given_.items()
    }


def given_of(record: Record, diff: int) -> Given:
    expires = END if record.expires is None else record.expires
    return (record.time, *record.arguments), expires, diff


class Kept:
    """The versions of all inputs, made by whoever comes first."""

    def __init__(self, given_: Inputs) -> None:
        self.changes: dict[str, list[tuple[int, list[Given]]]] = {}
        self.made = self.walked = 0
        for name, presences in given_.items():
            moves = [(int(p.start), given_of(p.record, 1)) for p in presences]
            moves += [(int(p.end), given_of(p.record, -1)) for p in presences if p.end != END]
            moves.sort(key=lambda move: move[0])
            self.changes[name] = [
                (at, [change for _, change in same])
                for at, same in groupby(moves, key=lambda move: move[0])
            ]
        self.first = {name: FactVersion.of(-1, []) for name in given_}

    def after(self, name: str, version: FactVersion, until: int) -> list[Later]:
        """The way from a version to that before an instant."""
        found = []
        for at, changes in self.changes[name]:
            if version.at < at < until:
                later = version.later
                if later is None:
                    later = version.change(at, changes)
                    self.made += 1
                self.walked += 1
                found.append(later)
                version = later.version
        return found


class Looking:
    """An engine over inputs that it does not keep."""

    def __init__(self, example: Example, kept: Kept, strategy: Strategy) -> None:
        self.kept = kept
        self.versions = dict(kept.first)
        self.engine = IncrementalEngine(
            example.checked, strategy=strategy, begin=-1, lent=self.versions
        )

    def advance(self, upper: int) -> None:
        for name, version in self.versions.items():
            for later in self.kept.after(name, version, upper):
                self.engine.move(name, later)
                self.versions[name] = later.version
        self.engine.advance(upper)

    def holds(self) -> dict[str, set[str]]:
        found = {n: set(map(format_record, self.engine.records(n))) for n in DERIVED}
        return {**found, "errors": {text for text, _ in self.engine.errors()}}


@pytest.mark.rule("MV5")
def test_engines_that_look_at_one_input_from_different_instants_answer_as_scratch() -> None:
    """Random programs and steps; versions and indexes are made once, by whoever is ahead."""
    kept_by: list[Kept] = []

    @LAW
    @given(programs(), programs(), inputs(), STRATEGIES, st.integers(0, 999))
    def law(one: Example, other: Example, drawn: Inputs, strategy: Strategy, seed: int) -> None:
        given_, random = plain(drawn), Random(seed)
        kept = Kept(given_)
        wanted = [answers_from_scratch(example, given_) for example in (one, other)]
        looking = [Looking(one, kept, strategy), Looking(other, kept, "strata")]
        place = [0, 0]
        while min(place) < UPPER:
            turn = random.choice([n for n in (0, 1) if place[n] < UPPER])
            place[turn] = min(UPPER, place[turn] + random.randint(1, 4))
            looking[turn].advance(place[turn])
            assert looking[turn].holds() == wanted[turn][place[turn]], (place, one.text, other.text)
        kept_by.append(kept)

    law()
    made, walked = sum(k.made for k in kept_by), sum(k.walked for k in kept_by)
    assert walked == 2 * made > 100


@LAW
@given(inputs(names=("s", "a", "b"), nulls=True, rows_max=12), st.integers(0, UPPER))
def test_a_version_holds_what_was_given_and_its_indexes_are_those_of_its_rows(
    drawn: Inputs, cut: int
) -> None:
    given_ = plain(drawn)
    kept = Kept(given_)
    for name, presences in given_.items():
        version = kept.first[name]
        table = LentTable(name, ["int", "int"], version)
        width = len(presences[0].record.arguments) if presences else 1
        for positions in ((1,), tuple(range(width + 1))):
            table.index(positions)
        for later in kept.after(name, version, UPPER):
            gone = table.move(later)
            assert {key for key, _ in gone} == {key for key, _, _ in later.turns}
            version = later.version
            alive = [p.record for p in presences if p.start <= later.at < p.end]
            assert Counter(
                {(key, expires): copies for key, expires, copies in version.records()}
            ) == Counter(given_of(record, 1)[:2] for record in alive)
            for key, row in version.rows.items():
                mine = [given_of(r, 1)[1] for r in alive if given_of(r, 1)[0] == key]
                assert row[2] == max(mine)
            for positions, index in version.indexed.items():
                key_of = key_at(positions)
                buckets: dict[object, set[object]] = {}
                for row in version.rows.values():
                    buckets.setdefault(key_of(row), set()).add(row)
                assert {key: set(rows) for key, rows in index.items()} == buckets
                assert table.index(positions).get(object()) is None
            again = FactVersion.of(later.at, version.records())
            assert dict(again.rows) == dict(version.rows)


def test_whoever_comes_to_the_same_facts_from_elsewhere_goes_on_with_those_of_others() -> None:
    """The rows of a fact that changes are then theirs, so that what is told of it is true of their rows."""
    ahead, behind = FactVersion.of(4, []), FactVersion.of(3, [((None, 1), END, 1)])
    ahead = ahead.change(5, [((None, 1), END, 1), ((None, 2), END, 1)]).version
    later = behind.join(5, [((None, 2), END, 1)], ahead)
    assert later.version is ahead
    ((key, old, new),) = later.turns
    assert (key, old) == ((None, 2), None)
    assert new is ahead.rows[None, 2]


def test_a_record_that_goes_too_often_leaves_the_version_as_it_was() -> None:
    version = FactVersion.of(0, [((None, 1), END, 2)])
    with pytest.raises(Corrupt, match="more often than it was put in, first at 3"):
        version.change(3, [((None, 1), END, -3)])
    assert version.later is None
    assert list(version.records()) == [((None, 1), END, 2)]


def test_a_version_below_the_upper_is_refused() -> None:
    checked = check(parse("p(x) := q(x);"), InputSchemas(closed=False))
    version = FactVersion.of(0, [])
    engine = IncrementalEngine(checked, begin=0, lent={"q": version})
    engine.advance(9)
    with pytest.raises(UsageError, match="below the upper 9"):
        engine.move("q", version.change(8, [((None, 1), END, 1)]))
