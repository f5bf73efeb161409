"""Dependencies of the work of this service."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.host.context import Context
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.shared_inputs import SharedInputs


@dataclass(frozen=True, slots=True)
class ComputeContext:
    """The process, settings of this service, and inputs that the views of the process share."""

    host: Context
    settings: ComputeSettings
    shared: SharedInputs = field(default_factory=SharedInputs)
