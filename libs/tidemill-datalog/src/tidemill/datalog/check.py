"""All static checks in the order in which their mistakes are reported."""

from __future__ import annotations

from tidemill.datalog.ast import Program
from tidemill.datalog.check_recursion import check_cycles, check_recursion
from tidemill.datalog.check_safety import check_safety
from tidemill.datalog.check_times import check_times
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.column_types import infer_types
from tidemill.datalog.diagnostics import Diagnostic, ProgramErrors
from tidemill.datalog.inputs import InputSchemas
from tidemill.datalog.lint import lint
from tidemill.datalog.resolution import Resolution
from tidemill.datalog.strata import PredicateGraph
from tidemill.datalog.vocabulary import STANDARD, Vocabulary


def check(
    program: Program,
    inputs: InputSchemas,
    vocabulary: Vocabulary = STANDARD,
) -> CheckedProgram:
    """The program with everything resolved, or all mistakes of the first kind that it has.

    Kinds in order: names, columns and arities; the length of rules; definitions, functions and
    lattices; clock arguments; body; guard; head; cycles; times; recursion; types. Raises:
    ProgramErrors. Cost: near linear in the length of the program.
    """
    resolution = Resolution(program, inputs)
    resolution.resolve()
    _refuse(resolution.mistakes, program)
    rules = resolution.rules
    _refuse(check_safety(rules, program.file, vocabulary), program)
    graph = PredicateGraph(rules)
    _refuse(check_cycles(rules, graph, program.file), program)
    timed, mistakes = check_times(rules, resolution.inputs, program.file)
    _refuse(mistakes, program)
    _refuse(check_recursion(rules, graph, timed, program.file), program)
    ticked = any(rule.temporal is not None for rule in rules)
    flow = PredicateGraph(rules, over_ticks=True) if ticked else graph
    types = infer_types(
        rules, resolution.inputs, resolution.column_names, flow.components_in_order(),
        program.file, vocabulary,
    )  # fmt: skip
    _refuse(types.mistakes, program)
    columns = {
        predicate: tuple(zip(names, types.columns.get(predicate, ()), strict=False))
        for predicate, names in resolution.column_names.items()
    }
    checked = CheckedProgram(
        program=program,
        rules=rules,
        inputs=resolution.inputs,
        columns=columns,
        strata=graph.strata(),
        components=graph.components_in_order(),
        recursive=graph.recursive,
        variable_types=types.variables,
        lattice_types={
            (predicate, lattice): kinds
            for predicate, held in types.lattices.items()
            for lattice, kinds in held.items()
        },
        carries_time=timed,
        vocabulary=vocabulary,
    )
    return lint(checked, inputs)


def _refuse(mistakes: list[Diagnostic], program: Program) -> None:
    if mistakes:
        raise ProgramErrors(mistakes, program.text)
