"""Lists of parts: what a version says of the parts that an object names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidemill.shard.parts import NULLS_ALONE, Bounds, Part, begun_ms_of


@dataclass(frozen=True, slots=True)
class PartList:
    """An object under `key` that names so many `parts` of one batch, and what is true of them all.

    They are of the batch alone, and whole: they go when the list goes. `apart_min` is the least
    time of those that have several; None if each has one.
    """

    key: str
    parts: int
    rows: int
    size: int
    time_min: int
    time_max: int
    hash_min: int
    hash_max: int
    apart_min: int | None
    begun_ms: int | None
    """When the writer of the first part began it; None if no name says so."""

    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    """Bounds that hold in all parts; a list that was written before lists had some has none."""

    def meets(self, lower: int, upper: int | None) -> bool:
        """Whether a part may hold updates at lower <= time < upper (None: no bound)."""
        return self.time_max >= lower and (upper is None or self.time_min < upper)


def list_of(key: str, parts: Sequence[Part]) -> PartList:
    """The list of some parts, of which there is one at least, in an object that is written."""
    apart = [part.time_min for part in parts if part.time_min < part.time_max]
    begun = [each for part in parts if (each := part.begun_ms) is not None]
    return PartList(
        key,
        parts=len(parts),
        rows=sum(part.rows for part in parts),
        size=sum(part.size for part in parts),
        time_min=min(part.time_min for part in parts),
        time_max=max(part.time_max for part in parts),
        hash_min=min(part.hash_min for part in parts),
        hash_max=max(part.hash_max for part in parts),
        apart_min=min(apart, default=None),
        begun_ms=min(begun, default=None),
        bounds=dict(_bounds(parts)),
    )


def _bounds(parts: Sequence[Part]) -> Iterator[tuple[str, Bounds]]:
    """The bounds of the columns of which each part has some."""
    for name in parts[0].bounds:
        told = [part.bounds[name] for part in parts if name in part.bounds]
        some = [each for each in told if each != NULLS_ALONE]
        least, greatest = ([each[at] for each in some] for at in (0, 1))
        if len(told) < len(parts) or None in least:
            continue
        first = min(least, default=None)  # type: ignore[type-var]  # all are of one column
        last = None if None in greatest else max(greatest, default=None)  # type: ignore[type-var]
        yield name, (first, last, any(each[2] for each in told))


def list_name(unique: str, begun_ms: int) -> str:
    """The name of a new object with a list."""
    return f"list-{begun_ms:013d}-{unique}"


def is_list(key: str) -> bool:
    """Whether an object is a list of parts, by its name."""
    return key.rpartition("/")[2].startswith("list-")


def listed_ms(listed: PartList) -> int | None:
    """When the writer of a list began it, by its own clock."""
    return begun_ms_of(listed.key)
