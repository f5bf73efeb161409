"""States of the jobs that one process launched: for metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tidemill.spark.launcher import FailureKind, JobKind, JobSaid

STATES = ("pending", "running", "succeeded", "failed")


@dataclass(slots=True)
class JobBoard:
    """The newest state of each job, and how often attempts were begun again, by why the last one
    failed.
    """

    retries: Counter[FailureKind] = field(default_factory=Counter)
    _states: dict[tuple[JobKind, str], str] = field(default_factory=dict)

    def hear(self, said: JobSaid) -> None:
        """Take in what a launcher says."""
        if said.failure is not None:
            self.retries[said.failure] += 1
        elif said.state in STATES:
            self._states[said.job.kind, said.job.of] = said.state

    def jobs(self) -> dict[tuple[JobKind, str], int]:
        """Number of jobs by kind and state."""
        found = Counter((kind, state) for (kind, _), state in self._states.items())
        return {(kind, state): found[kind, state] for kind in JobKind for state in STATES}
