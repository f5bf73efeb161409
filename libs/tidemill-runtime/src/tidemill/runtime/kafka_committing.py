"""Commits of offsets that their caller gave up: what becomes of them is nobody's business.

aiokafka shields a commit that is under way from the cancellation of who waits for it, and awaits it
nowhere else. The event loop would report its failure as an error, at a later time. This module
reaches into a part of aiokafka for that, and is therefore tied to one minor version.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer


def forget_commits_given_up(committer: AIOKafkaConsumer) -> None:
    """After this no commit of a started member is reported that nobody waits for any more."""
    coordinator = committer._coordinator
    commit = coordinator._do_commit_offsets

    def begin(*commits: Any) -> asyncio.Task[None]:  # aiokafka ships no types
        task = asyncio.create_task(commit(*commits))
        task.add_done_callback(lambda told: told.cancelled() or told.exception())
        return task

    coordinator._do_commit_offsets = begin
