"""The engine `scratch`: a program over one window of its timeline, from the inputs present in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidemill.datalog.allowance import Allowance
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.evaluation.compiled import CompiledRule, Surroundings
from tidemill.datalog.evaluation.fixpoint import Strata
from tidemill.datalog.evaluation.profile import Profile
from tidemill.datalog.evaluation.sharing import Sharing, places_alike
from tidemill.datalog.evaluation.timelines import merge_parts
from tidemill.datalog.failures import ErrorPresence, Failures
from tidemill.datalog.lattices import Lattice, inject_given, observe_parafacts
from tidemill.datalog.limits import Limits
from tidemill.datalog.logical.forms import Type
from tidemill.datalog.logical.plan import LogicalPlan, logical_plan
from tidemill.datalog.presence import BEGINNING, END, Instant, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.state import EngineState
from tidemill.datalog.tables import Row, Table, Timelines
from tidemill.datalog.values import Value, widen

if TYPE_CHECKING:  # importing it imports numba
    from tidemill.datalog.columnar.bulk import Bulk
    from tidemill.datalog.columnar.columns import Columns
    from tidemill.datalog.columnar.window_columns import WindowColumns


COLUMNS_FROM = 2_000
"""From how many rows on a rule is evaluated on columns: fewer are done before columns are made of
them.
"""


class Presences(Mapping[str, list[Presence]]):
    """For each predicate of an evaluation its presences; made when asked for."""

    def __init__(
        self, tables: Mapping[str, Table], names: Sequence[str], lattices: Mapping[str, Lattice]
    ) -> None:
        self._tables = tables
        self._names = names
        self._lattices = lattices
        self._made: dict[str, list[Presence]] = {}

    def __getitem__(self, predicate: str) -> list[Presence]:
        known = self._made.get(predicate)
        if known is None:
            if predicate not in self._names:
                raise KeyError(predicate)
            table = self._tables.get(predicate)
            rows = table.rows if table is not None else []
            known = self._made[predicate] = presences_of(predicate, rows, self._lattices)
        return known

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What holds in a window [lower, upper).

    `presences` has every predicate that rules derive, and every input: a presence that begins at
    `lower` may have begun before, one whose end is infinite does not end below `upper`. `errors` is
    the error collection in the window. `state` is what the next window needs; it begins at `upper`
    or at `upper - 1`.
    """

    presences: Mapping[str, list[Presence]]
    errors: list[ErrorPresence]
    state: EngineState
    tables: Mapping[str, Table] = field(repr=False)
    profile: Profile | None = None


