"""Cases of operators: joins, reductions, the times they are evaluated at, tiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from tidemill.testkit.conformance.core_orders import lattice_of
from tidemill.testkit.conformance.expectations import run_single, run_steps
from tidemill.testkit.conformance.registry import Case, Options
from tidemill.testkit.conformance.values import (
    CaseError,
    Domain,
    Json,
    domain_named,
    read_diff,
    read_frontier,
    read_time,
    read_times,
    write_frontier,
    write_time,
)
from tidemill.testkit.partial_orders import (
    Join,
    Reduce,
    Reduction,
    count,
    distinct,
    first_count,
    greatest,
    interesting_times,
    least,
    tiles,
)
from tidemill.testkit.partial_orders.reductions import Group, Rows
from tidemill.time import Antichain

Answers: TypeAlias = Mapping[str, Json]
Ordered: TypeAlias = tuple[Any, ...]  # Any: nested like the JSON value it stands for

_MATCHES_A_CALL = 10_000


def run_join(case: Case, options: Options) -> list[str]:
    """`join`: rounds of both inputs, the output of all of them together."""
    domain = domain_named(case["time"])
    join: Join[Ordered, Ordered, Ordered, Any] = Join(lattice_of(domain))

    def answer() -> Answers:
        updates: list[Json] = []
        for round_ in case["rounds"]:
            left, right = (_read_pairs(domain, round_[side]) for side in ("left", "right"))
            join.push(left, right, read_frontier(domain, round_["upper"]))
            while not join.done:
                for data, time, diff in join.work(_MATCHES_A_CALL):
                    updates.append([[_json(part) for part in data], write_time(time), diff])
            if "compact" in round_:
                join.compact(read_frontier(domain, round_["compact"]))
                _settle(join)
        return {"updates": updates}

    return run_single(case, answer, domain)


def run_reduce(case: Case, options: Options) -> list[str]:
    """`reduce`: rounds of input, the output changes of each."""
    domain = domain_named(case["time"])
    if case["reduction"] not in _REDUCTIONS:
        raise CaseError(f"unknown reduction {case['reduction']!r}")
    operator: Reduce[Ordered, Ordered, Any] = Reduce(
        lattice_of(domain), _REDUCTIONS[case["reduction"]]
    )

    def perform(step: Mapping[str, Json]) -> Answers:
        changes = operator.step(
            _read_pairs(domain, step["updates"]), read_frontier(domain, step["upper"])
        )
        updates = [
            [[_json(key), _json(result)], write_time(time), diff]
            for (key, result), time, diff in changes
        ]
        if "compact" in step:
            operator.compact(read_frontier(domain, step["compact"]))
            _settle(operator)
        return {"updates": updates}

    return run_steps(case["rounds"], perform, domain=domain)


def run_interesting_times(case: Case, options: Options) -> list[str]:
    """`interesting-times`: which times are evaluated now and which must wait."""
    domain = domain_named(case["time"])
    listed = {
        field: read_times(domain, case.get(field, []))
        for field in ("new", "pending", "stored_input", "stored_output")
    }
    times = interesting_times(
        lattice_of(domain),
        listed["new"],
        listed["pending"],
        [*listed["stored_input"], *listed["stored_output"]],
        read_frontier(domain, case["upper"]),
    )
    wanted = case["expect"].get("pended_at_least", [])
    kept = all(time in times.pended for time in read_times(domain, wanted))
    answers: Answers = {
        "active": [write_time(time) for time in times.active],
        "pended_at_least": wanted if kept else [write_time(time) for time in times.pended],
    }
    return run_single(case, lambda: answers, domain)


def run_tiles(case: Case, options: Options) -> list[str]:
    """`tiles`: the pieces of an interval, each at a held time."""
    domain = domain_named(case["time"])
    lower, upper = (read_frontier(domain, case[end]) for end in ("lower", "upper"))
    found = tiles(lower, upper, [read_time(domain, time) for time in case["held"]])
    written = [
        [write_frontier(start), write_frontier(end), write_time(time)] for start, end, time in found
    ]
    expect = dict(case["expect"])
    if "tiles" in expect:
        expect["tiles"] = [_sorted_tile(domain, tile) for tile in expect["tiles"]]
    return run_single({"expect": expect}, lambda: {"tiles": written}, domain)


def _sorted_tile(domain: Domain, tile: Json) -> Json:
    """A tile with its frontiers in the order in which ours are written."""
    lower, upper, time = tile
    ends = (Antichain.of(domain, read_times(domain, end)) for end in (lower, upper))
    return [*(write_frontier(end) for end in ends), write_time(read_time(domain, time))]


def _settle(operator: Join[Any, Any, Any, Any] | Reduce[Any, Any, Any]) -> None:
    effort = 1
    while operator.exert(effort):
        effort *= 2


def _read_pairs(domain: Domain, updates: Json) -> list[tuple[tuple[Ordered, Ordered], Any, int]]:
    """Updates of `[key, value]` records, both as values with an order."""
    return [
        ((_ordered(key), _ordered(value)), read_time(domain, time), read_diff(diff))
        for (key, value), time, diff in updates
    ]


def _ordered(value: Json) -> Ordered:
    """A JSON value as one that has an order, is equal iff the JSON is, and sorts numbers as
    such.
    """
    match value:
        case None:
            return (0,)
        case bool():
            return (1, value)
        case int():
            return (2, value)
        case str():
            return (3, value)
        case list() | tuple():
            return (4, tuple(_ordered(part) for part in value))
        case dict():
            return (5, tuple((name, _ordered(part)) for name, part in sorted(value.items())))
    raise CaseError(f"not a record: {value!r}")


def _json(value: Ordered) -> Json:
    match value:
        case (0,):
            return None
        case (4, parts):
            return [_json(part) for part in parts]
        case (5, fields):
            return {name: _json(part) for name, part in fields}
    return value[1]


def _count(group: Group) -> Rows:
    return [((2, result), n) for result, n in count(group)]


def _sum(group: Group) -> Rows:
    return [((2, sum(value[1] * n for value, n in group)), 1)]


_REDUCTIONS: dict[str, Reduction] = {
    "count": _count,
    "sum": _sum,
    "distinct": distinct,
    "min": least,
    "max": greatest,
    "first-count": first_count,
}
