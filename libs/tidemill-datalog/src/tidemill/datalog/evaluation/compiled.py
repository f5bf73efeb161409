"""One rule made ready to run over tables: planned for their sizes, written as Python, compiled once
per shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from tidemill.datalog.allowance import Allowance, found_bytes, match_bytes
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.evaluation.joins import LOWER, Plan, Planner, Step
from tidemill.datalog.evaluation.profile import Profile
from tidemill.datalog.evaluation.runtime import (
    clock_cover,
    lattice_cover,
    names_of_rule,
    observer,
)
from tidemill.datalog.evaluation.writing import (
    DerivationWriter,
    MatchWriter,
    Writer,
    head_expressions,
    tuple_of,
)
from tidemill.datalog.functions import ScalarFunction
from tidemill.datalog.lattices import TALLIES, Lattice
from tidemill.datalog.logical.expressions import Scope
from tidemill.datalog.logical.forms import (
    AbsentForm,
    AtomForm,
    Call,
    Constant,
    Expression,
    RuleForm,
    Type,
    Variable,
    clock_time,
    variables_of,
)
from tidemill.datalog.logical.ranges import UNBOUNDED, Bounds
from tidemill.datalog.presence import BEGINNING, Instant
from tidemill.datalog.tables import Readable, Row, Table, Traits
from tidemill.datalog.values import FLOAT_EXACT_MAX, INT_MIN

Fail: TypeAlias = "Callable[[str, Instant, Instant, tuple[Row, ...]], None]"
ALL_TRAITS = Traits(timed=True, timeless=True, expiring=True, decorated=True)
CLOCK_TRAITS = Traits(timed=True, timeless=False, expiring=False, decorated=False)


class Handover(Enum):
    """What a rule does with a derivation."""

    COLLECT = "collect"  # add a part to the list of its key
    ABSORB = "absorb"  # merge a part into a timeline at once, in a recursion
    GROUP = "group"  # add a solution to its group
    ESTABLISH = "establish"  # a solution that lives until its own expiry
    LINGER = "linger"  # a match that some facts may leave
    STORE = "store"  # a match that an incremental engine keeps


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a run needs beside the rule: the program's types, host functions and lattices, the
    window.

    `frozen` says that only the instant `upper - 1` counts: every fact present then is present from
    the beginning without end, so facts can be handed from one instant to another as they are.
    """

    checked: CheckedProgram
    functions: Mapping[str, ScalarFunction]
    lattices: Mapping[str, Lattice]
    lower: Instant
    upper: int
    frozen: bool = False
    profile: Profile | None = None
    """Where rules note what they take, if somebody asks."""
    allowance: Allowance = field(default_factory=Allowance)
    """Where everything that is held is counted."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A rule bound to tables. `run(out, fail, fail_clock)` makes one pass over all matches."""

    run: Callable[[Any, Fail, Fail], None]
    absences: Callable[..., Any] | None = None
    head: Callable[..., Any] | None = None


class CompiledRule:
    """A rule and the code compiled for it so far.

    Cost: the first run for a shape of tables (which may expire, hold nulls, overflow; which is
    smaller) compiles, a few milliseconds; later runs only plan and write, some hundred
    microseconds.
    """

    def __init__(self, form: RuleForm) -> None:
        self.form = form
        self._code: dict[str, dict[str, Any]] = {}

    def prepare(
        self,
        tables: Callable[[str], Table],
        around: Surroundings,
        handover: Handover,
        delta: tuple[int, Table] | None = None,
        always: bool = False,
    ) -> Prepared | None:
        """The rule ready for one pass; None if some positive atom has no facts, unless `always`."""
        form = self.form
        of_atoms: dict[int, Table] = {}
        for i, atom in enumerate(form.atoms):
            if atom.is_clock:
                continue
            table = delta[1] if delta is not None and delta[0] == i else tables(atom.predicate)
            if not (table.rows or always):
                return None
            of_atoms[i] = table
        scope = scope_of(form, of_atoms, around)
        plan = Planner(
            form, of_atoms, scope, delta[0] if delta else None, extra_conditions(form, scope)
        ).plan()
        written = write_rule(form, plan, scope, of_atoms, around, handover)
        names = self._code.get(written)
        if names is None:
            names = names_of_rule(written, form.number, scope.constants, around.lattices)
            self._code[written] = names
        return _bind(names, form, plan, of_atoms, tables, around)


