"""Declared resources are applied, from any state, in any order; nothing else is touched."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import TidemillError
from tidemill.testkit.catalog_memory import MemoryCatalog
from tidemill_operator.objects import ABANDON, ABORT, APPROVE, FINALIZER, PAUSE, Declared
from tidemill_operator.reconciling import (
    AddFinalizer,
    Apply,
    Decide,
    Remove,
    RemoveFinalizer,
    changes,
    owners,
)
from tidemill_operator.tidemill_side import document_of, everything

COLUMNS = [{"name": "n", "type": "int"}]
NAMES = ("a", "b", "c")
ROUNDS_MAX = 12


def spec_of(kind: str, reads: str) -> dict[str, Any]:
    return {
        "Source": {"http": {}, "columns": COLUMNS},
        "Table": {"columns": COLUMNS},
        "View": {"program": "p(x) := q(x);", "inputs": {"q": reads}},
        "Action": {"view": reads, "goal": "p(x)", "sink": {"log": {"topic": "t"}}},
        "Arrangement": {"collection": reads, "key": ["id"]},
        "Hold": {"collection": reads},
    }[kind]


@st.composite
def objects(draw: st.DrawFn) -> list[Declared]:
    """Objects of few names in two namespaces: twins, missing inputs and circles come up."""
    found = []
    for number in range(draw(st.integers(0, 7))):
        kind = draw(
            st.sampled_from(["Source", "Table", "View", "View", "Action", "Arrangement", "Hold"])
        )
        deleting = draw(st.booleans())
        annotations = draw(st.sampled_from([{}, {}, {}, {PAUSE: "true"}, {ABANDON: "true"}]))
        found.append(
            Declared(
                kind, draw(st.sampled_from(["n", "m"])), draw(st.sampled_from(NAMES)), f"u{number}", 1,
                f"2026-01-01T00:00:{draw(st.integers(0, 3)):02}Z",
                spec_of(kind, draw(st.sampled_from(NAMES))),
                annotations=annotations,
                finalizers=(FINALIZER,) if deleting or draw(st.booleans()) else (),
                deleting=deleting,
            )
        )  # fmt: skip
    unique = {(o.kind, o.namespace, o.name): o for o in found}
    return list(unique.values())


@dataclass
class World:
    """The cluster and Tidemill, changed as the driver changes them."""

    objects: list[Declared]
    catalog: MemoryCatalog

    async def step(self) -> bool:
        """Carry out what is planned; whether anything was different."""
        before = (list(self.objects), dict(self.catalog.resources))
        for change in changes(self.objects, await everything(self.catalog)):
            each = change.of
            try:
                match change:
                    case AddFinalizer():
                        self._finalize(each, True)
                    case RemoveFinalizer():
                        self._finalize(each, False)
                    case Apply():
                        await self.catalog.apply([document_of(each)])
                    case Decide():
                        await self.catalog.decide(each.name, change.decision, change.version)
                    case Remove():
                        await self.catalog.delete(each.kind, each.name)
                        self._finalize(each, False)
            except TidemillError:
                pass
        return before != (list(self.objects), dict(self.catalog.resources))

    def _finalize(self, each: Declared, held: bool) -> None:
        if each.deleting and not held:
            self.objects = [o for o in self.objects if o.uid != each.uid]
        else:
            changed = replace(each, finalizers=(FINALIZER,) if held else ())
            self.objects = [changed if o.uid == each.uid else o for o in self.objects]


def settled(world: World) -> None:
    async def run() -> None:
        for _ in range(ROUNDS_MAX):
            if not await world.step():
                return
        raise AssertionError("no rest after many rounds")

    asyncio.run(run())


def possible(declared: Sequence[Declared]) -> set[tuple[str, str]]:
    """Keys of living, owned, unpaused objects all of whose inputs are possible: the obvious
    twin.
    """
    first = owners(declared, {})
    wanted = [
        o for o in declared if first[o.key] == o.uid and not o.deleting and not o.paused
    ]  # fmt: skip
    made: set[tuple[str, str]] = set()
    while True:
        names = {name for kind, name in made if kind in ("Source", "Table", "View")}
        more = {
            o.key for o in wanted
            if o.kind in ("Source", "Table") or _read(o) in names
        }  # fmt: skip
        if more <= made:
            return made
        made |= more


def _read(each: Declared) -> str:
    spec = each.spec
    return str(spec.get("collection") or spec.get("view") or spec["inputs"]["q"])


@settings(max_examples=150, deadline=None)
@given(objects())
def test_from_nothing_all_that_is_possible_comes_to_be(declared: list[Declared]) -> None:
    declared = [replace(o, deleting=False) for o in declared]
    world = World(declared, MemoryCatalog())
    settled(world)
    assert set(world.catalog.resources) == possible(declared)
    assert all(o.held for o in world.objects if o.key in world.catalog.resources and not o.paused
               and owners(world.objects, {})[o.key] == o.uid)  # fmt: skip
    assert not asyncio.run(world.step())


@settings(max_examples=150, deadline=None)
@given(objects(), st.lists(st.integers(0, 6), max_size=4))
def test_deleted_objects_go_unless_others_read_them(
    declared: list[Declared], delete: list[int]
) -> None:
    world = World([replace(o, deleting=False, annotations={}) for o in declared], MemoryCatalog())
    settled(world)
    made = dict(world.catalog.resources)
    first = owners(world.objects, {})
    gone = {index for index in delete if index < len(world.objects)}
    world.objects = [
        replace(o, deleting=True) if number in gone else o for number, o in enumerate(world.objects)
    ]
    leaving = [o for o in world.objects if o.deleting]
    world.objects = [o for o in world.objects if not o.deleting or o.held]
    settled(world)
    for each in leaving:
        if first[each.key] != each.uid or each.key not in made:
            assert each.uid not in {o.uid for o in world.objects}
            continue
        still = each.uid in {o.uid for o in world.objects}
        assert still == (each.key in world.catalog.resources and _is_read(world, each))


def _is_read(world: World, each: Declared) -> bool:
    reading = [world.catalog._reads(r) for r in world.catalog.resources.values()]
    return each.kind in ("Source", "Table", "View") and any(each.name in names for names in reading)


@settings(deadline=None)
@given(objects())
def test_what_nobody_declared_is_never_touched(declared: list[Declared]) -> None:
    catalog = MemoryCatalog()
    foreign = Declared("Table", "n", "foreign", "x", 1, "", spec_of("Table", ""))
    asyncio.run(catalog.apply([document_of(foreign)]))
    settled(World(declared, catalog))
    assert ("Table", "foreign") in catalog.resources


@settings(deadline=None)
@given(objects())
def test_a_paused_object_is_left_alone(declared: list[Declared]) -> None:
    paused = [replace(o, annotations={PAUSE: "true"}) for o in declared]
    assert changes(paused, {}) == []


def test_the_way_out_leaves_the_resource() -> None:
    table = Declared(
        "Table", "n", "t", "u", 1, "", spec_of("Table", ""), annotations={ABANDON: "true"},
        finalizers=(FINALIZER,),
    )  # fmt: skip
    world = World([table], MemoryCatalog())
    settled(world)
    world.objects = [replace(table, deleting=True)]
    settled(world)
    assert world.objects == []
    assert ("Table", "t") in world.catalog.resources


def test_an_annotation_with_its_number_decides_on_the_version_that_waits() -> None:
    table = Declared("Table", "n", "t", "t", 1, "", spec_of("Table", ""), finalizers=(FINALIZER,))
    view = Declared("View", "n", "v", "u", 1, "", spec_of("View", "t"), finalizers=(FINALIZER,))
    for said, decided in (
        ({APPROVE: "2"}, ["approve View/v"]),
        ({ABORT: "2"}, ["abort View/v"]),
        ({APPROVE: "2", ABORT: "2"}, ["abort View/v"]),
        ({APPROVE: "1"}, []),  # of an earlier version
        ({}, []),
    ):
        world = World([table, view], MemoryCatalog())
        settled(world)
        world.catalog.log.clear()
        world.catalog.waiting = {"v": 2}
        world.objects = [table, replace(view, annotations=said)]
        settled(world)
        assert world.catalog.log == decided, said
