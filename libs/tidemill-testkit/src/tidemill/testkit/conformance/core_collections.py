"""Cases of collections: consolidating, versions, reads, batches, deferred updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tidemill.testkit.conformance.core_orders import lattice_of
from tidemill.testkit.conformance.expectations import run_single, run_steps
from tidemill.testkit.conformance.registry import Case, Options
from tidemill.testkit.conformance.values import (
    CaseError,
    Domain,
    Json,
    canonical,
    domain_named,
    read_frontier,
    read_time,
    read_updates,
    write_contents,
    write_frontier,
    write_updates,
)
from tidemill.testkit.partial_orders.batcher import Batcher, SealedBatch, merge_batches
from tidemill.testkit.partial_orders.update_sets import (
    PartialCollection,
    advance_updates,
    consolidate_updates,
    updates_of_versions,
)
from tidemill.testkit.twins.deferred_updates import DeferredUpdates


def run_consolidate(case: Case, options: Options) -> list[str]:
    """`consolidate`: diffs added up, after advancing if there is a since."""
    domain = domain_named(case["time"])
    updates = read_updates(domain, case["updates"])

    def answer() -> Mapping[str, Json]:
        if "since" not in case:
            return {"consolidated": write_updates(consolidate_updates(updates))}
        since = read_frontier(domain, case["since"])
        advanced = advance_updates(updates, since, lattice_of(domain))
        return {"consolidated": write_updates(advanced)}

    return run_single(case, answer, domain)


def run_versions(case: Case, options: Options) -> list[str]:
    """`versions`: the updates that lead from each version to the next."""
    versions: list[tuple[int, Mapping[str, int]]] = []
    for version in case["versions"]:
        contents: Counter[str] = Counter()
        for data, multiplicity in version["contents"]:
            contents[canonical(data)] += multiplicity
        versions.append((version["at"], contents))
    return run_single(case, lambda: {"updates": write_updates(updates_of_versions(versions))})


def run_read(case: Case, options: Options) -> list[str]:
    """`read`: contents at times inside and outside what is known."""
    domain = domain_named(case["time"])
    collection: PartialCollection[str, Any] = PartialCollection(
        domain,
        tuple(read_updates(domain, case["updates"])),
        read_frontier(domain, case["since"]),
        read_frontier(domain, case["upper"]),
    )

    def perform(step: Mapping[str, Json]) -> Mapping[str, Json]:
        contents = collection.read(read_time(domain, step["at"]))
        return {"contents": write_contents(contents.items())}

    return run_steps(case["reads"], perform, domain=domain)


def run_batcher(case: Case, options: Options) -> list[str]:
    """`batcher`: a script of pushes and seals."""
    domain = domain_named(case["time"])
    batcher: Batcher[str, Any] = Batcher(domain)

    def perform(step: Mapping[str, Json]) -> Mapping[str, Json]:
        match step["op"]:
            case "push":
                batcher.push(read_updates(domain, step["updates"]))
                return {}
            case "seal":
                batch = batcher.seal(read_frontier(domain, step["upper"]))
                return {
                    "updates": write_updates(batch.updates),
                    "lower": write_frontier(batch.lower),
                    "upper": write_frontier(batch.upper),
                }
        raise CaseError(f"unknown op {step['op']!r}")

    return run_steps(
        case["ops"],
        perform,
        lambda step: {"frontier": write_frontier(batcher.frontier())},
        domain,
    )


def run_batch_merge(case: Case, options: Options) -> list[str]:
    """`batch-merge`: two neighbouring batches as one."""
    domain = domain_named(case["time"])
    lattice = lattice_of(domain)
    a, b = _read_batch(domain, case["a"]), _read_batch(domain, case["b"])
    logical = read_frontier(domain, case["logical"])
    expect = dict(case["expect"])

    def answer() -> Mapping[str, Json]:
        merged = merge_batches(a, b, logical, lattice)
        if "updates" in expect:
            wanted = read_updates(domain, expect["updates"])
            expect["updates"] = write_updates(advance_updates(wanted, merged.since, lattice))
        return {
            "lower": write_frontier(merged.lower),
            "upper": write_frontier(merged.upper),
            "since": write_frontier(merged.since),
            "updates": write_updates(advance_updates(merged.updates, merged.since, lattice)),
        }

    return run_single({"expect": expect}, answer, domain)


def run_chain(case: Case, options: Options) -> list[str]:
    """`chain`: deferred updates merged and extracted."""
    domain = domain_named(case["time"])
    deferred: DeferredUpdates[str, Any] = DeferredUpdates(domain)

    def perform(step: Mapping[str, Json]) -> Mapping[str, Json]:
        match step["op"]:
            case "merge":
                deferred.merge(read_updates(domain, step["updates"]))
                return {}
            case "extract":
                extracted = deferred.extract(read_frontier(domain, step["frontier"]))
                return {"updates": write_updates(extracted)}
        raise CaseError(f"unknown op {step['op']!r}")

    return run_steps(
        case["ops"], perform, lambda step: {"held": write_updates(deferred.held())}, domain
    )


def _read_batch(domain: Domain, batch: Json) -> SealedBatch[str, Any]:
    return SealedBatch(
        read_frontier(domain, batch["lower"]),
        read_frontier(domain, batch["upper"]),
        read_frontier(domain, batch["since"]),
        tuple(read_updates(domain, batch["updates"])),
    )
