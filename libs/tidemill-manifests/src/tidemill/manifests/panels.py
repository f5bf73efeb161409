"""Panels and boards with the choices that all of ours share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, TypeAlias

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as boards
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

REFRESH = "10s"
_DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_WIDTH = 24


_TABLE = PromQueryFormat.TABLE
Look: TypeAlias = Literal["lines", "stat", "table"]


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and the name of its lines; `$sel` in it becomes the board's
    selector.
    """

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """Query and look of one panel. `limits`: (yellow from, red from) in its unit."""

    title: str
    meaning: str
    queries: tuple[Query, ...]
    unit: str = "short"
    look: Look = "lines"
    width: int = 12
    height: int = 8
    limits: tuple[float, float] | None = None


def figure(title: str, meaning: str, expr: str, limits: tuple[float, float] | None = None) -> Panel:
    """A panel of one number."""
    return Panel(title, meaning, (Query(expr),), look="stat", width=4, height=4, limits=limits)


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard: rows of panels. `picks`: (variable, metric, label) to narrow it down by."""

    uid: str
    title: str
    meaning: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    picks: tuple[tuple[str, str, str], ...] = ()

    def panels(self) -> list[Panel]:
        """All panels, in reading order."""
        return [panel for _, row in self.rows for panel in row]

    def to_json(self) -> str:
        """The dashboard as Grafana imports it."""
        board = (
            boards.Dashboard(self.title)
            .uid(self.uid)
            .description(self.meaning)
            .tags(["tidemill"])
            .editable()
            .refresh(REFRESH)
            .time("now-1h", "now")
            .tooltip(models.DashboardCursorSync.CROSSHAIR)
            .link(
                boards.DashboardLink("Tidemill")
                .type(models.DashboardLinkType.DASHBOARDS)
                .tags(["tidemill"])
                .as_dropdown(True)
                .keep_time(True)
                .include_vars(True)
            )
        )
        for variable in self._variables():
            board.with_variable(variable)
        for title, panels in self.rows:
            board.with_row(boards.Row(title))
            for panel in panels:
                board.with_panel(_built(panel, self.selector))
        return json.dumps(board.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"

    @property
    def selector(self) -> str:
        """The label matchers that stand for `$sel`."""
        picked = "".join(f', {label}=~"${name}"' for name, _, label in self.picks)
        return f'namespace=~"$namespace"{picked}'

    def _variables(self) -> list[boards.DatasourceVariable | boards.QueryVariable]:
        found: list[boards.DatasourceVariable | boards.QueryVariable] = [
            boards.DatasourceVariable("datasource").type("prometheus").label("Data source"),
            _pick("namespace", "tidemill_collections_hydrating", "namespace"),
        ]
        return [*found, *(_pick(*pick) for pick in self.picks)]


def _pick(name: str, metric: str, label: str) -> boards.QueryVariable:
    """A variable with the values of a label; All also takes series that lack the label."""
    return (
        boards.QueryVariable(name)
        .label(name.capitalize())
        .datasource(_DATASOURCE)
        .query({"query": f"label_values({metric}, {label})", "refId": name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(text="All", value="$__all", selected=True))
    )


def _targets(panel: Panel, selector: str) -> list[prometheus.Dataquery]:
    found = []
    for number, query in enumerate(panel.queries):
        target = (
            prometheus.Dataquery()
            .expr(query.expr.replace("$sel", selector))
            .legend_format(query.legend)
            .ref_id(chr(ord("A") + number))
        )
        if panel.look == "lines":
            target.range()
        else:
            target.instant()
        if panel.look == "table":
            target.format(_TABLE)
        found.append(target)
    return found


def _thresholds(limits: tuple[float, float] | None) -> boards.ThresholdsConfig:
    steps = [models.Threshold(value=None, color="green")]
    if limits is not None:
        steps.append(models.Threshold(value=limits[0], color="yellow"))
        steps.append(models.Threshold(value=limits[1], color="red"))
    return boards.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _built(panel: Panel, selector: str) -> timeseries.Panel | stat.Panel | table.Panel:
    made: timeseries.Panel | stat.Panel | table.Panel
    if panel.look == "stat":
        made = stat.Panel().reduce_options(
            common_builders.ReduceDataOptions().calcs(["lastNotNull"])
        )
    elif panel.look == "table":
        made = table.Panel().with_transformation(
            models.DataTransformerConfig(id_val="merge", options={})
        )
    else:
        made = timeseries.Panel().fill_opacity(10).show_points(common.VisibilityMode.NEVER)
    made.title(panel.title).description(panel.meaning).datasource(_DATASOURCE)
    made.unit(panel.unit).span(min(panel.width, _WIDTH)).height(panel.height)
    made.thresholds(_thresholds(panel.limits))
    for target in _targets(panel, selector):
        made.with_target(target)
    return made
