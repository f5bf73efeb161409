"""Interval updates against their meaning: functions from rows and instants to multiplicities."""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random

import numpy as np
import pytest

from tidemill.arrangement.interval_updates import (
    BEGIN_WORD,
    COUNT,
    END_WORD,
    MEAN,
    SUM,
    Arrangement,
    JoinShape,
    Latch,
    Merged,
    NegativeRow,
    Sums,
    begin,
    contribute,
    cut_moves,
    delayed,
    finish,
    join,
    net_moves,
    replaced,
    subtract,
    tick,
)
from tidemill.arrangement.interval_updates.novelty import Novelty
from tidemill.testkit.twins.interval_updates import (
    all_new,
    finished,
    holds,
    lives_of,
    moves_of,
    ticked,
)

LAST = 10
Row = tuple[int, ...]
NO_PAIRS = np.empty((2, 0), np.int64)


def matrix(rows: list[Row], width: int) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, width)


def pairs(*found: tuple[int, int]) -> np.ndarray:
    return np.array(found, np.int64).reshape(-1, 2).T.copy()


def interval(rng: Random) -> tuple[int, int]:
    start = rng.randint(0, LAST - 2)
    return start, rng.randint(start + 1, LAST)


def some_change(rng: Random, held: list[Row]) -> list[Row]:
    """Rows (time, key, expiry, nulls, start, end, diff); what goes is a part of what is held."""
    change: list[Row] = []
    for _ in range(rng.randint(1, 5)):
        if held and rng.random() < 0.45:
            row = held.pop(rng.randrange(len(held)))
            start = rng.randint(row[-2], row[-1] - 1)
            end = rng.randint(start + 1, row[-1])
            held += [(*row[:-2], a, b) for a, b in ((row[-2], start), (end, row[-1])) if a < b]
            change.append((*row[:-2], start, end, -1))
        else:
            row = (0, rng.randint(0, 2), rng.randint(1, 3), 0, *interval(rng))
            held.append(row)
            change.append((*row, 1))
    return change


def at(rows: list[list[int]], key: int, instant: int) -> list[list[int]]:
    return [row for row in rows if row[1] == key and row[4] <= instant < row[5]]


@pytest.mark.parametrize("seed", range(60))
def test_a_fact_is_the_derivation_that_ends_last_at_every_instant(seed: int) -> None:
    rng, held, told = Random(seed), [], Counter[tuple[int, int, int]]()
    merged = Merged(4, (0, 1), 2)
    for _ in range(6):
        for row in merged.take(matrix(some_change(rng, held), 7)).tolist():
            for instant in range(row[4], row[5]):
                told[row[1], instant, row[2]] += row[6]
        facts = merged.facts.rows[: len(merged.facts)].tolist()
        for key in range(3):
            for instant in range(LAST):
                best = max((row[2] for row in at(list(map(list, held)), key, instant)), default=0)
                expected = [best] if best else []
                assert [row[2] for row in at(facts, key, instant)] == expected
                found = [x for x in range(4) if told[key, instant, x]]
                assert found == expected


def test_a_stream_in_order_of_time_is_not_looked_up_and_says_the_same() -> None:
    merged, plain = Merged(4, (0, 1), 2), Merged(4, (0, 1), 2)
    for first in range(0, 400, 100):
        rows = [(first + i, i % 7, 900, 0, first + i, 900, 1) for i in range(100)]
        taken = merged.take(matrix(rows, 7))
        one_by_one = [plain.take(matrix([row], 7)) for row in rows]
        assert taken.tolist() == np.concatenate(one_by_one).tolist()
    again = matrix([(399, 399 % 100 % 7, 900, 0, 399, 900, 1)], 7)
    assert len(merged.take(again)) == len(plain.take(again.copy())) == 0
    gone = matrix([(5, 5, 900, 0, 100, 900, -1)], 7)
    assert merged.take(gone).tolist() == plain.take(gone.copy()).tolist() == gone.tolist()


