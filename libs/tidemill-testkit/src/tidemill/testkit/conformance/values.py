"""Values of case files: records, times, frontiers, updates, read exactly and without floats."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from tidemill.time import (
    PARTITIONED,
    U64,
    U64_MAX,
    U64_TIME,
    Antichain,
    PartitionedOrder,
    Partitions,
    ProductOrder,
    TimeDomain,
    partition_frontier,
)

Json: TypeAlias = Any  # Any: what stands in a case file
Domain: TypeAlias = TimeDomain[Any]  # Any: the case names its domain of times
Update: TypeAlias = tuple[str, Any, int]
"""Record in canonical text, time, diff."""


class CaseError(Exception):
    """The case cannot be run as it is written: it fails, with this message."""


def canonical(value: Json) -> str:
    """A text that two JSON values share iff they are equal: `1`, `"1"`, `[1]`, `true` differ."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def domain_named(name: object) -> Domain:
    """The domain of times that a case calls `name`. Raises CaseError if there is none."""
    if name == "u64":
        return U64_TIME
    if name == "partitioned":
        return PARTITIONED
    if isinstance(name, str) and name.startswith("product:") and name[8:].isdecimal():
        return ProductOrder(int(name[8:]))
    raise CaseError(f"unknown domain of times {name!r}")


def read_u64(value: Json) -> int:
    """A whole number 0 … 2^64−1, `"max"` being the last. Raises CaseError for anything else."""
    if value == "max":
        return U64_MAX
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= U64_MAX:
        raise CaseError(f"not a number 0 to 2^64-1: {value!r}")
    return value


def read_time(domain: Domain, value: Json) -> Any:
    """The time of `domain` that `value` writes. Raises CaseError if it writes none."""
    if isinstance(domain, U64):
        return read_u64(value)
    lanes = 3 if isinstance(domain, PartitionedOrder) else domain.minimum().__len__()
    if not isinstance(value, list | tuple) or len(value) != lanes:
        raise CaseError(f"not a time of {domain.name}: {value!r}")
    numbers = [read_u64(number) for number in value]
    return Partitions(*numbers) if isinstance(domain, PartitionedOrder) else tuple(numbers)


def read_frontier(domain: Domain, value: Json) -> Antichain[Any]:
    """The frontier that a list of times, or for partitions an object, writes."""
    if isinstance(value, dict):
        if not isinstance(domain, PartitionedOrder):
            raise CaseError(f"not a frontier of {domain.name}: {value!r}")
        offsets = {int(pid) if pid != "max" else U64_MAX: read_u64(o) for pid, o in value.items()}
        return partition_frontier(offsets)
    if not isinstance(value, list | tuple):
        raise CaseError(f"not a frontier: {value!r}")
    return Antichain.of(domain, [read_time(domain, time) for time in value])


def read_times(domain: Domain, value: Json) -> list[Any]:
    """The times that a list, or for partitions an object, writes, in their order."""
    if isinstance(value, dict):
        return list(read_frontier(domain, value))
    return [read_time(domain, time) for time in value]


def read_updates(domain: Domain, value: Json) -> list[Update]:
    """A list of `[data, time, diff]` with the record in canonical text."""
    return [
        (canonical(data), read_time(domain, time), read_diff(diff)) for data, time, diff in value
    ]


def read_diff(value: Json) -> int:
    """A signed 64-bit whole number. Raises CaseError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise CaseError(f"not a difference: {value!r}")
    return value


def write_time(time: object) -> Json:
    """A time as a case file writes it."""
    return list(time) if isinstance(time, tuple) else time


def write_frontier(times: Iterable[object]) -> Json:
    """A frontier as a case file writes it."""
    return [write_time(time) for time in times]


def write_updates(updates: Iterable[Update]) -> Json:
    """Updates as a case file writes them."""
    return [[json.loads(data), write_time(time), diff] for data, time, diff in updates]


def write_contents(contents: Iterable[Sequence[Any]]) -> Json:
    """Pairs of canonical record and multiplicity as a case file writes them."""
    return [[json.loads(data), multiplicity] for data, multiplicity in contents]
