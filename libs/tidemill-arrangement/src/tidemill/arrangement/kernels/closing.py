"""At which times the output of a reduction may change, for many keys in one call.

The rule is that of tidemill.arrangement.operators.interesting_times, which is also the twin.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled

Kinds = npt.NDArray[np.uint8]
Found = tuple[U64Array, U64Array, Kinds, I64Array, I64Array]
"""Times (room, lanes), their owners and kinds, the slots that find them, and a queue."""

PARTNER, ACTIVE, WAITING_SEED, WAITING = range(4)
"""A time of history; to be evaluated now; beyond upper and given; beyond upper and reached."""


@compiled
def _slot_of(times: U64Array, slots: I64Array, first: int, time: U64Array) -> int:
    """The slot of a time among those from `first` on, or the free one for it."""
    mask = np.uint64(slots.size - 1)
    mixed = np.uint64(0x9E37_79B9_7F4A_7C15)
    for value in time:
        mixed = (mixed ^ value) * np.uint64(0xFF51_AFD7_ED55_8CCD)
        mixed ^= mixed >> np.uint64(32)
    slot = mixed & mask
    while slots[slot] >= first:
        at, lane = slots[slot], 0
        while lane < time.size and times[at, lane] == time[lane]:
            lane += 1
        if lane == time.size:
            break
        slot = (slot + np.uint64(1)) & mask
    return int(slot)


@compiled
def _write(times: U64Array, place: int, time: U64Array) -> None:
    """Write a time lane by lane.

    The assignment of a whole row, or of a slice, may refuse its shapes: each kernel with one takes
    seconds longer to compile, for the text of that error.
    """
    for lane in range(time.size):
        times[place, lane] = time[lane]


@compiled
def _with_room(found: Found, first: int, count: int) -> Found:
    """The same with room for one more time, and twice as many slots as the owner has times."""
    times, owners, kinds, slots, queue = found
    if count == owners.size:
        wider = np.empty((2 * count, times.shape[1]), np.uint64)
        more_owners, more_kinds = np.empty(2 * count, np.uint64), np.empty(2 * count, np.uint8)
        for at in range(count):
            _write(wider, at, times[at])
            more_owners[at], more_kinds[at] = owners[at], kinds[at]
        times, owners, kinds = wider, more_owners, more_kinds
    if 2 * (count - first + 1) > slots.size:
        slots = np.full(2 * slots.size, -1, np.int64)
        for at in range(first, count):
            slots[_slot_of(times, slots, first, times[at])] = at
        longer = np.empty(slots.size, np.int64)
        for at in range(queue.size):
            longer[at] = queue[at]
        queue = longer
    return times, owners, kinds, slots, queue


@compiled
def _is_beyond(time: U64Array, upper: U64Array) -> bool:
    for element in range(upper.shape[0]):
        lane = 0
        while lane < time.size and time[lane] >= upper[element, lane]:
            lane += 1
        if lane == time.size:
            return True
    return False


@compiled
def _close(
    found: Found, first: int, count: int, reached: int, upper: U64Array
) -> tuple[Found, int]:
    """Join what is reached, the first `reached` of the queue, with all partners until nothing is
    new.
    """
    head, tail = 0, reached
    joined = np.empty(found[0].shape[1], np.uint64)
    while head < tail:
        at = found[4][head]
        head += 1
        for other in range(first, count):
            if found[2][other] == WAITING:
                continue
            for lane in range(joined.size):
                joined[lane] = max(found[0][at, lane], found[0][other, lane])
            found = _with_room(found, first, count)
            times, _, kinds, slots, queue = found
            slot = _slot_of(times, slots, first, joined)
            place = slots[slot]
            if place >= first and kinds[place] != PARTNER:
                continue
            beyond = _is_beyond(joined, upper)
            if place < first:
                place = count
                slots[slot] = place
                _write(times, place, joined)
                kinds[place] = WAITING if beyond else ACTIVE
                found[1][place] = found[1][at]
                count += 1
            else:
                kinds[place] = WAITING_SEED if beyond else ACTIVE
            if not beyond:
                queue[tail] = place
                tail += 1
    return found, count


@compiled
def _add(
    found: Found, first: int, count: int, owner: int, time: U64Array, kind: int
) -> tuple[Found, int]:
    """Note a time of an owner unless it is there already; how many times there are now."""
    found = _with_room(found, first, count)
    times, owners, kinds, slots, _ = found
    slot = _slot_of(times, slots, first, time)
    if slots[slot] < first:
        slots[slot] = count
        _write(times, count, time)
        owners[count], kinds[count] = owner, kind
        count += 1
    return found, count


@compiled
def close_times(
    owners: int, seed_owners: U64Array, seeds: U64Array, stored_owners: U64Array, stored: U64Array,
    upper: U64Array, joins: bool,
) -> tuple[U64Array, U64Array, Kinds]:  # fmt: skip
    """The times of each owner at which its output may change: which they are, and of what kind.

    Seeds are times of new updates and those that waited; stored ones are of history, which is
    lifted to the meet of the seeds: only times beyond some seed are asked. Without `joins`, along a
    chain, the seeds are all there is.

    Shapes: owners ascending (n,), times (n, lanes), upper (elements, lanes); out in no order.
    Cost: O(active · times) for each owner.
    """
    lanes = seeds.shape[1]
    room = max(16, 2 * seed_owners.size)
    found = (
        np.empty((room, lanes), np.uint64), np.empty(room, np.uint64), np.empty(room, np.uint8),
        np.full(16, -1, np.int64), np.empty(16, np.int64),
    )  # fmt: skip
    count, seed, old = 0, 0, 0
    meet, lifted = np.empty(lanes, np.uint64), np.empty(lanes, np.uint64)
    for owner in range(owners):
        first = count
        meet[:] = ~np.uint64(0)
        while seed < seed_owners.size and seed_owners[seed] == owner:
            time = seeds[seed]
            beyond = _is_beyond(time, upper)
            found, count = _add(
                found, first, count, owner, time, WAITING_SEED if beyond else ACTIVE
            )
            if not beyond:
                for lane in range(lanes):
                    meet[lane] = min(meet[lane], time[lane])
            seed += 1
        reached = 0
        for at in range(first, count):
            if found[2][at] == ACTIVE:
                found[4][reached] = at
                reached += 1
        while old < stored_owners.size and stored_owners[old] == owner:
            if reached and joins:
                for lane in range(lanes):
                    lifted[lane] = max(meet[lane], stored[old, lane])
                found, count = _add(found, first, count, owner, lifted, PARTNER)
            old += 1
        if reached and joins:
            found, count = _close(found, first, count, reached, upper)
    return found[1][:count], found[0][:count], found[2][:count]


@compiled
def ranks_within(owners: U64Array, ranks: I64Array) -> int:
    """The position of each row among those of its owner, owners ascending; the most rows of one."""
    most = 0
    for i in range(owners.size):
        ranks[i] = ranks[i - 1] + 1 if i and owners[i] == owners[i - 1] else 0
        most = max(most, ranks[i] + 1)
    return int(most)