@pytest.mark.parametrize("rows_each", [1, 40, 400])
def test_many_alike_derivations_that_overlap_are_kept_once_each(rows_each: int) -> None:
    """As of payments of one order, each of which holds for a while, where nobody asks which."""
    merged, rows = Merged(4, (0, 1), 2), [(0, 7, 900, 0, i, 2_000 + i, 1) for i in range(400)]
    told = [
        merged.take(matrix(rows[first : first + rows_each], 7))
        for first in range(0, len(rows), rows_each)
    ]
    assert np.concatenate(told)[:, -1].tolist() == [1] * 400
    assert merged.facts.living().tolist() == [[0, 7, 900, 0, 0, 2_399]]
    assert len(merged.spare) == 399
    for row in rows[::-1]:  # which need the pieces of no other
        merged.take(matrix([(*row[:-1], -1)], 7))
    assert not len(merged.facts.living()) + len(merged.spare.living())


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_rows_that_are_replaced_together_say_what_they_say_one_by_one(
    seed: int, plain: bool
) -> None:
    """Each change takes some rows away whole, or a part of some, and adds others between them."""
    rng, held = Random(seed), set[int]()
    merged, twin = Merged(4, (0, 1), 2), Merged(4, (0, 1), 2)
    for step in range(1, 8):
        gone = rng.sample(sorted(held), len(held) // 3)
        come = [key for key in rng.sample(range(900), 200) if not plain or key not in held]
        rows = [(0, key, END_WORD, 0, step, END_WORD, -1) for key in gone]
        rows += [(0, key, END_WORD, 0, step, END_WORD, 1) for key in come]
        held = (held | set(come)) - set(gone)
        if not plain and gone:
            rows[0] = (*rows[0][:5], step + 1, -1)
        rng.shuffle(rows)
        together = merged.take(matrix(rows, 7))
        first = sorted(rows, key=lambda row: -row[-1])
        one_by_one = np.concatenate([twin.take(matrix([row], 7)) for row in first])
        assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, one_by_one.tolist()))
        for one, other in ((merged.facts, twin.facts), (merged.spare, twin.spare)):
            assert sorted(one.living().tolist()) == sorted(other.living().tolist())
        assert not plain or len(together) == len(rows)


def test_what_is_not_there_cannot_be_taken_away() -> None:
    merged = Merged(4, (0, 1), 2)
    merged.take(matrix([(0, 1, 5, 0, 2, 5, 1)], 7))
    with pytest.raises(NegativeRow):
        merged.take(matrix([(0, 1, 5, 0, 4, 6, -1)], 7))


@pytest.mark.parametrize("seed", range(60))
def test_facts_are_dropped_where_a_row_of_their_key_ends_as_late(seed: int) -> None:
    rng, merged = Random(seed), Merged(4, (0, 1), 2, best_only=True)

    def rows(count: int, diff: int) -> list[Row]:
        return [
            (0, rng.randint(0, 2), rng.randint(1, 3), 0, *interval(rng), diff) for _ in range(count)
        ]

    def held() -> set[tuple[int, int, int]]:
        return {
            (row[1], instant, row[2])
            for row in merged.facts.living().tolist()
            for instant in range(row[4], row[5])
        }

    for _ in range(4):
        merged.take(matrix(rows(rng.randint(0, 8), 1), 7))
        before, asked = held(), rows(rng.randint(0, 4), -1)
        told = Counter[tuple[int, int, int]]()
        for row in merged.drop(matrix(asked, 7)).tolist():
            told.update({(row[1], instant, row[2]): row[6] for instant in range(row[4], row[5])})
        gone = {
            (key, instant, expiry)
            for key, instant, expiry in before
            if any(r[1] == key and r[4] <= instant < r[5] and expiry <= r[2] for r in asked)
        }
        assert held() == before - gone
        assert told == dict.fromkeys(gone, -1)


@pytest.mark.parametrize("seed", range(60))
def test_a_join_is_bilinear_on_intervals(seed: int) -> None:
    rng, right = Random(seed), Arrangement(4)
    rows = [
        (rng.randint(0, 9), rng.randint(0, 3), rng.randint(10, 20), 0, *interval(rng))
        for _ in range(rng.randint(0, 30))
    ]
    right.append(matrix(rows, 6))
    left = [
        (rng.randint(0, 3), 0, rng.randint(0, 9), rng.randint(5, 30), 0, *interval(rng), diff)
        for diff in rng.choices((1, -1), k=rng.randint(0, 10))
    ]
    shape = JoinShape(pairs((0, 1)), pairs((1, 0)), NO_PAIRS, True, 2)
    found = sorted(map(tuple, join(matrix(left, 8), right, shape).tolist()))
    assert found == sorted(
        (a[0], b[0], max(a[2], b[0]), min(a[3], b[2]), 0, max(a[5], b[4]), min(a[6], b[5]), a[7])
        for a in left
        for b in rows
        if a[0] == b[1] and max(a[5], b[4]) < min(a[6], b[5])
    )
    columns = np.array([0]), np.array([1])
    for least in ((-1, -1), (3, 2)):
        rest = subtract(matrix(left, 8), right, *columns, least).tolist()
        for key, expiry, instant in product(range(4), range(5, 31), range(LAST)):
            covered = any(
                b[1] == key and b[4] <= instant < b[5] and (least[0] < 0 or b[2] >= expiry)
                for b in rows
            )
            mine, now = (
                sum(a[7] for a in side if (a[0], a[3]) == (key, expiry) and a[5] <= instant < a[6])
                for side in (left, rest)
            )
            assert now == (0 if covered else mine)


