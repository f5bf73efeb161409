"""The digest of all rows that a view has told."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bench.inputs import digest_of_words
from bench.workloads.workload import Report

U64Array = npt.NDArray[np.uint64]


class Answers:
    """The digest of all rows that views have told, each as often as its diff says."""

    def __init__(self) -> None:
        self.sum, self.rows = 0, 0

    def add(self, columns: Sequence[U64Array], diffs: npt.NDArray[np.int64]) -> None:
        """Rows that a step has told."""
        self.sum += digest_of_words([np.ascontiguousarray(each) for each in columns], diffs)
        self.rows += int(diffs.sum())

    def into(self, report: Report) -> Report:
        """The report with this digest."""
        report.digest, report.rows = f"{self.sum % 2**64:016x}", self.rows
        return report
