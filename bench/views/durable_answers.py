"""The updates that a view has to write, by DuckDB: the judge of the measurements of whole views."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import numpy as np
import pyarrow as pa

from bench.views.durable_inputs import LIFE_MS, Rows
from tidemill.arrangement.updates import DIFF, TIME

PRESENT: Mapping[str, str] = {
    "resample": (
        'select tank::varchar tank, ("at" // 1000) * 1000 as time, time + 61000 expires,'
        " avg(level) average, sum(flow)::bigint sum, time + 1000 since, expires until"
        " from r group by tank, time having since < {end}"
    ),
    "hot": (
        'select distinct tank::varchar tank, level, "at", "at" as time,'
        f" time + {LIFE_MS['r']} expires, time since, expires until from r where level >= 9900"
    ),
    "join": (
        'select p.id::varchar payment, o.id::varchar as "order", o.amount, p."at" as time,'
        " time + 1000 expires, time since, expires until"
        f' from o join p on p."order" = o.id and p."at" >= o."at" and p."at" < o."at" + {LIFE_MS["o"]}'
    ),
}
"""Facts of each rule, with the instants from which and until which they are present."""


def expected(name: str, rows: Mapping[str, Rows], columns: Mapping[str, list[str]]) -> pa.Table:
    """The updates of a view of one rule over all rows, below the end of its inputs."""
    end = max(int(each.times[-1]) for each in rows.values()) + 1
    with duckdb.connect() as base:
        for each, found in rows.items():
            arrays = dict(zip(columns[each], found.arguments, strict=True))
            base.register(each, pa.table({k: np.ascontiguousarray(v) for k, v in arrays.items()}))
        present = PRESENT[name].format(end=end)
        moves = (
            f"select * exclude (since, until), {{}}::ubigint {TIME}, {{}}::bigint {DIFF}"
            f" from ({present}) where {{}} < {end}"
        )
        found = (
            moves.format("since", 1, "since") + " union all " + moves.format("until", -1, "until")
        )
        return base.sql(found).to_arrow_table()


def same(ours: pa.Table, theirs: pa.Table) -> bool:
    """Whether two tables have the same rows, each as often."""
    if ours.schema.names != theirs.schema.names or ours.num_rows != theirs.num_rows:
        return False
    with duckdb.connect() as base:
        base.register("ours", ours)
        base.register("theirs", theirs)
        left = base.execute("select count(*) from (from ours except all from theirs)").fetchone()
    return left == (0,)