def test_a_null_joins_a_null_alone() -> None:
    right = Arrangement(4)
    right.append(matrix([(0, 0, END_WORD, 0b01, 0, 9), (0, 0, END_WORD, 0b11, 0, 9)], 6))
    left = matrix([(0, 0, 0, END_WORD, 0b101, 0, 9, 1)], 8)
    shape = JoinShape(pairs((0, 1)), NO_PAIRS, NO_PAIRS, False, -1)
    assert len(join(left, right, shape)) == 1


@pytest.mark.parametrize("seed", range(60))
def test_sums_are_those_of_the_contributions_at_every_instant(seed: int) -> None:
    rng, sums, low = Random(seed), Sums(1, 1), 0
    held: list[Row] = []
    for _ in range(5):
        change: list[Row] = []
        for _ in range(rng.randint(1, 6)):
            if held and rng.random() < 0.4:
                group, value, start, end = held.pop(rng.randrange(len(held)))
                if start < low:
                    held.append((group, value, start, min(low, end)))
                if max(low, start) < end:
                    change.append((group, 0, 99, value, 0, max(low, start), end, -1))
            else:
                start = rng.randint(low, low + 4)
                row = (rng.randint(0, 1), rng.randint(-5, 5), start, start + rng.choice((2, 900)))
                held.append(row)
                change.append((row[0], 0, 99, row[1], 0, row[2], row[3], 1))
        sums.add(matrix(change, 8), low)
        heads, since = sums.touched()
        stretches = sums.stretches(heads, since)
        for head, first in zip(heads.tolist(), since.tolist(), strict=True):
            group = int(sums.rows.rows[head, 0])
            for instant in range(first, first + 12):
                values = [v for g, v, s, e in held if g == group and s <= instant < e]
                found = [
                    (row[3], (row[5] << 32) + row[6])
                    for row in stretches.tolist()
                    if row[0] == group and row[-2] <= instant < row[-1]
                ]
                assert found == ([(len(values), sum(values))] if values else [])
        low += rng.randint(0, 3)


def test_a_match_lives_from_when_it_held_first_until_its_own_end() -> None:
    latch = Latch((0,), 2)

    def take(*rows: Row) -> list[list[int]]:
        return latch.take(matrix([(7, 0, 50, 0, *row) for row in rows], 7)).tolist()

    assert take((3, 9, 1)) == [[7, 0, 50, 0, 3, 50, 1]]
    assert take((20, 30, 1)) == []
    assert take((5, 9, -1)) == []
    assert take((3, 5, -1)) == [[7, 0, 50, 0, 20, 50, 1], [7, 0, 50, 0, 3, 50, -1]]
    assert take((20, 30, -1)) == [[7, 0, 50, 0, 20, 50, -1]]


def test_an_arrangement_forgets_what_has_ended() -> None:
    arranged = Arrangement(2)
    for first in range(0, 100_000, 1_000):
        start = np.arange(first, first + 1_000)
        arranged.append(np.stack([start, np.zeros(1_000, np.int64), start, start + 10], axis=1))
        arranged.compact(first + 1_000)
    assert arranged.nbytes < 400_000
    rows = arranged.living()
    assert set(range(99_991, 100_000)) <= set(rows[:, 0].tolist())


@pytest.mark.parametrize("seed", range(40))
def test_moves_are_the_begins_and_ends_below_an_instant(seed: int) -> None:
    rng = Random(seed)
    rows = [
        (rng.randint(0, 1), 0, *rng.choice([interval(rng), (3, END_WORD)]), rng.choice((1, -1)))
        for _ in range(rng.randint(0, 40))
    ]
    now, later = cut_moves(matrix(rows, 5), 5)
    assert (now[:, -2] < 5).all()
    assert (later[:, -2] >= 5).all()
    for part, lower, upper in ((now, -1, 5), (later, 5, END_WORD)):
        found = net_moves(part.copy())
        assert found[:, -2:].tolist() == sorted(found[:, -2:].tolist())
        in_order = sorted(map(tuple, found.tolist()), key=lambda move: (*move[-2:], move))
        assert in_order == moves_of(rows, lower, upper)


