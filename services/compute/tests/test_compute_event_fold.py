"""The event fold against an oracle that looks at one arrival at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.updates import DIFF, TIME, accumulate, consolidate
from tidemill.catalog.late_events import late_events
from tidemill.catalog.schemas import event_schema
from tidemill.datalog.records import Record
from tidemill_compute.events.buffer import EventBuffer
from tidemill_compute.events.fold import EventFold, EventPolicy
from tidemill_compute.events.progress import NOTHING_SEEN, Policy, progress_of
from tidemill_compute.events.rows import EventColumns

DATA = pa.schema([("host", pa.string()), ("at", pa.int64()), ("until", pa.int64())])
RAW = pa.schema(
    [
        *DATA,
        ("_partition", pa.int64()),
        ("_offset", pa.int64()),
        (TIME, pa.uint64()),
        (DIFF, pa.int64()),
    ]
)
COLUMNS = EventColumns(("host", "at", "until"), "at", "until")


@dataclass(frozen=True)
class Arrival:
    instant: int
    partition: int
    host: str
    at: int | None
    until: int | None


def raw_table(arrivals: list[Arrival], lower: int, upper: int) -> pa.Table:
    rows = [
        (a.host, a.at, a.until, a.partition, offset, a.instant, 1)
        for offset, a in enumerate(arrivals)
        if lower <= a.instant < upper
    ]
    columns = [pa.array([r[i] for r in rows], f.type) for i, f in enumerate(RAW)]
    return pa.Table.from_arrays(columns, schema=RAW)


def new_fold(policy: EventPolicy) -> EventFold:
    buffer = EventBuffer.empty(event_schema(DATA), corrections=policy.corrections)
    return EventFold(policy, buffer, NOTHING_SEEN)


@dataclass
class Outcome:
    events: pa.Table
    event_map: pa.Table
    letters: pa.Table
    upper: int


def folded(policy: EventPolicy, arrivals: list[Arrival], cuts: list[int]) -> Outcome:
    """Everything the fold produces when the system timeline is cut at `cuts`."""
    fold = new_fold(policy)
    events, maps, letters = [], [], []
    lower = 0
    for upper in cuts:
        counts = [(0, 2)] if lower == 0 else []
        fold.step(raw_table(arrivals, lower, upper), counts, upper)
        changes, dead = fold.take()
        maps.append(changes)
        letters.append(dead)
        events.append(fold.buffer.release(fold.progress.frontier))
        lower = upper
    tables = (pa.concat_tables(parts) for parts in (events, maps, letters))
    return Outcome(*(consolidate(table) for table in tables), fold.progress.frontier)


def oracle(policy: EventPolicy, arrivals: list[Arrival], end: int) -> tuple[dict, int, list]:
    """Presence of each event by instant of the event timeline, the frontier, the late ones."""
    frontier, promises, heard = 0, {0: None, 1: None}, {0: 0, 1: 0}
    idle = policy.progress.idle_timeout_ms
    known: list[tuple[str, int, int, int]] = []
    late = []
    for instant in range(end):
        before = frontier
        for a in (a for a in arrivals if a.instant == instant):
            if a.at is None or a.at < 0 or a.until <= a.at:
                continue
            if policy.max_ahead_ms is not None and a.at > instant + policy.max_ahead_ms:
                continue
            heard[a.partition] = instant
            promise = max(0, a.at - policy.progress.skew_ms)
            promises[a.partition] = max(promise, promises[a.partition] or 0)
            if a.at < before and not policy.corrections:
                late.append(a)
                continue
            known.append((a.host, a.at, a.until, max(a.at, before)))
        counting = [p for p in promises if idle is None or instant - heard[p] < idle]
        if counting:
            spoken = [promises[p] for p in counting]
            allowed = 0 if None in spoken else min(spoken)
        else:
            allowed = max(p or 0 for p in promises.values())
        frontier = max(frontier, allowed)
    present: dict[int, set] = {}
    for at in range(frontier):
        best: dict[tuple[str, int], dict[int, int]] = {}
        for host, time, until, start in known:
            if start <= at < until:
                best.setdefault((host, time), {})[until] = 1
        # The data columns hold `until`, so events that differ in it are different events.
        present[at] = {(h, t, u) for (h, t), ends in best.items() for u in ends}
    return present, frontier, late


arrivals_strategy = st.lists(
    st.builds(
        Arrival,
        instant=st.integers(0, 12),
        partition=st.integers(0, 1),
        host=st.sampled_from("ab"),
        at=st.one_of(st.none(), st.integers(-1, 20)),
        until=st.integers(0, 25),
    ),
    max_size=10,
)
policies = st.builds(
    EventPolicy,
    columns=st.just(COLUMNS),
    progress=st.builds(Policy, st.integers(0, 4), st.one_of(st.none(), st.integers(1, 6))),
    corrections=st.booleans(),
    max_ahead_ms=st.one_of(st.none(), st.integers(0, 9)),
)


@settings(max_examples=150, deadline=None)
@given(policies, arrivals_strategy)
def test_events_are_present_exactly_where_the_oracle_says(policy, arrivals) -> None:
    outcome = folded(policy, arrivals, [16])
    present, frontier, late = oracle(policy, arrivals, 16)
    assert outcome.upper == frontier
    for at in range(frontier):
        rows = accumulate(outcome.events, at).to_pylist()
        assert all(row[DIFF] == 1 for row in rows)
        assert {(r["host"], r["at"], r["until"]) for r in rows} == present[at]
    reasons = [r["reason"] for r in outcome.letters.to_pylist()]
    assert sum(reason.startswith("late") for reason in reasons) == len(late)


@settings(max_examples=150, deadline=None)
@given(policies, arrivals_strategy, st.sets(st.integers(1, 15)))
def test_how_the_system_timeline_is_cut_changes_nothing(policy, arrivals, cuts) -> None:
    whole = folded(policy, arrivals, [16])
    pieces = folded(policy, arrivals, [*sorted(cuts), 16])
    assert pieces.events.equals(whole.events)
    assert pieces.event_map.equals(whole.event_map)
    assert pieces.letters.sort_by("offset").equals(whole.letters.sort_by("offset"))


@settings(max_examples=150, deadline=None)
@given(policies, arrivals_strategy, st.sets(st.integers(1, 15)))
def test_events_without_late_ones_are_released_as_parts_hold_them(policy, arrivals, cuts) -> None:
    fold, lower = new_fold(replace(policy, corrections=False)), 0
    for upper in [*sorted(cuts), 16]:
        counts = [(0, 2)] if lower == 0 else []
        fold.step(raw_table(arrivals, lower, upper), counts, upper)
        released = fold.buffer.release(fold.progress.frontier)
        assert released.equals(consolidate(released))
        lower = upper


@settings(max_examples=150, deadline=None)
@given(policies, arrivals_strategy, st.integers(1, 15))
def test_a_fold_resumed_where_its_frontier_last_moved_goes_on_as_if_nothing_had_happened(
    policy, arrivals, crash
) -> None:
    whole = folded(policy, arrivals, [16])
    fold = new_fold(policy)
    fold.step(raw_table(arrivals, 0, crash), [(0, 2)], crash)
    stored_map, _ = fold.take()
    upper = fold.progress.frontier
    events = fold.buffer.release(upper)
    resumed = new_fold(policy)
    start = fold.progress.moved
    if upper > 0:
        rows = accumulate(stored_map, start).select(["partition", "frontier", "instant"])
        resumed.progress = progress_of([tuple(r.values()) for r in rows.to_pylist()])
        assert resumed.progress.frontier == upper
        resumed.buffer.restore(accumulate(events, upper - 1))
        early = raw_table(arrivals, 0, start + 1)
        _, letters = (lambda o: (o, o.letters))(folded(policy, arrivals, [start + 1]))
        resumed.readmit(early, letters, upper)
        lower = start + 1
        resumed.step(raw_table(arrivals, lower, 16), [], 16)
    else:
        resumed.step(raw_table(arrivals, 0, 16), [(0, 2)], 16)
    rest = resumed.buffer.release(resumed.progress.frontier)
    assert consolidate(pa.concat_tables([events, rest])).equals(whole.events)


def test_s4_a_letter_from_before_a_column_was_gained_is_read_with_a_null() -> None:
    """S4: why-not of a view over such a stream ended in a KeyError."""
    reason, raw = "late: time 15 is before the event frontier 20", '{"host": "z", "n": 4}'
    letters = pa.table({"reason": [reason], "raw": [raw]})
    (event,) = late_events(letters, "ping", [("host", "text"), ("n", "int"), ("gained", "int")])
    assert event == Record("ping", ("z", 4, None), 15)


def test_r10_a_corrected_event_that_has_expired_is_never_present_and_makes_no_letter() -> None:
    """R10: under `correct` an event begins at the frontier, unless its end lies there or before."""
    policy = EventPolicy(COLUMNS, Policy(), corrections=True)
    seen = [Arrival(1, partition, "now", 50, 90) for partition in (0, 1)]
    late = [Arrival(2, 0, "gone", 10, 50), Arrival(2, 0, "there", 10, 51)]
    ends = [Arrival(3, partition, "end", 100, 101) for partition in (0, 1)]
    outcome = folded(policy, [*seen, *late, *ends], [2, 3, 4])
    begun = [(row["host"], row[TIME]) for row in outcome.events.to_pylist() if row[DIFF] > 0]
    assert sorted(begun) == [("now", 50), ("there", 50)]
    assert not outcome.letters.num_rows
