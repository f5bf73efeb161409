"""Generators of random numbers: handed to code that shuffles or backs off."""

from __future__ import annotations

import random


def new_rng(seed: int | None = None) -> random.Random:
    """A generator of its own; with a seed it repeats itself exactly."""
    return random.Random(seed)
