"""A durable collection as the target of a job: tasks write sorted parts of key-hash ranges."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from secrets import token_hex

import msgspec
import numpy as np
import pyarrow as pa

from tidemill.shard.encoding import pack_part
from tidemill.shard.hashing import key_hashes
from tidemill.shard.part_store import part_key
from tidemill.shard.parts import encode_parts, placed, sorted_updates
from tidemill.shard.stores import BlobPlace, open_blob
from tidemill.spark.backfill import Target

ROWS_PER_BUCKET = 500_000
"""About so many updates are sorted by one task."""


def collection_target(
    collection: str, schema: pa.Schema, key: tuple[str, ...], *,
    lower: int, place: BlobPlace, rows: int, now_ms: Callable[[], int],
) -> Target:  # fmt: skip
    """Target for about `rows` updates of a collection, none before `lower`, cut up by key hash.

    Nothing is committed: written parts are returned, packed, to the caller who appends them. Until
    then no version names them, and the reaper deletes abandoned ones by the age in their names.
    `now_ms` is called where the task runs.
    """
    return Target(
        name=collection, lower=lower, schema=schema, key_hash=partial(_hashes, key),
        write=partial(_write_parts, place, collection, key, now_ms),
        buckets=max(2, -(-rows // ROWS_PER_BUCKET)), arrange=partial(_sorted, key),
    )  # fmt: skip


def _hashes(key: tuple[str, ...], table: pa.Table) -> np.ndarray:
    return key_hashes(table, key)


def _sorted(key: tuple[str, ...], table: pa.Table) -> pa.Table:
    return sorted_updates(table, key)


def _write_parts(
    place: BlobPlace,
    collection: str,
    key: tuple[str, ...],
    now_ms: Callable[[], int],
    updates: pa.Table,
) -> bytes:
    """One sorted, consolidated table as parts in Blob, packed."""
    blob = open_blob(place, partial(token_hex, 16))
    packed = []
    for part, data in encode_parts(updates, key, inline_bytes_max=0):
        name = part_key(collection, token_hex(16), now_ms())
        blob.put_now(name, data)
        packed.append(pack_part(placed(part, name)))
    return msgspec.msgpack.encode(packed)
