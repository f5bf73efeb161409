"""Names of collections, and the indexes by which an entry is found however many there are."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from itertools import islice

from tidemill.catalog.entry import CREATED, CatalogEntry
from tidemill.errors import AlreadyUsed, UnknownCollection, UsageError
from tidemill.rpc.identity import listed

COMPARED_MAX = 50
"""Names that an unknown one is compared with on the event loop: twice some 25 µs each."""


def meant(name: str, known: Collection[str]) -> str:
    """The end of a refusal that proposes the known name which is written almost so; empty without
    one.

    Of many names only those with the same first letter are compared, in the part that users write.
    """
    if len(known) > COMPARED_MAX:
        first = name[:1]
        alike = (each for each in known if first in (each[:1], each.rpartition("/")[2][:1]))
        known = list(islice(alike, COMPARED_MAX))
    seen = listed(known)
    compared = dict.fromkeys(each.rpartition("/")[2] for each in seen) | dict.fromkeys(seen)
    close = get_close_matches(name, compared, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def refuse_disguised(name: str) -> None:
    """Raise UsageError for the name of a new collection that is not what a reader takes it for.

    Some characters are not shown, and move a terminal; some marks are joined by a normal form. An
    empty part, or one of dots, names a folder. `~` stands in names of what was made anew.
    """
    normal = name.isprintable() and unicodedata.is_normalized("NFC", name)
    if not normal or "~" in name or any(part.strip(" .") == "" for part in name.split("/")):
        raise UsageError(
            f"the name {name[:64]!r} is refused: write one of characters that are shown, in normal "
            "form C, without ~, with no part empty or of dots alone between its slashes",
            reason="Name",
        )


def resource_of(name: str) -> str:
    """The resource whose collection has the name; of what users created, its first part."""
    return name.partition("/")[0]


class Names:
    """Every collection under its name; a name is found by its resource, predicate or collection at
    once.
    """

    def __init__(self) -> None:
        self._named: dict[str, CatalogEntry] = {}
        self._of_resource: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._of_collection: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._of_predicate: defaultdict[str, dict[str, None]] = defaultdict(dict)
        """Of outputs of views."""
        self._created: dict[str, None] = {}

    def add(self, named: CatalogEntry) -> None:
        """Bind the name of an entry to it, in place of the entry before."""
        self._unindex(named.name)
        self._named[named.name] = named
        for index, key in self._indexed(named):
            index[key][named.name] = None
        if named.kind == CREATED:
            self._created[named.name] = None

    def remove(self, name: str) -> None:
        """Forget a name, if it is known."""
        self._unindex(name)
        self._named.pop(name, None)

    def _unindex(self, name: str) -> None:
        if name in self._named:
            for index, key in self._indexed(self._named[name]):
                del index[key][name]
                if not index[key]:
                    del index[key]
            self._created.pop(name, None)

    def _indexed(
        self, named: CatalogEntry
    ) -> Iterator[tuple[defaultdict[str, dict[str, None]], str]]:
        yield self._of_resource, resource_of(named.name)
        yield self._of_collection, named.collection
        if named.kind == "View":
            yield self._of_predicate, named.name.rpartition("/")[2]

    def name_of(self, collection: str) -> str:
        """By which name its readers know a collection; its own where there is none."""
        if collection in self._named:
            return collection
        found = iter(self._of_collection.get(collection, ()))
        return next(found, collection)

    def collection_of(self, name: str) -> str:
        """The collection that readers know by a name; one that is nobody's by its own."""
        return self.named(name).collection if self.knows(name) else name

    def created(self, name: str) -> str | None:
        """The collection that users have created under this name, or below it."""
        return next((each for each in self.below(name) if each in self._created), None)

    def below(self, name: str) -> list[str]:
        """The names of entries that are this name, or that begin with it and a slash."""
        known = self._of_resource.get(resource_of(name), ())
        return [each for each in known if each == name or each.startswith(f"{name}/")]

    def all_created(self) -> list[str]:
        """Everything that users have created."""
        return list(self._created)

    def created_as(self, name: str) -> str:
        """The collection that users created under this name.

        Raises: UnknownCollection, UsageError.
        """
        named = self.named(name)
        if named.kind != CREATED:
            raise UsageError(
                f"{name} belongs to {named.kind} {resource_of(name)}: delete that",
                reason="NotCreated",
            )
        return named.collection

    def refuse_taken(self, name: str) -> None:
        """Raises: AlreadyUsed if a resource gives the name to what it makes."""
        head = resource_of(name)
        for each in self.below(head):
            if each not in self._created:
                kind = self._named[each].kind
                raise AlreadyUsed(f"the name {name} belongs to {kind} {head}", collection=name)

    def belongs(self, collection: str, resource: str) -> bool:
        """Whether a resource makes the collection of that name, however it is named."""
        if not self.knows(collection):
            return False
        return resource_of(self.named(collection).name) == resource

    def resources(self) -> set[str]:
        """The names of what makes the collections that are known."""
        return set(self._of_resource)

    def knows(self, name: str) -> bool:
        """Whether the name, or a predicate of one view, can be read."""
        return name in self._named or len(self._deriving(name)) == 1

    def predicates(self) -> tuple[str, ...]:
        """The names by which programs can read what there is."""
        names = dict.fromkeys(name.rpartition("/")[2] for name in listed(self._named))
        return tuple(name for name in names if self.knows(name))

    def _deriving(self, predicate: str) -> list[str]:
        return list(self._of_predicate.get(predicate, ()))

    def named(self, name: str) -> CatalogEntry:
        """A collection by its name, or by its predicate if only one view derives it."""
        if name in self._named:
            return self._named[name]
        deriving = self._deriving(name)
        if len(deriving) == 1:
            return self._named[deriving[0]]
        if deriving:
            raise UnknownCollection(
                f"{name} is derived by several views: name one of {', '.join(sorted(listed(deriving)))}"
            )
        raise UnknownCollection(f"there is no {name}{meant(name, self._named)}", name=name)
