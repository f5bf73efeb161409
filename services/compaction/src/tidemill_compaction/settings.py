"""Settings of compaction."""

from __future__ import annotations

import msgspec


class CompactionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Merging of collections, and deletion of objects without a version."""

    interval_s: float = 5.0
    """Time between two looks at a collection; leases that ran out end at the next look."""

    batches_max: int = 24
    """Batches of a collection beyond which it is merged at the next look."""

    steps_max: int = 8
    """Merge steps, of about a million rows each, in one look at one collection."""

    idle_looks: int = 12
    """Looks without updates after which a collection is merged into one batch."""

    spark_rows: int = 100_000_000
    """Updates from which on a merge is a Spark job; this process makes smaller ones."""

    garbage_grace_s: float = 60.0
    """Time for which an object outlives the last version that names it; longer than any read."""

    orphan_age_s: float = 86_400.0
    """Age from which on an object that no version names is an orphan; a longer upload begins
    anew."""

    orphan_looks: int = 720
    """Looks between two searches for orphans; a search lists the whole store."""

    broken_looks_max: int = 720
    """Longest pause, in looks, after failed looks at a collection whose stores are there."""
