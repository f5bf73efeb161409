"""Cases of reclocking: the operator, the mapping, the definition, compaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.reclock.mapping import contents_at, target_times
from tidemill.reclock.remap import Binding, RemapTrace
from tidemill.testkit.conformance.expectations import run_single, run_steps
from tidemill.testkit.conformance.registry import Case, Options
from tidemill.testkit.conformance.values import (
    Domain,
    Json,
    domain_named,
    read_frontier,
    read_times,
    read_u64,
    read_updates,
    write_contents,
    write_frontier,
    write_updates,
)
from tidemill.testkit.live_operator import operator_of
from tidemill.testkit.partial_orders.update_sets import advance_updates
from tidemill.time import U64_MAX, U64_TIME, Antichain, Frontier, frontier


def run_reclock(case: Case, options: Options) -> list[str]:
    """`reclock`: a script of bindings, data and progress on one operator.

    A partitioned log is reclocked by the operator that the service runs.
    """
    domain = domain_named(case["from_time"])
    operator = operator_of(domain, read_u64(case["as_of"]))

    def perform(step: Mapping[str, Json]) -> Mapping[str, Json]:
        upper = read_frontier(U64_TIME, step["bind_upper"]) if "bind_upper" in step else None
        source = (
            read_frontier(domain, step["source_frontier"]) if "source_frontier" in step else None
        )
        reclocked = operator.step(
            read_bindings(domain, step.get("bind", [])),
            upper,
            read_updates(domain, step.get("data", [])),
            source,
        )
        return {
            "messages": write_updates(reclocked.messages),
            "frontier": write_frontier(reclocked.frontier),
        }

    return run_steps(case["steps"], perform)


def run_reclock_map(case: Case, options: Options) -> list[str]:
    """`reclock-map`: the target of each source time."""
    domain = domain_named(case["from_time"])
    upper = read_frontier(U64_TIME, case["bind_upper"])
    times = read_times(domain, case["from"])
    return run_single(case, lambda: {"times": target_times(read_remap(domain, case, upper), times)})


def run_reclock_at(case: Case, options: Options) -> list[str]:
    """`reclock-at`: the reclocked collection at a time, by its definition."""
    domain = domain_named(case["from_time"])
    remap = read_remap(domain, case, frontier())
    data = read_updates(domain, case["data"])

    def perform(step: Mapping[str, Json]) -> Mapping[str, Json]:
        contents = contents_at(remap, data, read_u64(step["at"]))
        return {"contents": write_contents(contents.items())}

    return run_steps(case["reads"], perform)


def run_reclock_compaction(case: Case, options: Options) -> list[str]:
    """`reclock-compaction`: compacting the bindings or the output comes to the same."""
    domain = domain_named(case["from_time"])
    upper = read_frontier(U64_TIME, case["bind_upper"])
    bindings = read_bindings(domain, case.get("bind", []))
    data = read_updates(domain, case["data"])
    to = read_u64(case["to"])

    def output_compacted() -> Mapping[str, Json]:
        operator = operator_of(domain, 0)
        messages = operator.step(bindings, upper, data, Antichain(domain)).messages
        return {"updates": write_updates(advance_updates(messages, frontier(to), U64_TIME))}

    def bindings_compacted() -> Mapping[str, Json]:
        operator = operator_of(domain, to)
        closed = [binding for binding in bindings if not upper.less_equal(binding[1])]
        advanced = advance_updates(closed, frontier(to), U64_TIME)
        messages = operator.step(advanced, _past(upper, to), data, Antichain(domain)).messages
        return {"updates": write_updates(messages)}

    return run_single(case, output_compacted) + [
        f"bindings compacted first: {line}" for line in run_single(case, bindings_compacted)
    ]


def _past(upper: Frontier, to: int) -> Frontier:
    """The upper of closed bindings that were advanced to `to`: nothing else comes up to it."""
    if upper == frontier(0):
        return upper
    return upper.join(frontier() if to == U64_MAX else frontier(to + 1), U64_TIME)


def read_bindings(domain: Domain, value: Json) -> list[Binding[Any]]:
    """A list of `{"at", "from", "to"}`: what goes and what comes at each time."""
    bindings: list[Binding[Any]] = []
    for bind in value:
        at = read_u64(bind["at"])
        bindings += [(time, at, -1) for time in read_times(domain, bind.get("from", []))]
        bindings += [(time, at, 1) for time in read_times(domain, bind.get("to", []))]
    return bindings


def read_remap(domain: Domain, case: Case, upper: Frontier, since: int = 0) -> RemapTrace[Any]:
    """The bindings of a case as a remap collection with this upper."""
    remap: RemapTrace[Any] = RemapTrace(domain, since)
    remap.insert(read_bindings(domain, case.get("bind", [])), upper)
    return remap
