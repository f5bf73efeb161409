"""Whether transactions over lists could have happened one at a time, in the order of real time.

A transaction reads whole lists, then appends elements. Each element is appended only once by
anybody. So reads show the order of elements, and from it the order of transactions. Four relations
give it: reads of another's elements, missing elements, the order of appends, and ends before
begins. The history is strictly serializable iff these have no cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

FAILED = "failed"
"""The answer of a transaction that surely did not happen."""

Element = int
Key = str


@dataclass(frozen=True, slots=True)
class Transaction:
    """The reads and appends of one transaction; `ended` is None if its outcome is unknown.

    One that `failed` surely did not happen. Elements are appended to a list in the order given.
    """

    name: str
    began: int
    ended: int | None
    reads: Mapping[Key, Sequence[Element]]
    appends: Sequence[tuple[Key, Element]]
    failed: bool = False


def anomalies(history: Sequence[Transaction], final: Mapping[Key, Sequence[Element]]) -> list[str]:
    """Contradictions between the history and strict serializability; empty if there are none.

    `final` are the lists at the end. Cost: O(n log n) in elements read and appended.
    """
    writers: dict[tuple[Key, Element], Transaction] = {}
    for transaction in history:
        for place in transaction.appends:
            if place in writers:
                return [f"{place} is appended by {writers[place].name} and {transaction.name}"]
            writers[place] = transaction
    found = [*_lost(history, final), *_misread(history, final, writers)]
    return found or _cycle(history, final, writers)


def _lost(history: Sequence[Transaction], final: Mapping[Key, Sequence[Element]]) -> Iterable[str]:
    """Elements that were acknowledged and are not there; transactions that happened by half."""
    present = {(key, element) for key, elements in final.items() for element in elements}
    for transaction in history:
        there = [place in present for place in transaction.appends]
        if transaction.ended is not None and not transaction.failed and not all(there):
            yield f"{transaction.name} was acknowledged, and its appends are lost"
        elif any(there) and not all(there):
            yield f"{transaction.name} happened by half"


def _misread(
    history: Sequence[Transaction],
    final: Mapping[Key, Sequence[Element]],
    writers: Mapping[tuple[Key, Element], Transaction],
) -> Iterable[str]:
    """Reads of what nobody appended, of what failed, or in an order that the list does not have."""
    for key, elements in final.items():
        if len(set(elements)) != len(elements):
            yield f"{key} has an element twice: {list(elements)}"
        for element in elements:
            writer = writers.get((key, element))
            if writer is None:
                yield f"{key} has {element}, which nobody appended"
            elif writer.failed:
                yield f"{key} has {element} of {writer.name}, which failed"
    for transaction in history:
        if transaction.failed or transaction.ended is None:
            continue
        for key, elements in transaction.reads.items():
            if list(elements) != list(final.get(key, ()))[: len(elements)]:
                yield f"{transaction.name} read {key} as {list(elements)}, which it never was"


def _cycle(
    history: Sequence[Transaction],
    final: Mapping[Key, Sequence[Element]],
    writers: Mapping[tuple[Key, Element], Transaction],
) -> list[str]:
    """The transactions that cannot be put in an order, if there are any."""
    order: TopologicalSorter[str] = TopologicalSorter()
    for key, elements in final.items():
        for before, after in pairwise(elements):
            _precedes(order, writers[key, before].name, writers[key, after].name)
    for transaction in history:
        if transaction.failed or transaction.ended is None:
            continue
        for key, seen in transaction.reads.items():
            elements = final.get(key, ())
            if seen:
                _precedes(order, writers[key, seen[-1]].name, transaction.name)
            if len(seen) < len(elements):
                _precedes(order, transaction.name, writers[key, elements[len(seen)]].name)
    _real_time(order, history, {writers[place].name for place in _places(final)})
    try:
        order.prepare()
    except CycleError as error:
        names = [name for name in error.args[1] if not name.startswith(INSTANT)]
        return [f"no order of {' → '.join(reversed(names))} explains what they read"]
    return []


INSTANT = "instant "


def _real_time(
    order: TopologicalSorter[str], history: Sequence[Transaction], seen: set[str]
) -> None:
    """A transaction that ended before another began comes first: along a chain of instants of
    ends.
    """
    events: list[tuple[int, bool, str]] = []
    for transaction in history:
        if transaction.failed or (transaction.ended is None and transaction.name not in seen):
            continue
        events.append((transaction.began, False, transaction.name))
        if transaction.ended is not None:
            events.append((transaction.ended, True, transaction.name))
    last: str | None = None
    for number, (_, ends, name) in enumerate(sorted(events)):
        if ends:
            instant = f"{INSTANT}{number}"
            order.add(instant, name, *([last] if last else []))
            last = instant
        elif last:
            order.add(name, last)


def _precedes(order: TopologicalSorter[str], before: str, after: str) -> None:
    if before != after:
        order.add(after, before)


def _places(final: Mapping[Key, Sequence[Element]]) -> Iterable[tuple[Key, Element]]:
    return ((key, element) for key, elements in final.items() for element in elements)