@pytest.mark.parametrize("seed", range(40))
def test_moves_are_delayed_to_the_instant_after_the_first_that_is_not_before_them(
    seed: int,
) -> None:
    rng = Random(seed)
    instants = sorted(rng.sample(range(20), 6))
    rows: list[Row] = [
        (rng.randint(0, 9), rng.choice((rng.randint(0, 25), END_WORD)), 0, at, rng.choice((1, -1)))
        for at in rng.choices(range(instants[-2] + 1), k=rng.randint(0, 9))
    ]
    expected = []
    for *columns, at, diff in rows:
        after = [instant for instant in instants if instant >= at][1]
        if after < columns[1]:
            expected.append([*columns, after, columns[1], diff])
    assert delayed(matrix(rows, 5), np.array(instants), 1).tolist() == expected


@pytest.mark.parametrize("seed", range(80))
def test_rows_that_are_admitted_are_new(seed: int) -> None:
    rng, novelty, shown = Random(seed), Novelty((0, 2), (0, 1, 2)), list[Row]()
    admitted = 0
    for step in range(8):
        first = 3 * step - rng.choice((0, 0, 0, 1))
        change = [
            (
                rng.randint(first, first + 2),
                rng.randint(0, 9),
                rng.randint(0, first + 2),
                0,
                5,
                9,
                1,
            )
            for _ in range(rng.randint(1, 4) if seed % 2 else rng.randint(1, 90))
        ]
        if rng.random() < 0.5:
            change.sort(key=lambda row: max(row[0], row[2]))
        if novelty.admit(matrix(change, 7)):
            admitted += 1
            assert all_new(shown, change, (0, 1, 2))
        shown += change
    assert admitted or not seed % 2


@pytest.mark.parametrize("seed", range(60))
def test_a_latch_says_of_a_stream_what_it_says_row_by_row(seed: int) -> None:
    """Rows (time, key, expiry, nulls); matches come in the order of time, and some go again."""
    rng, latch, plain = Random(seed), Latch((0, 1), 2, (0,)), Latch((0, 1), 2)
    changes: list[Row] = []
    told: Counter[Row] = Counter()
    for now in range(0, 60, 10):
        change = [
            (time, rng.randint(0, 3), time + 15, 0, time, time + rng.choice((5, 20)), 1)
            for time in sorted(rng.choices(range(now, now + 10), k=rng.randint(1, 4)))
        ]
        change = list({row[:2]: row for row in change}.values())
        if changes and rng.random() < 0.5:
            row = rng.choice(changes)
            if row[-1] > 0 and (*row[:-1], -1) not in changes:
                change.append((*row[:-1], -1))
        changes += change
        for taken in (latch.take(matrix(change, 7)), plain.take(matrix(change, 7))):
            for row in taken.tolist():
                told[tuple(row[:-1])] += row[-1]
    lives = {(key[0], key[1], key[0] + 15, 0, *key[2:]) for key in lives_of(changes, (0, 1), 2)}
    assert {row for row, count in told.items() if count} == lives
    assert set(told.values()) <= {0, 2}


@pytest.mark.parametrize("seed", range(40))
def test_guards_are_comparisons_within_a_match(seed: int) -> None:
    """Matches (a, b, time, expiry, nulls) of rows (time, a, b, expiry, nulls)."""
    rng = Random(seed)
    rows = []
    for _ in range(20):
        a, b, nulls = rng.randint(0, 2), rng.randint(0, 2), rng.choice((0, 0, 2, 4, 6))
        rows.append((0, a * (nulls & 2 == 0), b * (nulls & 4 == 0), 9, nulls, 0, 9, 1))
    sign, word = seed % 4, rng.randint(0, 2)
    left, right = rng.choice([(0, 1), (1, 0), (0, -1), (-1, 1)])
    shape = JoinShape(
        NO_PAIRS, pairs((0, 1), (1, 2)), NO_PAIRS, False, -1,
        guards=np.array([(sign, left, right, word)]),
    )  # fmt: skip
    template, expected = np.array([0, 0, 0, 9, 0]), []
    for row in rows:
        values = [None if row[4] & 2 else row[1], None if row[4] & 4 else row[2], word]
        if holds(sign, values[left], values[right]):
            expected.append((row[1], row[2], row[4] >> 1))
    for found in (
        begin(matrix(rows, 8), template, shape),
        join(matrix([(*template.tolist(), 0, 9, 1)], 8), arranged(rows), shape),
    ):
        assert sorted((row[0], row[1], row[4]) for row in found.tolist()) == sorted(expected)


def arranged(rows: list[Row]) -> Arrangement:
    found = Arrangement(len(rows[0]) - 3)
    found.append(matrix(rows, len(rows[0]))[:, :-1])
    return found


