"""Which function runs which kind of case; loaded when the first case of the kind comes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tidemill.testkit.conformance.values import CaseError

Case: TypeAlias = dict[str, Any]  # Any: a case is JSON or YAML of a form that its kind decides


@dataclass(frozen=True, slots=True)
class Options:
    """The evaluation of language cases; expectations never depend on it.

    `evaluator` evaluates ranges, None in this process.
    """

    engine: str = "dataflow"
    strategy: str = "strata"
    evaluator: Evaluator | None = None


class Evaluator(Protocol):
    """Evaluates the ranges of one case somewhere."""

    def evaluate(self, program: bytes, works: Sequence[bytes]) -> Sequence[bytes]:
        """The packed answers of ranges to their packed work."""
        ...

    def whole(self, reason: str) -> None:
        """The plan of the case is one task, for a reason."""
        ...


Runner: TypeAlias = Callable[[Case, Options], list[str]]
"""Runs one case from a fresh state and returns what differs, most important first; empty = passed.
"""

Outcome: TypeAlias = "tuple[list[str], str]"
"""The differences of a case, and why its plan is one task, if it is."""

_HERE = "tidemill.testkit.conformance."

_KINDS_BY_RUNNER: dict[str, str] = {
    "core_orders:run_order": "order",
    "core_orders:run_antichain": "antichain",
    "core_orders:run_frontier": "frontier",
    "core_orders:run_mutable_antichain": "mutable-antichain",
    "core_orders:run_change_batch": "change-batch",
    "core_orders:run_advance": "advance",
    "core_orders:run_law": "law",
    "core_collections:run_consolidate": "consolidate",
    "core_collections:run_versions": "versions",
    "core_collections:run_read": "read",
    "core_collections:run_batcher": "batcher",
    "core_collections:run_batch_merge": "batch-merge",
    "core_collections:run_chain": "chain",
    "core_reclock:run_reclock": "reclock",
    "core_reclock:run_reclock_map": "reclock-map",
    "core_reclock:run_reclock_at": "reclock-at",
    "core_reclock:run_reclock_compaction": "reclock-compaction",
    "core_mint:run_mint": "mint",
    "core_mint:run_mint_timestamp": "mint-timestamp",
    "core_mint:run_resume": "resume",
    "core_mint:run_feedback": "feedback",
    "core_shards:run_shard": "shard",
    "core_shards:run_capability": "capability",
    "core_traces:run_spine_property": "spine-property",
    "core_traces:run_spine_golden": "spine-golden",
    "core_traces:run_share": "share",
    "core_traces:run_import": "import",
    "core_operators:run_join": "join",
    "core_operators:run_reduce": "reduce",
    "core_operators:run_interesting_times": "interesting-times",
    "core_operators:run_tiles": "tiles",
    "language:run_case": "events pointwise ticks reject explain",
}

KINDS: dict[str, str] = {
    kind: runner for runner, kinds in _KINDS_BY_RUNNER.items() for kind in kinds.split()
}
"""Kind of case -> "module:function" below this package."""


def runner_of(kind: object) -> Runner:
    """The runner of a kind of case.

    Raises: CaseError if there is no such kind or this installation cannot run it.
    """
    if not isinstance(kind, str) or kind not in KINDS:
        raise CaseError(f"unknown kind {kind!r}")
    module, name = KINDS[kind].split(":")
    try:
        runner: Runner = getattr(importlib.import_module(_HERE + module), name)
    except (ImportError, AttributeError) as error:
        raise CaseError(f"no runner for kind {kind!r}: {error}") from error
    return runner


def run_case(case: object, options: Options) -> list[str]:
    """Differences when `case` is run in this thread from a fresh state; empty if it passes.

    Never raises for a case: a mistake of the case or of the product is a difference.
    """
    try:
        if not isinstance(case, dict):
            raise CaseError("the case is not an object")
        return runner_of(case.get("kind"))(case, options)
    except CaseError as error:
        return [str(error)]
    except Exception as error:  # the outermost loop of the runner: a crash fails one case
        return [f"crashed: {type(error).__name__}: {error}"]
