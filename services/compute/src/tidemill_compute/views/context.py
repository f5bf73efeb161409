"""Dependencies of the work of this service."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.host.context import Context
from tidemill.host.pace import Paces
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.shared_inputs import SharedInputs
from tidemill_compute.views.windows.session import WindowSession


@dataclass(frozen=True, slots=True)
class ComputeContext:
    """The process, settings of this service, and what the views of the process share.

    Views that are kept by windows share the driver of `session`, tables at rest the `paces`.
    """

    host: Context
    settings: ComputeSettings
    session: WindowSession
    paces: Paces
    shared: SharedInputs = field(default_factory=SharedInputs)
