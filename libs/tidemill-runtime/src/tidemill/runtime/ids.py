"""Sources of ids: unguessable ones for production, counted ones for tests that repeat."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import count


def random_id() -> str:
    """128 bits that nobody can guess, as 32 hexadecimal digits."""
    return secrets.token_hex(16)


def counted_ids(prefix: str = "") -> Callable[[], str]:
    """A source of ids that gives prefix + 1, prefix + 2, …; for tests, since anybody can guess
    them.
    """
    numbers = count(1)
    return lambda: f"{prefix}{next(numbers)}"
