"""All jobs by name. A module for each group of them has a dict of its own."""

from __future__ import annotations

from bench.views import (
    alike,
    backlog,
    batches,
    durable,
    flights,
    graphs,
    sharing,
    streams,
    tables,
)
from bench.views.job import Job

JOBS: dict[str, Job] = {
    **graphs.JOBS,
    **tables.JOBS,
    **streams.JOBS,
    **flights.JOBS,
    **backlog.JOBS,
    **durable.JOBS,
    **sharing.JOBS,
    **alike.JOBS,
}

BATCHES: dict[str, Job] = batches.JOBS
"""Jobs of `make bench`: the same framework, with a table of their own."""
