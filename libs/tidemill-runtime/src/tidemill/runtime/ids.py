"""Ids that nobody can guess."""

from __future__ import annotations

import secrets


def random_id() -> str:
    """128 bits that nobody can guess, as 32 hexadecimal digits."""
    return secrets.token_hex(16)
