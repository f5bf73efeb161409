"""All workloads by name. A module for each group of them has a dict of its own."""

from __future__ import annotations

from bench.workloads import graphs, reclock, replaced, tables
from bench.workloads.workload import Report, Row, Workload, resident_bytes

WORKLOADS: dict[str, Workload] = {
    **tables.WORKLOADS,
    **graphs.WORKLOADS,
    **reclock.WORKLOADS,
    **replaced.WORKLOADS,
}

__all__ = ["WORKLOADS", "Report", "Row", "Workload", "resident_bytes"]
