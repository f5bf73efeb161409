"""What the rules and predicates of an evaluation took: runs, facts found, time; and the table that
says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from sys import getsizeof
from typing import TYPE_CHECKING

from tidemill.datalog.logical.words import aligned

if TYPE_CHECKING:
    from tidemill.datalog.logical.plan import LogicalPlan
    from tidemill.datalog.tables import Table

_SAMPLE = 64


@dataclass(slots=True)
class Work:
    """How often a rule ran, how many facts it found that were not there, how long it took."""

    runs: int = 0
    found: int = 0
    seconds: float = 0.0
    on_columns: bool = False
    joined_by: int | None = None
    """The rule that had found the matches it began with, if another had."""


class Profile:
    """Collects the work of rules by number, and the seconds of predicates; `timer` gives seconds."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self._timer = timer
        self.rules: dict[int, Work] = {}
        self.seconds: dict[str, float] = {}

    def work(self, number: int) -> Work:
        """What is known of a rule."""
        return self.rules.setdefault(number, Work())

    def forget(self, numbers: Iterable[int]) -> None:
        """These rules begin anew, in another way."""
        for number in numbers:
            self.rules.pop(number, None)

    @contextmanager
    def rule(self, number: int, count: Callable[[], int]) -> Iterator[None]:
        """The body is a run of a rule; `count` says how many facts there are before and after it."""
        work, before, began = self.work(number), count(), self._timer()
        try:
            yield
        finally:
            work.runs += 1
            work.found += count() - before
            work.seconds += self._timer() - began

    @contextmanager
    def predicates(self, names: Sequence[str]) -> Iterator[None]:
        """The body derives predicates, all together."""
        began = self._timer()
        try:
            yield
        finally:
            passed = self._timer() - began
            for name in names:
                self.seconds[name] = self.seconds.get(name, 0.0) + passed


def profile_lines(plan: LogicalPlan, tables: Mapping[str, Table], profile: Profile) -> list[str]:
    """Lines of a table: rows, bytes, runs and time of every predicate and rule of one evaluation,
    by stratum.
    """
    rows: list[tuple[str, ...]] = [("", "rows", "bytes", "runs", "found", "ms", "on")]
    owned = {
        name for component in plan.components if component.rules for name in component.predicates
    }
    for name, table in sorted(tables.items()):
        if name not in owned:
            rows.append((f"input {name}", f"{_length(table)}", f"{table_bytes(table)}", *[""] * 4))
    for component in sorted(plan.components, key=lambda each: each.stratum):
        if not component.rules:
            continue
        for name in component.predicates:
            known = tables.get(name)
            count, size = (0, 0) if known is None else (_length(known), table_bytes(known))
            spent = f"{profile.seconds.get(name, 0.0) * 1000:.2f}"
            title = f"stratum {component.stratum}: {name}"
            rows.append((title, f"{count}", f"{size}", "", "", spent, ""))
        for form in component.rules:
            work = profile.work(form.number)
            rows.append(
                (f"  rule {form.number}", "", "", f"{work.runs}", f"{work.found}",
                 f"{work.seconds * 1000:.2f}", _where(work))
            )  # fmt: skip
    return aligned(rows)


def _where(work: Work) -> str:
    if work.joined_by is not None and work.on_columns:
        return f"columns, joined by rule {work.joined_by}"
    return "columns" if work.on_columns else "rows"


def _length(table: Table) -> int:
    return len(table.columns) if table.on_columns else len(table.rows)  # type: ignore[attr-defined]  # such a table has them


def table_bytes(table: Table) -> int:
    """About how many bytes the rows take, from a sample of those that are objects; indexes are not
    counted.
    """
    if table.on_columns:
        columns = table.columns  # type: ignore[attr-defined]  # such a table has them
        own = (columns.start, columns.stop, columns.expires)
        keys = (each.values.nbytes for each in (*columns.keys, *columns.lattices.values()))
        return int(sum(each.nbytes for each in own) + sum(keys))
    sample = list(islice(table.rows, _SAMPLE))
    if not sample:
        return 0
    each = sum(getsizeof(row) + sum(map(getsizeof, row)) for row in sample) / len(sample)
    return int(each * len(table.rows)) + getsizeof(table.rows)
