"""Joins in words."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.evaluation.joins import Plan, Step
from tidemill.datalog.evaluation.sharing import CommonJoin
from tidemill.datalog.logical.forms import AbsentForm, RuleForm, Variable
from tidemill.datalog.logical.words import column_name, expression_text


def looked_up(
    predicate: str, positions: Sequence[int], sorted_by: int | None, checked: CheckedProgram
) -> str:
    """By which columns rows are found: ` by (a, b) in a range of c`, or ` all`."""
    names = [column_name(predicate, position, checked) for position in positions]
    text = f" by ({', '.join(names)})" if names else ""
    if sorted_by is not None:
        text += f" in a range of {column_name(predicate, sorted_by, checked)}"
    return text or " all"


def join_lines(form: RuleForm, plan: Plan, checked: CheckedProgram, first: str) -> list[str]:
    """One join: its steps in order, each with the conditions that are checked after it."""
    names = _column_variables(form, checked)
    begins = [expression_text(form.conditions[i], names) for i in plan.first]
    texts = [f" if {' ^ '.join(begins)}"] if begins else []
    for number, step in enumerate(plan.steps):
        name = (
            form.atoms[step.atom].predicate if first and not number else _step(form, step, checked)
        )
        conditions = [expression_text(form.conditions[i], names) for i in step.conditions]
        texts.append(name + (f" if {' ^ '.join(conditions)}" if conditions else ""))
    return [f"{first} {' -> '.join(texts)}".strip()]


def _step(form: RuleForm, step: Step, checked: CheckedProgram) -> str:
    atom = form.atoms[step.atom]
    if atom.is_clock:
        return "clock, ticks in a range" if step.limits else "clock"
    return atom.predicate + looked_up(atom.predicate, step.positions, step.range_column, checked)


def join_text(join: CommonJoin, checked: CheckedProgram) -> str:
    """A join that rules have in common, with the variables of the first of them."""
    names = _column_variables(join.uses[0].form, checked)
    atoms = []
    for atom in join.atoms:
        terms = ", ".join(expression_text(term, names) for term in atom.terms)
        marks = [f" @{name}({expression_text(of[0], names)})" for name, of in atom.lattices]
        atoms.append(f"{atom.predicate}({terms}){''.join(marks)}")
    guards = [expression_text(condition, names) for condition in join.conditions]
    return " ^ ".join(atoms) + (f" if {' ^ '.join(guards)}" if guards else "")


def absent_text(absent: AbsentForm, checked: CheckedProgram) -> str:
    """Where an atom under `not` is looked for."""
    if absent.is_clock:
        return "clock"
    positions = [position for position, _ in absent.columns()]
    return absent.predicate + looked_up(absent.predicate, positions, None, checked)


def _column_variables(form: RuleForm, checked: CheckedProgram) -> dict[str, str]:
    """The names of columns for the variables that stand for a computed term of an atom."""
    names = {}
    for atom in form.atoms:
        for position, term in enumerate(atom.terms, 1):
            if isinstance(term, Variable) and term.name.startswith("#"):
                column = column_name(atom.predicate, position, checked)
                names[term.name] = f"{atom.predicate}.{column}"
        for lattice, terms in atom.lattices:
            names |= {
                term.name: f"{atom.predicate}.{lattice}"
                for term in terms
                if isinstance(term, Variable) and term.name.startswith("#")
            }
    return names
