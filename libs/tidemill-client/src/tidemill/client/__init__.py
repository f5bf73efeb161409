"""The Python client: `connect(address)` gives a client whose answers are Arrow tables.

Imports are deferred to the first use, so that the command starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from tidemill.client.connection import Client, connect
    from tidemill.client.spark import TidemillSource

__all__ = ["Client", "TidemillSource", "connect"]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Give a notebook `%tidemill`, on `%load_ext tidemill.client`."""
    from tidemill.client.notebook import register

    register(shell)


def __getattr__(name: str) -> object:
    """The names of `__all__`, imported when they are first asked for."""
    if name == "TidemillSource":
        from tidemill.client.spark import TidemillSource

        return TidemillSource
    if name in __all__:
        from tidemill.client import connection

        return getattr(connection, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