class Engine:
    """A checked program, compiled as far as no facts are needed; keep it between windows.

    Where the atoms of a rule have `columns_from` rows (None: never), a window is evaluated on
    columns as far as nothing in the rule fails; the answers are the same. A `plan` made of the
    program's is evaluated in its place. With a `timer` (seconds), evaluations say what each rule
    took. Rules on columns that begin with the same joins find what they have in common once in a
    window, unless `sharing` is `none`. Not for use by several threads at once: code compiled for a
    shape of tables is kept.
    """

    def __init__(
        self,
        checked: CheckedProgram,
        *,
        limits: Limits | None = None,
        columns_from: int | None = COLUMNS_FROM,
        plan: LogicalPlan | None = None,
        timer: Callable[[], float] | None = None,
        sharing: Sharing = "auto",
        allowance: Allowance | None = None,
    ) -> None:
        self._timer = timer
        self.allowance = allowance or Allowance()
        """Where what an evaluation holds is counted; its limits count for each by itself."""
        self.sharing = sharing
        self.plan = plan or logical_plan(checked)
        self.checked = self.plan.checked
        self.derived = self.checked.derived
        self.kinds = {
            name: [Type(kind) for _, kind in columns]
            for name, columns in self.checked.columns.items()
        }
        self._columns_from = columns_from
        self.bulk: Bulk | None = None
        self.functions = self.checked.vocabulary.functions
        self.lattices = self.checked.vocabulary.lattices
        self.limits = limits or Limits()
        self.forms = self.plan.rules
        self.rules = [CompiledRule(form) for form in self.forms if form.deductive]
        self.later_rules = [CompiledRule(form) for form in self.forms if not form.deductive]

    def evaluate(
        self,
        inputs: Mapping[str, Sequence[Presence]],
        *,
        lower: int | None = None,
        upper: int,
        state: EngineState | None = None,
        only: Collection[str] | None = None,
    ) -> Evaluation:
        """What the program derives in [lower, upper); see `tidemill.datalog.scratch.evaluate`."""
        failures = Failures()
        start = BEGINNING if lower is None else lower
        lattices = self.lattices
        loaded = {
            name: load(self.checked, name, presences, start, upper, lattices, failures)
            for name, presences in inputs.items()
        }
        return self.evaluate_timelines(
            loaded, lower=lower, upper=upper, state=state, only=only, failures=failures
        )

    def evaluate_timelines(
        self,
        inputs: Mapping[str, Timelines],
        *,
        lower: int | None = None,
        upper: int,
        state: EngineState | None = None,
        only: Collection[str] | None = None,
        failures: Failures | None = None,
    ) -> Evaluation:
        """As `evaluate`, for inputs that are timelines by key, already inside the window."""
        start: Instant = BEGINNING if lower is None else lower
        strata = self.complete(inputs, start, upper, state, only=only, bulk=self._bulk_for(inputs))
        if failures is not None:
            strata.failures.extend(failures)
        return self.result(strata, list(dict.fromkeys((*self.checked.derived, *inputs))))

    def evaluate_columns(
        self,
        inputs: Mapping[str, Columns | WindowColumns],
        *,
        rows: Mapping[str, Sequence[Presence]] | None = None,
        lower: int | None = None,
        upper: int,
        state: EngineState | None = None,
    ) -> Evaluation:
        """As `evaluate`, for rows on columns that were made with the texts of `column_bulk`.

        Columns of a window are prepared once, for every engine that takes them. Other inputs may
        come as `rows`. Raises: LimitPassed; UsageError where columns are not of the types that the
        program reads.
        """
        from tidemill.datalog.columnar.window_columns import table_within  # imports numba

        start: Instant = BEGINNING if lower is None else lower
        tables: dict[str, Table] = {
            name: table_within(name, self.kinds[name], columns, start, upper)
            for name, columns in inputs.items()
        }
        failures = Failures()
        for name, presences in (rows or {}).items():
            timelines = load(self.checked, name, presences, start, upper, self.lattices, failures)
            tables[name] = Table.of_timelines(timelines)
        names = list(dict.fromkeys((*self.derived, *tables)))
        both = {
            name: timelines_of(tables.pop(name).rows) for name in self.derived if name in tables
        }
        strata = self.strata(tables, start, upper, state, bulk=self.column_bulk())
        for component in self.plan.components:
            strata.run(component, {name: both.get(name, {}) for name in component.predicates})
        strata.failures.extend(failures)
        return self.result(strata, names)

    def column_bulk(self) -> Bulk:
        """What evaluates on columns."""
        if self.bulk is None:
            from tidemill.datalog.columnar import Bulk  # imports numba, half a second

            shares = self.sharing != "none"
            alike = places_alike(self.checked, self.forms) if shares else {}
            self.bulk = Bulk(self.forms, self._columns_from or 0, alike)
        return self.bulk

    def _bulk_for(self, inputs: Mapping[str, Timelines]) -> Bulk | None:
        """What evaluates on columns, if any input is large enough for that."""
        least = self._columns_from
        if least is None or max(map(len, inputs.values()), default=0) < least:
            return None
        bulk = self.column_bulk()
        bulk.begin()
        return bulk

    def complete(
        self,
        inputs: Mapping[str, Timelines],
        lower: Instant,
        upper: int,
        state: EngineState | None,
        *,
        only: Collection[str] | None = None,
        frozen: bool = False,
        bulk: Bulk | None = None,
    ) -> Strata:
        """Run every component that the wanted predicates need."""
        derived = set(self.checked.derived)
        tables = {
            name: Table.of_timelines(timelines)
            for name, timelines in inputs.items()
            if name not in derived
        }
        strata = self.strata(tables, lower, upper, state, frozen, bulk)
        wanted = self._needed(only) if only is not None else None
        for component in self.plan.components:
            if wanted is None or not wanted.isdisjoint(component.predicates):
                given = {name: inputs.get(name, {}) for name in component.predicates}
                strata.run(component, given)
        return strata

    def strata(
        self,
        tables: dict[str, Table],
        lower: Instant,
        upper: int,
        state: EngineState | None,
        frozen: bool = False,
        bulk: Bulk | None = None,
    ) -> Strata:
        """An evaluation of a window that has begun: `tables` are the finished predicates, the
        inputs.

        A `frozen` one looks at the instant `upper - 1` alone.
        """
        profile = None if self._timer is None else Profile(self._timer)
        around = Surroundings(
            self.checked, self.functions, self.lattices, lower, upper, frozen, profile,
            self.allowance,
        )  # fmt: skip
        self.allowance.begin(sum(table.bytes_held for table in tables.values()))
        return Strata(self.rules, around, tables, state or EngineState(), self.limits, bulk)

    def result(self, strata: Strata, names: Sequence[str]) -> Evaluation:
        """What an evaluation has found."""
        around = strata.around
        return Evaluation(
            presences=Presences(strata.tables, names, self.lattices),
            errors=strata.failures.presences(around.lower, around.upper),
            state=strata.state(),
            tables=strata.tables,
            profile=around.profile,
        )

    def _needed(self, only: Collection[str]) -> set[str]:
        """The predicates from which the wanted ones are derived, and themselves."""
        needed = set(only)
        waiting = list(only)
        reads: dict[str, set[str]] = {}
        for form in self.forms:
            if form.deductive:
                mine = reads.setdefault(form.head.predicate, set())
                mine.update(atom.predicate for atom in form.atoms)
                mine.update(absent.predicate for absent in form.absent)
        while waiting:
            for predicate in reads.get(waiting.pop(), ()):
                if predicate not in needed:
                    needed.add(predicate)
                    waiting.append(predicate)
        return needed


