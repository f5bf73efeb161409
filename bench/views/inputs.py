"""The input of all sides, from fixed seeds; needs NumPy alone, as peers have an environment of
their own.

Streams come in batches of `BATCH` events in the order of their arrival. Inside a batch times are in
no order; every time of a batch is beyond all of the batch before, so no event is late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

I64Array = npt.NDArray[np.int64]
Edge = tuple[int, int]

BATCH = 1_000
"""Events of one delivery: what has come in a second of the events' own time."""
BATCH_MS = 1_000


def graph(nodes: int, edges: int) -> list[Edge]:
    """A random directed graph without loops and without an edge twice."""
    rng, found = Random(42), dict[Edge, None]()
    while len(found) < edges:
        edge = (rng.randrange(nodes), rng.randrange(nodes))
        if edge[0] != edge[1]:
            found[edge] = None
    return list(found)


def tree(nodes: int) -> list[Edge]:
    """(child, parent) of a random tree, each below one that came before it."""
    rng = Random(42)
    return [(child, rng.randrange(child)) for child in range(1, nodes)]


def toggled(edges: list[Edge], rounds: int) -> list[tuple[Edge, int]]:
    """Single changes that keep the graph as it is: a random edge goes, then comes back."""
    rng = Random(7)
    gone = [edges[rng.randrange(len(edges))] for _ in range((rounds + 1) // 2)]
    return [(edge, diff) for edge in gone for diff in (-1, 1)][:rounds]


def amounts(rows: int, groups: int, first: int = 0) -> tuple[I64Array, I64Array, I64Array]:
    """(group, id, amount) of rows; ids are `first`, `first + 1`, …"""
    rng = np.random.default_rng(42 + first)
    ids = np.arange(first, first + rows, dtype=np.int64)
    return rng.integers(0, groups, rows), ids, rng.integers(0, 1_000, rows)


def growing(name: str, rows: int, rounds: int) -> Iterator[list[tuple[Sequence[I64Array], int]]]:
    """A load, then ten rows that come and go: for each step the changes of the inputs, each with
    its diff.

    The first input has (group, id, amount), a hundred in a group; the second, which sums do not
    read, (id, amount) of every second id.
    """
    for step in range(rounds + 1):
        first, count = (rows + (step - 1) // 2 * 10, 10) if step else (0, rows)
        diff = -1 if step and step % 2 == 0 else 1
        columns = amounts(count, rows // 100, first)
        others = [] if name == "sum" else [((columns[1][::2], columns[2][::2]), diff)]
        yield [(columns, diff), *others]


def rules(count: int) -> tuple[list[tuple[int, int, int]], list[Edge]]:
    """(rule, the rule below it, the relation it joins), and the pairs that every relation has."""
    rng = Random(42)
    below = [(i, rng.randrange(max(0, i - 50), i), rng.randrange(10)) for i in range(1, count)]
    return below, [(i, (i * 7 + 3) % 20) for i in range(20)]


BATCHES = {1: 20, 1_000: 20, 100_000: 4}
"""Number of steps of each size."""
GROUPS, TREE = 10_000, 16
Changes = list[tuple[int, Sequence[I64Array], int]]
"""Of one step: the place of the input, columns, and the diff of all their rows."""


def batched(view: str, rows: int) -> Iterator[tuple[int, Changes]]:
    """A load of `rows` and steps of the sizes of `BATCHES`: how many rows change, and which.

    The view `sum` has (group, id, amount) of 10,000 groups. `counted` has (key, id, amount), and a
    value for each of as many keys as rows. `closure` has the edges to the parents in trees of 16
    nodes, of which a batch goes and comes back by turns.
    """
    sizes = [size for size, steps in BATCHES.items() for _ in range(steps)]
    if view == "closure":
        nodes = np.arange(rows, dtype=np.int64)
        own = nodes % TREE
        children = nodes[own > 0]
        parents = children - own[own > 0] + drawn(1, 1 << 30, len(children)) % own[own > 0]
        yield rows, [(0, (children, parents), 1)]
        for step, size in enumerate(sizes):
            gone = np.random.default_rng(step // 2).permutation(len(children))[:size]
            yield size, [(0, (children[gone], parents[gone]), 1 if step % 2 else -1)]
        return
    groups = GROUPS if view == "sum" else rows
    keys = np.arange(rows, dtype=np.int64)
    others: Changes = [] if view == "sum" else [(1, (keys, keys * 7919 % 1_000), 1)]
    yield rows, [(0, _positive(rows, groups), 1), *others]
    first = rows
    for size in sizes:
        yield size, [(0, _positive(size, groups, first), 1)]
        first += size


def _positive(rows: int, groups: int, first: int = 0) -> tuple[I64Array, I64Array, I64Array]:
    """Amounts of one and more: both peers take a group whose sum is zero for one without rows."""
    group, ids, amount = amounts(rows, groups, first)
    return group, ids, amount + 1


@dataclass(frozen=True)
class Stream:
    """Events in the order of arrival: columns of all of them, and how many batches there are."""

    columns: tuple[I64Array, ...]
    times: I64Array

    @property
    def batches(self) -> int:
        return len(self.times) // BATCH


def drawn(seed: int, below: int, count: int) -> I64Array:
    """Random numbers; fewer of them are the first ones of more."""
    return np.random.default_rng(seed).integers(0, below, count)


def checks(events: int) -> Stream:
    """(sensor, value) of readings that are judged tick by tick; sensor s is in region s % 10."""
    times = np.arange(events, dtype=np.int64) // BATCH
    return Stream((drawn(1, 500, events), drawn(2, 100, events)), times)


def levels(events: int) -> Stream:
    """(tank, level): 100 tanks, ten readings of each in a second."""
    tank = np.tile(np.repeat(np.arange(100, dtype=np.int64), 10), events // BATCH)
    times = drawn(1, BATCH_MS, events) + np.arange(events) // BATCH * BATCH_MS
    level = drawn(2, 10_000, events)
    serial = np.arange(events, dtype=np.int64) % 10
    return Stream((tank, level * 10 + serial), times)


ORDERS = 0
PAYMENTS = """
settled(o, a, b) := placed(o, a, _) ^ paid(o, b);
open(o, a) := placed(o, a, _) ^ not paid(o, _);
taken(k) @sum(a) @count(a) := placed(o, a, k);
"""
"""Five operators: two inputs, a join, an absence, groups."""


def trades(events: int) -> Stream:
    """(kind, key, amount): an order, and in most cases a payment of it some seconds later, one a
    millisecond.
    """
    kinds = np.arange(events, dtype=np.int64) % 2
    keys = np.empty(events, np.int64)
    numbers = np.arange(events, dtype=np.int64) // 2
    keys[kinds == ORDERS] = numbers[kinds == ORDERS]
    back = drawn(1, 7_500, events)
    paid = numbers - back
    keys[kinds != ORDERS] = np.where(paid < 0, -1 - numbers, paid)[kinds != ORDERS]
    times = np.arange(events, dtype=np.int64)
    order = _shuffled(times)
    amounts_ = drawn(2, 1_000_000, events)
    return Stream((kinds[order], keys[order], amounts_[order]), times[order])


def _shuffled(times: I64Array) -> I64Array:
    """An order in which each batch is mixed."""
    keys = times // BATCH * 2**32 + drawn(3, 2**32, len(times))
    return np.argsort(keys, kind="stable")
