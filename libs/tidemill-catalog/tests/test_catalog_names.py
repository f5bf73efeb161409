"""Names of collections: found at once however many there are, and as a look through all would find
them.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import replace
from difflib import get_close_matches
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tidemill.catalog.apply.permissions import decided
from tidemill.catalog.catalog import Catalog
from tidemill.catalog.entry import CREATED, SYSTEM, CatalogEntry
from tidemill.catalog.names import COMPARED_MAX, Names, resource_of
from tidemill.catalog.output_columns import outputs_of
from tidemill.catalog.programs import CHARS_KEPT, Programs
from tidemill.catalog.record_rows import shape_of_relation
from tidemill.catalog.store import Stored
from tidemill.catalog.tick_plans import tick_plan
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import missing_in
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.inputs import InputSchema
from tidemill.datalog.vocabulary import STANDARD
from tidemill.errors import AlreadyUsed, UnknownCollection, UsageError
from tidemill.rpc.identity import PROCESS
from tidemill.runtime.resources import load_resources
from tidemill.testkit.documents import document

SHAPE = shape_of_relation("p", pa.schema([("n", pa.int64())]))
LONG = {
    "tidemill.catalog.catalog.outputs_of": outputs_of,
    "tidemill.catalog.catalog.tick_plan": tick_plan,
    "tidemill.datalog.dataflow.missing_in": missing_in,
}
"""Long work on a long program, by the place that calls it."""
RESOURCES = ("a", "b", "ab", "c")
PARTS = ("", "/p", "/q", "/p/q")
KINDS = ("View", "Source", CREATED)


@pytest.mark.parametrize("seed", range(20))
def test_d5_indexes_find_what_a_look_through_all_names_finds(seed: int) -> None:
    random, names, known = Random(seed), Names(), dict[str, CatalogEntry]()
    for number in range(120):
        name = random.choice(RESOURCES) + random.choice(PARTS)
        if random.random() < 0.7:
            kind = random.choice(KINDS)
            known[name] = CatalogEntry(name, f"{name}~{number}", SYSTEM, kind, SHAPE)
            names.add(known[name])
        else:
            known.pop(name, None)
            names.remove(name)
        agrees(names, known)
    assert len(known) > 3


def agrees(names: Names, known: dict[str, CatalogEntry]) -> None:
    created = {name for name, named in known.items() if named.kind == CREATED}
    assert set(names.all_created()) == created
    assert names.resources() == {resource_of(name) for name in known}
    for named in known.values():
        assert names.name_of(named.collection) == named.name
    for resource in RESOURCES:
        below = {name for name in known if resource_of(name) == resource}
        assert set(names.below(resource)) == below
        assert (names.created(resource) in created) == bool(below & created)
        if below <= created:
            names.refuse_taken(f"{resource}/new")
        else:
            with pytest.raises(AlreadyUsed):
                names.refuse_taken(f"{resource}/new")
    for predicate in ("p", "q", "none"):
        views = [
            n for n, each in known.items() if each.kind == "View" and n.endswith(f"/{predicate}")
        ]
        assert names.knows(predicate) == (len(views) == 1)
        if len(views) == 1:
            assert names.named(predicate) is known[views[0]]
        else:
            with pytest.raises(UnknownCollection):
                names.named(predicate)


def test_what_is_below_a_name_is_not_what_begins_alike() -> None:
    names = Names()
    for name in ("a", "a/b", "a/b/c", "a/bc", "ab"):
        names.add(CatalogEntry(name, name, SYSTEM, CREATED, SHAPE))
    assert names.below("a") == ["a", "a/b", "a/b/c", "a/bc"]
    assert names.below("a/b") == ["a/b", "a/b/c"]


KINDS_OF = {
    "s": ("Table", "{columns: [{name: n, type: int}]}"),
    "v": ("View", '{program: "p(n) := s(n);"}'),
    "w": ("View", '{program: "q(n) := p(n) ^ s(n);"}'),
    "a": ("Arrangement", "{collection: q, key: [c0]}"),
    "h": ("Hold", "{collection: s, frontier: 0}"),
    "t": ("Action", '{view: w, goal: "q(n)", sink: {file: {path: /tmp/told}}}'),
    "u": ("Table", "{columns: [{name: n, type: int}]}"),
}


@pytest.mark.parametrize("seed", range(10))
def test_d5_each_begins_after_what_it_reads_and_beside_what_it_does_not(seed: int) -> None:
    catalog, stored = Catalog(), []
    for name, (kind, spec) in KINDS_OF.items():
        stored.append(Stored(load_resources(document(kind, name, spec), "test.yaml")[0], 0))
        catalog.plan(stored[-1])
    Random(seed).shuffle(stored)
    levels = [sorted(each.resource.name for each in level) for level in catalog.levels(stored)]
    assert levels == [["s", "u"], ["h", "v"], ["w"], ["a", "t"]]


def test_d5_a_view_of_corrections_begins_after_its_action_unless_the_action_waits_for_it() -> None:
    catalog, stored = Catalog(), []
    corrected = '{inputs: {c: t/corrections}, program: "q(n) := c(sequence: n);"}'
    for name, kind, spec in (*((n, *KINDS_OF[n]) for n in "svwt"), ("x", "View", corrected)):
        stored.append(Stored(load_resources(document(kind, name, spec), "test.yaml")[0], 0))
        catalog.plan(stored[-1])
    levels = [sorted(each.resource.name for each in level) for level in catalog.levels(stored)]
    assert levels == [["s"], ["v"], ["w"], ["t"], ["x"]]
    stored[2] = Stored(load_resources(document("View", "w", corrected), "test.yaml")[0], 0)
    catalog.plan(stored[2])
    levels = [sorted(each.resource.name for each in level) for level in catalog.levels(stored)]
    assert sorted(itertools.chain(*levels)) == ["s", "t", "v", "w", "x"]


@pytest.mark.parametrize("many", [10, 10 * COMPARED_MAX])
def test_s7_an_unknown_name_is_compared_with_few_however_many_there_are(
    many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0

    def close(name: str, known: Collection[str], n: int) -> list[str]:
        nonlocal compared
        compared += len(known)
        return get_close_matches(name, known, n)

    monkeypatch.setattr("tidemill.catalog.names.get_close_matches", close)
    catalog = Catalog()
    for number in range(many):
        catalog.add(CatalogEntry(f"x{number}/y", f"x{number}/y", SYSTEM, "View", SHAPE))
    catalog.add(CatalogEntry("flights/delayed", "flights/delayed", SYSTEM, "View", SHAPE))
    for misspelt in ("fligths/delayed", "delayd"):
        with pytest.raises(UnknownCollection, match=r"did you mean (flights/)?delayed\?"):
            catalog.named(misspelt)
    assert 0 < compared <= 4 * COMPARED_MAX


def test_a3_a_resource_that_reads_what_there_is_not_compares_its_name_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each time takes milliseconds of the event loop."""
    compared: list[str] = []

    def close(name: str, known: Collection[str], n: int) -> list[str]:
        compared.append(name)
        return get_close_matches(name, known, n)

    monkeypatch.setattr("tidemill.catalog.names.get_close_matches", close)
    text = document("Arrangement", "a", "{collection: fligths, key: [n]}")
    with pytest.raises(UnknownCollection):
        decided(Stored(load_resources(text, "test.yaml")[0], 0), Catalog(), PROCESS)
    assert compared == ["fligths"]


