"""Specifications of jobs: a driver of another version does what it was told, or refuses it."""

from __future__ import annotations

import msgspec
import pytest

from tidemill_compaction.merge_job import MergeSpec
from tidemill_compute.arrange_job import ArrangeSpec
from tidemill_compute.views.windows.mailbox import SessionSpec
from tidemill_compute.views.windows.spec import Window
from tidemill_reclock.backfill_job import BackfillSpec
from tidemill_reclock.keyed_job import KeyedSpec

SPECIFICATIONS = (ArrangeSpec, BackfillSpec, KeyedSpec, MergeSpec, SessionSpec, Window)


@pytest.mark.parametrize("kind", SPECIFICATIONS)
def test_a_field_that_a_driver_does_not_know_is_refused(kind: type[msgspec.Struct]) -> None:
    """An older image that passed over the lists of a window would answer without their parts."""
    packed = msgspec.msgpack.encode({"a field of a later version": 1})
    with pytest.raises(msgspec.ValidationError, match="unknown field `a field of a later version`"):
        msgspec.msgpack.decode(packed, type=kind)
