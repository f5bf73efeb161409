"""Dataclasses of which a program has many: nodes of its syntax tree and of its plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses
    from functools import partial

    def dataclass(*, frozen, slots):
        """A dataclass with a hash that is frozen for the type checker alone.

        One that refuses writes while it runs takes five times as long to make.
        """
        return partial(dataclasses.dataclass, slots=slots, unsafe_hash=frozen)


__all__ = ["dataclass"]
