"""A rule between fields that does not hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from tidemill.runtime.problems import FieldPath

SpecDocument: TypeAlias = dict[str, Any]  # a spec that fits its schema


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that does not hold, at a path within the spec."""

    path: FieldPath
    says: str
    hint: str = ""
