"""States of the jobs that one process launched: for metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tidemill.spark.launcher import FailureKind, JobKind, JobSaid

STATES = ("pending", "running", "succeeded", "failed")


@dataclass(slots=True)
class JobBoard:
    """The newest state of each job, and the number of retries by the kind of failure before."""

    retries: Counter[FailureKind] = field(default_factory=Counter)
    _states: dict[tuple[JobKind, str], str] = field(default_factory=dict)

    def record(self, said: JobSaid) -> None:
        """Keep the state of a job, or count a retry by the failure before it."""
        if said.failure is not None:
            self.retries[said.failure] += 1
        elif said.state in STATES:
            self._states[said.job.kind, said.job.of] = said.state

    def jobs(self) -> dict[tuple[JobKind, str], int]:
        """Number of jobs by kind and state."""
        found = Counter((kind, state) for (kind, _), state in self._states.items())
        return {(kind, state): found[kind, state] for kind in JobKind for state in STATES}
