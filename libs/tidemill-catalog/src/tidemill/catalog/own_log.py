"""Topics of the log of this system: the sources that read it, and to whom its topics belong."""

from __future__ import annotations

from tidemill.catalog.store import Stored
from tidemill.runtime.resources import SourceSpec

OWN_PREFIX = "tidemill."
"""Topics of the log of this system in which processes talk among themselves."""

PUSHED_PREFIX = "http."
"""Topics of the same log that hold what is pushed: the name of the source follows."""


def in_own_log(spec: SourceSpec) -> bool:
    """Whether the source reads the log of this process."""
    return spec.file is None and (spec.kafka is None or spec.kafka.bootstrap is None)


def topic_of(stored: Stored) -> str:
    """The topic that a source on a log reads."""
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    # A name of a resource has no dot, so the number of an incarnation behind one is unambiguous.
    return (
        spec.kafka.topic
        if spec.kafka is not None
        else f"{PUSHED_PREFIX}{stored.prefix.replace('~', '.')}"
    )


def owner_of(topic: str) -> str | None:
    """The source that a topic of the own log belongs to; None for one that anybody may use."""
    if not topic.startswith(PUSHED_PREFIX):
        return None
    return topic.removeprefix(PUSHED_PREFIX).partition(".")[0]