@pytest.mark.parametrize("seed", range(40))
def test_groups_become_rows_with_exact_values(seed: int) -> None:
    """Rows (time, group, expiry, count, sum, mean, nulls), with the time or without it in them."""
    rng, kinds = Random(seed), [COUNT, SUM, MEAN]
    with_time = seed % 2
    first, groups = (0, 2) if with_time else (1, 1)
    stretches, width = [], groups + 2 + 1 + 9 + 1
    for _ in range(rng.randint(1, 9)):
        sums = [count for _ in kinds for count in (rng.randint(0, 2), rng.randint(-9, 9), 7)]
        group = [rng.randint(0, 3) for _ in range(groups)]
        stretches.append((*group, 5, 99, 1, *sums, 0, 3, 8))
    found = finish(matrix(stretches, width + 2), groups, first, np.array(kinds), 7)
    assert found is not None
    for row, stretch in zip(found.tolist(), stretches, strict=True):
        assert row[first : first + groups] == list(stretch[:groups])
        assert (row[first + groups], row[-3:]) == (99, [3, 8, 1])
        values = [None if row[6] >> at & 1 else row[at] for at in (3, 4, 5)]
        if values[2] is not None:
            values[2] = float(np.int64(values[2]).view(np.float64))
        assert values == finished(stretch, groups, kinds)
    large = list(stretches[0])
    large[groups + 6 : groups + 9] = [1, 1 << 22, 0]
    assert finish(matrix([tuple(large)], width + 2), groups, first, np.array(kinds), 7) is None
    columns, values = np.arange(first, first + groups), np.array([], np.int64)
    again = contribute(found, columns, first - 1, first + groups, values, groups + 3)
    expected = [
        [*row[:groups], 0 if with_time else row[groups], 99, 0, 3, 8, 1] for row in stretches
    ]
    assert again.tolist() == expected


@pytest.mark.parametrize("seed", range(40))
def test_contributions_have_the_values_and_nulls_of_their_columns(seed: int) -> None:
    """Rows (a, b, time, expiry, nulls), contributions (group, time, expiry, value, nulls)."""
    rng, rows = Random(seed), list[Row]()
    for _ in range(9):
        nulls = rng.randint(0, 7)
        words = [rng.randint(1, 5) * (at == 2 or not nulls >> at & 1) for at in range(3)]
        rows.append((*words, 99, nulls, *interval(rng), rng.choice((1, -1))))
    group, value = np.array([seed % 2]), np.array([1 - seed % 2])
    found = contribute(matrix(rows, 8), group, 2, 3, value, 5).tolist()
    for row, mine in zip(rows, found, strict=True):
        nulls = [row[4] >> at & 1 for at in (seed % 2, 2, 1 - seed % 2)]
        assert mine[:1] + mine[2:4] + mine[5:] == [row[group[0]], 99, row[value[0]], *row[5:]]
        assert mine[1] == (BEGIN_WORD if nulls[1] else row[2])
        assert mine[4] == nulls[0] | nulls[2] << 3


@pytest.mark.parametrize("seed", range(40))
def test_facts_of_groups_are_taken_away_from_an_instant_on(seed: int) -> None:
    """Facts (time, group, expiry, nulls); a group is (group, nulls, start, end)."""
    rng = Random(seed)
    facts = [(0, rng.randint(0, 3), 9, 1, *interval(rng), 1) for _ in range(rng.randint(1, 40))]
    since = {group: rng.randint(0, LAST) for group in rng.sample(range(4), rng.randint(1, 4))}
    groups = matrix([(group, 0, 0, 0) for group in since], 4)
    found = replaced(groups, np.array(list(since.values())), arranged(facts), 1, 2)
    assert sorted(map(tuple, found.tolist())) == sorted(
        (*row[:4], max(row[4], since[row[1]]), row[5], -1)
        for row in facts
        if row[1] in since and max(row[4], since[row[1]]) < row[5]
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_tick_begins_a_match_and_gives_its_time(seed: int) -> None:
    rng = Random(seed)
    matches = [
        (0, 0, 0, 0 if null else rng.randint(0, 9), 99, 8 * null, *interval(rng), 1)
        for null in rng.choices((0, 1), k=5)
    ]
    rows, times = rng.choices(range(5), k=8), [rng.randint(0, LAST) for _ in range(8)]
    clock = np.arange(5), np.arange(5) + 1
    found = tick(
        matrix(matches, 9), np.array(rows), np.array(times), clock, np.array([0, 1, 2]), True
    )
    expected = [ticked(matches[r], t, r, r + 1) for r, t in zip(rows, times, strict=True)]
    assert found.tolist() == [match for match in expected if match is not None]
