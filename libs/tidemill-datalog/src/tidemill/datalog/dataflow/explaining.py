"""Figures of a dataflow in lines of text: rows in and out of each operator, its state, its time."""

from __future__ import annotations

from tidemill.datalog.dataflow.engine import DataflowEngine
from tidemill.datalog.evaluation.profile import aligned


def explain_figures(engine: DataflowEngine) -> list[str]:
    """Lines of a table: each collection with what it keeps, then the rules that derive it.

    Cost: O(operators).
    """
    rows: list[tuple[str, ...]] = [("", "rows in", "rows out", "kept", "bytes", "ms")]
    for name, collection in sorted(engine.plan.collections.items(), key=lambda c: c[1].rank):
        figures = engine.figures[name]
        kept = engine.kept(name)
        title = f"stratum {collection.stratum}: {_shown(name)}"
        rows.append((title, *figures.shown, f"{kept[0]}", f"{kept[1]}", figures.ms))
        for rule in engine.rules_of(name):
            figures, size = rule.figures, f"{rule.nbytes}"
            rows.append(
                (f"  rule {rule.plan.form.number}", *figures.shown, "", size, figures.ms)
            )  # fmt: skip
    return aligned(rows)


def _shown(name: str) -> str:
    """The name of a collection as a reader of the program knows it."""
    if name == "#unit":
        return "(always)"
    kind, _, rest = name.partition(":")
    predicate, _, columns = rest.partition(":")
    if kind == "#has":
        return f"not {predicate} ({columns})"
    return f"{predicate}, given" if kind == "#given" else name
