"""Resources of a session: of each, and of those on this machine."""

from __future__ import annotations

import msgspec

BATCH_BYTES_MAX = 128 << 20
"""Bytes of a batch between the JVM and Python: rows may hold tables, and a batch 2 GiB."""


class LocalSettings(msgspec.Struct, frozen=True):
    """`cores` threads, one JVM of `memory_mb`, the jars in the folder `jars`, files in
    `scratch`.
    """

    cores: int = 2
    memory_mb: int = 1024
    jars: str = ""
    scratch: str = ""