def _bind(
    names: Mapping[str, Any],
    form: RuleForm,
    plan: Plan,
    of_atoms: Mapping[int, Table],
    tables: Callable[[str], Table],
    around: Surroundings,
) -> Prepared:
    fast = [_rows_of(step, of_atoms, False) for step in plan.steps]
    slow = [_rows_of(step, of_atoms, True) if plan.fallible else None for step in plan.steps]
    covers = [_cover_of(absent, tables, around) for absent in form.absent]
    match = names["match"]

    def run(out: Any, fail: Fail, fail_clock: Fail) -> None:
        window = around.lower, around.upper
        match(fast, slow, covers, out, fail, fail_clock, *window, around.allowance)

    if not form.lingers:
        return Prepared(run)
    absences = names["absences"]
    return Prepared(run, lambda *rest: absences(covers, *rest), names["head"])


def _rows_of(step: Step, tables: Mapping[int, Table], match_only: bool) -> Any:
    """What the loop of a step looks into: an index, or all rows."""
    table = tables.get(step.atom)
    if table is None:
        return None
    if match_only:
        positions = tuple(probe.position for probe in step.match_probes)
        return table.index(positions) if positions else table.rows
    if step.range_column is not None:
        return table.ranged(step.positions, step.range_column)
    return table.index(step.positions) if step.positions else table.rows


def _cover_of(absent: AbsentForm, tables: Callable[[str], Table], around: Surroundings) -> Any:
    if absent.is_clock:
        sizes = [(name, len(terms)) for name, terms in absent.lattices]
        return clock_cover(sizes, around.upper, around.frozen)
    table = tables(absent.predicate)
    if absent.by_columns:
        return table.cover(tuple(position for position, _ in absent.columns()))
    return lattice_cover(table, absent, observer(around.lattices))


def scope_of(form: RuleForm, of_atoms: Mapping[int, Readable], around: Surroundings) -> Scope:
    """What the tables say of the variables of a rule."""
    bounds: dict[str, Bounds] = {}

    def learn(name: str, known: Bounds) -> None:
        mine = bounds.get(name)
        if mine is not None:  # conditions may be evaluated when only one of the places is matched
            known = Bounds(
                min(mine.low, known.low),
                max(mine.high, known.high),
                mine.nullable or known.nullable,
            )
        bounds[name] = known

    for i, atom in enumerate(form.atoms):
        if atom.is_clock:
            continue
        for position, term in enumerate(atom.terms, 1):
            if isinstance(term, Variable):
                learn(term.name, of_atoms[i].bounds(position))
        for name, terms in atom.lattices:
            for term in terms:
                if isinstance(term, Variable):
                    learn(term.name, _lattice_bounds(of_atoms[i], name))
    scope = Scope(form.types, bounds, around.functions, around.lattices)
    if Type.FLOAT in form.types.values():
        scope.inexact = frozenset(_inexact(form, of_atoms, around.checked))
    for atom in form.atoms:
        if atom.clock is not None:
            time = clock_time(atom)
            if isinstance(time, Variable):
                learn(time.name, _tick_bounds(atom.clock[0], scope, around))
    if around.lower != BEGINNING:
        scope.types = {**form.types, LOWER: Type.INT}
        bounds[LOWER] = Bounds(around.lower, around.lower, False)
        scope.names[LOWER] = "lower"
    return scope


def _inexact(
    form: RuleForm, of_atoms: Mapping[int, Readable], checked: CheckedProgram
) -> Iterator[tuple[int, int]]:
    """The columns of whole numbers, some beyond 2^53, that stand for variables which are floats."""
    for i, atom in enumerate(form.atoms):
        kinds = () if atom.is_clock else checked.columns[atom.predicate]
        for position, (term, (_, kind)) in enumerate(zip(atom.terms, kinds, strict=False), 1):
            if kind == "int" and isinstance(term, Variable):
                known = of_atoms[i].bounds(position)
                small = known.low >= -FLOAT_EXACT_MAX and known.high <= FLOAT_EXACT_MAX
                if form.types.get(term.name) is Type.FLOAT and not small:
                    yield i, position