def load(
    checked: CheckedProgram,
    predicate: str,
    presences: Sequence[Presence],
    lower: Instant,
    upper: int,
    lattices: Mapping[str, Lattice],
    failures: Failures,
) -> Timelines:
    """Input presences as timelines by key, inside the window, in the types of the columns."""
    kinds = [kind for _, kind in checked.columns.get(predicate, ())]
    floats = [at for at, kind in enumerate(kinds) if kind == "float"]
    timelines: Timelines = {}
    repeated: set[tuple[Any, ...]] = set()
    for presence in presences:
        start, end, record = presence.start, presence.end, presence.record
        if start >= upper or end <= lower or start >= end:
            continue
        if start < lower:
            start = lower
        if end >= upper:
            end = END
        arguments = record.arguments
        if floats:
            arguments = _widened(arguments, floats)
        key = (record.time, *arguments)
        expires = END if record.expires is None else record.expires
        parafacts = inject_given(record, lattices) if record.parafacts else None
        parts = timelines.get(key)
        if parts is None:
            timelines[key] = [(start, end, expires, parafacts)]
        else:
            parts.append((start, end, expires, parafacts))
            repeated.add(key)
    for key in repeated:
        report = failures.of_fact(0, predicate, key)
        timelines[key] = merge_parts(timelines[key], lattices, report)
    return timelines


def timelines_of(rows: Iterable[Row]) -> Timelines:
    """Rows of a finished table as timelines by key."""
    timelines: Timelines = {}
    for row in rows:
        timelines.setdefault(row[4:], []).append(row[:4])
    return timelines


def _widened(arguments: tuple[Value, ...], floats: Sequence[int]) -> tuple[Value, ...]:
    values = list(arguments)
    for at in floats:
        if at < len(values):
            values[at] = widen(values[at])
    return tuple(values)


def presences_of(
    predicate: str, rows: Sequence[Row], lattices: Mapping[str, Lattice]
) -> list[Presence]:
    """The rows as presences of records, stretches that look alike drawn together, by key and start."""
    found: list[Presence] = []
    by_key: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        by_key.setdefault(row[4:], []).append(row)
    for key, mine in by_key.items():
        mine.sort(key=_row_start)
        last: Presence | None = None
        for row in mine:
            expires = None if row[2] == END else int(row[2])
            seen = observe_parafacts(row[3], lattices) if row[3] is not None else ()
            record = Record(predicate, key[1:], key[0], expires, seen)
            if last is not None and last.end == row[0] and last.record == record:
                last = Presence(record, last.start, row[1])
                found[-1] = last
            else:
                last = Presence(record, row[0], row[1])
                found.append(last)
    return found


def _row_start(row: Row) -> Instant:
    start: Instant = row[0]
    return start


def evaluate(
    checked: CheckedProgram,
    inputs: Mapping[str, Sequence[Presence]],
    *,
    lower: int | None = None,
    upper: int,
    state: EngineState | None = None,
    limits: Limits | None = None,
) -> Evaluation:
    """What a program derives at every instant of the window [lower, upper); from the beginning
    without `lower`.

    `inputs` are the presences of the input facts that overlap the window (others are ignored);
    `state` is what the evaluation of the window before returned. The answer in the window is the
    one that an evaluation of the whole history gives there. Text has to be in normal form C.

    Units: instants in milliseconds of the timeline. Raises: LimitPassed. Cost: that of the joins
    over the facts present in the window; an `Engine` kept between windows saves planning and
    compiling.
    """
    engine = Engine(checked, limits=limits)
    return engine.evaluate(inputs, lower=lower, upper=upper, state=state)
