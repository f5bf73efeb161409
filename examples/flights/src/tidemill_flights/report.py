"""The report of the demo about its answers: tables of counts, differences, timings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tidemill_flights.scenario import iso
from tidemill_flights.verify import Comparison, describe_difference


@dataclass(frozen=True, slots=True)
class Asked:
    """The number of rows of a collection as of an instant, and the frontiers of the answer."""

    collection: str
    rows: int
    since: int
    upper: int


def grid(title: str, *headings: str, numbers: Sequence[str] = ()) -> Table:
    """An empty table; the columns in `numbers` are aligned to the right."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False,
        header_style="bold",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", no_wrap=True)
    return table


def print_answers(console: Console, at: int, asked: Sequence[Asked]) -> None:
    """The counts of an answer to `as of`."""
    table = grid(f"as of {iso(at)}", "collection", "rows", "since", "upper", numbers=["rows"])
    for each in asked:
        since = iso(each.since) if each.since else "the beginning"
        table.add_row(each.collection, f"{each.rows:,}", since, iso(each.upper))
    console.print(table)


def print_verdict(console: Console, comparisons: Sequence[Comparison]) -> None:
    """One line for each comparison, and the first rows of each difference."""
    table = grid(
        "compared with DuckDB over the raw files", "what", "expected", "found", "",
        numbers=["expected", "found"],
    )  # fmt: skip
    for each in comparisons:
        mark = "[green]equal[/green]" if each.equal else "[red]DIFFERENT[/red]"
        table.add_row(each.what, f"{each.expected:,}", f"{each.found:,}", mark)
    console.print(table)
    for each in comparisons:
        if not each.equal:
            console.print(f"[red]{each.what}[/red]\n{describe_difference(each)}", highlight=False)


def print_timings(
    console: Console, phases: Sequence[tuple[str, float]], total_s: float, facts: Mapping[str, str]
) -> None:
    """Print the seconds of each phase, and further facts of the run."""
    table = grid("where the time went", "phase", "seconds", numbers=["seconds"])
    for name, took_s in phases:
        table.add_row(name, f"{took_s:.1f}")
    table.add_row("[bold]in all[/bold]", f"[bold]{total_s:.1f}[/bold]")
    console.print(table)
    for name, text in facts.items():
        console.print(f"{name}: {text}", highlight=False, soft_wrap=True)
