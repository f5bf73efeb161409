"""Laws of loops: after any sequence of changes they hold what a computation from scratch finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.loops import (
    Changes,
    Collection,
    Computation,
    Input,
    Loop,
    Output,
)
from tidemill.arrangement.loops.reductions import least
from tidemill.errors import UsageError
from tidemill.testkit.twins.loops import (
    closure,
    distances,
    fixed_point,
    inside_components,
    least_reaching,
)

HALF = np.uint64(32)
LOW = np.uint64(2**32 - 1)
NODES = 6

Edge = tuple[int, int]


def batch(rows: Counter[Edge]) -> Changes:
    """Changes from records with diffs."""
    return Changes.of([a for a, _ in rows], [b for _, b in rows], list(rows.values()))


class Maintained:
    """An output summed up over all epochs, next to the multiset that its input has become."""

    def __init__(self, build: Callable[[Computation, Input], Collection]) -> None:
        self.computation = Computation()
        self.source = self.computation.input()
        self.output: Output = self.computation.output(build(self.computation, self.source))
        self.edges: Counter[Edge] = Counter()
        self.result: Counter[Edge] = Counter()

    def step(self, changes: Counter[Edge]) -> None:
        """One epoch."""
        self.computation.step(self.computation.upper, {self.source: batch(changes)})
        found = self.output.take()
        records = list(zip(found.keys.tolist(), found.vals.tolist(), strict=True))
        assert len(set(records)) == len(records)
        assert 0 not in found.diffs
        for record, diff in zip(records, found.diffs.tolist(), strict=True):
            self.result[record] += diff
        for record, diff in changes.items():
            self.edges[record] += diff

    @property
    def present(self) -> set[Edge]:
        """The records of the input."""
        return {edge for edge, n in self.edges.items() if n > 0}

    def holds(self, expected: frozenset[Edge]) -> bool:
        """Whether the output is exactly this set, each record once."""
        return {record: n for record, n in self.result.items() if n} == dict.fromkeys(expected, 1)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Counter[Edge], bool]]:
    """Epochs that add and remove edges, never more than there are; and whether to sweep after."""
    present: Counter[Edge] = Counter()
    epochs = []
    for _ in range(draw(st.integers(1, 5))):
        changes: Counter[Edge] = Counter()
        node = st.integers(0, NODES - 1)
        for edge in draw(st.lists(st.tuples(node, node), max_size=8)):
            changes[edge] += 1
        held = sorted(edge for edge, n in present.items() if n > 0)
        for edge in draw(st.lists(st.sampled_from(held), max_size=5, unique=True)) if held else ():
            changes[edge] -= draw(st.integers(1, present[edge]))
        present.update(changes)
        epochs.append((changes, draw(st.booleans())))
    return epochs


def paths(computation: Computation, edges: Input) -> Collection:
    """All pairs connected by a path."""
    loop = computation.loop()
    known = loop.enter(edges.distinct())
    found = loop.variable()
    result = found.swap().join(known, lambda _, a, c: (a, c)).concat(known).distinct()
    found.set(result)
    return loop.leave(result)


def paths_from_themselves(_: Computation, edges: Input) -> Collection:
    """The same, from the edges on, each path joined with each other."""

    def body(_: Loop, found: Collection) -> Collection:
        return found.swap().join(found, lambda _, a, c: (a, c)).concat(found).distinct()

    return edges.distinct().iterate(body)


def lengths(_: Computation, edges: Input) -> Collection:
    """Distances from node 0, which is there as soon as any edge is."""
    roots = edges.map(lambda a, _: (0 * a, 0 * a)).distinct()

    def body(loop: Loop, found: Collection) -> Collection:
        onward = found.join(loop.enter(edges), lambda _, length, b: (b, length + np.uint64(1)))
        return onward.concat(loop.enter(roots)).reduce(least)

    return roots.iterate(body)


def labels(
    outer: Computation | Loop, edges: Collection, nodes: Collection, late: bool
) -> Collection:
    """Each node with the least node that leads to it; large labels enter in later rounds."""
    loop = outer.loop()
    known = loop.enter(edges)
    own = loop.enter_at(nodes, lambda _, label: 3 * label) if late else loop.enter(nodes)
    offered = loop.variable(netting=False)
    result = offered.concat(own).reduce(least)
    offered.set(result.join(known, lambda _, label, b: (b, label)))
    return loop.leave(result)


def ends(edges: Collection) -> Collection:
    """Each node that an edge leads to, labelled with itself."""
    return edges.map(lambda _, b: (b, b)).distinct()


def trimmed(loop: Loop, cycle: Collection, edges: Collection, late: bool) -> Collection:
    """The edges, turned round, whose ends get the same label through `cycle`."""
    found = labels(loop, cycle, ends(edges), late)
    half = edges.join(found, lambda a, b, label: (b, a << HALF | label))
    both = half.join(found, lambda b, pair, label: (b, _where_equal(pair, label)))
    return both.filter(lambda _, a: a != LOW)


def _where_equal(pair: Any, label: Any) -> Any:
    return np.where(pair & LOW == label, pair >> HALF, LOW)


def components(late: bool) -> Callable[[Computation, Input], Collection]:
    """Edges inside strongly connected components: loops in a loop."""

    def build(computation: Computation, source: Input) -> Collection:
        loop = computation.loop()
        edges = loop.enter(source.distinct())
        left = loop.variable()
        backwards = trimmed(loop, edges.concat(left), edges, late)
        result = trimmed(loop, backwards, edges.swap(), late)
        left.set(result.minus(edges))
        return loop.leave(result)

    return build


def nested(depth: int) -> Callable[[Computation, Input], Collection]:
    """The closure by loops nested `depth` deep, each of which closes what the others left."""

    def build(computation: Computation, source: Input) -> Collection:
        def closed(outer: Computation | Loop, edges: Collection, level: int) -> Collection:
            loop = outer.loop()
            known = loop.enter(edges)
            found = loop.variable()
            all_known = known.concat(found).distinct()
            if level == depth:
                more = all_known.swap().join(known, lambda _, a, c: (a, c)).concat(known)
                result = more.distinct()
            else:
                result = closed(loop, all_known.filter(lambda a, _: a % 2 == level % 2), level + 1)
                longer = all_known.swap().join(all_known, lambda _, a, c: (a, c))
                result = longer.concat(all_known, result).distinct()
            found.set(result)
            return loop.leave(result)

        return closed(computation, source.distinct(), 1)

    return build


PROGRAMS: dict[str, tuple[Any, Callable[[set[Edge]], frozenset[Edge]]]] = {
    "paths": (paths, closure),
    "paths from themselves": (paths_from_themselves, closure),
    "lengths": (lengths, lambda edges: distances(edges, [0] if edges else [])),
    "labels": (
        lambda computation, edges: labels(computation, edges.distinct(), ends(edges), False),
        lambda edges: least_reaching(edges, {b for _, b in edges}),
    ),
    "late labels": (
        lambda computation, edges: labels(computation, edges.distinct(), ends(edges), True),
        lambda edges: least_reaching(edges, {b for _, b in edges}),
    ),
    "components": (components(False), inside_components),
    "components with late labels": (components(True), inside_components),
    "two loops deep": (nested(2), closure),
    "three loops deep": (nested(3), closure),
    "four loops deep": (nested(4), closure),
}


@pytest.mark.parametrize("name", PROGRAMS)
@settings(deadline=None, max_examples=30)
@given(history=histories())
def test_a_loop_holds_what_a_computation_from_scratch_finds(
    name: str, history: list[tuple[Counter[Edge], bool]]
) -> None:
    build, twin = PROGRAMS[name]
    maintained = Maintained(build)
    for changes, sweep in history:
        maintained.step(changes)
        assert maintained.holds(twin(maintained.present))
        if sweep:
            maintained.computation.sweep()


def test_a_cycle_does_not_support_itself_once_nothing_else_does() -> None:
    maintained = Maintained(lengths)
    ring = [(1, 2), (2, 3), (3, 1)]
    maintained.step(Counter(dict.fromkeys([(0, 1), *ring], 1)))
    assert maintained.holds(frozenset({(0, 0), (1, 1), (2, 2), (3, 3)}))
    maintained.step(Counter({(0, 1): -1}))
    assert maintained.holds(frozenset({(0, 0)}))


def test_predicates_may_depend_on_each_other() -> None:
    """Paths of odd and of even length, each defined by the other."""

    def build(computation: Computation, source: Input) -> Collection:
        loop = computation.loop()
        edges = loop.enter(source.distinct())
        odd, even = loop.variable(), loop.variable()
        longer_even = odd.swap().join(edges, lambda _, a, c: (a, c)).distinct()
        longer_odd = even.swap().join(edges, lambda _, a, c: (a, c)).concat(edges).distinct()
        odd.set(longer_odd)
        even.set(longer_even)
        return loop.leave(longer_even)

    maintained = Maintained(build)
    for edges in ([(0, 1), (1, 2), (2, 0)], [(2, 3)], [(3, 3)]):
        maintained.step(Counter(edges))
        maintained.step(Counter({(0, 1): -1}))
        maintained.step(Counter({(0, 1): 1}))
        known = frozenset(maintained.present)
        by_two = frozenset((a, d) for a, b in known for c, d in known if b == c)
        even = fixed_point(
            by_two, lambda now, two=by_two: now | {(a, d) for a, b in now for c, d in two if b == c}
        )
        assert maintained.holds(even)


def test_operators_outside_of_loops_are_kept_up_to_date_too() -> None:
    computation = Computation()
    left, right = computation.input(), computation.input()
    outputs = {
        "semijoin": computation.output(left.semijoin(right)),
        "antijoin": computation.output(left.antijoin(right)),
        "twice": computation.output(left.threshold(lambda _keys, _vals, n: 2 * n)),
        "selfjoin": computation.output(left.join(left, lambda key, a, b: (key, 10 * a + b))),
        "doubled": computation.output(
            left.flat_map(lambda k, v: (np.repeat(np.arange(len(k)), 2), np.repeat(k, 2), np.repeat(v, 2)))
        ),
    }  # fmt: skip
    computation.step(0, {left: Changes.of([1, 1, 2], [1, 2, 3]), right: Changes.of([1], [9])})
    taken = {name: _rows(output) for name, output in outputs.items()}
    assert taken == {
        "semijoin": {(1, 1): 1, (1, 2): 1},
        "antijoin": {(2, 3): 1},
        "twice": {(1, 1): 2, (1, 2): 2, (2, 3): 2},
        "selfjoin": {(1, 11): 1, (1, 12): 1, (1, 21): 1, (1, 22): 1, (2, 33): 1},
        "doubled": {(1, 1): 2, (1, 2): 2, (2, 3): 2},
    }
    computation.step(
        5, {left: Changes.of([1], [1], [-1]), right: Changes.of([1, 2], [9, 9], [-1, 1])}
    )
    taken = {name: _rows(output) for name, output in outputs.items()}
    assert taken == {
        "semijoin": {(1, 1): -1, (1, 2): -1, (2, 3): 1},
        "antijoin": {(1, 2): 1, (2, 3): -1},
        "twice": {(1, 1): -2},
        "selfjoin": {(1, 11): -1, (1, 12): -1, (1, 21): -1},
        "doubled": {(1, 1): -2},
    }


def _rows(output: Output) -> dict[Edge, int]:
    found = output.take()
    columns = (found.keys.tolist(), found.vals.tolist(), found.diffs.tolist())
    return {(key, val): diff for key, val, diff in zip(*columns, strict=True)}


def test_a_constant_is_there_from_the_first_epoch_on() -> None:
    computation = Computation()
    source = computation.input()
    constant = computation.constant(Changes.of([7], [8]))
    output = computation.output(source.concat(constant))
    computation.step(0, {})
    assert _rows(output) == {(7, 8): 1}
    computation.step(1, {source: Changes.of([1], [2])})
    assert _rows(output) == {(1, 2): 1}
    with pytest.raises(UsageError):
        computation.constant(Changes.of([1], [1]))


def test_large_changes_take_the_short_cuts_and_end_alike() -> None:
    """Many rows at once are evaluated as they come, and netted by sorting."""
    nodes = 90
    rng = np.random.default_rng(nodes)
    maintained = Maintained(paths)
    edges = {(a, b) for a, b in rng.integers(0, nodes, (2 * nodes, 2)).tolist()}
    maintained.step(Counter(dict.fromkeys(edges, 2)))
    assert len(maintained.result) > 4096
    assert maintained.holds(closure(maintained.present))
    gone = set(sorted(edges)[::3])
    maintained.step(Counter(dict.fromkeys(gone, -2)))
    assert maintained.holds(closure(maintained.present))
    maintained.step(Counter(dict.fromkeys(gone, 1)))
    assert maintained.holds(closure(maintained.present))


def test_many_changes_of_groups_are_placed_at_once_and_end_alike() -> None:
    nodes = 400
    rng = np.random.default_rng(nodes)
    maintained = Maintained(lengths)
    edges = {(a, b) for a, b in rng.integers(0, nodes, (3 * nodes, 2)).tolist()}
    gone = set(sorted(edges)[::3])
    maintained.step(Counter(dict.fromkeys(edges, 1)))
    assert maintained.holds(distances(maintained.present, [0]))
    maintained.step(Counter(dict.fromkeys(gone, -1)))
    assert maintained.holds(distances(maintained.present, [0]))
    maintained.step(Counter(dict.fromkeys(gone, 2**40)))
    assert maintained.holds(distances(maintained.present, [0]))


def test_records_of_great_numbers_are_loaded_without_bits_for_them() -> None:
    maintained = Maintained(lambda _, source: source.distinct())
    edges = {(2**50 + a, 2**60 + b) for a in range(30) for b in range(20)}
    maintained.step(Counter(dict.fromkeys(edges | {(1, 2)}, 2**40)))
    assert maintained.holds(frozenset(edges | {(1, 2)}))
    maintained.step(Counter(dict.fromkeys(edges, -(2**40))))
    assert maintained.holds(frozenset({(1, 2)}))


def test_what_was_removed_takes_no_memory_for_ever() -> None:
    maintained = Maintained(paths)
    sizes = []
    for shift in range(0, 4000, 100):
        ring = Counter({(shift + at, shift + (at + 1) % 20): 1 for at in range(20)})
        maintained.step(ring)
        maintained.step(Counter(dict.fromkeys(ring, -1)))
        sizes.append(maintained.computation.bytes_held)
    assert maintained.holds(frozenset())
    assert max(sizes[10:]) <= 2 * max(sizes[:10])
    maintained.computation.sweep()
    assert maintained.computation.bytes_held < 10_000


def test_sides_of_an_operator_are_in_one_scope() -> None:
    computation = Computation()
    outside = computation.input()
    loop = computation.loop()
    inside = loop.enter(outside)
    with pytest.raises(UsageError):
        inside.concat(outside)
    with pytest.raises(UsageError):
        inside.join(outside, lambda key, _left, right: (key, right))
    with pytest.raises(UsageError):
        computation.output(inside)
    with pytest.raises(UsageError):
        loop.enter(inside)
    with pytest.raises(UsageError):
        loop.leave(outside)


def test_everything_enters_before_anything_leaves() -> None:
    computation = Computation()
    source = computation.input()
    loop = computation.loop()
    loop.leave(loop.enter(source))
    with pytest.raises(UsageError):
        loop.enter(source)


def test_a_variable_is_set_once() -> None:
    loop = Computation().loop()
    variable = loop.variable()
    variable.set(variable)
    with pytest.raises(UsageError):
        variable.set(variable)


def test_loops_are_nested_at_most_four_deep() -> None:
    loop = Computation().loop().loop().loop().loop()
    with pytest.raises(UsageError):
        loop.loop()


def test_epochs_do_not_go_back() -> None:
    computation = Computation()
    computation.step(3, {})
    with pytest.raises(UsageError):
        computation.step(3, {})
    computation.step(4, {})
    assert computation.upper == 5


def counting_up(computation: Computation, source: Input, rounds_max: int | None) -> Collection:
    """A loop without a fixed point: each record becomes the next one for ever."""
    return source.iterate(
        lambda _, found: found.map(lambda key, val: (key, val + np.uint64(1))), rounds_max
    )


def test_a_loop_that_does_not_settle_is_ended_and_breaks_the_computation() -> None:
    computation = Computation()
    source = computation.input()
    computation.output(counting_up(computation, source, 100))
    with pytest.raises(UsageError, match="settle"):
        computation.step(0, {source: Changes.of([1], [1])})
    with pytest.raises(UsageError, match="again"):
        computation.step(1, {})


def test_a_loop_that_runs_out_of_rounds_is_an_error() -> None:
    computation = Computation()
    source = computation.input()
    loop = computation.loop()
    inner = loop.loop().loop().loop()
    inner.variable()
    late = loop.enter_at(source, lambda key, _: key)
    computation.output(loop.leave(late))
    computation.step(0, {source: Changes.of([2**15 - 1], [1])})
    with pytest.raises(UsageError):
        computation.step(1, {source: Changes.of([2**15], [1])})


def test_diffs_never_wrap() -> None:
    most = 2**63 - 1

    def squared(collection: Collection) -> Collection:
        return collection.join(collection, lambda key, left, _: (key, left))

    builds: list[Callable[[Collection], Collection]] = [
        Collection.distinct,
        lambda collection: collection.reduce(least),
        squared,
        Collection.consolidate,
    ]
    for build in builds:
        computation = Computation()
        source = computation.input()
        computation.output(build(source))
        with pytest.raises(UsageError, match="64 bits"):
            computation.step(0, {source: Changes.of([1, 1, 1], [2, 2, 2], [most - 3, 3, 1])})


def test_columns_of_the_wrong_length_are_refused() -> None:
    with pytest.raises(UsageError):
        Changes.of([1, 2], [1])
    computation = Computation()
    source = computation.input()
    computation.output(source.map(lambda keys, vals: (keys[:1], vals)))
    with pytest.raises(UsageError):
        computation.step(0, {source: Changes.of([1, 2], [1, 2])})
