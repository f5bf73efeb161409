"""A program kept up to date window by window: columns in, columns out, no object for a row in
between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemill.arrangement.relational import lasting
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columnar.columns import Columns, Texts
from tidemill.datalog.columnar.grouping import stacked
from tidemill.datalog.columnar.tables import ColumnTable
from tidemill.datalog.columnar.window_columns import WindowColumns
from tidemill.datalog.evaluation.failures import ErrorPresence
from tidemill.datalog.evaluation.limits import Limits
from tidemill.datalog.evaluation.sharing import Sharing
from tidemill.datalog.evaluation.state import EngineState
from tidemill.datalog.evaluation.tables import Table
from tidemill.datalog.scratch.changing import ChangedFacts
from tidemill.datalog.scratch.engine import Engine, Evaluation

_TEXTS_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class WindowChanges:
    """What a window has changed: facts by predicate, errors with when they hold, and the state at
    its end.
    """

    facts: ChangedFacts
    errors: Sequence[ErrorPresence]
    state: EngineState


class ColumnWindows:
    """At every instant from `begin` below `upper`, output = program(inputs), given as changes.

    Inputs are columns made with `texts`, their rows present on [start, stop). Each step evaluates
    all that is alive in its window, so it pays where a window brings about as much as is alive, and
    costs about a millisecond for each rule where it brings nothing. What columns do not take is
    done by the row engine; the answers are the same. Not for use by several threads at once.
    """

    def __init__(
        self,
        checked: CheckedProgram,
        *,
        limits: Limits | None = None,
        begin: int = 0,
        state: EngineState | None = None,
        sharing: Sharing = "auto",
    ) -> None:
        self._checked = checked
        self._engine = Engine(
            checked,
            limits=limits,
            columns_from=0,
            sharing=sharing,
        )
        self._begin = begin
        self._upper = begin
        self._state = state
        self._alive: dict[str, Columns] = {}
        self._standing: dict[str, ColumnTable] = {}
        self._compared = False
        self._evaluation: Evaluation | None = None
        self._waiting: dict[str, list[Columns]] = {}

    @property
    def texts(self) -> Texts:
        """The numbers of texts; may be others after a step."""
        return self._engine.column_bulk().texts

    @property
    def upper(self) -> int:
        """Everything below this instant is done."""
        return self._upper

    def feed(self, predicate: str, rows: Columns) -> None:
        """Let rows be present as given; what begins below `upper` begins there."""
        self._waiting.setdefault(predicate, []).append(rows)

    def step(self, upper: int) -> WindowChanges:
        """Go on to an instant above `upper`; what changed below it. Raises: LimitPassed."""
        lower = self._upper
        seen = lower if self._compared or lower == self._begin else lower - 1
        given: dict[str, Columns | WindowColumns] = {}
        for name in self._checked.inputs:
            rows = self._given(name)
            if rows is not None:
                given[name] = rows
        evaluation = self._engine.evaluate_columns(
            given, lower=seen, upper=upper, state=self._state
        )
        before = self._evaluation if self._compared else None
        facts = ChangedFacts(self._engine, before, evaluation, (seen, lower, upper))
        self._state, self._upper, self._evaluation = evaluation.state, upper, evaluation
        self._go_on(given)
        return WindowChanges(facts, evaluation.errors, evaluation.state)

    def _given(self, name: str) -> Columns | WindowColumns | None:
        """The rows of an input that may be present in the next window."""
        waiting = self._waiting.pop(name, None)
        held = self._alive.get(name)
        if waiting is None:
            standing = self._standing.get(name)
            return held if held is None or standing is None else WindowColumns(held, standing)
        parts = waiting if held is None else [held, *waiting]
        return stacked(parts) if len(parts) > 1 else parts[0]

    def _go_on(self, given: Mapping[str, Columns | WindowColumns]) -> None:
        """Keep of the inputs what the next window needs.

        If more rows end where it begins than live on, what holds on both sides will be compared
        there; else it looks back one instant, so that it sees what ends at its first one.
        """
        upper, evaluation = self._upper, self._evaluation
        assert evaluation is not None
        held = {n: c.columns if isinstance(c, WindowColumns) else c for n, c in given.items()}
        counts = {name: lasting(columns.stop, upper) for name, columns in held.items()}
        ending = sum([ends for ends, _ in counts.values()])
        living = sum([lives for _, lives in counts.values()])
        crowded = len(self.texts) >= max(_TEXTS_MAX, 4 * (ending + living))
        self._compared = ending > living and not crowded
        self._alive, self._standing = {}, {}
        for name, columns in held.items():
            ends, lives = counts[name]
            kept = lives if self._compared else ends + lives
            if not kept:
                continue
            table = None if name in self._engine.derived else evaluation.tables[name]
            alive = alive_after(upper - (not self._compared), columns, table, kept)
            self._alive[name] = alive
            if isinstance(table, ColumnTable) and table.columns.arguments is alive.arguments:
                self._standing[name] = table
        if crowded:
            self._renumber()

    def _renumber(self) -> None:
        """Forget texts that nobody uses any more, now that they are many."""
        self._state = EngineState.from_rows(self._state.to_rows()) if self._state else None
        fresh = self._engine.column_bulk().forget_texts()
        self._alive = {name: columns.renumbered(fresh) for name, columns in self._alive.items()}
        self._standing = {}
        self._evaluation = None  # it has the old numbers


def alive_after(instant: int, columns: Columns, table: Table | None, alive: int) -> Columns:
    """The rows of an input that stop after an instant, of which there are `alive`.

    `table` is what a window made of the input and nothing else.
    """
    if isinstance(table, ColumnTable) and table.columns.apart:
        apart = len(table.columns) == len(columns)
        if columns.apart is not apart:
            columns = columns.placed(columns.start, columns.stop, apart)
    return columns if alive == len(columns) else columns.kept((columns.stop > instant).nonzero()[0])