def _lattice_bounds(table: Readable, name: str) -> Bounds:
    if name == "time":
        known = table.bounds(0)
        return Bounds(known.low, known.high, False)
    return table.expiry_bounds() if name == "expires" else UNBOUNDED


def _tick_bounds(offset: Expression, scope: Scope, around: Surroundings) -> Bounds:
    known = scope.bounds_of(offset)
    low = INT_MIN if known is None or known.low == BEGINNING else known.low
    return Bounds(low, max(low, around.upper - 1), False)


def extra_conditions(form: RuleForm, scope: Scope) -> tuple[Expression, ...]:
    """What must hold for a solution to matter in the window: its own expiry lies in it or beyond.

    Only where nothing of the head can fail, because a failure is reported even for a solution that
    is over.
    """
    if LOWER not in scope.bounds:
        return ()
    if any(scope.fallible(expression) for expression in head_expressions(form.head)):
        return ()
    if any(scope.fallible(e) for absent in form.absent for e in absent.expressions()):
        return ()
    return tuple(Call(">", (expires, Variable(LOWER))) for expires in form.head.expires)


def write_rule(
    form: RuleForm,
    plan: Plan,
    scope: Scope,
    of_atoms: Mapping[int, Readable],
    around: Surroundings,
    handover: Handover,
) -> str:
    """The Python of a rule: `match`, and for matches that are kept the functions that look at one."""
    checked = around.checked
    writer = Writer()
    column_types = [
        () if atom.is_clock else [Type(kind) for _, kind in checked.columns[atom.predicate]]
        for atom in form.atoms
    ]
    traits = [_traits_of(i, atom, of_atoms) for i, atom in enumerate(form.atoms)]
    head_types = [Type(kind) for _, kind in checked.columns[form.head.predicate]]
    if form.sends:
        head_types.insert(0, Type.ANY)
    lattice_types = {
        name: tuple(map(Type, kinds))
        for (predicate, name), kinds in checked.lattice_types.items()
        if predicate == form.head.predicate
    }
    kept = handover in (Handover.LINGER, Handover.STORE)
    after = scope.without_bounds() if kept else scope
    derivation = DerivationWriter(writer, form, after, traits, head_types, lattice_types)
    with writer.block("def match(q, m, n, out, fail, fail_clock, lower, upper, allowance):"):
        writer.line("c = k = 0; take = allowance.take; keep = allowance.keep")
        for number in range(len(plan.steps)):
            writer.line(f"q{number} = q[{number}]; m{number} = m[{number}]")
        for number in range(len(form.absent)):
            writer.line(f"n{number} = n[{number}]")
        depth = writer.depth
        match = MatchWriter(writer, form, plan, scope, column_types, around.frozen)
        match.write()
        if kept:
            values = [scope.name_of(name) for name in carried_variables(form)]
            writer.count(str(match_bytes(len(values))))
            writer.line(f"out({derivation.rows()}, {tuple_of(values)}, s, f)")
        else:
            _write_tail(writer, form, derivation, handover, around.frozen)
        match.close()
        writer.depth = depth
        writer.line("take(c)")
    if kept:
        _write_kept(writer, form, scope, derivation, handover)
    return writer.text()


def _traits_of(i: int, atom: AtomForm, of_atoms: Mapping[int, Readable]) -> Traits:
    if atom.is_clock:
        return CLOCK_TRAITS
    if "expires" in atom.suppressed:
        return ALL_TRAITS  # a solution of an earlier window may carry what no present row does
    return of_atoms[i].traits


def carried_variables(form: RuleForm) -> list[str]:
    """The variables that a match hands on to the atoms under `not` and to the head."""
    needed: set[str] = set()
    for expression in head_expressions(form.head):
        needed |= variables_of(expression)
    for absent in form.absent:
        for term in absent.expressions():
            needed |= variables_of(term)
    for atom in form.atoms:
        for name, terms in atom.lattices:
            if name != "time":
                needed |= {term.name for term in terms if isinstance(term, Variable)}
    return sorted(needed)


