"""A collection of many updates is made, merged, asked and scanned, at a size for every day."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.scale import updates
from tidemill.shard import Limits

FEW = Limits(part_bytes_max=1 << 20)
SMALL = {"updates": 1_000_000, "step": 20_000, "limits": FEW}


async def test_a_collection_of_a_million_updates_gives_every_answer() -> None:
    found = await updates.run(**SMALL)  # type: ignore[arg-type]
    assert found["updates"] == 995_000
    assert found["scanned_rows"] == 800_000 + 420_000
    assert found["rewritten_rows"] > 0
    assert found["parts"] > 8
    assert "bytes_per_update" in updates.shown(found)


@pytest.mark.parametrize("wrong", ["values_at", "sum_at", "rows_at"])
async def test_a_wrong_answer_ends_the_run(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(updates, wrong)
    monkeypatch.setattr(updates, wrong, lambda *given: right(*given) + 1)
    with pytest.raises(AssertionError):
        await updates.run(20_000, 4_000, replace(FEW, inline_bytes_max=0))


def test_closed_forms_are_what_the_updates_add_up_to() -> None:
    step, count, total = 2_000, 0, 0
    for at in range(4):
        made = updates.updates_at(at, step)
        diffs = np.array(made["_diff"].to_numpy())
        count += int(diffs.sum())
        total += int((np.array(made["val"].to_numpy()) * diffs).sum())
        assert (count, total) == (updates.rows_at(at, step), updates.sum_at(at, step))
    numbers = np.arange(10_000)
    assert np.array_equal(updates.number_of(updates.key_of(numbers)), numbers)
