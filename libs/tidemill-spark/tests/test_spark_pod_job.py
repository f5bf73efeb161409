"""The driver of a job first reads its specification: the one that was sent, and no other."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from tidemill.errors import UsageError
from tidemill.shard.stores import BlobPlace, open_blob
from tidemill.spark import pod_job
from tidemill.spark.launcher import Job, JobKind
from tidemill.spark.pod_settings import PodSettings
from tidemill.spark.pod_specs import Attempt, PodJob, driver_pod


class _Session:
    """In place of Spark, which has no part in this."""

    def stop(self) -> None:
        """Nothing runs."""


def told_by(pod: dict[str, object], place: BlobPlace) -> PodJob:
    """The command line of a driver, with the objects in a folder of this test."""
    spec = pod["spec"]
    assert isinstance(spec, dict)
    told = msgspec.json.decode(spec["containers"][0]["args"][0], type=PodJob)
    return msgspec.structs.replace(told, blob=place, template={})


def test_h1_a_specification_that_was_exchanged_in_the_bucket_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    module = ModuleType("jobs_that_look")
    module.run = lambda spec, here: seen.append(spec) or b"result"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jobs_that_look", module)
    monkeypatch.setattr(pod_job, "session_of", lambda name, conf: _Session())
    place = BlobPlace(f"file:{tmp_path}")
    job = Job(JobKind.HYDRATION, "late", "jobs_that_look", b"what was asked for")
    attempt = Attempt(job, 1)
    s3 = BlobPlace("s3://bucket/prefix?endpoint=http://objects:7070", "key", "secret")
    told = told_by(driver_pod(attempt, "jobs", PodSettings(namespace="jobs"), s3, None), place)
    blob = open_blob(place, lambda: "1")
    blob.put_now(told.spec, b"what somebody else put there")
    with pytest.raises(UsageError, match="is not the one that was sent"):
        pod_job.run(told)
    assert not seen
    blob.put_now(told.spec, job.spec)
    pod_job.run(told)
    assert seen == [job.spec]
    assert blob.get_now(told.result) == b"result"