def _write_tail(
    writer: Writer,
    form: RuleForm,
    derivation: DerivationWriter,
    handover: Handover,
    frozen: bool,
) -> None:
    """Absences, head and handover inside the innermost loop."""
    pieces = bool(form.absent)
    if pieces:
        derivation.absences()
    if derivation.head_fallible():
        with writer.block("try:"):
            derivation.head()
        with writer.block("except Failed as failed:"):
            if pieces:
                writer.line(f"for s, f in pieces: fail(failed.reason, s, f, {derivation.rows()})")
            else:
                writer.line(f"fail(failed.reason, s, f, {derivation.rows()})")
            writer.line("continue")
    else:
        derivation.head()
    if form.head.expires:
        writer.line("if x < upper: continue" if frozen else "if x <= lower: continue")
    if form.head.time and frozen:
        writer.line("if t >= upper: continue")
    if pieces:
        writer.open("for s, f in pieces:")
    if form.head.time and not frozen:
        writer.line("if t > s: s = t")
        writer.line("if s >= f or s >= upper: continue")
    _write_handover(writer, form, derivation, handover)


def _write_handover(
    writer: Writer, form: RuleForm, derivation: DerivationWriter, handover: Handover
) -> None:
    if handover is not Handover.ABSORB:  # what a recursion finds again is not held twice
        writer.count(str(found_bytes(len(form.head.terms))))
        for at in made_texts(form, derivation.head_types):
            writer.line(f"keep(a[{at}])")
    if handover is Handover.ESTABLISH:
        values = "v" if form.head.aggregates else "()"
        writer.line(f"out({derivation.identity()}, s, f, t, x, a, {values}, p)")
        return
    if handover is Handover.GROUP:
        tallied = any(name in TALLIES for name, _ in form.head.lattices)
        identity = derivation.identity() if tallied else "None"
        writer.line("key = (a, t)" if form.head.time else "key = (a,)")
        value = f"(s, f, t, x, v, p, {identity})"
    else:
        if form.head.aggregates:
            names = ", ".join(repr(name) for name, _ in form.head.lattices)
            writer.line(f"p = merge(p, decorate(({names},), v))")
        writer.line("key = (t, *a)")
        value = "(s, f, x, p)"
    if handover is Handover.ABSORB:
        writer.line(f"out(key, {value})")
        return
    writer.line("known = out.get(key)")
    writer.line(f"if known is None: out[key] = [{value}]")
    writer.line(f"else: known.append({value})")


def made_texts(form: RuleForm, kinds: Sequence[Type]) -> list[int]:
    """The arguments of a head that may be texts which no fact of the body has."""
    return [
        at
        for at, (term, kind) in enumerate(zip(form.head.terms, kinds, strict=False))
        if kind in (Type.TEXT, Type.ANY) and not isinstance(term, Constant | Variable)
    ]


def _write_kept(
    writer: Writer,
    form: RuleForm,
    scope: Scope,
    derivation: DerivationWriter,
    handover: Handover,
) -> None:
    """The functions that look at one kept match: what it asks to be absent, its head, its identity."""
    values = [scope.name_of(name) for name in carried_variables(form)]
    rows = derivation.rows()

    def unpack() -> None:
        if form.atoms:
            writer.line(f"{rows} = rows")
        if values:
            writer.line(f"{tuple_of(values)} = values")

    if handover is Handover.LINGER:
        with writer.block("def absences(n, rows, values, s, f, fail):"):
            unpack()
            for number in range(len(form.absent)):
                writer.line(f"n{number} = n[{number}]")
            derivation.absences("return ()")
            writer.line("return pieces")
    else:
        for number, absent in enumerate(form.absent):
            with writer.block(f"def wanted{number}(rows, values):"):
                unpack()
                writer.line(f"return {derivation.wanted(absent)}")
        with writer.block("def identity(rows, values):"):
            unpack()
            writer.line(f"return {derivation.identity()}")
    with writer.block("def head(rows, values):"):
        unpack()
        derivation.head()
        writer.line(f"return a, t, x, {'v' if form.head.aggregates else '()'}, p")
