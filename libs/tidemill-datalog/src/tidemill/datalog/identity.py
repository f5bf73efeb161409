"""Keys of caches by the identity of an object that never changes."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Same(Generic[T]):
    """A key that is equal to keys of the same object alone, and keeps it.

    To compare two programs costs as much as what is kept of them. Their literals 1 and true are
    equal to Python.
    """

    __slots__ = ("of",)

    def __init__(self, of: T) -> None:
        self.of = of

    def __hash__(self) -> int:
        return id(self.of)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.of is other.of
