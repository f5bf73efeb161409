"""When and where the ticks of a view run, from what its resource says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidemill.catalog.entry import SYSTEM
from tidemill.datalog.ast import Program
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import InputSchema
from tidemill.datalog.joining import joining_inputs
from tidemill.datalog.tick_plan import Admission, Batch, Skew, TickPlan
from tidemill.errors import UsageError
from tidemill.runtime.resources import AdmissionSpec, ViewSpec

Columns = Mapping[str, Sequence[tuple[str, str]]]


def tick_plan(spec: ViewSpec, checked: CheckedProgram, columns: Columns) -> TickPlan | None:
    """The plan of a ticked program, None for one without ticks; `columns` of its inputs, with
    types.

    Raises: UsageError if the resource and the program do not fit.
    """
    if not checked.ticked:
        for field, told in (
            ("tick", spec.tick is not None), ("nodes", spec.nodes > 1),
            ("place", bool(spec.place)), ("admission", bool(spec.admission)),
        ):  # fmt: skip
            if told:
                raise UsageError(
                    f"spec.{field} is for programs with @next or @async, and this one has neither",
                    reason="NotTicked",
                )
        return None
    if spec.tick is None:
        raise UsageError(
            "the program has @next or @async: say when its ticks run, "
            'tick: {period: 1s} or tick: {"on": change}',
            reason="NoTick",
        )
    number, joining = spec.tick.number, joining_inputs(checked)
    period = None if spec.tick.period is None else int(spec.tick.period)
    return TickPlan(
        period,
        spec.nodes,
        {name: _place(name, column, columns) for name, column in spec.place.items()},
        {name: _admission(name, told, columns, joining) for name, told in spec.admission.items()},
        number if number in checked.inputs else None,
    )


def number_schema(
    spec: ViewSpec, program: Program, inputs: Iterable[InputSchema] = ()
) -> dict[str, InputSchema]:
    """The relation in which a program reads the number of a tick, by name, if it has one.

    It is on the timeline of the inputs. Raises: UsageError for a name that has another meaning.
    """
    if spec.tick is None or spec.tick.number is None:
        return {}
    name, timeline = spec.tick.number, next((each.timeline for each in inputs), SYSTEM)
    if name in spec.inputs or name in {rule.head.application.name for rule in program.rules}:
        raise UsageError(
            f"spec.tick.number: {name} is derived, or an input; name a relation of its own",
            reason="NumberTaken",
        )
    return {name: InputSchema(name, "relation", (("", "int"),), timeline)}


def _known(name: str, columns: Columns) -> Sequence[tuple[str, str]]:
    if name not in columns:
        raise UsageError(
            f"{name} is no input of the program; it reads {', '.join(sorted(columns)) or 'none'}",
            reason="UnknownInput",
        )
    return columns[name]


def _place(name: str, column: str, columns: Columns) -> int:
    """Which argument of an input names its node."""
    types = dict(_known(name, columns))
    if types.get(column) != "int":
        says = (
            "is no column of it" if column not in types else f"is {types[column]}, and a node int"
        )
        raise UsageError(f"spec.place.{name}: {column} {says}", reason="UnknownColumn")
    return list(types).index(column)


def _admission(
    name: str, told: AdmissionSpec, columns: Columns, joining: frozenset[str]
) -> Admission:
    _known(name, columns)
    if told.policy == "batch":
        assert told.rows is not None
        return Batch(told.rows, None if told.wait is None else int(told.wait))
    if told.policy == "skew":
        assert told.skew is not None
        return Skew(int(told.skew))
    if told.policy == "stratum":
        return "stratum" if name in joining else "tick"
    return told.policy


def kept_in_words(spec: object) -> str:
    """The words of a resource for the way in which its view is kept."""
    assert isinstance(spec, ViewSpec)
    said = [f"strategy {spec.strategy}"]
    if spec.tick is not None:
        period = spec.tick.period
        said.append("tick on change" if period is None else f"tick every {int(period)} ms")
    if spec.nodes > 1:
        said.append(f"{spec.nodes} nodes")
    return ", ".join(said)
