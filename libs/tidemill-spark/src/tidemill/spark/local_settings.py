"""Resources of a session on this machine."""

from __future__ import annotations

import msgspec


class LocalSettings(msgspec.Struct, frozen=True):
    """`cores` threads, one JVM of `memory_mb`, the jars in the folder `jars`, files in
    `scratch`.
    """

    cores: int = 2
    memory_mb: int = 1024
    jars: str = ""
    scratch: str = ""
