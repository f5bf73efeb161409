"""From source progress (FromTime) to our times (IntoTime).

A remap collection binds source frontiers to our times. Here it is minted, translated both ways,
used to give each source update its time, and asked where to go on after a restart.
"""

from tidemill.reclock.covering import covered_since
from tidemill.reclock.keyed import (
    CHANGE_SCHEMA,
    BrokenChange,
    Change,
    Keyed,
    KeyedRows,
    letters_of,
    pack_row,
    unpack_row,
)
from tidemill.reclock.live import LiveReclock, LiveUpdates
from tidemill.reclock.mapping import contents_at, source_upper, target_frontier, target_times
from tidemill.reclock.minting import MintAt, Minter, Proposal, Wait, mint_time
from tidemill.reclock.offsets import UNBOUND, Bindings, map_offsets, prepare_mapping
from tidemill.reclock.remap import Binding, RemapTrace
from tidemill.reclock.remap_rows import (
    REMAP_SCHEMA,
    bindings_of_rows,
    remap_problems,
    rows_of_bindings,
)
from tidemill.reclock.resuming import (
    CommitFeedback,
    resume_as_of,
    resume_points,
    resume_source,
)

__all__ = [
    "CHANGE_SCHEMA",
    "BrokenChange",
    "Change",
    "Keyed",
    "KeyedRows",
    "letters_of",
    "pack_row",
    "unpack_row",
    "Binding",
    "Bindings",
    "CommitFeedback",
    "LiveReclock",
    "LiveUpdates",
    "MintAt",
    "Minter",
    "Proposal",
    "REMAP_SCHEMA",
    "RemapTrace",
    "UNBOUND",
    "Wait",
    "bindings_of_rows",
    "contents_at",
    "covered_since",
    "map_offsets",
    "prepare_mapping",
    "mint_time",
    "remap_problems",
    "resume_as_of",
    "resume_points",
    "resume_source",
    "rows_of_bindings",
    "source_upper",
    "target_frontier",
    "target_times",
]
