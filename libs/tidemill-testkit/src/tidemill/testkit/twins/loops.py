"""Twins of loops: the fixed point from the beginning, on sets of pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Pairs = frozenset[tuple[int, int]]


def fixed_point(start: Pairs, step: Callable[[Pairs], Pairs]) -> Pairs:
    """The fixed point of `step`, from `start` on."""
    now = start
    while (following := step(now)) != now:
        now = following
    return now


def closure(edges: Iterable[tuple[int, int]]) -> Pairs:
    """All pairs connected by a path of at least one edge."""
    known = frozenset(edges)
    return fixed_point(
        known, lambda now: now | {(a, d) for a, b in now for c, d in known if b == c}
    )


def distances(edges: Iterable[tuple[int, int]], roots: Iterable[int]) -> Pairs:
    """Each node that a root leads to, with the length of the shortest path."""
    known, reached = list(edges), dict.fromkeys(roots, 0)
    for _ in range(len(known) + 1):
        for a, b in known:
            if a in reached and reached[a] + 1 < reached.get(b, len(known) + 1):
                reached[b] = reached[a] + 1
    return frozenset(reached.items())


def inside_components(edges: Iterable[tuple[int, int]]) -> Pairs:
    """The edges whose ends lie in one strongly connected component."""
    known = frozenset(edges)
    paths = closure(known)
    return frozenset((a, b) for a, b in known if a == b or (b, a) in paths)


def least_reaching(edges: Iterable[tuple[int, int]], nodes: Iterable[int]) -> Pairs:
    """Each of `nodes`, and each node they lead to, with the least node that leads to it."""
    known = list(nodes)
    paths = closure(edges) | {(node, node) for node in known}
    ends = {b for a, b in paths if a in known}
    return frozenset((b, min(a for a, c in paths if c == b and a in known)) for b in ends)
