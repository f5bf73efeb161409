"""Ids and generators: unguessable, or repeating on purpose."""

from __future__ import annotations

from tidemill.runtime.ids import random_id
from tidemill.runtime.rng import new_rng


def test_random_ids_have_128_bits_and_differ() -> None:
    ids = {random_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(bytes.fromhex(each)) == 16 for each in ids)


def test_a_seed_repeats_a_generator() -> None:
    assert new_rng(7).random() == new_rng(7).random()
    assert new_rng().random() != new_rng().random()