async def test_s7_a_view_is_planned_beside_the_event_loop_and_found_by_its_plan() -> None:
    catalog, threads = Catalog(), defaultdict[str, list[threading.Thread]](list)

    def told(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def done(*given: Any) -> Any:
            threads[name].append(threading.current_thread())
            return work(*given)

        return done

    with pytest.MonkeyPatch.context() as patch:
        for place, work in LONG.items():
            patch.setattr(place, told(place, work))
        for name in "sv":
            kind, spec = KINDS_OF[name]
            stored = Stored(load_resources(document(kind, name, spec), "test.yaml")[0], 0)
            await catalog.foresee(stored)
            catalog.plan(stored)
        assert set(threads) == set(LONG)
        assert threading.main_thread() not in itertools.chain(*threads.values())
        fresh = replace(stored, incarnation=stored.incarnation + 1)
        assert catalog.plan_view(fresh).outputs["p"].collection.startswith(fresh.prefix)
        assert threading.main_thread() in itertools.chain(*threads.values())


def test_a_view_that_nothing_can_keep_is_refused_with_its_place() -> None:
    catalog, columns = Catalog(), ", ".join(f"c{n}" for n in range(70))
    names = ", ".join(f"{{name: c{n}, type: int}}" for n in range(70))
    table = document("Table", "wide", f"{{columns: [{names}]}}")
    catalog.plan(Stored(load_resources(table, "test.yaml")[0], 0))
    view = document("View", "v", f'{{program: "p({columns}) := wide({columns});"}}')
    stored = Stored(load_resources(view, "test.yaml")[0], 1)
    with pytest.raises(UsageError, match=r"test.yaml:.*spec.program: .*more than .* columns"):
        catalog.plan(stored)
    reader = Catalog(judges=False)  # of a process that keeps no views
    reader.plan(Stored(load_resources(table, "test.yaml")[0], 0))
    planned = reader.plan(stored)
    assert planned is not None
    assert [*planned.outputs] == ["p"]


def test_a3_long_programs_are_not_remembered_for_long() -> None:
    programs = Programs()
    short = [f"p(n) := t(n) if n > {number};" for number in range(100)]
    known = [programs.read(text, "short.tl") for text in short]
    assert all(
        programs.read(text, "short.tl") is each for text, each in zip(short, known, strict=True)
    )
    long = [text + " " * (CHARS_KEPT // 4) for text in short]
    for text in long:
        assert programs.read(text, "long.tl") is programs.read(text, "long.tl")
    first = programs.read(long[0], "long.tl")
    for text in long[1:5]:
        programs.read(text, "long.tl")
    assert programs.read(long[0], "long.tl") is not first
    alone = "p(n) := t(n);" + " " * (2 * CHARS_KEPT)
    assert programs.read(alone, "one.tl") is programs.read(alone, "one.tl")


def test_a_program_that_is_right_is_checked_without_the_names_of_all_others() -> None:
    """Each of a thousand views listed the names of all, and asked who may read each of them."""
    programs, asked = Programs(), []

    def names() -> tuple[str, ...]:
        asked.append(1)
        return ("tables",)

    def checked(text: str) -> CheckedProgram:
        inputs = {"table": InputSchema("table", "relation", (("n", "int"),))}
        return programs.checked(text, "a.tl", inputs, STANDARD, names)

    right = "p(n: n) := table(n);"
    assert checked(right) is checked(right)
    assert not asked
    for _ in range(2):
        with pytest.raises(ProgramErrors) as refused:
            checked("p(n: n) := tables_(n);")
        assert refused.value.diagnostics[0].hint == "did you mean `tables`?"
    assert len(asked) == 2
