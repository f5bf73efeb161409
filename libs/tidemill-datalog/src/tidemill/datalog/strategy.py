"""The orders in which changes flow through a program; answers are the same."""

from __future__ import annotations

from typing import Literal, TypeAlias

Strategy: TypeAlias = Literal["strata", "retraction"]
"""`strata` settles one stratum after the other. `retraction` lets each change through at once, and
takes back early results."""
