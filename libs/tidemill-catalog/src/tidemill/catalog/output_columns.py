"""The columns of what a view derives: arguments under their names, then what the collection adds
itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.catalog.entry import SYSTEM, CatalogEntry, located
from tidemill.catalog.record_rows import NODE, PredicateShape, shape_of_output
from tidemill.catalog.store import Stored
from tidemill.datalog.ast import Span, Variable
from tidemill.datalog.carried_lattices import MARK, endless_names, surely_carried
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.diagnostics import Diagnostic, ProgramErrors
from tidemill.errors import UsageError
from tidemill.runtime.resources import ViewSpec

ASIDE = {"errors": "the error collection", "state": "the state"}
"""Collections that every view has beside its outputs, by the last part of their names."""


def outputs_of(
    stored: Stored,
    spec: ViewSpec,
    checked: CheckedProgram,
    inputs: Mapping[str, CatalogEntry],
    nodes: int,
) -> dict[str, CatalogEntry]:
    """The outputs of a view by predicate.

    Raises: UsageError, ProgramErrors. Cost: some 50 µs for each.
    """
    resource = stored.resource
    outputs: dict[str, CatalogEntry] = {}
    # IMPORTANT: once for all outputs: a long program has as many of them as rules.
    sure = surely_carried(checked, {p: named.shape.sure for p, named in inputs.items()})
    derived = dict.fromkeys(checked.derived)
    for number, predicate in enumerate(spec.outputs or derived):
        if predicate not in derived:
            with located(resource, "spec", "outputs", number):
                raise UsageError(
                    f"the output {predicate} is not derived; derived are {', '.join(derived)}",
                    reason="UnknownOutput",
                )
        refuse_aside(checked, predicate)
        names = spec.columns.get(predicate)
        place = nullcontext() if names is None else located(resource, "spec", "columns", predicate)
        with place:
            shape = output_shape(checked, predicate, sure, nodes, names)
        outputs[predicate] = CatalogEntry(
            f"{resource.name}/{predicate}", f"{stored.prefix}/{predicate}",
            checked.timeline or SYSTEM, "View", shape,
        )  # fmt: skip
    refuse_endless(checked, outputs)
    return outputs


def output_shape(
    checked: CheckedProgram,
    predicate: str,
    sure: Mapping[str, frozenset[str]],
    nodes: int,
    names: Sequence[str] | None,
) -> PredicateShape:
    """The columns of one output; `names` are the view's names of its arguments, None without names.

    `sure` holds the lattices that every record of a predicate carries.

    Raises: UsageError for names that do not fit. ProgramErrors (S126), with its place, for a column
    of a head whose name is that of a column which the collection adds.
    """
    shape = shape_of_output(checked, predicate, sure)
    if nodes > 1:
        shape = shape.with_node()
    if names is not None:
        shape = _named(shape, names)
    held = shape.schema.names
    arguments, added = held[: shape.arguments], {TIME, DIFF, *held[shape.arguments :]}
    marks = [MARK + lattice for lattice in shape.marked]
    if nodes > 1 and names is None:
        added.add(arguments.pop(0))
    name = next((each for each in arguments if each in added), None)
    if name is None:
        return shape
    says = f"the collection of `{predicate}` has a column `{name}` already: {_meaning(name, marks)}"
    if names is not None:
        raise UsageError(f"{says}; give the column another name", reason="ColumnNames")
    heads = (r.source.head.application for r in checked.rules if r.predicate == predicate)
    spans = (each.span for head in heads for each in head.arguments if each.name == name)
    hint = f"give the column another name, such as `its_{name.lstrip('_')}: …`"
    raise _refused(checked, says, next(spans), hint)


def refuse_aside(checked: CheckedProgram, predicate: str) -> None:
    """Refuse an output that is called as a collection that every view has.

    Raises: ProgramErrors (S126).
    """
    if predicate in ASIDE:
        says = f"`{predicate}` is the name of {ASIDE[predicate]} of every view"
        spans = (
            r.source.head.application.name_span for r in checked.rules if r.predicate == predicate
        )
        raise _refused(checked, says, next(spans), "give the predicate another name")


def refuse_endless(checked: CheckedProgram, outputs: Collection[str]) -> None:
    """Refuse an output with a column that is always infinite: no collection holds that.

    Raises: ProgramErrors (S127).
    """
    for rule in checked.rules:
        if rule.predicate not in outputs:
            continue
        names = endless_names(checked, rule)
        values = [p for p in rule.parafacts if p.lattice not in ("time", "expires")]
        for term in (*rule.terms, *(term for parafact in values for term in parafact.terms)):
            if isinstance(term, Variable) and term.name in names:
                says = f"`{term.name}` is always infinite: the facts whose end it is never end"
                hint = "leave it out: no column holds infinity"
                raise _refused(checked, says, term.span, hint, "S127")


def _named(shape: PredicateShape, names: Sequence[str]) -> PredicateShape:
    """The shape with its arguments under other names. Raises: UsageError."""
    if len(names) != shape.arguments:
        raise UsageError(
            f"{shape.predicate} has {shape.arguments} columns, and {len(names)} names",
            reason="ColumnNames",
        )
    if len(set(names)) != len(names):
        raise UsageError(f"two columns of {shape.predicate} have one name", reason="ColumnNames")
    fields = [field.with_name(name) for field, name in zip(shape.schema, names, strict=False)]
    fields += [shape.schema.field(at) for at in range(shape.arguments, len(shape.schema))]
    return replace(shape, schema=pa.schema(fields))


def _meaning(name: str, marks: Collection[str]) -> str:
    """The contents of a column that a collection adds by itself, in words."""
    if name in (TIME, DIFF):
        return "the instant of an update" if name == TIME else "how often a row comes or goes"
    if name == NODE:
        return "the node that derives the row"
    if name in ("time", "expires"):
        return f"the @{name} of the event"
    if name in marks:
        return f"whether a fact carries @{name.removeprefix(MARK)}"
    return f"the @{name} that rides beside the fact"


def _refused(
    checked: CheckedProgram, says: str, span: Span, hint: str, code: str = "S126"
) -> ProgramErrors:
    program = checked.program
    return ProgramErrors([Diagnostic(code, says, span, program.file, hint)], program.text)
