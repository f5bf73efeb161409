"""Magics of notebooks: `%tidemill VERB TEXT`, and `%%tidemill VERB` with the text in its cell."""

from __future__ import annotations

import re
from collections.abc import Callable

from IPython.core.error import UsageError as Refused
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import MagicsManager

from tidemill.client.connection import Client, connect
from tidemill.errors import TidemillError
from tidemill.rpc.messages import ResourceDocument

NAME = "tidemill"

_OPTION = re.compile(r"\s*--(address|as-of)[ =]\s*(\S+)")
"""Options stand before the verb; the text behind it is taken as it is."""
_WAIT_S = 30.0
"""Longest wait for an instant that is not definite yet."""


def _apply(client: Client, text: str, _: str | None) -> list[str]:
    applied = client.apply(ResourceDocument(text, "cell"))
    return [f"{each.kind}/{each.name} {each.outcome.value}" for each in applied]


_VERBS: dict[str, Callable[[Client, str, str | None], object]] = {
    "query": lambda client, text, at: client.query(text, at, timeout_s=_WAIT_S),
    "sql": lambda client, text, at: client.sql(text, at, timeout_s=_WAIT_S),
    "why": lambda client, text, at: client.why(text, at),
    "why-not": lambda client, text, at: client.why_not(text, at),
    "explain": lambda client, text, _: print(client.explain(text)),
    "apply": _apply,
}
"""Calls of a client by their verbs, each with a text and an instant."""


class Magic:
    """Answers of a server as values of cells; a refusal is one line, without a traceback.

    `connects` gives a client of an address, or of `TIDEMILL_ADDRESS` for None.
    """

    def __init__(self, connects: Callable[[str | None], Client] = connect) -> None:
        self._connects = connects
        self._clients: dict[str | None, Client] = {}

    def __call__(self, line: str, cell: str | None = None) -> object:
        """The answer of one magic. Raises: UsageError of IPython."""
        told: dict[str, str] = {}
        while option := _OPTION.match(line):
            told[option[1]] = option[2]
            line = line[option.end() :]
        verb, _, text = line.strip().partition(" ")
        text = f"{text}\n{cell or ''}".strip()
        if verb not in _VERBS or not text:
            verbs = ", ".join(_VERBS)
            raise Refused(
                f"write %{NAME} [--as-of T] [--address A] VERB TEXT, or the text in a cell of "
                f"%%{NAME}; verbs are {verbs}"
            )
        try:
            return _VERBS[verb](self._client(told.get("address")), text, told.get("as-of"))
        except TidemillError as error:
            raise Refused(str(error)) from error

    def close(self) -> None:
        """End all connections."""
        while self._clients:
            self._clients.popitem()[1].close()

    def _client(self, address: str | None) -> Client:
        if address not in self._clients:
            self._clients[address] = self._connects(address)
        return self._clients[address]


def register(shell: InteractiveShell) -> None:
    """Give a notebook the magics."""
    magics: MagicsManager = shell.magics_manager
    magics.register_function(Magic(), "line_cell", NAME)
