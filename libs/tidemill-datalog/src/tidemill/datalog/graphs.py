"""Graphs that are found while they are walked, however deep: what is reached, and cycles."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

N = TypeVar("N", bound=Hashable)


def reached(nodes: Iterable[N], successors: Callable[[N], Iterable[N]]) -> set[N]:
    """Everything that `nodes` lead to, themselves among it. Cost: O(nodes + edges)."""
    found = set(nodes)
    waiting = list(found)
    while waiting:
        new = set(successors(waiting.pop())) - found
        found |= new
        waiting += new
    return found


def strong_components(nodes: Iterable[N], successors: Callable[[N], Sequence[N]]) -> list[list[N]]:
    """The components of everything that `nodes` lead to, each after those it leads to.

    Cost: O(nodes + edges); `successors` is asked once for each node. Source: Tarjan 1972, without
    recursion.
    """
    index: dict[N, int] = {}
    low: dict[N, int] = {}
    on_stack: set[N] = set()
    stack: list[N] = []
    found: list[list[N]] = []
    for root in nodes:
        if root in index:
            continue
        work: list[tuple[N, Sequence[N], int]] = [(root, successors(root), 0)]
        while work:
            node, targets, position = work.pop()
            if position == 0:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            else:
                low[node] = min(low[node], low[targets[position - 1]])
            for place in range(position, len(targets)):
                target = targets[place]
                if target not in index:
                    work += [(node, targets, place + 1), (target, successors(target), 0)]
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                if low[node] == index[node]:
                    found.append(_popped(stack, on_stack, node))
    return found


def _popped(stack: list[N], on_stack: set[N], last: N) -> list[N]:
    component: list[N] = []
    while True:
        node = stack.pop()
        on_stack.discard(node)
        component.append(node)
        if node == last:
            return component
