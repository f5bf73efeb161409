"""The plan and the figures of a dataflow: as a document, as lines of text, as a drawing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from tidemill.arrangement.interval_updates import JoinShape
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow.engine import DataflowEngine
from tidemill.datalog.dataflow.plan import (
    UNIT,
    Clock,
    Compute,
    DataflowPlan,
    DeltaPlan,
    Filter,
    Join,
    Operator,
    RulePlan,
    See,
    Subtract,
    Untick,
    WitnessSide,
)
from tidemill.datalog.dataflow.rule_state import Figures
from tidemill.datalog.formatter import format_rule
from tidemill.datalog.logical.forms import Constant
from tidemill.datalog.logical.plan_text import aligned, column_name, expression_text

Document: TypeAlias = "dict[str, Any]"
_SIGNS = ("<", "<=", "==", "!=")


def plan_document(plan: DataflowPlan, checked: CheckedProgram) -> Document:
    """The plan as JSON, whose fields stay: collections by rank, rules, and operators by source.

    A collection has `name`, `stratum`, `columns`, whether it is an `input` or `recursive`, and
    `rules`. A rule has `number`, `text`, `keeps`, and `deltas`: what follows from the change of one
    collection, `from`, by `operators`. Cost: O(text).
    """
    texts = {rule.number: format_rule(rule) for rule in checked.program.rules}
    looped = {name for loop in plan.loops for name in loop}
    collections = []
    for name, each in sorted(plan.collections.items(), key=lambda item: item[1].rank):
        names = [_column(plan, name, at, checked) for at in range(1, each.schema.expiry)]
        rules = [rule for rule in plan.rules if rule.form.head.predicate == name]
        collections.append(
            {
                "name": _shown(plan, name, checked), "stratum": each.stratum, "columns": names,
                "input": name in plan.inputs, "recursive": name in looped,
                "rules": [_rule(plan, rule, texts, checked) for rule in rules],
            }
        )  # fmt: skip
    return {"collections": collections}


def analysis_document(engine: DataflowEngine) -> Document:
    """The document of an engine's plan; each collection and rule has the `figures` of its work.

    Figures are rows in and out, rows kept, bytes, seconds. Cost: O(operators).
    """
    document = plan_document(engine.plan, engine.checked)
    ranked = sorted(engine.plan.collections.items(), key=lambda item: item[1].rank)
    for (name, _), each in zip(ranked, document["collections"], strict=True):
        kept, size = engine.kept(name)
        each["figures"] = _figures(engine.figures[name], kept, size)
        for rule, told in zip(engine.rules_of(name), each["rules"], strict=True):
            told["figures"] = _figures(rule.figures, 0, rule.nbytes)
    return document


def _figures(work: Figures, kept: int, size: int) -> Document:
    return {
        "rows_in": work.rows_in, "rows_out": work.rows_out, "rows_kept": kept, "bytes": size,
        "seconds": work.seconds,
    }  # fmt: skip


def analysis_lines(document: Document) -> list[str]:
    """Lines of a table of figures: each collection with what it keeps, then its rules."""
    rows: list[tuple[str, ...]] = [("", "rows in", "rows out", "kept", "bytes", "ms")]
    for each in document["collections"]:
        rows.append((f"stratum {each['stratum']}: {each['name']}", *_cells(each["figures"])))
        rows += [(f"  rule {r['number']}", *_cells(r["figures"])) for r in each["rules"]]
    return aligned(rows)


def _cells(figures: Document) -> tuple[str, ...]:
    counts = [str(figures[name]) for name in ("rows_in", "rows_out", "rows_kept", "bytes")]
    return *counts, f"{figures['seconds'] * 1000:.2f}"


def plan_lines(document: Document) -> list[str]:
    """The document as lines: each collection, its rules, and each change that reaches one."""
    lines = []
    for each in document["collections"]:
        kind = "input" if each["input"] else f"stratum {each['stratum']}"
        recursive = ", recursive" if each["recursive"] else ""
        columns = f" ({', '.join(each['columns'])})" if each["columns"] else ""
        lines.append(f"  {kind}: {each['name']}{columns}{recursive}")
        for rule in each["rules"]:
            first, *rest = rule["text"].splitlines() or ["made by the planner"]
            lines.append(f"    rule {rule['number']}: {first}")
            lines += [f"      {line}" for line in rest]
            lines += [f"      {_delta_line(delta)}" for delta in rule["deltas"]]
            lines += [f"      keeps {kept}" for kept in rule["keeps"]]
    return lines


def plan_dot(document: Document) -> str:
    """The document in the language DOT: a box for each collection, an ellipse for each rule.

    Arrows carry the operators; dashed ones are of what a rule must not find.
    """
    lines = ["digraph dataflow {", "  rankdir=BT;", "  node [fontname=sans, fontsize=10];"]
    for each in document["collections"]:
        style = ", peripheries=2" if each["recursive"] else ""
        lines.append(f"  {_quoted(each['name'])} [shape=box{style}];")
    for each in document["collections"]:
        for rule in each["rules"]:
            number = f"rule {rule['number']}"
            lines.append(f"  {_quoted(number)} [shape=ellipse];")
            kept = "\\n".join(rule["keeps"])
            lines.append(f"  {_quoted(number)} -> {_quoted(each['name'])} [label={_quoted(kept)}];")
            for delta in rule["deltas"]:
                label = "\\n".join(_operator_text(each) for each in delta["operators"])
                style = "" if delta["adds"] else ", style=dashed"
                lines.append(
                    f"  {_quoted(delta['from'])} -> {_quoted(number)} [label={_quoted(label)}{style}];"
                )
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    escaped = text.replace('"', '\\"')
    return f'"{escaped}"'


def _rule(
    plan: DataflowPlan, rule: RulePlan, texts: Mapping[int, str], checked: CheckedProgram
) -> Document:
    keeps = []
    if rule.head.outlives:
        keeps.append("open solutions until they end")
    if rule.reduce is not None:
        lattices = ", ".join(f"@{name}" for name, _ in rule.reduce.lattices)
        keeps.append(f"groups of {lattices}")
    words = _RuleText(plan, rule, checked)
    if rule.witness is not None:
        keeps += map(words.witness, rule.witness.sides)
    return {
        "number": rule.form.number,
        "text": texts.get(rule.form.number, ""),
        "keeps": keeps,
        "deltas": [words.delta(each) for each in rule.deltas],
    }


def _shown(plan: DataflowPlan, name: str, checked: CheckedProgram) -> str:
    """The name of a collection as a reader of the program knows it."""
    if name == UNIT:
        return "(always)"
    known = plan.collections[name]
    if known.cover is not None:
        source, columns = known.cover
        names = [_column(plan, source, at, checked) for at in columns]
        return f"not {_shown(plan, source, checked)} ({', '.join(names)})"
    kind, _, predicate = name.partition(":")
    return f"{predicate}, given" if kind == "#given" else name


def _column(plan: DataflowPlan, name: str, place: int, checked: CheckedProgram) -> str:
    """The name of a column of a collection; a cover has those of what it covers."""
    known = plan.collections[name]
    if known.cover is not None:
        source, columns = known.cover
        return _column(plan, source, columns[place - 1], checked)
    schema = known.schema
    if place == schema.expiry:
        return "expires"
    lattices = [lattice for lattice, _ in schema.lattices]
    if schema.expiry < place < schema.nulls and len(lattices) >= place - schema.expiry:
        return f"@{lattices[place - schema.expiry - 1]}"
    return column_name(name.rpartition(":")[2], place, checked)


class _RuleText:
    """The operators of one rule, with the names of its variables."""

    def __init__(self, plan: DataflowPlan, rule: RulePlan, checked: CheckedProgram) -> None:
        self._plan = plan
        self._checked = checked
        columns = rule.columns
        self._names = {column: name for name, (column, _) in columns.variables.items()}
        self._names |= {columns.time: "time", columns.expiry: "expires"}
        for atom, places in zip(rule.form.atoms, columns.facts, strict=True):
            for at, column in enumerate(places):
                told = f"{atom.predicate}.{column_name(atom.predicate, at, checked)}"
                if at and isinstance(term := atom.terms[at - 1], Constant):
                    told = expression_text(term)
                self._names.setdefault(column, told)

    def delta(self, delta: DeltaPlan) -> Document:
        first = self._conditions(delta.source, delta.begin)
        operators = [{"operator": "select", **first}] if any(first.values()) else []
        return {
            "from": self._collection(delta.source),
            "adds": delta.sign > 0,
            "operators": [*operators, *map(self._operator, delta.steps)],
        }

    def witness(self, witness: WitnessSide) -> str:
        """The way to a witness, in words."""
        found = f"one witness of {self._collection(witness.right)} for each match"
        if witness.rank < 0:
            return found
        place = _column(self._plan, witness.right, witness.rank, self._checked)
        return f"{found}, of those with the nearest {place}"

    def _operator(self, step: Operator) -> Document:
        match step:
            case Join():
                found = {
                    "operator": "join",
                    "with": self._collection(step.collection),
                    "same": step.changed,
                }
                return {**found, **self._conditions(step.collection, step.shape)}
            case Subtract():
                pairs = zip(step.columns.tolist(), step.theirs.tolist(), strict=True)
                by = [self._pair(step.collection, *pair) for pair in pairs]
                return {"operator": "subtract", "with": self._collection(step.collection), "by": by}
            case Filter():
                return {"operator": "filter", "where": [expression_text(step.condition)]}
            case Compute():
                what = "check" if step.check else "compute"
                text = f"{self._name(step.column)} = {expression_text(step.expression)}"
                return {"operator": what, "where": [text]}
            case Clock():
                words = [expression_text(each) for each in (step.offset, step.period)]
                return {"operator": "clock", "where": [f"clock({', '.join(words)})"]}
            case Untick():
                words = [expression_text(each) for each in (step.offset, step.period)]
                return {"operator": "until", "where": [f"clock({', '.join(words)})"]}
            case See():
                return {"operator": "see", "where": [f"@{step.lattice}"]}

    def _conditions(self, collection: str, shape: JoinShape) -> Document:
        """Columns that rows are looked up by, those that are compared after that, and guards."""
        by = [self._pair(collection, *pair) for pair in shape.keys.T.tolist()]
        checks = [self._pair(collection, *pair) for pair in shape.checks.T.tolist()]
        guards = [self._guard(*guard) for guard in shape.guards.tolist()]
        return {"by": by, "where": [*checks, *guards]}

    def _pair(self, collection: str, mine: int, theirs: int) -> str:
        left = self._name(mine)
        right = _column(self._plan, collection, theirs, self._checked)
        return right if left == right else f"{right} = {left}"

    def _guard(self, sign: int, left: int, right: int, word: int) -> str:
        sides = [self._name(each) if each >= 0 else str(word) for each in (left, right)]
        return f"{sides[0]} {_SIGNS[sign]} {sides[1]}"

    def _collection(self, name: str) -> str:
        return _shown(self._plan, name, self._checked)

    def _name(self, column: int) -> str:
        return self._names.get(column, f"constant {column}")


def _delta_line(delta: Document) -> str:
    sign = "" if delta["adds"] else "less "
    steps = " -> ".join([delta["from"], *map(_operator_text, delta["operators"])])
    return f"{sign}{steps}"


def _operator_text(operator: Mapping[str, Any]) -> str:
    words = [operator["operator"]]
    if "with" in operator:
        words.append(f"{operator['with']}{', what changed' if operator.get('same') else ''}")
    words += _listed("by", operator.get("by", ()))
    words += _listed("where", operator.get("where", ()))
    return " ".join(words)


def _listed(word: str, parts: Sequence[str] | Iterable[str]) -> list[str]:
    found = list(parts)
    return [f"{word} ({', '.join(found)})"] if found else []
