"""Options of the data source, checked: what is unknown is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.client.connection import dialer_of
from tidemill.client.instants import instant
from tidemill.client.settings import place_from_environment
from tidemill.errors import UsageError
from tidemill.rpc.blocking import BlockingClient

LEASE_MS = 60_000
"""A capability outlives the last task that renews it by so long."""
_NAMES = (
    "address", "collection", "asOf", "columns", "multiplicity", "changes", "startingAt", "lease",
    "rowsPerPartition", "version", "idempotencyKey", "tlsCa", "tlsCert", "tlsKey", "tlsName",
    "tokenFile",
)  # fmt: skip
_SPARK = frozenset({"checkpointlocation", "outputmode", "queryname"})
"""Options of Spark itself, which it gives to sinks as well."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one DataFrame. Each place is named, or that of the environment of the machine."""

    collection: str
    address: str | None = None
    as_of: int | None = None
    columns: tuple[str, ...] = ()
    multiplicity: bool = False
    changes: bool = False
    starting_at: int | None = None
    lease_ms: int = LEASE_MS
    rows: int | None = None
    version: str | None = None
    idempotency_key: str | None = None
    tls: tuple[str | None, ...] = (None,) * 5

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """The options of a mapping, whatever the case of their names. Raises: UsageError."""
        known = {name.lower(): name for name in _NAMES}
        values = {}
        for name, value in given.items():
            if name.lower() in _SPARK:
                continue
            if name.lower() not in known:
                raise UsageError(
                    f"there is no option {name}: {', '.join(sorted(_NAMES))}", reason="option"
                )
            values[known[name.lower()]] = value
        if not values.get("collection"):
            raise UsageError("name what to read or write: option('collection', …)", reason="option")
        return cls(
            values["collection"],
            values.get("address"),
            instant(values.get("asOf")),
            tuple(each.strip() for each in values.get("columns", "").split(",") if each.strip()),
            _flag(values, "multiplicity"),
            _flag(values, "changes"),
            instant(values.get("startingAt")),
            int(1000 * _number(values, "lease", LEASE_MS / 1000)),
            None if "rowsPerPartition" not in values else int(_number(values, "rowsPerPartition")),
            values.get("version"),
            values.get("idempotencyKey"),
            tuple(values.get(n) for n in ("tlsCa", "tlsCert", "tlsKey", "tlsName", "tokenFile")),
        )

    def connect(self) -> BlockingClient:
        """A client of the server. Raises: UsageError for files that cannot be used."""
        place = place_from_environment(self.address, *self.tls)
        return BlockingClient(place.address, dialer=dialer_of(place))


def _flag(values: Mapping[str, str], name: str) -> bool:
    written = values.get(name, "false").lower()
    if written not in ("true", "false"):
        raise UsageError(f"the option {name} is true or false, not {written}", reason="option")
    return written == "true"


def _number(values: Mapping[str, str], name: str, default: float = 0.0) -> float:
    written = values.get(name, str(default))
    try:
        found = float(written)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e9:
        raise UsageError(f"the option {name} is a number above 0, not {written}", reason="option")
    return found
