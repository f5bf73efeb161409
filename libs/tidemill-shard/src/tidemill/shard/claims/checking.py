"""A check of claims: every version of every group, and whether an epoch was given twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from tidemill.errors import Corrupt
from tidemill.shard.claims.register import value_of
from tidemill.shard.claims.tables import Members, Owners
from tidemill.shard.fsck import NO_REPAIR, Finding
from tidemill.shard.ports import Consensus, Version

_KINDS: Mapping[str, type[Members | Owners]] = {"members": Members, "owners": Owners}


class ClaimsCheck:
    """Reads everything once and changes nothing; `checked` counts groups and versions.

    Nothing found here can be repaired by starting anew: sinks refuse epochs that are not greater
    than any before.
    """

    def __init__(self, consensus: Consensus) -> None:
        self._consensus = consensus
        self.checked: Counter[str] = Counter()

    async def findings(self) -> AsyncIterator[Finding]:
        """Everything that is wrong, group by group."""
        try:
            for key in await self._consensus.keys():
                for problem in await self._problems(key):
                    yield Finding(key, "", problem, NO_REPAIR)
        except Corrupt as error:
            yield Finding("", "", str(error), NO_REPAIR)

    async def _problems(self, key: str) -> list[str]:
        kind = _KINDS.get(key.rpartition("/")[2])
        if kind is None:
            return ["neither members nor owners of a group"]
        self.checked["groups"] += kind is Owners
        try:
            versions = await self._consensus.scan(key, 0)
        except Corrupt as error:
            return [str(error)]
        self.checked["versions"] += len(versions)
        return list(_undecodable(key, kind, versions) or _contradictions(key, versions, kind))


def _undecodable(key: str, kind: type[Members | Owners], versions: Sequence[Version]) -> list[str]:
    """Versions of a log that cannot be decoded, in words."""
    found: list[str] = []
    for place, version in enumerate(versions):
        if version.number != versions[0].number + place:
            return [*found, f"the log of {key} has a hole before version {version.number}"]
        try:
            value_of(version, key, kind)
        except Corrupt as error:
            found.append(str(error))
    return found


def _contradictions(
    key: str, versions: Sequence[Version], kind: type[Members | Owners]
) -> Iterator[str]:
    """Epochs that break their order: beyond all that were given, given twice, or free to be given
    again.
    """
    if kind is not Owners:
        return
    given: dict[int, tuple[str, str]] = {}
    greatest = 0
    for version in versions:
        owners = value_of(version, key, Owners)
        if owners.epoch < greatest:
            yield f"version {version.number} of {key} goes back from epoch {greatest} to {owners.epoch}"
        greatest = max(greatest, owners.epoch)
        for item, owner in owners.items.items():
            if owner.epoch > owners.epoch:
                yield f"{item} is had by epoch {owner.epoch}, after {owners.epoch}, the last that was given"
            first = given.setdefault(owner.epoch, (item, owner.session))
            if first != (item, owner.session):
                yield f"epoch {owner.epoch} was given for {first[0]} and for {item}"
