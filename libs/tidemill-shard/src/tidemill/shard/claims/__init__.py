"""Claims: assignment of work to replicas, by leases with fencing epochs, in a Consensus log.

Replicas of one role share a *group*. Each of them names the work items (source partitions, sources,
views, collections: any texts). Each item is claimed by one replica at a time, about as many by
each. A claim carries an *epoch*: a number that no other claim of the group has, greater than those
of all claims before it.

    consensus = open_claims("redis://redis:6379/0")     # beside the collections, not among them
    claimant = Claimant(consensus, "compute", clock, ids, name=pod, details="10.0.0.7:7070")

    async def views() -> Iterable[str]:                 # the work, asked for before each renewal
        return [view.name for view in catalog.views()]

    async def maintain(claim: Claim) -> None:           # started when an item is gained,
        await driver.run(claim.item, claim.epoch)       # cancelled when it is lost or handed over

    await work_claimed(claimant, views, maintain, clock)    # for ever; gives all up when cancelled

* An event loop that is busy for longer than the lease renews too late, and loses its items. A
  `Keeper` prevents that, `claimant = keeper.kept(claimant)`: a thread sends the heartbeats
  (*signs of life*).
* A replica that ends hands its items over at once. A replica that dies, or cannot reach Consensus,
  loses them `lease_s` after its last heartbeat. Clocks of different machines are never compared,
  and a wall clock that jumps changes nothing.
* A replica stops its work before others begin with it, as long as it runs at all. A paused replica
  cannot stop. When it resumes, its late effects are refused by the place of the effect.
  Compare-and-append refuses by upper: a collection needs nothing more. A sink keeps the greatest
  epoch it has seen and refuses smaller ones; `claim.epoch` is the fence to present there.
* `claimant.check(claim)` raises Fenced once the claim is over by the clock of this process, at no
  cost; `await claimant.confirm(claim)` asks Consensus. Either makes wasted work rare. Neither is a
  fence.
* `await claimant.owners()` gives the owner of each item: for status pages, and to find the
  replica to talk to.
* A process that shares its stores with no other one has the sole claimant (`SoleClaimant`). It
  owns every item at once, and keeps nothing in Consensus.
"""

from tidemill.shard.claims.claimant import LEASE_S, Claim, Claimant, Claiming, Owned
from tidemill.shard.claims.ending import end_task
from tidemill.shard.claims.keeping import Keeper, KeptClaimant
from tidemill.shard.claims.sole import SoleClaimant
from tidemill.shard.claims.working import ClaimedTasks, work_claimed

__all__ = [
    "LEASE_S",
    "Claim",
    "Claimant",
    "ClaimedTasks",
    "Claiming",
    "Keeper",
    "KeptClaimant",
    "Owned",
    "SoleClaimant",
    "end_task",
    "work_claimed",
]
