"""Health of resources, as the processes report that have claimed their parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.catalog.store import Key, Stored
from tidemill.host.claimed_work import ClaimedWork
from tidemill.host.peers import Peers
from tidemill.host.roles import CLAIMED
from tidemill.host.supervised import RUNNING, Health
from tidemill.rpc.messages import Work


def combined(said: Mapping[str, Work | None]) -> Health:
    """The health of a resource from that of its parts; None is a part that no process has
    claimed.
    """
    for part, work in said.items():
        if work is None:
            return Health(
                False, "Unclaimed",
                f"no process has claimed the part of {part}: one takes it over within seconds, or "
                f"start one with --role {part}",
            )  # fmt: skip
    failing = [work for work in said.values() if work is not None and not work.ready]
    for work in sorted(failing, key=lambda work: _RANK.get(work.reason, 0)):
        named = f"{work.role}: " if len(said) > 1 else ""
        return Health(False, work.reason, f"{named}{work.message}")
    return RUNNING


_RANK = {"Stalled": -2, "Broken": -1, "Starting": 1}
"""Rank of a failing part as the speaker of its resource; the least speaks."""

PartReports = Mapping[Key, Mapping[str, Work]]
"""Reports about the parts of resources: by kind and name, then by role."""


class Reports:
    """Status reports of this process, and of those that are found by their claims."""

    def __init__(self, work: ClaimedWork, peers: Peers, address: str = "") -> None:
        """Others call this process at `address`."""
        self._work = work
        self._peers = peers
        self._address = address

    @property
    def sole(self) -> bool:
        """Whether this process is the only one."""
        return self._work.sole

    async def of(self, resources: Sequence[Stored]) -> PartReports:
        """The reports of every process about these resources."""
        owners = await self._peers.owners(CLAIMED)
        others = {own.details for found in owners.values() for own in found} - {self._address}
        own = [work for stored in resources for work in self._work.reports(stored)]
        said: dict[Key, dict[str, Work]] = {}
        for work in [*await self._peers.work(sorted(others)), *own]:
            known = said.setdefault((work.kind, work.name), {})
            # A process that lost its claim may not know yet: the newest epoch counts.
            if work.role not in known or known[work.role].epoch < work.epoch:
                known[work.role] = work
        return said
