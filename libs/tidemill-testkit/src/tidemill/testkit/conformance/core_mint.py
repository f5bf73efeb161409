"""Cases of minting, resuming and the feedback of committed frontiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.reclock.minting import MintAt, mint_time
from tidemill.reclock.remap import Binding
from tidemill.reclock.resuming import (
    CommitFeedback,
    resume_as_of,
    resume_points,
    resume_source,
)
from tidemill.testkit.conformance.core_reclock import read_bindings, read_remap
from tidemill.testkit.conformance.expectations import run_single, run_steps
from tidemill.testkit.conformance.registry import Case, Options
from tidemill.testkit.conformance.values import (
    CaseError,
    Domain,
    Json,
    domain_named,
    read_frontier,
    read_times,
    read_u64,
    write_frontier,
    write_time,
)
from tidemill.testkit.twins.remap_shard import RemapShard
from tidemill.time import U64_TIME, Antichain, Frontier, frontier


def run_mint(case: Case, options: Options) -> list[str]:
    """`mint`: a script of named operators on one remap collection."""
    domain = domain_named(case["from_time"])
    shard: RemapShard[Any] = RemapShard(domain)

    def observe(step: Mapping[str, Json]) -> Mapping[str, Json]:
        return {
            "upper": write_frontier(shard.upper),
            "since": write_frontier(shard.since),
            "bindings": [[write_time(source), time, n] for source, time, n in shard.bindings],
        }

    # `bindings` are pairs of times of two domains; source frontiers are of the source's.
    domains = {"source": domain, "bindings": domain}
    return run_steps(
        case["ops"], lambda step: _mint_step(shard, domain, step), observe, domains=domains
    )


def _mint_step(shard: RemapShard[Any], domain: Domain, step: Mapping[str, Json]) -> dict[str, Json]:
    match step["op"]:
        case "open":
            shard.open(step["by"], read_u64(step["as_of"]))
            return {}
        case "mint":
            source = read_frontier(domain, step["frontier"])
            minted = shard.mint(step["by"], read_u64(step["at"]), source)
            return {"lands_at": minted.lands_at, "mismatches": minted.mismatches}
        case "reclock":
            return {"times": shard.target_times(step["by"], read_times(domain, step["from"]))}
        case "reclock_frontier":
            reached = shard.target_frontier(step["by"], read_frontier(domain, step["frontier"]))
            return {"frontier": write_frontier(reached)}
        case "source_upper_at":
            return {"source": write_frontier(shard.source_upper(step["by"], read_u64(step["at"])))}
        case "compact":
            shard.downgrade(step["by"], _read_target(step["to"]))
            return {}
        case "close":
            shard.close(step["by"])
            return {}
        case "state":
            return {}
    raise CaseError(f"unknown op {step['op']!r}")


def run_mint_timestamp(case: Case, options: Options) -> list[str]:
    """`mint-timestamp`: the time at which a probe is bound, or how long to wait."""

    def perform(step: Mapping[str, Json]) -> Mapping[str, Json]:
        upper = read_frontier(U64_TIME, step["upper"])
        answer = mint_time(read_u64(step["now"]), read_u64(case["interval"]), upper)
        return {"timestamp": answer.time} if isinstance(answer, MintAt) else {"wait": answer.ms}

    return run_steps(case["ops"], perform)


def run_resume(case: Case, options: Options) -> list[str]:
    """`resume`: where reading goes on, given what outputs have written."""
    domain = domain_named(case["from_time"])
    outputs = {name: read_frontier(U64_TIME, upper) for name, upper in case["outputs"].items()}

    def answer() -> Mapping[str, Json]:
        as_of = resume_as_of(outputs.values(), _read_target(case["remap_since"]))
        points = resume_points(read_remap(domain, case, frontier(), *as_of), outputs)
        return {
            "as_of": write_frontier(as_of),
            "resume": {name: write_frontier(point) for name, point in points.items()},
            "source": write_frontier(resume_source(points.values(), domain)),
        }

    return run_single(case, answer, domain, {"as_of": U64_TIME})


def run_feedback(case: Case, options: Options) -> list[str]:
    """`feedback`: committed uppers translated back while bindings arrive."""
    domain = domain_named(case["from_time"])
    names = case["outputs"]
    feedback: CommitFeedback[Any] = CommitFeedback(domain, read_u64(case["as_of"]), names)
    feedback.bind(read_bindings(domain, case["bind"]), read_frontier(U64_TIME, case["bind_upper"]))

    def perform(step: Mapping[str, Json]) -> Mapping[str, Json]:
        match step["op"]:
            case "commit":
                feedback.commit(step["output"], read_frontier(U64_TIME, step["upper"]))
            case "bind":
                feedback.bind(*_read_bind(domain, step))
            case "step":
                pass
            case _:
                raise CaseError(f"unknown op {step['op']!r}")
        most = step.get("expect", {}).get("retained_at_most", feedback.retained)
        return {
            "outputs": {name: _write_known(feedback.point(name)) for name in names},
            "source": _write_known(feedback.source()),
            # A bound: kept is either at most that, or answered as it is and found different.
            "retained_at_most": most if feedback.retained <= most else feedback.retained,
        }

    return run_steps(case["ops"], perform, domain=domain)


def _read_bind(
    domain: Domain, step: Mapping[str, Json]
) -> tuple[list[Binding[Any]], Frontier | None]:
    upper = read_frontier(U64_TIME, step["bind_upper"]) if "bind_upper" in step else None
    return read_bindings(domain, step.get("bind", [])), upper


def _write_known(held: Antichain[Any] | None) -> Json:
    return None if held is None else write_frontier(held)


def _read_target(value: Json) -> Frontier:
    """A frontier of our times, or a single time that stands for one."""
    return read_frontier(U64_TIME, value if isinstance(value, list) else [value])
