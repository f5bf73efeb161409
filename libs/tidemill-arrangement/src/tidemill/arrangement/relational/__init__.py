"""Loops over relations whose rows are present on intervals [start, stop): matching, grouping,
sweeping, adding up.

A row is a row of words of 64 bits; equal rows are equal words. Importing it imports numba.
"""

from tidemill.arrangement.relational.accumulating import Stretches, accumulate_groups
from tidemill.arrangement.relational.grouping import (
    FEW_ROWS,
    Buckets,
    Groups,
    buckets_of,
    range_buckets,
    stacked_words,
    surely_apart,
)
from tidemill.arrangement.relational.matching import (
    join_buckets,
    join_ranges,
    tick_pairs,
)
from tidemill.arrangement.relational.selecting import (
    clipped,
    counting,
    extent,
    inside,
    lasting,
    lone_rows,
    turns,
    uniform_facts,
    within,
)
from tidemill.arrangement.relational.summing import (
    LIMBS,
    Sums,
    add_sums,
    add_up,
    limbs_of,
    quotients,
    stacked_sums,
    total_of,
)
from tidemill.arrangement.relational.sweeping import (
    Runs,
    best_by_group,
    best_by_run,
    covers,
    drawn_together,
    few_drawn_together,
    runs_of,
    subtract,
    uniform_groups,
)

__all__ = [
    "FEW_ROWS", "LIMBS", "Buckets", "Groups", "Runs", "Stretches", "Sums",
    "accumulate_groups", "add_sums", "add_up", "best_by_group", "best_by_run", "buckets_of",
    "clipped", "counting", "covers", "drawn_together", "extent", "few_drawn_together", "inside", "join_buckets",
    "join_ranges", "lasting", "limbs_of", "lone_rows", "quotients", "range_buckets", "runs_of",
    "stacked_sums", "stacked_words", "subtract", "surely_apart", "tick_pairs", "total_of", "turns", "uniform_facts", "uniform_groups",
    "within",
]  # fmt: skip
