"""Cases of traces: spines, their handles, imports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from tidemill.arrangement.trace import ImportedTrace, SharedTrace, Spine, TraceHandle
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
from tidemill.testkit.partial_orders import RowBatch, read_at, updates_of
from tidemill.testkit.partial_orders.update_sets import advance_updates
from tidemill.time import U64, Antichain, Lattice

Rows: TypeAlias = RowBatch[str, Any]  # Any: the case names its domain of times
Step: TypeAlias = Mapping[str, Json]
Answers: TypeAlias = Mapping[str, Json]


class _SpineScript:
    """A trace and the ops on it; `worst` is the most rows one insert of the last op read."""

    def __init__(self, domain: Domain, effort: int) -> None:
        self.domain = domain
        self.lattice: Lattice[Any] = lattice_of(domain)
        self.spine: Spine[Any, Rows] = Spine(self.lattice, effort)
        self.worst = 0

    def perform(self, step: Step) -> Answers:
        """Run one op. Raises CaseError for an op that there is not."""
        before = self.spine.rows_read
        self.worst = 0
        answers = self._answer(step)
        if step["op"] != "insert_run":
            self.worst = self.spine.rows_read - before
        return answers

    def observe(self, step: Step) -> Answers:
        """The bounds a step expects of the batches, as it states them where they are kept."""
        expect = step.get("expect", {})
        batches = self.spine.batches()
        counts = {
            "max_batches": len(batches),
            "max_nonempty": sum(1 for batch in batches if len(batch)),
            "rows_read_at_most": self.worst,
        }
        answers: dict[str, Json] = {
            field: max(count, expect.get(field, 0)) for field, count in counts.items()
        }
        uppers = [batch.description.upper for batch in batches]
        wanted = expect.get("boundaries", [])
        kept = all(read_frontier(self.domain, bound) in uppers for bound in wanted)
        answers["boundaries"] = wanted if kept else [write_frontier(upper) for upper in uppers]
        answers["covers_upper"] = self._covered(batches)
        answers["since_at_most"] = self._greatest_since(batches, expect.get("since_at_most", []))
        return answers

    def _answer(self, step: Step) -> Answers:
        spine, domain = self.spine, self.domain
        match step["op"]:
            case "insert":
                lower, upper = (read_frontier(domain, step[end]) for end in ("lower", "upper"))
                updates = read_updates(domain, step["updates"])
                spine.insert(RowBatch.of(self.lattice, lower, upper, updates))
            case "insert_run":
                self._insert_run(step)
            case "set_logical":
                spine.set_logical(read_frontier(domain, step["to"]))
            case "set_physical":
                spine.set_physical(read_frontier(domain, step["to"]))
            case "close":
                if not spine.upper.empty:
                    spine.insert(RowBatch.of(self.lattice, spine.upper, Antichain(domain), ()))
            case "settle":
                spine.settle()
            case "through":
                return self._through(step)
            case "read":
                contents = read_at(spine, read_time(domain, step["at"]))
                return {"contents": write_contents(contents.items())}
            case "check":
                pass
            case op:
                raise CaseError(f"unknown op {op!r}")
        return {}

    def _insert_run(self, step: Step) -> None:
        if not isinstance(self.domain, U64):
            raise CaseError("insert_run is of u64 times")
        each, spine = step.get("each", 1), self.spine
        for i in range(step["from"], step["to"]):
            before = spine.rows_read
            at = read_frontier(self.domain, [i])
            if step.get("logical_follows"):
                spine.set_logical(at)
            if step.get("physical_follows"):
                spine.set_physical(at)
            records = [step["data"]] * each if "data" in step else range(i * each, (i + 1) * each)
            updates = [(canonical(data), i, 1) for data in records]
            upper = read_frontier(self.domain, [i + 1])
            spine.insert(RowBatch.of(self.lattice, at, upper, updates))
            self.worst = max(self.worst, spine.rows_read - before)
        if step.get("physical_follows"):
            spine.set_physical(read_frontier(self.domain, [step["to"]]))

    def _through(self, step: Step) -> Answers:
        found = updates_of(self.spine.through(read_frontier(self.domain, step["upper"])))
        logical = self.spine.logical
        expect = step.get("expect", {})
        if "updates" in expect:
            wanted = read_updates(self.domain, expect["updates"])
            advanced = [advance_updates(side, logical, self.lattice) for side in (wanted, found)]
            if set(advanced[0]) == set(advanced[1]):
                return {"updates": expect["updates"]}
        return {"updates": write_updates(found)}

    def _covered(self, batches: list[Rows]) -> Json:
        """The last upper of batches that touch from the minimum on; None if they do not."""
        reached: Antichain[Any] = Antichain.minimum(self.domain)
        for batch in batches:
            if batch.description.lower != reached:
                return None
            reached = batch.description.upper
        return write_frontier(reached)

    def _greatest_since(self, batches: list[Rows], limit: Json) -> Json:
        bound = read_frontier(self.domain, limit)
        for batch in batches:
            if not batch.description.since.precedes(bound):
                return write_frontier(batch.description.since)
        return limit


def run_spine_property(case: Case, options: Options) -> list[str]:
    """`spine-property`: what any correct trace answers, and the bounds it keeps."""
    script = _SpineScript(domain_named(case["time"]), case.get("effort", 1))
    return run_steps(case["ops"], script.perform, script.observe, script.domain)


def run_spine_golden(case: Case, options: Options) -> list[str]:
    """`spine-golden`: the exact layers of the layered spine with ample fuel."""
    domain = domain_named(case["time"])
    lattice = lattice_of(domain)
    spine: Spine[Any, Rows] = Spine(lattice, case["effort"])
    inserted = 0

    def perform(step: Step) -> Answers:
        nonlocal inserted
        match step["op"]:
            case "insert":
                lower, upper = (read_frontier(domain, [inserted + i]) for i in (0, 1))
                updates = [(canonical([inserted, j]), inserted, 1) for j in range(step["rows"])]
                spine.insert(RowBatch.of(lattice, lower, upper, updates))
                inserted += 1
                if case["physical_follows"]:
                    spine.set_physical(upper)
            case "set_physical":
                spine.set_physical(read_frontier(domain, step["to"]))
            case op:
                raise CaseError(f"unknown op {op!r}")
        return {}

    return run_steps(
        case["ops"], perform, lambda step: {"state": spine.state(), "pending": spine.pending}
    )


def run_share(case: Case, options: Options) -> list[str]:
    """`share`: what handles hold, and what that lets the trace do."""
    domain = domain_named(case["time"])
    spine: Spine[Any, Rows] = Spine(lattice_of(domain))
    shared = SharedTrace(spine)
    handles: dict[str, TraceHandle[Any, Rows]] = {case["handle"]: shared.hold(case["handle"])}

    def perform(step: Step) -> Answers:
        handle = handles[step["handle"]]
        held = "logical"
        match step["op"]:
            case "set_logical":
                handle.set_logical(read_frontier(domain, step["to"]))
            case "set_physical":
                held = "physical"
                handle.set_physical(read_frontier(domain, step["to"]))
            case "clone":
                handle = handles[step["as"]] = handle.clone(step["as"])
            case "drop":
                handle.drop()
            case op:
                raise CaseError(f"unknown op {op!r}")
        return {"hold": write_frontier(handle.logical if held == "logical" else handle.physical)}

    def observe(step: Step) -> Answers:
        return {
            "logical": write_frontier(shared.logical),
            "physical": write_frontier(shared.physical),
        }

    return run_steps(case["ops"], perform, observe, domain)


def run_import(case: Case, options: Options) -> list[str]:
    """`import`: the history of a trace, seen from a frontier on."""
    domain = domain_named(case["time"])
    lattice = lattice_of(domain)
    minimum: Antichain[Any] = Antichain.minimum(domain)
    upper = read_frontier(domain, case["upper"])

    def answer() -> Answers:
        spine: Spine[Any, Rows] = Spine(lattice)
        shared = SharedTrace(spine)
        handle = shared.hold("source")
        history = read_updates(domain, case["history"])
        if history or upper != minimum:
            shared.insert(RowBatch.of(lattice, minimum, upper, history))
        until = read_frontier(domain, case["until"]) if "until" in case else None
        imported = ImportedTrace(handle, "import", read_frontier(domain, case["since"]), until)
        return {
            "updates": write_updates(updates_of(imported.step())),
            "frontier": write_frontier(imported.frontier),
        }

    return run_single(case, answer, domain)
