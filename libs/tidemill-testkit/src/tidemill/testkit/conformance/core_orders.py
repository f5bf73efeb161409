"""Cases of orders, antichains, frontiers, counts and lattices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tidemill.testkit.conformance.expectations import run_single, run_steps
from tidemill.testkit.conformance.registry import Case, Options
from tidemill.testkit.conformance.values import (
    CaseError,
    Domain,
    Json,
    domain_named,
    read_frontier,
    read_time,
    read_times,
    write_frontier,
    write_time,
)
from tidemill.testkit.laws import LAWS, Universe, law_holds
from tidemill.time import (
    Antichain,
    ChangeBatch,
    Lattice,
    MutableAntichain,
    PartitionedOrder,
    advance,
)


def run_order(case: Case, options: Options) -> list[str]:
    """`order`: how two times compare."""
    domain = domain_named(case["time"])
    a, b = read_time(domain, case["a"]), read_time(domain, case["b"])
    le, ge = domain.less_equal(a, b), domain.less_equal(b, a)
    key_a, key_b = domain.sort_key(a), domain.sort_key(b)
    answers: dict[str, Json] = {
        "le": le,
        "lt": le and a != b,
        "equal": a == b,
        "comparable": le or ge,
        "sort": (key_a > key_b) - (key_a < key_b),
    }
    if not isinstance(domain, PartitionedOrder):
        lattice = lattice_of(domain)
        answers["join"] = write_time(lattice.join(a, b))
        answers["meet"] = write_time(lattice.meet(a, b))
    return run_single(case, lambda: answers, domain)


def run_antichain(case: Case, options: Options) -> list[str]:
    """`antichain`: a script on one antichain."""
    domain = domain_named(case["time"])
    held = Antichain(domain)

    def perform(step: Mapping[str, Json]) -> Mapping[str, Json]:
        nonlocal held
        match step["op"]:
            case "insert":
                before, held = held, held.insert(read_time(domain, step["time"]))
                return {"value": held is not before}
            case "extend":
                any_true = False
                for time in read_times(domain, step["times"]):
                    before, held = held, held.insert(time)
                    any_true |= held is not before
                return {"value": any_true}
            case "less_equal":
                return {"value": held.less_equal(read_time(domain, step["time"]))}
            case "less_than":
                return {"value": held.less_than(read_time(domain, step["time"]))}
            case "equals":
                return {"value": set(held) == set(read_times(domain, step["times"]))}
            case "clear":
                held = Antichain(domain)
                return {}
        raise CaseError(f"unknown op {step['op']!r}")

    return run_steps(case["ops"], perform, lambda step: {"elements": write_frontier(held)}, domain)


def run_frontier(case: Case, options: Options) -> list[str]:
    """`frontier`: how two frontiers compare, their meet and join."""
    domain = domain_named(case["time"])
    a, b = read_frontier(domain, case["a"]), read_frontier(domain, case["b"])
    answers: dict[str, Json] = {
        "a_le_b": a.precedes(b),
        "b_le_a": b.precedes(a),
        "equal": a == b,
        "meet_f": write_frontier(a.meet(b)),
    }
    if not isinstance(domain, PartitionedOrder):
        answers["join_f"] = write_frontier(a.join(b, lattice_of(domain)))
    return run_single(case, lambda: answers, domain)


def run_mutable_antichain(case: Case, options: Options) -> list[str]:
    """`mutable-antichain`: a script on counts per time."""
    domain = domain_named(case["time"])
    counts: MutableAntichain[Any] = MutableAntichain(domain)  # Any: times of any domain

    def perform(step: Mapping[str, Json]) -> Mapping[str, Json]:
        match step["op"]:
            case "update":
                moves = [(read_time(domain, time), n) for time, n in step["updates"]]
                return {"changes": [[write_time(t), n] for t, n in counts.update(moves)]}
            case "less_equal":
                return {"value": counts.less_equal(read_time(domain, step["time"]))}
            case "less_than":
                return {"value": counts.less_than(read_time(domain, step["time"]))}
            case "count":
                return {"value": counts.count(read_time(domain, step["time"]))}
        raise CaseError(f"unknown op {step['op']!r}")

    return run_steps(
        case["ops"], perform, lambda step: {"frontier": write_frontier(counts.frontier)}, domain
    )


def run_change_batch(case: Case, options: Options) -> list[str]:
    """`change-batch`: changes added up."""
    domain = domain_named(case["time"])
    batch = ChangeBatch((read_time(domain, time), n) for time, n in case["updates"])
    answers = {"changes": [[write_time(time), n] for time, n in batch], "empty": batch.empty}
    return run_single(case, lambda: answers, domain)


def run_advance(case: Case, options: Options) -> list[str]:
    """`advance`: times by a frontier."""
    domain = domain_named(case["time"])
    since = read_frontier(domain, case["since"])
    lattice = lattice_of(domain)
    advanced = [advance(read_time(domain, time), since, lattice) for time in case["times"]]
    return run_single(case, lambda: {"times": write_frontier(advanced)}, domain)


def run_law(case: Case, options: Options) -> list[str]:
    """`law`: a formula over all of a list of times."""
    domain = domain_named(case["time"])
    if case["law"] not in LAWS:
        raise CaseError(f"unknown law {case['law']!r}")
    sorts_only = case["law"].startswith("sort-")
    universe = Universe(
        cast("Lattice[Any]", domain) if sorts_only else lattice_of(domain),
        [read_time(domain, time) for time in case["times"]],
        read_frontier(domain, case.get("since", [])),
        read_frontier(domain, case.get("earlier", [])),
    )
    return run_single(case, lambda: {"value": law_holds(case["law"], universe)}, domain)


def lattice_of(domain: Domain) -> Lattice[Any]:
    """`domain` as a lattice. Raises CaseError for the one domain that is none."""
    if isinstance(domain, PartitionedOrder):
        raise CaseError(f"times of {domain.name} have no join and no meet")
    return cast("Lattice[Any]", domain)
