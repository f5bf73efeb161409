"""What an evaluation asks of whoever derives whole components at once, where that is cheaper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from tidemill.datalog.evaluation.compiled import Surroundings
from tidemill.datalog.limits import Limits
from tidemill.datalog.logical.forms import RuleForm
from tidemill.datalog.logical.plan import Component
from tidemill.datalog.state import EngineState, EstablishedSolution
from tidemill.datalog.tables import Table, Timelines

Beside: TypeAlias = Callable[[RuleForm, int, Table], Timelines | None]
"""What a rule derives of some facts at one atom, row by row; None if that belongs into groups with
others.
"""


class Carrying(Protocol):
    """Solutions of a rule that outlive their facts."""

    def known(self) -> Sequence[EstablishedSolution]:
        """Every solution of the window, living at its end or not."""
        ...

    def carried(self) -> Sequence[EstablishedSolution]:
        """Those that live at the end of the window."""
        ...


class Taken(Protocol):
    """Finished predicates, and the rules whose solutions outlive their facts."""

    @property
    def tables(self) -> Mapping[str, Table]:
        """The facts of each predicate."""
        ...

    @property
    def established(self) -> Mapping[int, Carrying]:
        """By the number of the rule."""
        ...


class WindowInBulk(Protocol):
    """One window."""

    def run(self, component: Component, limits: Limits, beside: Beside) -> Taken | None:
        """Derive the predicates of a component; None if that is better done row by row.

        Raises: LimitPassed.
        """
        ...


class BulkEngine(Protocol):
    """Derives components with the answers that the row engine gives."""

    def window(
        self, around: Surroundings, tables: Mapping[str, Table], state: EngineState
    ) -> WindowInBulk:
        """The run over one window."""
        ...
