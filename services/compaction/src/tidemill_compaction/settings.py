"""Settings of compaction."""

from __future__ import annotations

import msgspec


class CompactionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When collections are merged, and when what nobody needs is deleted."""

    interval_s: float = 5.0
    """How often every collection is looked at; leases that ran out end then at the latest."""

    batches_max: int = 24
    """A collection with more batches is merged at the next look."""

    steps_max: int = 8
    """So many steps of merging, of about a million rows each, one look makes at one collection."""

    idle_looks: int = 12
    """A collection that got no updates for so many looks is merged into one batch."""

    spark_rows: int = 100_000_000
    """A merge of at least so many updates is a Spark job; smaller ones are made here."""

    garbage_grace_s: float = 60.0
    """How long an object outlives the last version that named it; longer than any read."""

    orphan_age_s: float = 86_400.0
    """When an object that no version names counts as left behind; an upload that takes longer begins anew."""

    orphan_looks: int = 720
    """Objects left behind are looked for at every so many looks: it lists the whole store."""

    broken_looks_max: int = 720
    """A collection whose looks fail, though the stores are there, is looked at every so many at the latest."""
