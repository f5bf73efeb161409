"""The catalog: the collections that every resource makes, and the predicates by which programs read
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from graphlib import CycleError, TopologicalSorter

import msgspec
import pyarrow as pa

from tidemill.catalog.audit_schema import AUDIT, AUDIT_SCHEMA
from tidemill.catalog.directory import Readable, SourceOf, TicksOf, ViewOf
from tidemill.catalog.entry import (
    ARRANGEMENT,
    ASIDE,
    COLLECTION,
    CREATED,
    READS,
    SYSTEM,
    CatalogEntry,
    PlannedView,
    located,
    named_source,
    named_table,
    read_name,
    source_of,
    state_of,
)
from tidemill.catalog.names import Names, meant, resource_of
from tidemill.catalog.output_columns import outputs_of
from tidemill.catalog.plugins import LOAD_S, vocabulary_of
from tidemill.catalog.programs import Programs
from tidemill.catalog.record_rows import (
    shape_of_relation,
)
from tidemill.catalog.schemas import (
    ERROR_SCHEMA,
    EVENT_MAP_SCHEMA,
    corrections_schema,
    outbox_schema,
)
from tidemill.catalog.store import Stored
from tidemill.catalog.tick_plans import kept_in_words, number_schema, tick_plan
from tidemill.datalog import vocabulary
from tidemill.datalog.ast import Program
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.inputs import InputSchema
from tidemill.errors import TidemillError, UnknownCollection, UsageError
from tidemill.reclock import REMAP_SCHEMA
from tidemill.rpc.turns import in_turn
from tidemill.runtime.documents import laid_out
from tidemill.runtime.formats import LETTER_SCHEMA
from tidemill.runtime.resources import (
    ActionSpec,
    ArrangementSpec,
    HoldSpec,
    Resource,
    SourceSpec,
    TableSpec,
    ViewSpec,
)
from tidemill.shard import Description


def _begin(view: PlannedView) -> int | None:
    """From where on ticks run, None where only their inputs say it."""
    spec = view.stored.resource.spec
    assert isinstance(spec, ViewSpec)
    if spec.hydrate_from is not None:
        return spec.hydrate_from
    return view.stored.created_ms if view.timeline == SYSTEM else None


def _told_in(resource: Resource) -> str:
    """The place that mistakes in a program name, if these have none in the file."""
    return f"{resource.position.file}: {resource}"


@dataclass(frozen=True, slots=True)
class _Arranged:
    """An arrangement: of which collection, by which columns, and where it is."""

    of: str
    key: tuple[str, ...]
    collection: str


class Catalog(Names):
    """Everything that can be read, by name; grows as resources are planned."""

    def __init__(self, plugin_load_s: float = LOAD_S, *, judges: bool = True) -> None:
        """A process that keeps no views need not judge again what has been applied."""
        super().__init__()
        self._plugin_load_s = plugin_load_s
        self._judges = judges
        self._views: dict[str, PlannedView] = {}
        self._shown: dict[str, ViewOf] = {}
        self._sources: dict[str, SourceOf] = {}
        self._sharing: defaultdict[str, set[str]] = defaultdict(set)
        """The sources that share their bindings, by the name under which they do."""
        self._applied: dict[str, Stored] = {}
        self._arrangements: dict[str, _Arranged] = {}
        self._arranged_of: dict[str, set[str]] = {}
        self._programs = Programs()
        self._foreseen_view: PlannedView | None = None
        """The view that was planned beside the event loop last: `plan` is to find it."""
        self.add(
            CatalogEntry(AUDIT, AUDIT, SYSTEM, ASIDE, shape_of_relation("audit", AUDIT_SCHEMA))
        )

    async def foresee(self, stored: Stored) -> None:
        """Read and check the program of a view beside the event loop, so that `plan` finds it
        done.
        """
        if isinstance(stored.resource.spec, ViewSpec):
            await in_turn(partial(self._foreseen, stored))

    def _foreseen(self, stored: Stored) -> None:
        # The plan of this apply reports a resource that is wrong, or that changes meanwhile.
        with suppress(TidemillError, RuntimeError):
            self.reads_of(stored)
            self._foreseen_view = self.plan_view(stored)

    def plan(self, stored: Stored) -> PlannedView | None:
        """Add what a resource makes.

        Raises: UsageError, ProgramErrors for a view that does not fit.
        """
        spec = stored.resource.spec
        if isinstance(spec, SourceSpec):
            source = named_source(stored)
            self.add(source)
            self._sources[source.name] = source_of(stored)
            self._add_bindings(stored)
            self._add_aside(stored, SYSTEM, deadletters=LETTER_SCHEMA)
            self._applied[source.name] = stored
            if source.timeline != SYSTEM:
                self._add_aside(stored, SYSTEM, eventmap=EVENT_MAP_SCHEMA)
        elif isinstance(spec, TableSpec):
            self.add(named_table(stored))
        elif isinstance(spec, ViewSpec):
            view = self.plan_view(stored)
            self._views[stored.resource.name] = view
            self._shown.pop(stored.resource.name, None)
            for named in view.outputs.values():
                self.add(named)
            self._add_aside(stored, view.program.timeline or SYSTEM, errors=ERROR_SCHEMA)
            return view
        elif isinstance(spec, ActionSpec):
            watched = self.planned(spec.view).outputs[spec.goal.partition("(")[0].strip()]
            corrections = corrections_schema(watched.shape)
            # Early firings stand at the instant of the outbox, not at the instant that makes events
            # definite.
            self._add_aside(
                stored,
                SYSTEM if spec.eager else watched.timeline,
                outbox=outbox_schema(spec.follow, limited=spec.limit is not None),
            )
            self._add_aside(stored, watched.timeline, corrections=corrections)
        elif isinstance(spec, ArrangementSpec):
            self._arrange(stored, spec)
        return None

    def _arrange(self, stored: Stored, spec: ArrangementSpec) -> None:
        """Add an arrangement.

        Raises: UsageError if there is no such collection, or it has no such columns.
        """
        resource = stored.resource
        with located(resource, "spec", "collection"):
            named = self.named(read_name(stored, spec.collection))
            if named.kind == ARRANGEMENT:
                raise UsageError(
                    f"{named.name} is an arrangement itself: arrange what it arranges",
                    reason="Arrangement",
                )
        for number, column in enumerate(spec.key):
            if column not in named.shape.schema.names:
                with located(resource, "spec", "key", number):
                    raise UsageError(
                        f"{named.name} has no column {column}; it has "
                        f"{', '.join(named.shape.schema.names)}",
                        reason="UnknownColumn",
                    )
        self._disarrange(resource.name)
        self._arrangements[resource.name] = _Arranged(named.name, spec.key, stored.prefix)
        self._arranged_of.setdefault(named.name, set()).add(resource.name)
        self.add(named)

    def learn(self, name: str, description: Description) -> None:
        """A collection that users have created can be read by its name, on the timeline that they
        said.
        """
        shape = shape_of_relation(name.rpartition("/")[2], description.schema)
        self.add(CatalogEntry(name, name, description.timeline, CREATED, shape))

    def arranged(self, name: str) -> dict[tuple[str, ...], str]:
        """The arrangements of a collection: key columns → the collection that is sorted by them."""
        found = (self._arrangements[each] for each in self._arranged_of.get(name, ()))
        return {arranged.key: arranged.collection for arranged in found}

    def _disarrange(self, name: str) -> None:
        arranged = self._arrangements.pop(name, None)
        if arranged is not None:
            self._arranged_of[arranged.of].discard(name)

    def _add_bindings(self, stored: Stored) -> None:
        """Add the bindings of a source, those that it shares also under the name of all who share
        them.
        """
        shape = shape_of_relation("remap", REMAP_SCHEMA)
        names = [stored.resource.name]
        if stored.shares is not None:
            self._sharing[stored.shares].add(stored.resource.name)
            names = [stored.shares, *names]
        for name in names:
            self.add(CatalogEntry(f"{name}/remap", stored.remap, SYSTEM, ASIDE, shape))

    def sharing(self, name: str) -> frozenset[str]:
        """The sources that share their bindings under a name."""
        return frozenset(self._sharing.get(name, ()))

    def _add_aside(self, stored: Stored, timeline: str, **schemas: pa.Schema) -> None:
        """Collections that a resource makes beside its own: they can be read, not derived from."""
        for what, schema in schemas.items():
            name = f"{stored.resource.name}/{what}"
            shape = shape_of_relation(what, schema)
            self.add(CatalogEntry(name, f"{stored.prefix}/{what}", timeline, ASIDE, shape))

    def add(self, named: CatalogEntry) -> None:
        """Add a collection, and what is arranged of it: that has the columns that it has."""
        super().add(named)
        for name in self._arranged_of.get(named.name, ()):
            collection = self._arrangements[name].collection
            shape = replace(named.shape, predicate=name)
            super().add(
                CatalogEntry(name, collection, named.timeline, ARRANGEMENT, shape, named.ends)
            )

    def plan_view(self, stored: Stored) -> PlannedView:
        """The view over what can be read now, without adding it.

        Mistakes in its program have their places in the file, if these can be told. Raises:
        UsageError, ProgramErrors.
        """
        spec = stored.resource.spec
        assert isinstance(spec, ViewSpec)
        resource, file = stored.resource, stored.resource.position.file
        try:
            return self._planned(stored, spec, _told_in(resource))
        except ProgramErrors:
            begin = resource.blocks.get(("spec", "program"))
            if begin is None:
                raise
            program = laid_out(spec.program, begin)
            return self._planned(stored, msgspec.structs.replace(spec, program=program), file)

    def _planned(self, stored: Stored, spec: ViewSpec, file: str) -> PlannedView:
        resource = stored.resource
        program = self._programs.read(spec.program, file)
        inputs = self._inputs(stored, spec, program)
        schemas = {predicate: named.as_input(predicate) for predicate, named in inputs.items()}
        schemas |= number_schema(spec, program, schemas.values())
        with located(resource, "spec"):
            named = vocabulary.Named(spec.lattices, spec.functions)
            words = vocabulary_of(named, self._plugin_load_s)
        checked = self._programs.checked(spec.program, file, schemas, words, self.predicates)
        known = self._foreseen_view
        if (
            known is not None
            and known.program is checked
            and (known.inputs, known.stored.prefix) == (inputs, stored.prefix)
            and known.stored.resource == resource
        ):
            return replace(known, stored=stored)
        with located(resource, "spec", "program" if spec.tick is None else "tick"):
            columns = {p: named.shape.argument_columns for p, named in inputs.items()}
            missing = self._programs.missing(checked) if self._judges else None
            if missing is not None:
                raise UsageError(
                    f"refused: nothing can be kept with {missing}", reason="NotInDataflow"
                )
            ticks = tick_plan(spec, checked, columns)
        nodes = 1 if ticks is None else ticks.nodes
        outputs = outputs_of(stored, spec, checked, inputs, nodes)
        return PlannedView(stored, checked, inputs, outputs, ticks)

    def _inputs(self, stored: Stored, spec: ViewSpec, program: Program) -> dict[str, CatalogEntry]:
        """The inputs of a view by predicate: as decided at its apply, else as its names resolve
        now.
        """
        decided = stored.resolved.get(READS)
        if decided is not None:
            return {predicate: self.named(name) for predicate, name in decided.items()}
        derived, read = self._programs.predicates(program)
        wanted = read - {"clock"}
        with located(stored.resource, "spec", "tick"):
            wanted -= set(number_schema(spec, program))
        inputs: dict[str, CatalogEntry] = {}
        for predicate in sorted(wanted):
            if predicate in spec.inputs:
                with located(stored.resource, "spec", "inputs", predicate):
                    inputs[predicate] = self.named(spec.inputs[predicate])
            elif predicate not in derived and self.knows(predicate):
                inputs[predicate] = self.named(predicate)
        return inputs

    def reads_of(self, stored: Stored) -> dict[str, tuple[str, CatalogEntry]]:
        """The reads of a resource: its own name for each, as written, and the entry that the name
        means.

        A program that cannot be read has none: its plan reports the error. Raises: UsageError with
        its place.
        """
        spec, resource = stored.resource.spec, stored.resource
        if isinstance(spec, ArrangementSpec | HoldSpec):
            with located(resource, "spec", "collection"):
                return {COLLECTION: (spec.collection, self.named(spec.collection))}
        if isinstance(spec, ActionSpec):
            predicate = spec.goal.partition("(")[0].strip()
            with located(resource, "spec", "view"):
                outputs = self.planned(spec.view).outputs
            return {"view": (spec.view, outputs[predicate])} if predicate in outputs else {}
        if not isinstance(spec, ViewSpec):
            return {}
        try:
            program = self._programs.read(spec.program, _told_in(resource))
        except ProgramErrors:
            return {}
        undecided = replace(stored, resolved={})
        found = self._inputs(undecided, spec, program)
        return {p: (spec.inputs.get(p, p), named) for p, named in found.items()}

    def inputs_of(self, view: str) -> dict[str, InputSchema]:
        """The schemas of the inputs that a view's program may read, by predicate."""
        return {p: named.as_input(p) for p, named in self.planned(view).inputs.items()}

    def planned(self, name: str) -> PlannedView:
        """A view with its checked program. Raises: UnknownCollection naming what is close."""
        if name not in self._views:
            hint = meant(name, self._views)
            raise UnknownCollection(f"there is no view {name}{hint}", name=name)
        return self._views[name]

    def view(self, name: str) -> ViewOf:
        """A view as the query service sees it, made once: each proof asks for all of them."""
        if name not in self._shown:
            self._shown[name] = self._view_of(self.planned(name))
        return self._shown[name]

    def _view_of(self, planned: PlannedView) -> ViewOf:
        name = planned.stored.resource.name
        return ViewOf(
            name, planned.program,
            {p: named.readable() for p, named in planned.inputs.items()},
            {p: named.readable() for p, named in planned.outputs.items()},
            kept_in_words(planned.stored.resource.spec),
            None if planned.ticks is None else TicksOf(planned.ticks, state_of(planned), _begin(planned)),
        )  # fmt: skip

    def views(self) -> list[ViewOf]:
        """Every view as the query service sees it."""
        return [self.view(name) for name in self._views]

    def view_of(self, predicate: str) -> ViewOf:
        """The view that derives a predicate."""
        if predicate in self._named and self._named[predicate].kind != "View":
            reading = [
                name
                for name, planned in self._views.items()
                if any(named.name == predicate for named in planned.inputs.values())
            ]
            if reading:
                return self.view(reading[0])
        return self.view(self.named(predicate).name.rpartition("/")[0])

    def find(self, name: str) -> Readable:
        """A collection as the query service reads it; any collection by its id."""
        named = self.named(name)
        return replace(named.readable(), arranged=self.arranged(named.name))

    def source(self, name: str) -> SourceOf:
        """A source as the query service translates its offsets.

        Raises: UnknownCollection, UsageError.
        """
        named = self.named(name)
        found = self._sources.get(named.name)
        if found is None:
            raise UsageError(
                f"{name} is no source: only what a source reads has offsets; of a view ask for the sources "
                "that it reads",
                reason="NoSource",
            )
        return found

    def applied_source(self, name: str) -> Stored | None:
        """The source that makes the collection of that name, as it is applied; None if no source
        does.
        """
        return self._applied.get(name)

    def reads_itself(self, name: str, inputs: Iterable[CatalogEntry]) -> str | None:
        """The input by which a view would read, through others, what it derives itself."""
        for named in inputs:
            below = named.name.rpartition("/")[0] if named.kind == "View" else ""
            if below == name or (
                below and self.reads_itself(name, self.planned(below).inputs.values())
            ):
                return named.name
        return None

    def levels(self, resources: Sequence[Stored]) -> Iterator[list[Stored]]:
        """The planned resources, each in a later level than what it reads of them."""
        known = {(r.resource.kind, r.resource.name): r for r in resources}
        try:
            sorter = self._ordered(resources, {"Hold"})
        except CycleError:
            # A changed view may read what became of its own actions: those are there already.
            sorter = self._ordered(resources, {"Hold", "Action"})
        while sorter.is_active():
            ready = sorter.get_ready()
            yield [known[key] for key in ready]
            sorter.done(*ready)

    def _ordered(
        self, resources: Sequence[Stored], makes_nothing: Collection[str]
    ) -> TopologicalSorter[tuple[str, str]]:
        """The resources after what they read, but for what these kinds make. Raises: CycleError."""
        made = {r.resource.name: r for r in resources if r.resource.kind not in makes_nothing}
        reads: dict[tuple[str, str], set[tuple[str, str]]] = {}
        for stored in resources:
            names = {resource_of(name) for name in self._reading(stored)} & made.keys()
            before = {(made[n].resource.kind, n) for n in names}
            key = (stored.resource.kind, stored.resource.name)
            reads[key] = before - {key}
        sorter = TopologicalSorter(reads)
        sorter.prepare()
        return sorter

    def _reading(self, stored: Stored) -> list[str]:
        """The names that a resource reads as it runs; none where it could not be planned."""
        spec = stored.resource.spec
        if isinstance(spec, ViewSpec):
            planned = self._views.get(stored.resource.name)
            return [] if planned is None else [each.name for each in planned.inputs.values()]
        if isinstance(spec, ActionSpec):
            return [spec.view]
        if isinstance(spec, ArrangementSpec | HoldSpec):
            name = read_name(stored, spec.collection)
            return [self.named(name).name] if self.knows(name) else []
        return []

    def readers_of(self, name: str) -> list[str]:
        """The views that read what a resource makes."""
        return sorted(
            view
            for view, planned in self._views.items()
            for named in planned.inputs.values()
            if named.name == name or named.name.startswith(f"{name}/")
        )

    def roots_of(self, view: str) -> list[str]:
        """The collections of sources and tables that a view reads, itself or through other
        views.
        """
        return self.roots_below(self.planned(view).inputs.values())

    def roots_below(self, inputs: Iterable[CatalogEntry]) -> list[str]:
        """The collections of sources, tables and users that these inputs are made of."""
        found: dict[str, None] = {}
        waiting: list[Iterable[CatalogEntry]] = [inputs]
        seen: set[str] = set()
        while waiting:
            for read in waiting.pop():
                arranged = self._arrangements.get(read.name)
                named = read if arranged is None else self.named(arranged.of)
                below = named.name.rpartition("/")[0]
                if named.kind != "View":
                    found[named.collection] = None
                elif below not in seen:
                    seen.add(below)
                    waiting.append(self.planned(below).inputs.values())
        return list(found)

    def forget(self, name: str) -> None:
        """Leave out what a deleted resource made."""
        self._views.pop(name, None)
        self._shown.pop(name, None)
        self._sources.pop(name, None)
        for shared, sources in list(self._sharing.items()):
            sources.discard(name)
            if not sources:
                del self._sharing[shared]
                self.remove(f"{shared}/remap")
        self._applied.pop(name, None)
        self._disarrange(name)
        for each in self.below(name):
            self.remove(each)

    def timeline_of(self, timeline: str) -> list[str]:
        """The collections of event streams on a timeline."""
        return [
            named.collection
            for named in self._named.values()
            if named.timeline == timeline and named.shape.timed and named.kind == "Source"
        ]
